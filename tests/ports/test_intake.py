"""The tables of the intake, on each store: the cursor with its reader, and the waiting commands."""

import asyncio
from typing import Any

import pytest

from tests.harness.clock import NOW
from tests.harness.raw_nats import header_block
from timer_service.core.intake import cursor, waiting_rows
from timer_service.core.intake.cursor import LEASE_MS, LostCursorError, Place, Taken
from timer_service.core.intake.waiting_rows import ROW_BYTES, ROW_COMMANDS, TenantWaits, WaitingRow, rows_of
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.log import LogCursor
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Position
from timer_service.core.values.raw_command import Headers, RawCommand

READ = LogCursor("a log", 7, 40, 1_800_000_000_123_456_789)
LARGE = LogCursor("2026-11-22T09:00:00.123456789Z", 2**50, 2**60, 2**62)


async def take(store: Database, reader: str, now: int = NOW) -> Taken:
    taken = await cursor.take(store, reader, now)
    assert taken is not None
    return taken


async def move(store: Database, place: Place, now: int = NOW, **changes: Any) -> Place:
    return await in_transaction(store, lambda tx: cursor.move(tx, place._replace(**changes), now))


# The cursor


@pytest.mark.parametrize("place", [READ, LARGE])
async def test_cursor_is_kept(store: Database, place: LogCursor) -> None:
    """What one process has written, the next one finds, to the nanosecond."""
    taken = await take(store, "one")
    moved = await move(store, taken.place, cursor=place)
    await cursor.release(store, "other")  # it is not the reader, so this changes nothing
    moved = await move(store, moved)
    found = await take(store, "one")
    assert found.place.cursor == place
    assert await cursor.find(store.reader) == place
    assert (found.is_new, found.after_crash) == (False, False)
    assert taken.place.revision < moved.revision < found.place.revision


async def test_one_reader(store: Database) -> None:
    """A second process reads when the lease is over, which each transaction extends. Then the first has died.

    A database that only one process can use needs no lease: a process that takes it knows that no other one reads.
    """
    taken = await take(store, "one")
    await move(store, taken.place, NOW + 1000, cursor=READ)
    found = [await cursor.take(store, "two", NOW + after) for after in (0, 1000, 1000 + LEASE_MS)]
    if store.exclusive:
        assert None not in found
        return
    assert found == [None, None, None]
    second = await take(store, "two", NOW + 1001 + LEASE_MS)
    assert (second.place.cursor, second.after_crash, second.is_new) == (READ, True, False)
    assert second.database_id == taken.database_id
    assert await cursor.take(store, "one", NOW + 1001 + LEASE_MS) is None


async def test_after_an_orderly_stop(store: Database) -> None:
    """After a release, another process reads at once, and without care."""
    taken = await take(store, "one")
    await move(store, taken.place, cursor=READ)
    await cursor.release(store, "one")
    second = await take(store, "two")
    assert (second.after_crash, second.place.cursor) == (False, READ)


async def test_lease_from_a_clock_that_was_ahead(store: Database) -> None:
    """If a reader whose clock was an hour ahead has died, nobody waits for an hour."""
    await take(store, "one", NOW + 3_600_000)
    second = await take(store, "two", NOW)
    assert second.after_crash


async def test_processes_that_begin_at_once(store: Database) -> None:
    """Of several processes that begin at the same time, the last one to take a database has it, and only that one."""
    found = await asyncio.gather(*(cursor.take(store, f"{number}", NOW) for number in range(5)))
    taken = [each for each in found if each is not None]
    assert len({each.database_id for each in taken}) == 1
    assert len(taken) == (5 if store.exclusive else 1)
    newest = max(taken, key=lambda each: each.place.revision)
    for each in taken:
        if each is newest:
            await move(store, each.place, cursor=READ)
        else:
            with pytest.raises(LostCursorError):
                await move(store, each.place, cursor=LARGE)
    assert await cursor.find(store.reader) == READ


async def write_and_move(tx: Transaction, place: Place, sequence: int) -> Place:
    """Store a command, and move the cursor last."""
    await waiting_rows.add(tx, rows_of([raw(sequence)]))
    return await cursor.move(tx, place, NOW)


async def test_transactions_at_the_same_place(store: Database) -> None:
    """Of several transactions that begin at the same place, exactly one commits."""
    place = (await take(store, "one")).place._replace(cursor=READ)

    async def commit(sequence: int) -> object:
        return await in_transaction(store, lambda tx: write_and_move(tx, place, sequence), accepting=True)

    done = await asyncio.gather(*map(commit, range(3)), return_exceptions=True)
    (row,) = await first_rows(store, "acme")
    committed = [number for number, each in enumerate(done) if isinstance(each, Place)]
    assert [each.position.sequence for each in row.commands] == committed
    assert [type(each) for each in done].count(LostCursorError) == 2


# Waiting commands


def raw(
    sequence: int,
    tenant: str = "acme",
    *,
    body: bytes = b"body",
    block: bytes = b"",
    message: str = "schedule-timer",
    epoch: int = 1,
    size: int | None = None,
) -> RawCommand:
    """Return a command of the log."""
    source = f"timer.cmd.v1.{tenant}.{message}"
    headers = Headers(block)
    found = len(source.encode()) + len(body) + len(block) if size is None else size
    position, stored_at = Position(epoch, sequence), NOW * 1_000_000 + sequence % 10**9
    return RawCommand(Address(Kind.COMMAND, tenant, message), source, body, headers, position, found, stored_at)


def parts(command: RawCommand) -> tuple[object, ...]:
    """Return all fields of a command. It compares as an object otherwise."""
    return (
        command.address,
        command.source,
        command.body,
        command.headers.block,
        command.position,
        command.size,
        command.stored_at,
    )


async def store_waiting(store: Database, *commands: RawCommand) -> None:
    await in_transaction(store, lambda tx: waiting_rows.add(tx, rows_of(commands)))


async def first_rows(store: Database, *tenants: str) -> list[WaitingRow]:
    return await waiting_rows.find_first(store.reader, tenants)


async def first_row(store: Database, tenant: str = "acme") -> WaitingRow:
    (row,) = await first_rows(store, tenant)
    return row


async def advance(store: Database, row: WaitingRow, number: int) -> None:
    await in_transaction(store, lambda tx: waiting_rows.advance(tx, row, number))


async def read_all(store: Database, tenant: str) -> list[RawCommand]:
    """Take the commands of a tenant out of the table, row by row."""
    commands: list[RawCommand] = []
    while rows := await first_rows(store, tenant):
        commands += rows[0].commands
        await advance(store, rows[0], len(rows[0].commands))
    return commands


HOSTILE = [
    raw(1, body=bytes(range(256))),
    raw(2, body=b"", block=header_block(b"X: \xff\x00", b": no name", b"no colon", "ä: ü".encode())),
    raw(3, block=b"NATS/1.0\r\n" + b"n:\r\n" * 10_000),
    raw(4, body=b"x" * 1_000_000),
    raw(5, message=r"\xff ü *"),
    raw(2**60, body=b"", size=0),
]


async def test_commands_come_back(store: Database) -> None:
    """Whatever bytes a command has, it comes back as it was, in the order of the log."""
    await store_waiting(store, *HOSTILE)
    assert [parts(each) for each in await read_all(store, "acme")] == [parts(each) for each in HOSTILE]


async def test_tenants_that_are_none(store: Database) -> None:
    """Commands of texts that are no tenants wait together, under one name and in their order. Their texts stay."""
    texts = ["", "Ä!", "\x00", r"\xff", "x" * 4000, "acme\n", "a.b", "~unreadable", "acme "]
    commands = [raw(number, tenant) for number, tenant in enumerate(texts)]
    await store_waiting(store, raw(100), *commands)
    found = await read_all(store, waiting_rows.waiting_name("Ä!"))
    assert [parts(each) for each in found] == [parts(each) for each in commands]
    assert [each.position.sequence for each in await read_all(store, "acme")] == [100]


async def test_rows_are_bounded(store: Database) -> None:
    """A row has commands of one tenant, up to a number and to a size. A larger command has a row alone."""
    body = ROW_BYTES // 4
    commands = [
        *(raw(number, body=b"") for number in range(ROW_COMMANDS + 1)),
        *(raw(2_000 + number, body=b"x" * body) for number in range(5)),
        raw(3_000, body=b"x" * (ROW_BYTES + 1)),
        raw(3_001),
    ]
    rows = rows_of(commands)
    assert [len(row.commands) for row in rows] == [ROW_COMMANDS, 4, 2, 1, 1]
    assert all(row.size == sum(each.size for each in row.commands) for row in rows)
    assert all(row.size <= ROW_BYTES or len(row.commands) == 1 for row in rows)
    await store_waiting(store, *commands)
    assert [each.position for each in await read_all(store, "acme")] == [each.position for each in commands]


async def test_commands_of_several_rows(store: Database) -> None:
    """Of the commands that a transaction has applied, each row has as many as it gave to the transaction."""
    await store_waiting(store, *(raw(number) for number in range(5)))
    row = await first_row(store)
    rows = [row._replace(limit=2), row._replace(limit=1), row]
    found = [[each for _, each in waiting_rows.applied_of_rows(rows, number)] for number in (0, 1, 2, 5)]
    assert found == [[], [1], [2], [2, 1, 2]]


async def test_partial_progress(store: Database) -> None:
    """A row of which some commands were applied has the others. It is gone when all were."""
    await store_waiting(store, *(raw(number) for number in range(1, 6)))
    row = await first_row(store)
    await in_transaction(store, lambda tx: waiting_rows.mark(tx, row._replace(deaths=1), 1))
    marked = await first_row(store)
    await in_transaction(store, lambda tx: waiting_rows.postpone(tx, row, NOW + 5, 2, "broken"))
    failed = await first_row(store)  # the process has survived it
    assert (marked.tried, marked.deaths, failed.tried, failed.deaths) == (1, 1, 0, 0)
    found = []
    for number in (0, 2, 1, 2):
        await advance(store, await first_row(store), number)
        rows = await first_rows(store, "acme")
        found += [(row.commands[0].position.sequence, row.done, row.attempt, row.is_held_back) for row in rows]
    assert found == [(1, 0, 2, True), (3, 2, 0, False), (4, 3, 0, False)]
    assert await waiting_rows.find_tenants(store.reader, ["acme"]) == set()


async def test_commands_before_a_position_that_are_ready(store: Database) -> None:
    """A command waits that may be applied now if it is up to a position and its tenant's first command is not held."""
    await store_waiting(store, raw(10, "a"), raw(20, "b"))
    await store_waiting(store, raw(5, "later"))
    later = await first_row(store, "later")
    await in_transaction(store, lambda tx: waiting_rows.postpone(tx, later, NOW + 1, 1, "broken"))

    async def ready(epoch: int, sequence: int, now: int = NOW) -> bool:
        return await waiting_rows.is_ready(store.reader, Position(epoch, sequence), now)

    found = [await ready(*each) for each in ((0, 99), (1, 4), (1, 9), (1, 10), (1, 20), (2, 0))]
    assert found == [False, False, False, True, True, True]
    assert await ready(1, 9, NOW + 1)


async def test_what_waits_of_each_tenant(store: Database) -> None:
    """A new process finds how many commands of each tenant wait, their bytes, and when the first may be applied.

    The bytes of a row count until all its commands are applied. A tenant that is postponed has older rows to wait for.
    """
    await store_waiting(store, raw(1, "a"), raw(2, "a"), raw(3, "b"), raw(4, "gone"))
    await store_waiting(store, raw(5, "b"))
    first, late, gone = await first_rows(store, "a", "b", "gone")
    await advance(store, first, 1)
    await advance(store, gone, 1)
    await in_transaction(store, lambda tx: waiting_rows.postpone(tx, late, NOW + 5_000, 1, "broken"))
    found = await waiting_rows.find_all(store.reader)
    assert found == {"a": TenantWaits(1, first.size, 0), "b": TenantWaits(2, 2 * late.size, NOW + 5_000)}
