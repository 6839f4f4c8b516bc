import itertools
from collections import Counter
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import next_at
from tests.harness.memory_broker import MemoryBroker
from tests.harness.signals import Signals
from tests.harness.wiring import MAX_ATTEMPTS
from tests.simulation.faults import BrokerObserver, Crash, FaultyBroker, FaultyDatabase, Gate, Point, Process, crash
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.due_rows import DueRows
from timer_service.core.ports.database import Database
from timer_service.signals.firing_store import FIRINGS


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """The signals slice on each store in turn."""
    return Signals(store, memory_broker, clock)


async def make_fail(signals: Signals, signal: str = "signal-1") -> None:
    """Make each firing of a signal fail: the database refuses that it fires, until `other` is deleted."""
    async with signals.database.transaction() as tx:
        await tx.execute("CREATE UNIQUE INDEX only_one_fires ON work_signals (signal_id) WHERE status = 'fired'")
        await tx.execute(
            "INSERT INTO work_signals (tenant_id, signal_id, status, trigger_kind, trigger_spec, created_at,"
            " last_fired_at, defined_epoch, defined_sequence, since_epoch, since_sequence)"
            f" VALUES ('other', '{signal}', 'fired', 'event', '{{}}', 0, 0, 1, 1, 1, 1)"
        )


async def damage(sqlite: SqliteDatabase, signal: str) -> None:
    """Make the row of a signal unreadable."""
    async with sqlite.transaction() as tx:
        await tx.fetch("PRAGMA ignore_check_constraints = ON")
        await tx.execute(f"UPDATE work_signals SET trigger_kind = 'damaged' WHERE signal_id = '{signal}'")
        await tx.fetch("PRAGMA ignore_check_constraints = OFF")


# Time, wake-ups and refusals


async def test_wakeups_and_lateness(signals: Signals) -> None:
    """A transition wakes the firings loop, and a firing wakes the outbox. The event has the instant of firing."""
    await signals.create()
    await signals.transition()
    signals.clock.advance(milliseconds=5)
    await signals.run()
    (event,) = signals.events_of()
    assert (signals.command_wakes, signals.worker_wakes) == ([NOW], [("outbox", NOW + 5)])
    assert (event["timestampMs"], event["payload"]["firedAt"]) == (NOW + 5, iso(NOW + 5))
    assert signals.metrics.lateness[0] == 0.005


async def test_instant(signals: Signals) -> None:
    """A signal for an instant fires exactly at that instant, and its loop is woken for it."""
    due = after(minutes=1)
    await signals.remind(iso(due))
    assert (signals.command_wakes, await next_at(signals.firings, due - 1)) == ([due], due)
    assert (signals.fired(), (await signals.firings.tick(due)).done) == ([], 1)
    (firing,) = await signals.firings_of()
    assert [firing[name] for name in ("createdAt", "dueAt", "settledAt")] == [iso(NOW), iso(due), iso(due)]
    view = await signals.ask("get-signal", signalId="signal-1")
    assert (view["createdAt"], view["lastFiredAt"]) == (iso(NOW), iso(due))


async def test_reminder_paused_over_its_instant(signals: Signals) -> None:
    """If an instant passes during a pause, the signal fires once after it is activated."""
    due = after(minutes=1)
    await signals.remind(iso(due))
    await signals.about("Pause")
    signals.clock.set(due)
    await signals.run()
    paused = signals.fired()
    for _ in range(2):
        await signals.about("Activate")
        await signals.run()
    assert (paused, signals.fired(), await signals.status()) == ([], ["signal-1"], "fired")


async def test_cancelled_and_created_again(signals: Signals) -> None:
    """A signal that is created again with the id of a cancelled signal does not fire at the old instant."""
    due = after(minutes=1)
    await signals.remind(iso(due))
    await signals.about("Cancel")
    await signals.remind(iso(after(minutes=2)))
    signals.clock.set(due)
    await signals.run()
    early = signals.fired()
    signals.clock.advance(minutes=1)
    await signals.run()
    assert (early, signals.fired()) == ([], ["signal-1"])


async def test_the_oldest_cause_fires(signals: Signals) -> None:
    """If two transitions make a signal fire in one pass, it fires for the first one, whatever the ids are."""
    names = [f"signal-{number}" for number in range(8)]
    for name in names:
        await signals.create(name)
    for event in ("event-1", "event-2"):
        await signals.transition(eventId=event)
    await signals.run()
    assert {each["payload"]["dedupeKey"] for each in signals.events_of()} == {"event-1"}
    assert sorted(signals.fired()) == names


@pytest.mark.parametrize(("verb", "status"), [("Pause", "paused"), ("Cancel", "cancelled")])
async def test_signal_that_is_no_longer_active(signals: Signals, verb: str, status: str) -> None:
    """A firing whose signal is no longer active fails with the reason. It creates no task and no event."""
    await signals.create()
    await signals.transition()
    await signals.about(verb)
    await signals.run()
    (firing,) = await signals.firings_of()
    assert (firing["status"], firing["lastError"]) == ("failed", f"the signal is {status}")
    assert "taskId" not in firing
    assert (signals.broker.events, await signals.status(), await signals.tasks_of()) == ([], status, [])
    assert signals.metrics.settled_in["work_signal_firings", "refused"] == (verb == "Pause")  # a cancel ends the firing


async def test_signal_that_does_not_exist(signals: Signals) -> None:
    """A firing whose signal was deleted meanwhile fails with the reason."""
    await signals.create()
    await signals.transition()
    await signals.sql("DELETE FROM work_signals")
    await signals.run()
    (firing,) = await signals.firings_of()
    assert (firing["status"], firing["lastError"], signals.fired()) == ("failed", "the signal does not exist", [])


# Crashes and instances


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in Point if "reply" not in point])
async def test_crash_everywhere(store: Database, clock: ManualClock, point: Point) -> None:
    """At any crash between a command and its settled event there is one firing and one event id.

    The process crashes at the first call of a kind, then at the second call, until a run has no further call.
    """
    broker = MemoryBroker(deduplicates=False)
    for nth in itertools.count(1):
        tenant = f"tenant-{nth}"
        user = Signals(store, broker, clock)
        waiting: Any = {
            "triggerKind": "event",
            "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]},
        }
        user.send("CreateWorkSignal", tenant=tenant, signalId="signal-1", workItemId="item-1", **waiting)
        user.send("TransitionWorkItem", tenant=tenant, workItemId="item-1", to="blocked")
        gate = Gate(life := Process(lambda: None), Counter())
        gate.arm(crash(point, nth))
        database = FaultyDatabase(store, gate, exclusive=store.exclusive)
        mortal = Signals(database, broker, clock, service_broker=FaultyBroker(broker, gate, BrokerObserver()))
        try:
            await mortal.consume()
            await mortal.run()
        except Crash:
            clock.advance(minutes=1)
            await user.consume()
            await user.run()
        events = [event for event in user.events_of() if event["tenantId"] == tenant]
        (firing,) = [row for row in await user.rows("work_signal_firings") if row["tenant_id"] == tenant]
        assert {event["id"] for event in events} == {f"fired-{firing['firing_id']}"}
        assert (firing["status"], await user.rows("outbox")) == ("enqueued", [])
        if not life.ended:
            break
    assert nth > 1


# Failures


async def test_retried_and_given_up(signals: Signals) -> None:
    """A failing firing is retried after a backoff and given up in the end, and its signal paused. Others fire."""
    for name in ("first", "signal-1", "third"):
        await signals.create(name)
    await signals.transition(eventId="event-1", envelope={"id": "cmd-1", "correlationId": "corr-1"})
    await make_fail(signals)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        await signals.run()
        (firing,) = await signals.firings_of()
        assert firing["attempt"] == attempt
        assert firing["status"] == ("failed" if attempt == MAX_ATTEMPTS else "queued")
        assert sorted(signals.fired()) == ["first", "third"]
        assert await DueRows(FIRINGS).find(signals.database.reader, ["acme"], signals.clock.now(), 10) == []
        if (again_at := await next_at(signals.firings, signals.clock.now())) is not None:
            assert 0 <= again_at - signals.clock.now() <= 1000 * 2 ** (attempt - 1)
            signals.clock.set(again_at)
    (firing,) = await signals.firings_of()
    view = await signals.ask("get-signal", signalId="signal-1")
    (failed,) = signals.events_of("work.signal.failed")
    assert (view["status"], view["lastError"]) == ("paused", firing["lastError"])
    assert (failed["causationId"], failed["correlationId"]) == ("cmd-1", "corr-1")
    assert failed["payload"] == {
        "tenantId": "acme",
        "signalId": "signal-1",
        "firingId": firing["firingId"],
        "workItemId": "item-1",
        "dedupeKey": "event-1",
        "attempt": MAX_ATTEMPTS,
        "error": firing["lastError"],
        "failedAt": firing["settledAt"],
    }
    assert signals.metrics.given_up == {"work_signal_firings": 1}
    assert signals.metrics.settled_in["work_signal_firings", "retried"] == MAX_ATTEMPTS - 1
    assert signals.worker_wakes[-1] == ("outbox", signals.clock.now())


async def test_reminder_that_was_given_up_has_all_attempts_again(signals: Signals) -> None:
    """After it is activated, the firing of an instant is tried as often as before."""
    await signals.remind(iso(NOW))
    await make_fail(signals)
    for _ in range(MAX_ATTEMPTS):
        await signals.run()
        signals.clock.advance(minutes=10)
    given_up = await signals.status()
    await signals.about("Activate")
    assert "lastError" not in (await signals.firings_of())[0]
    await signals.run()
    (firing,) = await signals.firings_of()
    assert (given_up, firing["status"], firing["attempt"]) == ("paused", "queued", 1)


async def test_transition_after_a_failed_firing(signals: Signals) -> None:
    """After a firing was given up and its signal is activated, the next transition fires the signal."""
    await signals.create()
    await signals.transition()
    await make_fail(signals)
    for _ in range(MAX_ATTEMPTS):
        await signals.run()
        signals.clock.advance(minutes=10)
    await signals.sql("DELETE FROM work_signals WHERE tenant_id = 'other'")
    await signals.about("Activate")
    assert "lastError" not in await signals.ask("get-signal", signalId="signal-1")
    await signals.run()
    assert signals.fired() == []
    await signals.transition(eventId="then")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.events_of()] == ["then"]
    assert "lastError" not in await signals.ask("get-signal", signalId="signal-1")


async def test_firing_of_an_unreadable_signal(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A firing whose signal cannot be read is given up in the end, and the signal paused if active. Others fire."""
    signals = Signals(sqlite, memory_broker, clock)
    for name in ("signal-1", "signal-2", "ended"):
        await signals.create(name)
    await signals.transition()
    await signals.sql("UPDATE work_signals SET status = 'resolved', ended_at = 1 WHERE signal_id = 'ended'")
    for name in ("signal-1", "ended"):
        await damage(sqlite, name)
    for _ in range(MAX_ATTEMPTS):
        await signals.run()
        clock.advance(minutes=10)
    states = {row["signal_id"]: row["status"] for row in await signals.rows("work_signal_firings")}
    assert states == {"signal-1": "failed", "signal-2": "enqueued", "ended": "failed"}
    assert len(signals.events_of("work.signal.failed")) == 2
    statuses = {row["signal_id"]: row["status"] for row in await signals.rows("work_signals")}
    assert statuses == {"signal-1": "paused", "signal-2": "fired", "ended": "resolved"}
