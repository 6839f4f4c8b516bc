"""Whose fault it is that a command cannot be handled, and what happens to the other commands meanwhile."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence

import pytest

from tests.harness.builders import cancel_timer, command, schedule_timer
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.memory_broker import MemoryBroker, never
from tests.harness.reading import catch_up
from tests.harness.timers import Timers, bodies
from tests.harness.transactions import recording_route
from tests.harness.wiring import MAX_ATTEMPTS
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.cursor import LostCursorError
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY, Health
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


# The environment


async def test_wrong_schema(timers: Timers) -> None:
    """While a table is missing, valid commands wait, however often they are tried. Then all are handled."""
    await timers.sql("ALTER TABLE timer_schedules RENAME TO hidden")
    send(timers, "a1 a2 b1")
    for _ in range(5):
        with pytest.raises(DatabaseSetupError):
            await catch_up(timers.reader)
    await timers.sql("ALTER TABLE hidden RENAME TO timer_schedules")
    await timers.consume()
    assert (timers.outcomes(), timers.broker.dead_letters) == ({"scheduled": 3}, [])


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


# An environment that no error names


async def test_every_command_fails(timers: Timers) -> None:
    """If every command of a handler fails, none is rejected soon, and those of other handlers are handled.

    After the repair all are handled at once, each tenant's in order.
    """
    schedule, *others = SLICE.commands
    is_repaired = False

    async def fail(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        if not is_repaired:
            raise RuntimeError("a surprise")
        return await timers.handle(tx, commands, now)

    timers.read_for(Route((schedule,), fail, timers.wake), Route(tuple(others), timers.handle, timers.wake))
    send(timers, "a1 b1")
    for due in (5, 6):
        timers.send(schedule_timer("a1", NOW + due, tenant="a"), tenant="a")
    timers.send(cancel_timer(tenant="c"), tenant="c", message="cancel-timer")
    for _ in range(50):
        timers.clock.advance(minutes=1)
        await timers.consume()
    assert (timers.outcomes(), timers.broker.dead_letters) == ({"not_found": 1}, [])
    assert timers.reader.health.reason == "every command fails: RuntimeError: a surprise"
    is_repaired = True
    await timers.consume()
    assert timers.outcomes() == {"not_found": 1}
    send(timers, "d1")  # it is tried, and shows that the handler works
    await timers.consume()
    assert timers.outcomes() == {"not_found": 1, "scheduled": 3, "rescheduled": 2}
    assert (await timers.row("a1", "a"))["due_at"] == NOW + 6


# One bad command


async def test_one_command_fails(timers: Timers) -> None:
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
    assert timers.reader.health == HEALTHY


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


# Dead letters


async def test_dead_letter_waits_for_the_broker(store: Database, clock: ManualClock) -> None:
    """A dead letter and its event are stored once, however long the broker is away. Other commands are handled."""
    broker = MemoryBroker(deduplicates=False)
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


# Lines of the log


async def test_audit_lines(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the tenant of a rejected command, with escapes, its id, type and code, and an operator's action."""
    caplog.set_level("INFO")
    timers.send(b"{secret", tenant="te\nnant", message_id="id-1")
    timers.send(command("ScheduleTimer", {"secret": 1}, envelope={"id": "id-2"}))
    timers.send(schedule_timer("call-1"))
    retry = command("RetryTimer", {"serviceCallId": "call-1"}, envelope={"id": "id-3"})
    timers.send(retry, message="retry-timer")
    timers.send(command("Surprise", {}, envelope={"id": "id-4"}), message="surprise")
    await timers.consume()
    lines = [vars(each) for each in caplog.records if each.message in {"command rejected", "operator action"}]
    lines.sort(key=lambda line: line["sequence"])
    assert [(each["tenant"], each["command_id"], each["type"]) for each in lines] == [
        (r"te\nnant", "id-1", "unknown"),
        ("acme", "id-2", "ScheduleTimer"),
        ("acme", "id-3", "RetryTimer"),
        ("acme", "id-4", "unknown"),
    ]
    found = [(each["sequence"], each.get("code") or each["outcome"]) for each in lines]
    assert found == [(1, "INVALID_JSON"), (2, "INVALID_PAYLOAD"), (4, "unchanged"), (5, "UNKNOWN_TYPE")]
    assert "secret" not in str(lines)


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
