"""The waiting commands: their rows, and what the reader knows of them."""

import pytest

from tests.harness.builders import command_address, raw_command
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake import waiting_rows as rows
from timer_service.core.intake.waiting import Waiting
from timer_service.core.intake.waiting_rows import ROW_BYTES, ROW_COMMANDS, rows_of
from timer_service.core.values.dead_letter import UNREADABLE
from timer_service.core.values.message import MAX_MESSAGE_BYTES, Position
from timer_service.core.values.raw_command import RawCommand

NOW = 1000
MANY = 10**9


def command(sequence: int, tenant: str = "acme", body: bytes = b"", epoch: int = 1) -> RawCommand:
    address = command_address(tenant)
    return raw_command(body, address=address, position=Position(epoch, sequence), stored_at=sequence + 7)


@pytest.fixture
def waiting() -> Waiting:
    """Return what is known of three tenants. The second one must not be tried before 2000."""
    waiting = Waiting()
    for tenant, number, size, available_at in (("a", 2, 10, NOW), ("b", 3, 20, 2 * NOW), ("c", 1, 40, NOW)):
        waiting.added(tenant, number, size)
        waiting.postponed(tenant, available_at)
    return waiting


def test_turns(waiting: Waiting) -> None:
    """The tenants take turns. One that has had its turn is behind all others."""
    found = []
    for _ in range(4):
        turn = waiting.next_tenants(3 * NOW, 1, MANY)
        waiting.end_turn(turn)
        found += turn
    assert found == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("now", "limit", "most_bytes", "tenants"),
    [
        (0, MANY, MANY, []),
        (NOW, MANY, MANY, ["a", "c"]),
        (2 * NOW, MANY, MANY, ["a", "b", "c"]),
        (2 * NOW, 2, MANY, ["a"]),
        (2 * NOW, 3, MANY, ["a", "b"]),
        (2 * NOW, MANY, 5, ["a"]),
        (2 * NOW, MANY, 11, ["a", "b"]),
    ],
)
def test_whose_turn_it_is(waiting: Waiting, now: int, limit: int, most_bytes: int, tenants: list[str]) -> None:
    """These are the tenants whose time has come, until they have enough commands or bytes; at least one."""
    assert waiting.next_tenants(now, limit, most_bytes) == tenants
    assert waiting.has_ready(now) == bool(tenants)


def test_a_tenant_with_much(waiting: Waiting) -> None:
    """A tenant counts with no more than what its oldest row can have."""
    waiting.added("a", 100 * ROW_COMMANDS, 100 * MAX_MESSAGE_BYTES)
    assert waiting.next_tenants(2 * NOW, ROW_COMMANDS + 1, MAX_MESSAGE_BYTES + 1) == ["a", "b"]


def test_what_is_known(waiting: Waiting) -> None:
    """A tenant is known until all its commands are applied. The numbers and bytes of all tenants are known."""
    assert (list(waiting), waiting.number, waiting.size, waiting.next_at()) == (["a", "b", "c"], 6, 70, NOW)
    waiting.applied("a", 1, 0)
    waiting.applied("c", 1, 40)
    assert (list(waiting), waiting.number, waiting.size) == (["a", "b"], 4, 30)
    waiting.applied("a", 1, 10)
    assert ("a" in waiting, waiting.number, waiting.size, waiting.next_at()) == (False, 3, 20, 2 * NOW)
    waiting.applied("b", 3, 20)
    assert (len(waiting), waiting.number, waiting.size, waiting.next_at()) == (0, 0, 0, None)


def test_a_tenant_that_is_postponed(waiting: Waiting) -> None:
    """A postponed tenant has no turn before its time, also if it gets more commands. A success ends that."""
    waiting.postponed("a", 5 * NOW)
    waiting.added("a", 1, 1)
    found = [waiting.next_tenants(4 * NOW, MANY, MANY), waiting.next_tenants(5 * NOW, MANY, MANY)]
    waiting.applied("a", 1, 0)
    assert [*found, waiting.next_tenants(NOW, MANY, MANY)] == [["b", "c"], ["a", "b", "c"], ["a", "c"]]


def test_retry_all(waiting: Waiting) -> None:
    """When what made commands fail is over, all tenants have their turn at once."""
    waiting.retry_all()
    assert waiting.next_tenants(0, MANY, MANY) == ["a", "b", "c"]


def test_rows_of_commands() -> None:
    """Each tenant has its own rows, of limited size and of one epoch. Names that no tenant can have share rows."""
    large = b"x" * (ROW_BYTES // 2)
    stored = [
        *(command(number, "many") for number in range(1, ROW_COMMANDS + 2)),
        *(command(number, "large", large) for number in range(1, 4)),
        *(command(number, "huge", 3 * large) for number in range(1, 3)),
        *(command(1, "epochs", epoch=epoch) for epoch in (1, 2)),
        *(command(1, name) for name in ("a b", "", "ä")),
    ]
    found: dict[str, list[int]] = {}
    for row in rows_of(stored):
        found.setdefault(row.tenant, []).append(len(row.commands))
        assert row.size == sum(each.size for each in row.commands)
    expected = {"many": [ROW_COMMANDS, 1], "large": [1, 1, 1], "huge": [1, 1], "epochs": [1, 1], UNREADABLE: [3]}
    assert found == expected


async def test_stored_commands(sqlite: SqliteDatabase) -> None:
    """A command is read as it was stored. A row without its applied commands has the others, in order."""
    stored = [
        RawCommand(
            command_address("acme", message),
            f"timer.cmd.v1.acme.{message}",
            body,
            raw_command(headers=headers).headers,
            Position(3, 2**53 + number),
            size,
            2**62 + number,
        )
        for number, (message, body, headers, size) in enumerate(
            [
                ("schedule-timer", b"{}", {}, 1),
                (r"\xff ä", b"\x00\xff" * 99, {"a": "1", "ü": "2"}, 2000),
                ("", b"", {"Nats-Msg-Id": "message-1"}, 0),
            ]
        )
    ]
    async with sqlite.transaction() as tx:
        await rows.add(tx, rows_of(stored))
    (row,) = await rows.find_first(sqlite.reader, ["acme"])
    assert [fields(each) for each in row.commands] == [fields(each) for each in stored]
    async with sqlite.transaction() as tx:
        await rows.advance(tx, row, 1)
    (row,) = await rows.find_first(sqlite.reader, ["acme"])
    assert [fields(each) for each in row.commands] == [fields(each) for each in stored[1:]]
    async with sqlite.transaction() as tx:
        await rows.advance(tx, row, 2)
    assert await rows.find_first(sqlite.reader, ["acme"]) == []


def fields(raw: RawCommand) -> tuple[object, ...]:
    return (raw.address, raw.source, raw.body, raw.headers.block, raw.position, raw.size, raw.stored_at)


async def test_known_after_a_start(sqlite: SqliteDatabase) -> None:
    """A process that begins to read knows the same as the one before it."""
    before = Waiting()
    async with sqlite.transaction() as tx:
        for row in rows_of([command(1, "a"), command(2, "b"), command(3, "a")]):
            await rows.add(tx, [row])
            before.added(row.tenant, len(row.commands), row.size)
        for row in rows_of([command(4, "a")]):
            await rows.add(tx, [row])
            before.added(row.tenant, 1, row.size)
    (first, other) = await rows.find_first(sqlite.reader, ["a", "b"])
    async with sqlite.transaction() as tx:
        await rows.advance(tx, first, 1)
        await rows.postpone(tx, other, 9 * NOW, 1, "a bug")
    before.applied("a", 1, 0)
    before.postponed("b", 9 * NOW)
    after = Waiting()
    after.load(await rows.find_all(sqlite.reader))
    for each in (before, after):
        assert (sorted(each), each.number, each.size) == (["a", "b"], 3, before.size)
        assert [each.next_tenants(at, MANY, MANY) for at in (NOW, 9 * NOW)] == [["a"], ["a", "b"]]
