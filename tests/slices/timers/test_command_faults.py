"""Whose fault it is that a command cannot be handled, and what happens to the other commands meanwhile."""

import asyncio
import json
import sqlite3
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import NoReturn
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.harness.builders import cancel_timer, command, schedule_timer
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.databases import Databases
from tests.harness.reading import catch_up
from tests.harness.stores import bring_to_head
from tests.harness.timers import Timers, bodies
from tests.harness.transactions import recording_route
from tests.harness.wiring import MAX_ATTEMPTS
from timer_service.adapters.memory import FEATURES, MemoryBroker, never
from timer_service.adapters.memory.log import MemoryLog
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.cursor import LostCursorError
from timer_service.core.intake.route import CommandResult, Handle, Route
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.log import LogBatch, LogUnavailableError
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.errors import DatabaseSetupError, DatabaseUnavailableError
from timer_service.core.values.message import Command
from timer_service.timers import SLICE

UNIQUE = "CREATE UNIQUE INDEX forced ON timer_schedules (correlation_id)"
"""A second timer with a correlation id is refused then, with an error that does not say whose fault it is."""


def send(timers: Timers, calls: str) -> None:
    """Send a ScheduleTimer for each call. Its first letter is its tenant."""
    for call in calls.split():
        timers.send(schedule_timer(call, tenant=call[0]), tenant=call[0])


def send_bad(timers: Timers, call: str, headers: dict[str, str] | None = None) -> None:
    """Send a ScheduleTimer that the database refuses, beside the timer `first`."""
    body = schedule_timer(call, tenant=call[0], envelope={"id": call, "correlationId": "taken"})
    timers.send(body, headers, tenant=call[0])


async def refuse_second_timers(timers: Timers) -> None:
    """Let the database refuse the timers of `send_bad`."""
    await timers.sql(UNIQUE)
    await timers.schedule("first", envelope={"correlationId": "taken"})
    timers.metrics.commands.clear()


async def states(timers: Timers) -> list[str]:
    """Return the calls whose timers exist, in order."""
    rows = await timers.database.reader.fetch("SELECT service_call_id FROM timer_schedules ORDER BY service_call_id")
    return [row["service_call_id"] for row in rows]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, while other tasks run."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


# The environment


@pytest.mark.parametrize(
    ("break_it", "repair"),
    [
        ("ALTER TABLE timer_schedules RENAME TO hidden", "ALTER TABLE hidden RENAME TO timer_schedules"),
        (
            "ALTER TABLE timer_schedules RENAME COLUMN data TO hidden",
            "ALTER TABLE timer_schedules RENAME COLUMN hidden TO data",
        ),
    ],
    ids=["table", "column"],
)
async def test_wrong_schema(timers: Timers, break_it: str, repair: str) -> None:
    """While a table or a column is missing, valid commands wait, however often they are tried. Then all are handled."""
    await timers.sql(break_it)
    send(timers, "a1 a2 b1")
    for _ in range(5):
        with pytest.raises(DatabaseSetupError):
            await catch_up(timers.reader)
    await timers.sql(repair)
    await timers.consume()
    assert (timers.outcomes(), timers.broker.dead_letters) == ({"scheduled": 3}, [])


@pytest.fixture
async def role(databases: Databases) -> AsyncIterator[tuple[asyncpg.Connection, PostgresDatabase, str]]:
    """Yield the connection of the owner of a database, the database as a role that may use its tables, and the role."""
    name = f"timer_test_{token_hex(4)}"
    async with databases.database(bring_to_head) as url:
        owner = await asyncpg.connect(url)
        await owner.execute(f"CREATE ROLE {name} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
        netloc = urlsplit(url).netloc.rpartition("@")[2]
        database = await PostgresDatabase.open(urlsplit(url)._replace(netloc=f"{name}@{netloc}").geturl())
        yield owner, database, name
        await database.close()
        await owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
        await owner.close()


@pytest.mark.parametrize("grant", ["INSERT", "SELECT"])
async def test_missing_grant(
    role: tuple[asyncpg.Connection, PostgresDatabase, str], memory_broker: MemoryBroker, clock: ManualClock, grant: str
) -> None:
    """While the service may not use a table, valid commands wait, and the database is not healthy."""
    owner, database, name = role
    timers = Timers(database, memory_broker, clock)
    await owner.execute(f"REVOKE {grant} ON timer_schedules FROM {name}")
    send(timers, "a1 a2 b1")
    for _ in range(5):
        with pytest.raises(DatabaseSetupError):
            await catch_up(timers.reader)
    assert database.health.reason is not None
    await owner.execute(f"GRANT {grant} ON timer_schedules TO {name}")
    await timers.consume()
    assert (timers.outcomes(), memory_broker.dead_letters) == ({"scheduled": 3}, [])


async def test_commands_wait_for_the_database(
    sqlite: SqliteDatabase, locker: sqlite3.Connection, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """While the database is locked, nothing counts. Afterwards one transaction handles all commands together."""
    timers = Timers(sqlite, memory_broker, clock)
    route, applied = recording_route(SLICE, timers.wake)
    timers.read_for(route)
    send(timers, "a1 a2 a3 b1 b2")
    timers.send(b"{")
    locker.execute("BEGIN IMMEDIATE")
    for _ in range(20):
        with pytest.raises(DatabaseUnavailableError):
            await catch_up(timers.reader)
    locker.execute("ROLLBACK")
    assert timers.outcomes() == {}
    await timers.consume()
    assert [len(commands) for commands in applied] == [5]
    assert timers.outcomes() == {"scheduled": 5, "rejected": 1}


@pytest.mark.parametrize("body", [schedule_timer(), b"{"], ids=["valid", "invalid"])
async def test_a_commit_that_the_next_process_would_not_find(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """If no commit of commands would last, no command is handled or rejected. Afterwards each is, once."""
    timers.send(body)

    def away() -> NoReturn:
        raise DatabaseUnavailableError("the file was deleted")

    with monkeypatch.context() as patch:
        patch.setattr(timers.database, "accepting", away)
        for _ in range(3):
            with pytest.raises(DatabaseUnavailableError):
                await catch_up(timers.reader)
    await timers.publish()
    assert (timers.outcomes(), timers.broker.dead_letters) == ({}, [])
    for _ in range(2):
        await timers.consume()
    assert sum(timers.outcomes().values()) == 1


@pytest.mark.parametrize("body", [schedule_timer(), b"{"], ids=["valid", "invalid"])
async def test_another_process_has_read_on(timers: Timers, body: bytes) -> None:
    """A process that reads the same commands as another one handles and rejects none of them a second time."""
    timers.send(body)
    slow = timers.reader
    assert await slow.begin()
    timers.clock.advance(seconds=4)  # so that another process believes that this one has died
    timers.read_with(timers.handle)
    await timers.consume()
    with pytest.raises(LostCursorError):
        await slow.turn()
    await timers.publish()
    assert sum(timers.outcomes().values()) == 1
    assert len(timers.broker.dead_letters) == (body == b"{")


@pytest.mark.parametrize(
    ("error", "reason", "seconds"),
    [
        (DatabaseSetupError("no such table"), "commands cannot be handled: no such table", 1),
        (RuntimeError("a surprise"), "commands cannot be applied: RuntimeError: a surprise", 1),
        (LogUnavailableError("gone"), "the command log cannot be read: gone", 0.4),
    ],
)
async def test_the_reader_goes_on(  # noqa: PLR0917 - fixtures and cases
    sqlite: SqliteDatabase,
    memory_broker: MemoryBroker,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
    seconds: float,
) -> None:
    """After an error the reader is not healthy, and begins again after a pause."""
    timers = Timers(sqlite, memory_broker, clock)
    read = MemoryLog.read
    read_at: list[float] = []

    async def fail_once(log: MemoryLog, limit: int, most_bytes: int, wait: float) -> LogBatch:
        read_at.append(time.monotonic())
        if len(read_at) == 1:
            raise error
        return await read(log, limit, most_bytes, wait)

    monkeypatch.setattr(MemoryLog, "read", fail_once)
    send(timers, "a1")
    running = asyncio.create_task(timers.reader.run())
    await until(lambda: timers.reader.health.reason == reason)
    await until(lambda: timers.outcomes() == {"scheduled": 1})
    await timers.reader.stop()
    await running
    assert seconds <= read_at[1] - read_at[0] < 10


# An environment that no error names


class Fault:
    """Handles the commands of timers, or fails for every one while `is_there`."""

    def __init__(self, timers: Timers) -> None:
        self.is_there = True
        self._handle = timers.handle

    async def __call__(self, tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        if self.is_there:
            raise RuntimeError("a surprise")
        return await self._handle(tx, commands, now)


async def test_every_command_fails(timers: Timers) -> None:
    """If every command of a handler fails, none is rejected soon, and those of other handlers are handled.

    After the repair all are handled at once, each tenant's in order.
    """
    schedule, *others = SLICE.commands
    fault = Fault(timers)
    timers.read_for(Route((schedule,), fault, timers.wake), Route(tuple(others), timers.handle, timers.wake))
    send(timers, "a1 b1")
    for due in (5, 6):
        timers.send(schedule_timer("a1", NOW + due, tenant="a"), tenant="a")
    timers.send(cancel_timer(tenant="c"), tenant="c", message="cancel-timer")
    for _ in range(50):
        await timers.consume()
        timers.clock.advance(minutes=1)
    assert (timers.outcomes(), timers.broker.dead_letters) == ({"not_found": 1}, [])
    assert timers.reader.health.reason == "every command fails: RuntimeError: a surprise"
    fault.is_there = False
    await timers.consume()
    assert timers.outcomes() == {"not_found": 1, "scheduled": 2, "rescheduled": 2}
    assert (await timers.row("a1", "a"))["due_at"] == NOW + 6


async def test_every_command_fails_for_ever(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Even if every command fails, each becomes a dead letter in the end, at its hundredth attempt."""
    timers = Timers(sqlite, memory_broker, clock)
    timers.read_with(Fault(timers))
    send(timers, "a1 b1")
    found = []
    for _ in range(100):
        await timers.consume()
        found.append(len(timers.broker.dead_letters))
        timers.clock.advance(minutes=1)
    assert found == [*[0] * 99, 2]


# One bad command


async def test_one_command_fails(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    """A command that fails alone is tried once more and is a dead letter then. Only its tenant's next commands wait."""
    await refuse_second_timers(timers)
    send(timers, "a1 b1 b2 b3")
    send_bad(timers, "b-bad", {REPLY_TO: "_INBOX.me"})
    send(timers, "b4 c1 b5 a2")
    await timers.consume()
    assert await states(timers) == ["a1", "a2", "b1", "b2", "b3", "c1", "first"]
    send(timers, "b6 a3")
    await timers.consume()
    assert (timers.outcomes(), timers.broker.dead_letters) == ({"scheduled": 7}, [])
    timers.clock.advance(seconds=1)
    await timers.consume()
    assert timers.outcomes() == {"scheduled": 10, "rejected": 1}
    (letter,) = timers.broker.dead_letters
    assert (letter.address.tenant, letter.headers["Timer-Error-Code"]) == ("b", "INTERNAL")
    assert "failed 2 times" in letter.headers["Timer-Error-Message"]
    (event,) = bodies(timers.broker.events)
    assert (event["tenantId"], event["payload"]["commandId"], event["payload"]["code"]) == ("b", "b-bad", "INTERNAL")
    (reply,) = timers.broker.replies
    assert json.loads(reply.body)["error"]["code"] == "INTERNAL"
    lines = [vars(each) for each in caplog.records if each.message == "command failed"]
    attempts = [(line["tenant"], line["command_id"], line["attempt"]) for line in lines]
    assert attempts == [("b", "b-bad", 1), ("b", "b-bad", 2)]
    assert timers.reader.health == HEALTHY


async def test_a_failure_that_passes(timers: Timers) -> None:
    """A command that fails once is handled at its second attempt, and so are those behind it."""
    await refuse_second_timers(timers)
    send_bad(timers, "a1")
    send(timers, "a2 a3")
    await timers.consume()
    assert timers.outcomes() == {}
    await timers.sql("DROP INDEX forced")
    timers.clock.advance(seconds=1)
    await timers.consume()
    assert (timers.outcomes(), timers.broker.dead_letters) == ({"scheduled": 3}, [])


async def test_bad_commands_beside_good_ones(timers: Timers) -> None:
    """Bad commands of several tenants are dead letters at their second attempt if others are handled meanwhile."""
    await refuse_second_timers(timers)
    for call in ("a1", "a2", "b1", "c1"):
        send_bad(timers, call)
    for number in range(3):
        send(timers, f"d{number} a-good{number}")
        await timers.consume()
        timers.clock.advance(seconds=1)
    assert timers.outcomes() == {"scheduled": 6, "rejected": 4}
    assert timers.metrics.dead_letters == {"INTERNAL": 4}


async def test_what_failed_waits_over_a_restart(timers: Timers) -> None:
    """How often a command has failed, and which ones wait behind it, is kept when the service restarts."""
    await refuse_second_timers(timers)
    send_bad(timers, "a1")
    send(timers, "a2")
    await timers.consume()
    await timers.stop_reading()
    timers.read_with(timers.handle)
    await timers.consume()
    assert timers.outcomes() == {}
    timers.clock.advance(seconds=1)
    await timers.consume()
    assert timers.outcomes() == {"scheduled": 1, "rejected": 1}


# Commands that end the process


class Killed(BaseException):
    """The end of the process."""


def killed_by(timers: Timers, sizes: list[int]) -> Handle:
    """Return a handler that ends the process if it meets the command `killer`. `sizes`: what each call applied."""

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        if any(each.id == "killer" for each in commands):
            raise Killed
        sizes.append(len(commands))
        return await timers.handle(tx, commands, now)

    return handle


async def live_and_die(timers: Timers, handle: Handle) -> int:
    """Start processes until one survives. Return how many have died."""
    deaths = 0
    while True:
        timers.read_with(handle)
        try:
            await timers.consume()
            timers.clock.advance(seconds=6)  # what was near a death is tried now
            await timers.consume()
        except Killed:
            deaths += 1
        else:
            return deaths
        timers.clock.advance(seconds=4)  # then a shared database knows that the process has died


def send_killer(timers: Timers, headers: dict[str, str] | None = None) -> None:
    timers.send(schedule_timer("killer", tenant="a", envelope={"id": "killer"}), headers, tenant="a")


@pytest.mark.parametrize(("others", "deaths"), [(0, 3), (20, 3), (100, 4)])
async def test_command_that_kills_the_process(timers: Timers, others: int, deaths: int) -> None:
    """A command that ends the process is found in a few starts, and is a dead letter then. The others are handled."""
    send(timers, " ".join(f"b{number}" for number in range(others // 2)))
    send_killer(timers)
    send(timers, " ".join(f"a{number}" for number in range(others // 2)))
    assert await live_and_die(timers, killed_by(timers, [])) == deaths
    assert timers.outcomes() == {"rejected": 1, **({"scheduled": others} if others else {})}
    (letter,) = timers.broker.dead_letters
    assert "the service died each time" in letter.headers["Timer-Error-Message"]


async def test_waiting_command_that_kills_the_process(timers: Timers) -> None:
    """A command that waits in the database and ends the process is a dead letter too. Those behind it are handled."""
    send(timers, "b1")
    send_killer(timers, {"X-Large": "x" * 70_000})  # so it waits
    send(timers, "a1 b2")
    assert await live_and_die(timers, killed_by(timers, [])) == 3
    assert (timers.outcomes(), len(timers.broker.dead_letters)) == ({"scheduled": 3, "rejected": 1}, 1)


@pytest.mark.parametrize("orderly", [True, False], ids=["stop", "crash"])
async def test_care_only_after_a_crash(timers: Timers, *, orderly: bool) -> None:
    """After an orderly stop the commands are handled together, after a crash in small groups."""
    sizes: list[int] = []
    await timers.consume()
    if orderly:
        await timers.stop_reading()
    timers.clock.advance(seconds=4)
    send(timers, " ".join(f"a{number}" for number in range(100)))
    timers.read_with(killed_by(timers, sizes))
    await timers.consume()
    assert sum(sizes) == 100
    assert (max(sizes) == 100) == orderly


# Dead letters


async def test_dead_letter_waits_for_the_broker(store: Database, clock: ManualClock) -> None:
    """A dead letter and its event are stored once, however long the broker is away. Other commands are handled."""
    broker = MemoryBroker(features=replace(FEATURES, deduplicates=False))
    timers = Timers(store, broker, clock)
    broker.health = Health.down("gone")
    timers.send(b"{secret", {"X-Mine": "1"})
    for number in range(20):
        await timers.schedule(f"call-{number}", after(days=9))
        timers.clock.advance(hours=1)
    await timers.stop_reading()
    timers.read_with(timers.handle)
    await timers.consume()
    assert (timers.outcomes(), broker.dead_letters, broker.events) == ({"rejected": 1, "scheduled": 20}, [], [])
    broker.health = HEALTHY
    for _ in range(3):
        timers.clock.advance(minutes=1)
        await timers.publish()
    (letter,) = broker.dead_letters
    assert (letter.body, letter.headers["Timer-Source-Sequence"]) == (b"{secret", "1")
    assert '"X-Mine":["1"]' in letter.headers["Timer-Original-Headers"]
    assert [each["type"] for each in bodies(broker.events)] == ["CommandRejected"]


async def test_refused_dead_letter(timers: Timers) -> None:
    """A dead letter that the broker refuses is kept with the reason, and is stored whole when the broker takes it."""
    timers.broker.refuses = lambda message: message.id == "dlq-1-2"
    for body in (b"{1", b"{2", b"{3"):
        timers.send(body)
    await timers.consume()
    for _ in range(2 * MAX_ATTEMPTS):
        timers.clock.advance(minutes=10)
        await timers.publish()
    assert sorted(letter.body for letter in timers.broker.dead_letters) == [b"{1", b"{3"]
    rows = await timers.database.reader.fetch("SELECT letter_id, state, last_error FROM dead_letters")
    assert [tuple(row) for row in rows] == [("dlq-1-2", "Waiting", "refused")]
    timers.broker.refuses = never
    timers.clock.advance(minutes=10)
    await timers.publish()
    assert timers.broker.dead_letters[-1].body == b"{2"


@pytest.mark.parametrize("message_type", ["Unknown", "ScheduleTimer"])
async def test_rejected_commands_use_little_memory(timers: Timers, message_type: str) -> None:
    """Rejecting a batch of large commands keeps only a part of them in memory, and none of the decoded values."""
    for _ in range(100):
        timers.send(json.dumps({"type": message_type, "tenantId": "acme", "payload": {"no": "x" * 60_000}}).encode())
    tracemalloc.start()
    try:
        await catch_up(timers.reader)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await timers.publish()
    assert len(timers.broker.dead_letters) == 100
    assert peak < 3 * 1024 * 1024, f"{peak / 1024 / 1024:.1f} MiB for 5.7 MiB of commands"


# Lines of the log


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
    timers.parts.audit.write_counts()
    lines = [record for record in caplog.records if record.message == "command rejected"]
    counts = [vars(record)["count"] for record in caplog.records if record.message == "audit lines left out"]
    assert len(lines) + sum(counts) == len(timers.broker.dead_letters) == 500
    assert len(caplog.records) < 60


# Health


async def test_health_of_a_reader_that_hangs(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is not healthy if the same commands take more than 10 s, and is stalled if they take a minute."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def hang(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        began.set()
        await may_end.wait()
        return await timers.handle(tx, commands, now)

    def look_after(seconds: float) -> tuple[str | None, bool]:
        at = time.monotonic() + seconds
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: at)
            return timers.reader.health.reason, timers.reader.stalled

    timers.read_with(hang)
    send(timers, "a1")
    handling = asyncio.create_task(timers.consume())
    async with asyncio.timeout(30):
        await began.wait()
    during = [look_after(seconds) for seconds in (8, 11, 61)]
    may_end.set()
    await handling
    slow = "the same commands have been handled for {} s"
    assert during == [(None, False), (slow.format(11), False), (slow.format(61), True)]
    assert look_after(1000) == (None, False)


async def test_damaged_row_whose_view_cannot_be_built(timers: Timers) -> None:
    """A command on a row with a wrong instant ends, and so do the other commands of its batch, each with a reply."""
    await timers.schedule("damaged", after(days=1))
    await timers.sql(f"UPDATE timer_schedules SET due_at = {10**18}, available_at = {10**18}")
    for body, headers, message in [
        (schedule_timer("call-1", after(days=1)), "_INBOX.1", "schedule-timer"),
        (cancel_timer("damaged"), "_INBOX.2", "cancel-timer"),
        (schedule_timer("call-2", after(days=1)), "_INBOX.3", "schedule-timer"),
    ]:
        timers.send(body, {REPLY_TO: headers}, message=message)
    await timers.consume()
    replies = {each.to: json.loads(each.body) for each in timers.broker.replies}
    assert {to: (reply["outcome"], "timer" in reply) for to, reply in replies.items()} == {
        "_INBOX.1": ("scheduled", True),
        "_INBOX.2": ("cancelled", False),
        "_INBOX.3": ("scheduled", True),
    }
    assert len(timers.broker.replies) == len(replies)
