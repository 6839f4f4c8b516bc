"""Whose fault it is that a command cannot be handled, and what happens to the other commands meanwhile."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import NoReturn
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.harness.builders import cancel_timer, command, schedule_timer
from tests.harness.cases import case
from tests.harness.clock import ManualClock, after
from tests.harness.databases import Databases
from tests.harness.stores import bring_to_head
from tests.harness.timers import Timers, always
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import FEATURES, MemoryBroker, MemorySubscription, never
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.intake.suspects import Suspects
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import DatabaseSetupError, DatabaseUnavailableError
from timer_service.core.values.message import Command, Kind, Message, Position
from timer_service.events import SLICE as EVENTS
from timer_service.timers import SLICE

ROUNDS = 30
ADD_PART = (
    "INSERT INTO command_streams (epoch, created, first_sequence, last_sequence, last_stored_at) "
    "VALUES ({epoch}, 'a stream', 1, 0, 0)"
)
FAIL_EACH_INSERT = (
    "CREATE TRIGGER broken BEFORE INSERT ON timer_schedules BEGIN SELECT RAISE(ABORT, 'broken'); END",
    "DROP TRIGGER broken",
)


async def consume_again_and_again(timers: Timers, rounds: int = ROUNDS) -> None:
    for _ in range(rounds):
        timers.broker.redeliver()
        await timers.consume()


async def check_repair(timers: Timers, positions: Sequence[Position]) -> None:
    """Assert that the commands are handled now, and that none was rejected or counted before."""
    assert (timers.broker.settlements.terminated, timers.broker.dead_letters) == ([], [])
    timers.broker.redeliver()
    await timers.consume()
    assert sorted(timers.broker.settlements.acknowledged) == list(positions)
    assert timers.outcomes() == {"scheduled": len(positions)}


# A wrong set-up


@pytest.mark.parametrize(
    ("break_it", "repair", "reason"),
    [
        (
            "ALTER TABLE timer_schedules RENAME TO hidden",
            "ALTER TABLE hidden RENAME TO timer_schedules",
            "no such table",
        ),
        (
            "ALTER TABLE timer_schedules RENAME COLUMN data TO hidden",
            "ALTER TABLE timer_schedules RENAME COLUMN hidden TO data",
            "data",
        ),
        ("PRAGMA query_only = ON", "PRAGMA query_only = OFF", "readonly"),
    ],
    ids=["table", "column", "readonly"],
)
async def test_wrong_schema_on_sqlite(  # noqa: PLR0917 - fixtures and cases
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, break_it: str, repair: str, reason: str
) -> None:
    """While a table or a column is missing, or the file is read-only, valid commands wait. Then they are handled."""
    timers = Timers(sqlite, memory_broker, clock)
    await sqlite._writer.control(break_it)
    positions = [timers.send(schedule_timer(f"call-{number}")) for number in range(3)]
    await consume_again_and_again(timers)
    assert reason in (timers.consumer.health.reason or "")
    assert timers.broker.settlements.retried == [(each, timedelta(seconds=1)) for each in positions] * ROUNDS
    await sqlite._writer.control(repair)
    await check_repair(timers, positions)


@pytest.fixture
async def role(databases: Databases) -> AsyncIterator[tuple[asyncpg.Connection, PostgresDatabase]]:
    """Yield the connection of the owner of a database, and the database as a role that may use its tables."""
    name = f"timer_test_{token_hex(4)}"
    async with databases.database(bring_to_head) as url:
        owner = await asyncpg.connect(url)
        await owner.execute(f"CREATE ROLE {name} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
        netloc = urlsplit(url).netloc.rpartition("@")[2]
        database = await PostgresDatabase.open(urlsplit(url)._replace(netloc=f"{name}@{netloc}").geturl())
        yield owner, database
        await database.close()
        await owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
        await owner.close()


@pytest.mark.parametrize(
    ("break_it", "repair"),
    [
        ("REVOKE INSERT ON timer_schedules FROM {}", "GRANT INSERT ON timer_schedules TO {}"),
        ("REVOKE SELECT ON timer_schedules FROM {}", "GRANT SELECT ON timer_schedules TO {}"),
        ("ALTER TABLE timer_schedules RENAME TO hidden", "ALTER TABLE hidden RENAME TO timer_schedules"),
        (
            "ALTER TABLE timer_schedules RENAME COLUMN data TO hidden",
            "ALTER TABLE timer_schedules RENAME COLUMN hidden TO data",
        ),
    ],
    ids=["insert", "select", "table", "column"],
)
async def test_wrong_setup_on_postgres(
    role: tuple[asyncpg.Connection, PostgresDatabase],
    memory_broker: MemoryBroker,
    clock: ManualClock,
    break_it: str,
    repair: str,
) -> None:
    """While a grant, a table or a column is missing, valid commands wait. Then they are handled."""
    owner, database = role
    timers = Timers(database, memory_broker, clock)
    await timers.schedule("before")
    name = await database._work_pool.fetchval("SELECT current_user")
    await owner.execute(break_it.format(name))
    positions = [timers.send(schedule_timer(f"call-{number}")) for number in range(3)]
    await consume_again_and_again(timers)
    assert "timer_schedules" in (timers.consumer.health.reason or "") or "data" in (timers.consumer.health.reason or "")
    assert database.health.reason is not None
    await owner.execute(repair.format(name))
    assert timers.metrics.commands.pop(("ScheduleTimer", "scheduled")) == 1
    del timers.broker.settlements.acknowledged[:]
    await check_repair(timers, positions)


async def test_wrong_setup_of_one_handler(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, timers_route: Route
) -> None:
    """If only one handler lacks its table, the commands of the others in the same batch are handled."""

    async def fail(tx: Transaction, _commands: Sequence[Command], _now: int) -> Sequence[CommandResult | None]:
        await tx.fetch("SELECT * FROM missing")
        return []

    schedule, cancel, *_ = SLICE.commands
    timers = Timers(sqlite, memory_broker, clock)
    parts = make_parts(sqlite, memory_broker, clock, timers.metrics)
    timers.consumer = parts.consumer([replace(timers_route, payloads=(schedule,)), Route((cancel,), fail, _wake)])
    good = timers.send(schedule_timer("a"))
    bad = await timers.cancel("a")  # handles both in one batch
    assert timers.broker.settlements.acknowledged == [good]
    assert timers.broker.settlements.retried == [(bad, timedelta(seconds=1))]


# An environment that no error names


async def test_all_commands_fail(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """If every command of a batch fails, none is rejected soon. After the repair they are handled."""
    timers = Timers(sqlite, memory_broker, clock)
    await timers.sql(FAIL_EACH_INSERT[0])
    positions = [timers.send(schedule_timer(f"call-{number}")) for number in range(3)]
    await consume_again_and_again(timers)
    assert "every command fails" in (timers.consumer.health.reason or "")
    await timers.sql(FAIL_EACH_INSERT[1])
    await check_repair(timers, positions)


async def test_all_commands_fail_for_ever(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Even if every command fails, each becomes a dead letter in the end, at its hundredth attempt."""
    timers = Timers(sqlite, memory_broker, clock)
    await timers.sql(FAIL_EACH_INSERT[0])
    positions = [timers.send(schedule_timer(f"call-{number}")) for number in range(2)]
    await consume_again_and_again(timers, 99)
    assert timers.broker.settlements.terminated == []
    await consume_again_and_again(timers, 1)
    assert sorted(timers.broker.settlements.terminated) == positions
    longest = max(delay for _, delay in timers.broker.settlements.retried)
    assert longest == timedelta(seconds=60)


async def test_bad_commands_one_after_the_other(timers: Timers) -> None:
    """A bad command that was given up is no evidence against the next one: each is rejected at its tenth attempt."""
    await timers.sql("CREATE UNIQUE INDEX forced ON timer_schedules (correlation_id)")
    await timers.schedule("first", envelope={"correlationId": "a"})
    for number in range(3):
        bad = timers.send(schedule_timer(f"bad-{number}", envelope={"correlationId": "a"}))
        await consume_again_and_again(timers, 9)
        assert bad in timers.broker.unsettled
        await consume_again_and_again(timers, 1)
        assert timers.broker.settlements.terminated[number:] == [bad]


async def test_two_bad_commands_beside_a_good_one(timers: Timers) -> None:
    """Two commands that always fail are rejected after ten attempts if other commands are handled meanwhile."""
    await timers.sql("CREATE UNIQUE INDEX forced ON timer_schedules (correlation_id)")
    await timers.schedule("first", envelope={"correlationId": "a"})
    bad = [timers.send(schedule_timer(f"bad-{number}", envelope={"correlationId": "a"})) for number in range(2)]
    for number in range(10):
        timers.send(schedule_timer(f"good-{number}", envelope={"correlationId": f"good-{number}"}))
        await consume_again_and_again(timers, 1)
    assert sorted(timers.broker.settlements.terminated) == bad
    assert timers.metrics.dead_letters == {"INTERNAL": 2}


# Commands that end the process


class Killed(BaseException):
    """The end of the process."""


async def _wake(_at: int, _loop: str | None) -> None:
    pass


@pytest.fixture
def timers_route() -> Route:
    return Route(SLICE.commands, partial(SLICE.handle, quotas=Quotas()), _wake)


async def restart_and_consume(timers: Timers, route: Route) -> None:
    """Handle all waiting commands with a new consumer, until one ends the process."""
    timers.broker.redeliver()
    parts = make_parts(timers.database, timers.broker, timers.clock, timers.metrics)
    timers.consumer, timers._subscription = parts.consumer([route]), None
    await timers.consume()


async def _kill(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult | None]:
    if any(command.id == "killer" for command in commands):
        raise Killed
    return await SLICE.handle(tx, commands, now, quotas=Quotas())


async def test_command_that_kills_the_process(timers: Timers, timers_route: Route) -> None:
    """After some crashes, a command that kills the process is handled alone. After three more it is rejected."""
    killer = timers.send(schedule_timer("killer", envelope={"id": "killer"}))
    others = [timers.send(schedule_timer(f"call-{number}")) for number in range(20)]
    deaths = 0
    while timers.broker.unsettled:
        try:
            await restart_and_consume(timers, replace(timers_route, handle=_kill))
        except Killed:
            deaths += 1
    assert sorted(timers.broker.settlements.acknowledged) == others
    assert timers.broker.settlements.terminated == [killer]
    (letter,) = timers.broker.dead_letters
    assert "the service died 3 times while it handled this command" in letter.headers["Timer-Error-Message"]
    assert deaths == 5 + 3


async def test_other_suspects_are_forgotten(timers: Timers, timers_route: Route) -> None:
    """The database remembers only the command that killed the process, not the others that were handled alone."""
    killer = timers.send(schedule_timer("killer", envelope={"id": "killer"}))
    for number in range(5):
        timers.send(schedule_timer(f"call-{number}"))
    while timers.broker.unsettled:
        with suppress(Killed):
            await restart_and_consume(timers, replace(timers_route, handle=_kill))
    (row,) = await timers.database.reader.fetch("SELECT epoch, sequence, begun FROM suspects")
    assert (Position(row["epoch"], row["sequence"]), row["begun"]) == (killer, 4)


async def test_planned_stop_is_no_death(timers: Timers, timers_route: Route) -> None:
    """A suspect whose handling is cancelled, because the service stops, has not ended the process."""
    begun = asyncio.Event()

    async def hang(_tx: Transaction, _commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        begun.set()
        await asyncio.Event().wait()
        return []

    timers.send(schedule_timer())
    subscription = await timers.broker.subscribe()
    for _ in range(5):
        await subscription.next_batch(10)
        timers.broker.redeliver()
    parts = make_parts(timers.database, timers.broker, timers.clock, timers.metrics)
    consumer = parts.consumer([replace(timers_route, handle=hang)])
    (suspect,) = await subscription.next_batch(10)
    handling = asyncio.create_task(consumer.handle(subscription, [suspect]))
    async with asyncio.timeout(10):
        await begun.wait()
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    assert await Suspects(timers.database).begin(suspect) == 0


async def test_suspects_that_a_batch_does_not_reach(timers: Timers, timers_route: Route) -> None:
    """A batch handles suspects one by one until its time is up. The others come again at once, and not redelivered."""

    async def handle_slowly(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult | None]:
        timers.clock.advance(seconds=1)
        return await timers_route.handle(tx, commands, now)

    sent = [timers.send(schedule_timer(f"call-{number}")) for number in range(3)]
    subscription = await timers.broker.subscribe()
    for _ in range(5):
        await subscription.next_batch(10)
        timers.broker.redeliver()
    parts = make_parts(timers.database, timers.broker, timers.clock, timers.metrics)
    consumer = parts.consumer([replace(timers_route, handle=handle_slowly)])
    left = [(await consumer.handle(subscription, await subscription.next_batch(10)))[1] for _ in sent]
    assert left == [2, 1, 0]
    assert sorted(timers.broker.settlements.acknowledged) == sent


async def test_outage_while_suspects_are_handled(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspects wait while the database is away: the first one finds out, and none is blamed, however long it takes."""
    sent = [timers.send(schedule_timer(f"call-{number}")) for number in range(5)]
    subscription = await timers.broker.subscribe()
    for _ in range(5):
        await subscription.next_batch(10)
        timers.broker.redeliver()
    tried = 0

    def away() -> NoReturn:
        nonlocal tried
        tried += 1
        raise DatabaseUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(timers.database, "transaction", away)
        patch.setattr(timers.database, "accepting", away)
        await consume_again_and_again(timers, 20)
    assert tried == 20
    await check_repair(timers, sent)


@pytest.mark.parametrize("body", [schedule_timer(), b"{"], ids=["valid", "invalid"])
async def test_a_commit_that_the_next_process_would_not_find(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """If no commit of commands would last, no command is settled or rejected. Afterwards each is, once."""
    timers.send(body)

    def away() -> NoReturn:
        raise DatabaseUnavailableError("the file was deleted")

    with monkeypatch.context() as patch:
        patch.setattr(timers.database, "accepting", away)
        await consume_again_and_again(timers, 3)
        settlements = timers.broker.settlements
        during = (settlements.acknowledged, settlements.terminated, timers.broker.dead_letters)
        assert during == ([], [], [])
    await consume_again_and_again(timers, 2)
    assert len(settlements.acknowledged) + len(settlements.terminated) == 1


async def _away(_suspect: Delivery) -> NoReturn:
    raise DatabaseUnavailableError("away")


async def let_the_service_die(timers: Timers) -> None:
    """Let five processes die with all commands, so that these are handled alone."""
    subscription = await timers.broker.subscribe()
    for _ in range(5):
        await subscription.next_batch(10)
        timers.broker.redeliver()


@pytest.mark.parametrize("body", [schedule_timer(), b"{"], ids=["valid", "invalid"])
async def test_a_suspect_is_settled_once(timers: Timers, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """If the database goes away after a suspect was handled, the suspect is not settled a second time."""
    position = timers.send(body)
    await let_the_service_die(timers)
    monkeypatch.setattr(timers.consumer._suspects, "end", _away)
    await timers.consume()
    settled = timers.broker.settlements
    assert [*settled.acknowledged, *settled.terminated, *settled.retried] == [position]


async def test_a_suspect_that_fails_is_settled_once(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspect that fails is retried once, and not a second time because the database goes away then."""
    await timers.sql("CREATE UNIQUE INDEX forced ON timer_schedules (correlation_id)")
    await timers.schedule("first", envelope={"correlationId": "a"})
    timers.send(schedule_timer("bad", envelope={"correlationId": "a"}))
    await let_the_service_die(timers)
    monkeypatch.setattr(timers.consumer._suspects, "end", _away)
    await timers.consume()
    assert len(timers.broker.settlements.retried) == 1


async def test_commands_of_an_outage_are_not_suspects(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, timers_route: Route, tmp_path: Path
) -> None:
    """After a long outage, the commands that waited are handled in one transaction, not one by one."""
    batches: list[int] = []

    async def count(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult | None]:
        results = await SLICE.handle(tx, commands, now, quotas=Quotas())
        batches.append(len(commands))
        return results

    timers = Timers(sqlite, memory_broker, clock)
    parts = make_parts(sqlite, memory_broker, clock, timers.metrics)
    timers.consumer = parts.consumer([replace(timers_route, handle=count)])
    await sqlite._writer.control("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "timers.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(20):
        timers.send(schedule_timer(f"call-{number}"))
    await consume_again_and_again(timers)
    other.close()
    await consume_again_and_again(timers, 1)
    assert batches == [20]


@pytest.mark.parametrize("body", [schedule_timer(), b"{"], ids=["valid", "invalid"])
async def test_another_instance_has_met_another_stream(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """Commands that were read before another instance met a newer stream are neither handled, rejected nor settled."""
    position = timers.send(body)
    subscription = await timers.broker.subscribe()
    batch = await subscription.next_batch(10)
    async with timers.database.transaction() as tx:
        await tx.execute(ADD_PART.format(epoch=2))
    told: list[bool] = []
    monkeypatch.setattr(subscription, "stream_changed", lambda: told.append(True))
    await timers.consumer.handle(subscription, batch)
    assert (told, list(timers.broker.unsettled), timers.outcomes()) == ([True], [position], {})
    assert (timers.broker.settlements.retried, timers.broker.dead_letters) == ([], [])


async def test_rejected_command_counts_as_handled(timers: Timers) -> None:
    """The history of the stream advances with a rejected command, so that a rollback behind it is recognized."""
    async with timers.database.transaction() as tx:
        await tx.execute(ADD_PART.format(epoch=1))
    position = timers.send(b"{")
    await timers.consume()
    (row,) = await timers.database.reader.fetch("SELECT last_sequence FROM command_streams")
    assert (row["last_sequence"], timers.broker.settlements.terminated) == (position.sequence, [position])


async def test_large_batch_in_parts(timers: Timers) -> None:
    """A batch of more bytes than the memory budget allows is committed and acknowledged in parts."""
    timers.consumer._part_bytes = 1024 * 1024
    for number in range(30):
        timers.send(schedule_timer(f"call-{number}", data="x" * 60_000))
    subscription = await timers.broker.subscribe()
    transactions = 0
    opened = timers.database.accepting

    def counting() -> object:
        nonlocal transactions
        transactions += 1
        return opened()

    timers.database.accepting = counting  # type: ignore[method-assign, assignment]
    await timers.consumer.handle(subscription, await subscription.next_batch(1000))
    assert (transactions, timers.outcomes()) == (2, {"scheduled": 30})


# Dead letters


@pytest.mark.parametrize("stuck", [Kind.EVENT, Kind.DEAD_LETTER])
async def test_nothing_is_stored_again_while_the_other_waits(store: Database, clock: ManualClock, stuck: Kind) -> None:
    """While the event stream or the dead letters are full for long, the other message is not stored again."""
    broker = MemoryBroker(features=replace(FEATURES, deduplicates=False))
    timers = Timers(store, broker, clock)
    broker.loses_acknowledgement_of = lambda message: message.address.kind is stuck
    position = timers.send(b"{")
    await consume_again_and_again(timers)
    assert broker.settlements.terminated == []
    assert "dead letters cannot be stored" in (timers.consumer.health.reason or "")
    broker.loses_acknowledgement_of = never
    await consume_again_and_again(timers, 1)
    stored = broker.dead_letters if stuck is Kind.EVENT else broker.events
    assert (len(stored), broker.settlements.terminated, timers.consumer.health) == (1, [position], HEALTHY)


async def test_waiting_for_the_broker_does_not_count_as_refused(timers: Timers) -> None:
    """A dead letter that waited long for room is not dropped when the broker then refuses it once."""
    position = timers.send(b"{")
    timers.broker.loses_acknowledgement_of = lambda message: message.address.kind is Kind.DEAD_LETTER
    await consume_again_and_again(timers)
    timers.broker.loses_acknowledgement_of = never
    timers.broker.refuses = lambda message: message.address.kind is Kind.DEAD_LETTER
    await consume_again_and_again(timers, 1)
    assert (timers.metrics.dropped_letters, timers.broker.settlements.terminated) == ({}, [])
    timers.broker.refuses = never
    await consume_again_and_again(timers, 1)
    assert timers.broker.settlements.terminated == [position]
    assert len(timers.broker.dead_letters) == 1


async def test_a_dead_letter_is_refused_ten_times(timers: Timers) -> None:
    """A rejected command is dropped when the broker has refused its dead letter ten times, not earlier or later."""
    position = timers.send(b"{")
    timers.broker.refuses = always
    await consume_again_and_again(timers, 9)
    found = list(timers.broker.settlements.terminated)
    await consume_again_and_again(timers, 1)
    assert (found, timers.broker.settlements.terminated) == ([], [position])


async def test_nothing_is_remembered_of_a_handled_command(timers: Timers) -> None:
    """When a command that has failed is handled, its failures are forgotten."""
    await timers.sql("CREATE UNIQUE INDEX forced ON timer_schedules (correlation_id)")
    await timers.schedule("first", envelope={"correlationId": "a"})
    timers.send(schedule_timer("second", envelope={"correlationId": "a"}))
    await consume_again_and_again(timers, 3)
    attempts = timers.consumer._attempts
    during = len(attempts._failures)
    await timers.sql("DROP INDEX forced")
    await consume_again_and_again(timers, 1)
    assert (timers.outcomes(), during, len(attempts._failures)) == ({"scheduled": 2}, 1, 0)


async def test_nothing_is_remembered_of_a_rejected_command(timers: Timers) -> None:
    """When a rejected command has ended, its messages and refusals are forgotten."""
    timers.send(b"{")
    timers.broker.refuses = lambda message: message.address.kind is Kind.DEAD_LETTER
    await consume_again_and_again(timers, 1)
    rejector = timers.consumer._rejector
    during = len(rejector._stored), len(rejector._refusals._failures)
    timers.broker.refuses = never
    await consume_again_and_again(timers, 1)
    assert (during, len(rejector._stored), len(rejector._refusals._failures)) == ((1, 1), 0, 0)


async def test_audit_line(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the tenant of a rejected command, with escapes, its id, type, code and sequence."""
    caplog.set_level("INFO")
    positions = [
        timers.send(b"{secret", tenant="te\nnant", message_id="id-1"),
        timers.send(command("ScheduleTimer", {"secret": 1}, envelope={"id": "id-2"})),
        timers.send(command("secret", {}, envelope={"id": "id-3"})),
    ]
    await timers.consume()
    lines = [vars(record) for record in caplog.records if record.message == "command rejected"]
    names = ("tenant", "command_id", "type", "code", "sequence")
    assert [tuple(line[name] for name in names) for line in lines] == [
        (r"te\nnant", "id-1", "unknown", "INVALID_JSON", positions[0].sequence),
        ("acme", "id-2", "ScheduleTimer", "INVALID_PAYLOAD", positions[1].sequence),
        ("acme", "id-3", "unknown", "UNKNOWN_TYPE", positions[2].sequence),
    ]
    assert "secret" not in str(lines)


async def test_audit_line_of_an_operator(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the tenant, id and outcome of a command of an operator. Other commands have no line."""
    caplog.set_level("INFO")
    timers.send(schedule_timer("call-1"))
    retry = command("RetryTimer", {"serviceCallId": "call-1"}, envelope={"id": "id-1"})
    position = timers.send(retry, message="retry-timer")
    await timers.consume()
    (line,) = [vars(record) for record in caplog.records if record.message == "operator action"]
    expected = {"tenant": "acme", "command_id": "id-1", "type": "RetryTimer", "outcome": "unchanged"}
    assert expected.items() <= line.items()
    assert line["sequence"] == position.sequence


async def test_flood_of_rejected_commands(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    """A flood of rejected commands is a few lines of the log and a count. The dead letters are complete."""
    caplog.set_level("INFO")
    for _ in range(500):
        timers.send(b"{")
    await timers.consume()
    timers.consumer._rejector._audit.write_counts()
    lines = [record for record in caplog.records if record.message == "command rejected"]
    counts = [vars(record)["count"] for record in caplog.records if record.message == "audit lines left out"]
    assert len(lines) + sum(counts) == len(timers.broker.dead_letters) == 500
    assert len(caplog.records) < 60


async def test_inbox_that_cannot_be_published_to(timers: Timers) -> None:
    """A command with a malformed reply subject is handled without a reply."""
    inboxes = [
        "_INBOX.a..b",
        "_INBOX.a.",
        "_INBOX.>",
        "_INBOX.*",
        "_INBOX.a b",
        "_INBOX.ä",
        "_INBOX.\x00",
        "elsewhere.a",
    ]
    settlements = timers.broker.settlements
    for number, inbox in enumerate([*inboxes, "elsewhere.a"]):
        with case(inbox):
            good = timers.send(schedule_timer(f"call-{number}"), {"Timer-Reply-To": inbox})
            bad = timers.send(b"{", {"Timer-Reply-To": inbox})
            await timers.consume()
            assert (timers.broker.replies, settlements.acknowledged[number:]) == ([], [good])
            assert settlements.terminated[number:] == [bad]


# Health and pauses


async def test_health_during_a_long_batch(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands do not flow while one batch takes longer than ten seconds, for example because the database hangs."""
    began = time.monotonic()
    timers.consumer._batch_began = began
    found: list[str | None] = []
    for seconds in (9, 11):
        monkeypatch.setattr(time, "monotonic", lambda: began + seconds)  # noqa: B023 - called at once
        found.append(timers.consumer.health.reason)
    assert found == [None, "one batch of commands has been handled for 11 s"]


@pytest.mark.parametrize("works", [True, False])
async def test_pause_only_if_nothing_works(timers: Timers, timers_route: Route, *, works: bool) -> None:
    """If the commands of one slice cannot be handled, the consumer does not pause while those of another one can."""

    async def fail(_tx: Transaction, _commands: Sequence[Command], _now: int) -> NoReturn:
        raise DatabaseSetupError("no such table")

    async def no_wake(_at: int, _loop: str | None) -> None:
        pass

    timers.send(schedule_timer())
    timers.send(command("RetryEvent", {"eventId": "event-1"}), message="retry-event")
    timers_route = timers_route if works else replace(timers_route, handle=fail)
    parts = make_parts(timers.database, timers.broker, timers.clock, timers.metrics)
    consumer = parts.consumer([timers_route, Route(EVENTS.commands, fail, no_wake)])
    subscription = await timers.broker.subscribe()
    must_pause, _ = await consumer.handle(subscription, await subscription.next_batch(10))
    assert must_pause is not works


async def test_stalled_after_an_unexpected_error(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a batch that failed unexpectedly the consumer waits for the next one, so it is not stalled."""

    async def fail(_deliveries: Sequence[Delivery]) -> None:
        raise RuntimeError("a surprise")

    timers.send(schedule_timer())
    subscription = await timers.broker.subscribe()
    monkeypatch.setattr(subscription, "acknowledge", fail)
    with pytest.raises(RuntimeError):
        await timers.consumer.handle(subscription, await subscription.next_batch(10))
    later = time.monotonic() + 1000
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not timers.consumer.stalled


async def test_stalled(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer is stalled if it handles the same batch for more than a minute. While it waits, it is not."""
    blocked = asyncio.Event()

    async def block(_: Sequence[Message]) -> None:
        await blocked.wait()

    timers.send(b"{")
    timers.broker.before_publishing = block
    consuming = asyncio.create_task(timers.consume())
    began = time.monotonic()
    async with asyncio.timeout(30):
        while timers.consumer._batch_began is None:
            await asyncio.sleep(0)
    before = timers.consumer.stalled
    monkeypatch.setattr(time, "monotonic", lambda: began + 100)
    during = timers.consumer.stalled
    monkeypatch.undo()
    blocked.set()
    await consuming
    monkeypatch.setattr(time, "monotonic", lambda: began + 1000)
    assert (before, during, timers.consumer.stalled) == (False, True, False)


class TimedSubscription(MemorySubscription):
    """A subscription that notes when a batch is asked for, and is closed at the second time."""

    def __init__(self, of: MemorySubscription) -> None:
        super().__init__(of._queue, of._settlements, of._batch_bytes)
        self.asked_at: list[float] = []

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        self.asked_at.append(time.monotonic())
        if len(self.asked_at) > 1:
            await self.close()
        return await super().next_batch(limit)


async def run_once(timers: Timers) -> float:
    """Run the consumer for one batch; return the seconds until it asks for the next one."""
    subscription = TimedSubscription(await timers.broker.subscribe())
    await timers.consumer.run(subscription)
    first, second = subscription.asked_at
    return second - first


async def test_pause_while_the_database_is_away(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """After a batch that could not be handled, the consumer waits for a second. After a good batch it does not."""
    timers = Timers(sqlite, memory_broker, clock)
    timers.send(schedule_timer("a"))
    good = await run_once(timers)
    await sqlite._writer.control("PRAGMA query_only = ON")
    timers.send(schedule_timer("b"))
    assert await run_once(timers) >= 1
    assert good < 1


async def test_longest_retry_delay(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """The delay before a retry is a minute at most, however many attempts there were."""
    timers = Timers(sqlite, memory_broker, clock)
    memory_broker.loses_acknowledgement_of = lambda _: True
    timers.send(b"{")
    subscription = await memory_broker.subscribe()
    (given,) = await subscription.next_batch(1)
    given.attempt = 1000
    await timers.consumer.handle(subscription, [given])
    assert [delay for _, delay in memory_broker.settlements.retried] == [timedelta(seconds=60)]


async def test_damaged_row_whose_view_cannot_be_built(timers: Timers) -> None:
    """A command on a row with a wrong instant ends, and so do the other commands of its batch, each with a reply."""
    await timers.schedule("damaged", after(days=1))
    await timers.sql(f"UPDATE timer_schedules SET due_at = {10**18}, available_at = {10**18}")
    sent = [
        timers.send(schedule_timer("call-1", after(days=1)), {REPLY_TO: "_INBOX.1"}),
        timers.send(cancel_timer("damaged"), {REPLY_TO: "_INBOX.2"}, message="cancel-timer"),
        timers.send(schedule_timer("call-2", after(days=1)), {REPLY_TO: "_INBOX.3"}),
    ]
    await timers.consume()
    assert sorted(timers.broker.settlements.acknowledged[1:]) == sent  # a slow command is handled in the next batch
    replies = {each.to: json.loads(each.body) for each in timers.broker.replies}
    assert {to: (reply["outcome"], "timer" in reply) for to, reply in replies.items()} == {
        "_INBOX.1": ("scheduled", True),
        "_INBOX.2": ("cancelled", False),
        "_INBOX.3": ("scheduled", True),
    }
    assert len(timers.broker.replies) == len(replies)
