"""The clock is ahead for a while and is then set back: no row that was written in between waits too long."""

from typing import Any

import pytest

from tests.harness.builders import scheduled
from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.clock_repair import scan
from tests.harness.in_process import InProcess
from tests.harness.memory_broker import MemoryBroker, never
from tests.harness.runs import Runs
from tests.harness.signals import Signals
from tests.harness.timers import Timers, bodies, fires, put_timers
from tests.harness.wiring import VISIBILITY_TIMEOUT, make_parts
from timer_service.app.slices import build_clock_repair
from timer_service.core.due.lease import Failure, Lease
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.ports.database import Database
from timer_service.core.service.clock_repair import ClockRepair
from timer_service.core.values.message import Position
from timer_service.runs import events as run_events
from timer_service.runs.run import SWEEP_MS

AHEAD_DAYS = 365


@pytest.fixture
def timers(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Timers:
    return Timers(store, memory_broker, clock)


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    return Signals(store, memory_broker, clock)


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    return Runs(store, memory_broker, clock)


def new_repair(of: Timers | InProcess) -> ClockRepair:
    return build_clock_repair(make_parts(of.database, of.broker, of.clock, of.metrics))


async def available(database: Database, table: str) -> list[int]:
    rows = await database.reader.fetch(f"SELECT available_at FROM {table} WHERE available_at > 0 ORDER BY 1")
    return [row["available_at"] for row in rows]


async def refuse(timers: Timers, *calls: str) -> None:
    """Fire timers, and let the broker refuse the events of some calls."""
    timers.broker.refuses = lambda message: any(fires(call)(message) for call in calls)
    await timers.tick()
    timers.broker.refuses = never


async def claim(of: Timers | InProcess, lease: Lease) -> int:
    """Claim rows like a process that dies then."""
    async with of.database.transaction() as tx:
        return len(await lease.claim(tx, of.clock.now(), 10))


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("step", ["refused", "claimed"])
async def test_timer_that_was_handled_while_the_clock_was_ahead(timers: Timers, step: str, *, restarts: bool) -> None:
    """A timer that was refused or claimed then fires when it is due, after a restart or without one."""
    repair = new_repair(timers)
    await scan(repair, timers.clock)
    await timers.schedule("other")
    await timers.schedule("late", after(hours=1))
    timers.clock.advance(days=AHEAD_DAYS)
    if step == "refused":
        await refuse(timers, "late")
    else:
        assert await claim(timers, timers.lease) == 2
    timers.clock.set(after(hours=2))
    if restarts:
        timers, repair = Timers(timers.database, timers.broker, timers.clock), new_repair(timers)
    assert await scan(repair, timers.clock) == (1 if step == "refused" else 2)
    row = await timers.row("late")
    await timers.tick()
    assert (row["available_at"], row["lease_token"], row["attempt"]) == (after(hours=2), None, 1)
    assert sorted(timers.fired()) == ["late", "other"]


async def test_clock_that_is_set_back_between_claim_and_publishing(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer fires once, at the instant of its claim: its event is not older than its due time."""
    await timers.schedule("call-1", NOW)
    monkeypatch.setattr(timers.metrics, "claimed", lambda _: timers.clock.advance(seconds=-5))
    await timers.tick()
    timers.clock.set(after(hours=1))
    await timers.tick()
    (event,) = bodies(timers.broker.events)
    assert (event["payload"]["dueAt"], event["payload"]["reachedAt"]) == (iso(NOW), iso(NOW))
    assert (await timers.row("call-1"))["state"] == "Reached"


async def test_clock_that_is_set_back_between_the_claim_and_the_firing_of_a_signal(
    signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal fires at the first attempt, at the instant of the claim."""
    await signals.remind(iso(NOW))
    monkeypatch.setattr(signals.metrics, "claimed", lambda _: signals.clock.set(after(seconds=-5)))
    await signals.firings.tick(NOW)
    (firing,) = await signals.rows("work_signal_firings")
    assert (firing["status"], firing["attempt"], firing["settled_at"]) == ("enqueued", 1, NOW)


async def test_timers_that_are_due_much_later(timers: Timers) -> None:
    """A timer that was never claimed stays. A timer that was handled before its due time waits for its due time."""
    await timers.schedule("never handled", after(days=300))
    await timers.schedule("handled", after(days=100))
    await timers.schedule("after the jump", after(days=900))
    timers.clock.advance(days=200)
    await refuse(timers, "handled")
    timers.clock.set(NOW)
    assert await scan(new_repair(timers), timers.clock) == 1
    assert await available(timers.database, "timer_schedules") == [after(days=days) for days in (100, 300, 900)]


async def test_rows_that_a_right_clock_wrote(timers: Timers) -> None:
    """A lease that another instance holds, and the longest delay before a retry, are not wrong."""
    await timers.schedule("held", NOW - 1)
    await timers.schedule("retried")
    async with timers.database.transaction() as tx:
        held, retried = await timers.lease.claim(tx, NOW, 10)
        await timers.lease.retry(tx, [Failure(retried, "refused", after(minutes=5), counts=False)])
    timers.clock.set(NOW - 900)
    assert await scan(new_repair(timers), timers.clock) == 0
    assert (await timers.row("held"))["lease_token"] == held["lease_token"]
    timers.clock.set(NOW - 1001)
    assert await scan(new_repair(timers), timers.clock) == 1


async def test_events_that_were_added_while_the_clock_was_ahead(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that were added, refused or claimed then are published, in the order in which they were added."""
    runs.clock.advance(days=AHEAD_DAYS)
    for name in ("run-1", "run-2", "run-3"):
        await runs.start({f"job-of-{name}": []}, runId=name)
    assert await claim(runs, Lease(OUTBOX, VISIBILITY_TIMEOUT)) == 3
    await runs.start({"a": [], "b": ["a"]}, runId="run-4")
    await runs.request("ReportJobStatus", runId="run-4", jobName="a", status="failed")
    monkeypatch.setattr(run_events, "MOST_BYTES", 1)  # the event of the second job is deferred
    await runs.start({"a": [], "b": []}, runId="run-5")
    runs.clock.set(after(hours=1))
    assert await runs.stored() == []
    await scan(new_repair(runs), runs.clock)
    published = [each.address.message for each in await runs.stored()]
    assert published == ["job-ready"] * 4 + ["job-skipped", "run-completed"] + ["job-ready"] * 2


async def test_signals_that_fired_while_the_clock_was_ahead(signals: Signals) -> None:
    """A firing of a transition fires at once. A reminder waits for its instant, also if it was created then."""
    await signals.create()
    await signals.remind(iso(after(days=30)), "before")
    signals.clock.advance(days=AHEAD_DAYS)
    await signals.remind(iso(after(days=40)), "during")
    await signals.transition()
    signals.clock.set(after(hours=1))
    await scan(new_repair(signals), signals.clock)
    fired = []
    for at in (after(hours=1), after(days=30), after(days=40)):
        signals.clock.set(at)
        await signals.run()
        fired.append(signals.fired())
    assert fired == [["signal-1"], ["signal-1", "before"], ["signal-1", "before", "during"]]


async def test_transition_that_waited_while_the_clock_was_ahead(signals: Signals) -> None:
    """It is matched with the signals at once, and they fire."""
    await signals.create()
    signals.clock.advance(days=AHEAD_DAYS)
    await Signals(signals.database, signals.broker, signals.clock, enabled=False).transition()
    signals.clock.set(after(hours=1))
    assert (await signals.evaluation.tick(signals.clock.now())).done == 1
    await scan(new_repair(signals), signals.clock)
    await signals.run()
    assert signals.fired() == ["signal-1"]


async def test_cancellation_that_was_added_while_the_clock_was_ahead(timers: Timers) -> None:
    """Its pass begins as soon as the clock is right again."""
    await timers.schedule("call-1", after(days=400))
    timers.clock.advance(days=AHEAD_DAYS)
    await timers.cancel_many("call")
    timers.clock.set(after(hours=1))
    assert await scan(new_repair(timers), timers.clock) == 1
    await timers.pass_cancellations()
    assert (await timers.row("call-1"))["state"] == "Cancelled"


async def test_runs_that_were_swept_while_the_clock_was_ahead(runs: Runs) -> None:
    """The next sweep of a run, and the time after which a job is stale, are as if the clock had been right."""
    ready = {"jobs": [{"name": "a", "staleAfterSeconds": 3600}]}
    await runs.request("StartRun", runId="old", **ready)
    runs.clock.advance(days=AHEAD_DAYS)
    await runs.request("StartRun", runId="new", **ready)
    await runs.request("ReportJobStatus", runId="old", jobName="a", status="running")
    await runs.sql(f"UPDATE runs SET sweep_at = {runs.clock.now() + SWEEP_MS}")
    runs.clock.set(after(hours=1))
    assert await scan(new_repair(runs), runs.clock) == 5, "two runs, their jobs, and the JobReady of the new run"
    assert [row["sweep_at"] for row in await runs.rows("runs")] == [after(hours=1)] * 2
    assert [row["stale_at"] for row in await runs.rows("run_jobs")] == [after(hours=2)] * 2


async def test_scans(timers: Timers) -> None:
    """All rows are read at the start and after the clock was set back by a second, and again a minute after that."""
    steps: list[dict[str, Any]] = [
        *({}, {"minutes": 1}, {"milliseconds": -999}, {"seconds": 5}, {"milliseconds": -1}, {"seconds": 59}),
        *({"seconds": 2}, {"minutes": 5}, {"seconds": -5}),
    ]
    repair, found = new_repair(timers), []
    for number, step in enumerate(steps):
        wrong = scheduled(f"call-{number}", NOW, Position(1, 1))._replace(available_at=after(days=AHEAD_DAYS))
        async with timers.database.transaction() as tx:
            await put_timers(tx, [wrong])
        timers.clock.advance(**step)
        found.append(await scan(repair, timers.clock))
    assert found == [1, 1, 0, 0, 3, 0, 2, 0, 2]


async def test_many_rows(timers: Timers) -> None:
    """Rows are read in pages: all wrong rows are found among many others, also if many have the same instant."""
    due = [scheduled(f"due-{number}", after(days=1 + number % 3), Position(1, number)) for number in range(12_000)]
    ahead = [(f"wrong-{number}", after(days=2 + number // 1100)) for number in range(1200)]
    wrong = [scheduled(call, NOW, Position(1, 1))._replace(available_at=at) for call, at in ahead]
    async with timers.database.transaction() as tx:
        await put_timers(tx, [*due, *wrong])
    assert await scan(new_repair(timers), timers.clock) == 1200
    assert await available(timers.database, "timer_schedules") == [NOW] * 1200 + sorted(
        timer.schedule.due_at for timer in due
    )
