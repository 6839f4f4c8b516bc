"""The commands of a batch are handled in bounded transactions. What a handler leaves waits for its turn."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.harness.builders import cancel_timer, schedule_timer
from tests.harness.clock import NOW
from tests.harness.reading import catch_up
from tests.harness.timers import Timers
from tests.harness.transactions import recording_route
from timer_service.core.intake.batch import MOST_DATA
from timer_service.core.intake.route import CommandResult, Handle, Route
from timer_service.core.ports.database import Transaction
from timer_service.core.values.errors import ConflictError, DatabaseUnavailableError
from timer_service.core.values.message import Command, CommandPayload
from timer_service.timers import SLICE

LARGE = "x" * 60_000


def record(timers: Timers, handle: Handle) -> list[list[CommandPayload]]:
    """Give the timers a reader with this handler. Return a list that gets what each of its transactions applied."""
    route, applied = recording_route(SLICE, timers.wake, handle=handle)
    timers.read_for(route)
    return applied


def names(applied: Sequence[Sequence[CommandPayload]]) -> list[str]:
    """Return the calls that each transaction applied, in order."""
    return [" ".join(each.service_call_id for each in payloads) for payloads in applied]  # type: ignore[attr-defined]


def send(timers: Timers, calls: str) -> None:
    """Send a ScheduleTimer for each call. Its first letter is its tenant."""
    for call in calls.split():
        timers.send(schedule_timer(call, tenant=call[0]), tenant=call[0])


async def test_timers_with_much_data(timers: Timers) -> None:
    """Commands on timers with much data are applied in transactions that hold a limited number of bytes, in order.

    New timers are added first. If one is behind a command without room, the transaction is repeated without it.
    """
    calls = [f"call-{number:03}" for number in range(80)]
    for call in calls:
        timers.send(schedule_timer(call, due_at=NOW + 60_000, data=LARGE))
    await timers.consume()
    await timers.stop_reading()
    applied = record(timers, timers.handle)
    for call in calls:
        timers.send(cancel_timer(call), message="cancel-timer")
    timers.send(schedule_timer("new"))
    await timers.consume()
    assert max(map(len, applied)) == MOST_DATA // (len(LARGE) + 2)
    assert " ".join(names(applied)).split() == [*calls, "new"]
    assert timers.outcomes() == {"scheduled": 81, "cancelled": 80}


async def test_what_was_left(timers: Timers) -> None:
    """What a handler leaves is applied later. Tenants take turns, each tenant's are in order, also behind an outage."""
    is_away = False

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        if is_away:
            raise DatabaseUnavailableError("gone")
        return await timers.handle(tx, commands[:1], now)

    applied = record(timers, handle)
    send(timers, "a1 a2 a3 a4 b1 b2 c1")
    assert await timers.reader.begin()
    await timers.reader.turn()
    send(timers, "a5")
    is_away = True
    with pytest.raises(DatabaseUnavailableError):
        await catch_up(timers.reader)
    is_away = False
    await timers.consume()
    found = names(applied)
    assert {"b1", "c1"} < set(found[:5])
    assert [each for each in found if each < "b"] == ["a1", "a2", "a3", "a4", "a5"]
    assert (len(found), timers.outcomes(), timers.broker.dead_letters) == (8, {"scheduled": 8}, [])


async def test_a_batch_that_meets_conflicts_is_divided(timers: Timers) -> None:
    """If a large transaction always meets conflicts with other instances, its commands are handled in smaller ones."""
    sizes: Counter[int] = Counter()

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        sizes[len(commands)] += 1
        if len(commands) > 2:
            raise ConflictError("deadlock detected")
        return await timers.handle(tx, commands, now)

    timers.read_with(handle)
    send(timers, "a1 b1 c1 d1")
    await timers.consume()
    assert sizes == {4: 10, 2: 2}  # five tries of the log, and as many of the waiting commands
    assert timers.outcomes() == {"scheduled": 4}


async def test_loops_are_woken_for_the_earliest_row(timers: Timers) -> None:
    """A batch wakes each loop once, for the earliest row. A row for workers wakes only a loop that its result names."""
    wakes: list[tuple[int, str | None]] = []

    async def wake(at: int, loop: str | None) -> None:
        wakes.append((at, loop))

    rows = [CommandResult("done", at, loop=loop) for at, loop in ((5, None), (3, None), (4, "outbox"), (9, None))]
    for_workers = CommandResult("started", 1, lane=("a", "main", "pay"))

    async def handle(_tx: Transaction, _commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        return [*rows, for_workers, for_workers._replace(wake_at=7, loop="deadlines")]

    timers.read_for(Route(SLICE.commands, handle, wake))
    send(timers, "a1 a2 a3 a4 a5 a6")
    await timers.consume()
    assert wakes == [(3, None), (4, "outbox"), (7, "deadlines")]


async def test_an_error_after_the_commit(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    """If a loop cannot be woken for a row, its command has taken effect all the same, once."""

    async def fail(_at: int, _loop: str | None) -> None:
        raise RuntimeError("a surprise")

    timers.read_for(Route(SLICE.commands, timers.handle, fail))
    for call in ("a1", "b1"):
        send(timers, call)
        await timers.consume()
    assert timers.outcomes() == {"scheduled": 2}
    assert "the work after a commit failed" in caplog.text
