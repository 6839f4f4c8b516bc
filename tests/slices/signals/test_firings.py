import asyncio
import itertools
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import exhaust, next_at
from tests.harness.signals import BLOCKED, Signals
from tests.harness.wiring import MAX_ATTEMPTS, VISIBILITY_TIMEOUT
from tests.simulation.faults import (
    BrokerObserver,
    Crash,
    FaultyBroker,
    FaultyDatabase,
    Gate,
    Point,
    Process,
    crash,
    outage,
)
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.lease import Lease, take_over_claims
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.ports.broker import BrokerFeatures
from timer_service.core.ports.database import Database
from timer_service.core.values.data import dump_data
from timer_service.core.values.delays import Backoff
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Position
from timer_service.signals import store
from timer_service.signals.firing_store import FIRINGS
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signal import Definition, Key, Signal, Status

HOLD_MS = VISIBILITY_TIMEOUT // timedelta(milliseconds=1)
EVENT: Any = {"triggerKind": "event", "triggerSpec": BLOCKED}
FORGETFUL = BrokerFeatures(deduplicates=False, max_message_bytes=1024 * 1024)


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


async def tasks(signals: Signals) -> list[str]:
    views = (await signals.ask("list-tasks", workItemId="item-1"))["tasks"]
    return [view["signalId"] for view in views]


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
    """A signal for an instant fires exactly at that instant. Its event has no work item, and no task is created."""
    due = after(minutes=1)
    await signals.remind(iso(due))
    assert signals.command_wakes == [due]
    assert await next_at(signals.firings, signals.clock.now()) == due
    signals.clock.set(due - 1)
    await signals.run()
    early = signals.fired()
    signals.clock.set(due)
    await signals.run()
    (event,) = signals.events_of()
    assert (early, event["payload"]["firedAt"]) == ([], iso(due))
    assert event["payload"].keys().isdisjoint({"workItemId", "taskId"})
    assert await tasks(signals) == []


async def test_reminder_paused_over_its_instant(signals: Signals) -> None:
    """If an instant passes during a pause, the signal fires once after it is activated."""
    due = after(minutes=1)
    await signals.remind(iso(due))
    await signals.about("Pause")
    signals.clock.set(due)
    await signals.run()
    paused = signals.fired()
    await signals.about("Activate")
    await signals.run()
    await signals.about("Activate")
    await signals.run()
    assert (paused, signals.fired(), await signals.status()) == ([], ["signal-1"], "fired")
    assert signals.metrics.commands["ActivateWorkSignal", "already_fired"] == 1


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


@pytest.mark.parametrize(
    ("verb", "outcome", "reason"),
    [
        ("Pause", "paused", "the signal is paused"),
        ("Cancel", "cancelled", "the signal is cancelled"),
        ("Resolve", "resolved", "the signal is resolved"),
    ],
)
async def test_signal_that_is_no_longer_active(signals: Signals, verb: str, outcome: str, reason: str) -> None:
    """A firing whose signal is no longer active fails with the reason. It creates no task and no event."""
    await signals.create()
    await signals.transition()
    await signals.about(verb)
    await signals.run()
    (firing,) = (await signals.ask("list-firings", signalId="signal-1"))["firings"]
    assert (firing["status"], firing["lastError"]) == ("failed", reason)
    assert (signals.broker.events, await signals.status()) == ([], outcome)
    assert await tasks(signals) == []


async def test_second_instance_fires_nothing_twice(signals: Signals) -> None:
    """A signal that has fired does not fire again after a restart or on another instance."""
    await signals.create()
    await signals.transition()
    await signals.run()
    other = Signals(signals.database, signals.broker, signals.clock)
    await take_over_claims(other.database, Lease(FIRINGS, VISIBILITY_TIMEOUT), other.clock.now())
    signals.clock.advance(minutes=10)
    await other.run()
    await signals.run()
    assert signals.fired() == ["signal-1"]
    assert await tasks(signals) == ["signal-1"]


# Crashes


async def run_everything(signals: Signals, tenant: str) -> None:
    """Take over claims, handle commands, and run all workers until nothing is left."""
    await take_over_claims(signals.database, Lease(FIRINGS, VISIBILITY_TIMEOUT), signals.clock.now())
    await take_over_claims(signals.database, Lease(OUTBOX, VISIBILITY_TIMEOUT), signals.clock.now())
    await signals.consume()
    await signals.run()


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in Point if "reply" not in point])
async def test_crash_everywhere(store: Database, clock: ManualClock, point: Point) -> None:
    """At any crash between a command and its settled event there is one firing and one event id.

    The process crashes at the first call of a kind, then at the second call, until a run has no further call.
    """
    broker = MemoryBroker(features=FORGETFUL)
    for nth in itertools.count(1):
        tenant = f"tenant-{nth}"
        user = Signals(store, broker, clock)
        user.send("CreateWorkItem", tenant=tenant, workItemId="item-1")
        user.send("CreateWorkSignal", tenant=tenant, signalId="signal-1", workItemId="item-1", **EVENT)
        user.send("TransitionWorkItem", tenant=tenant, workItemId="item-1", to="blocked")
        gate = Gate(life := Process(lambda: None), Counter())
        gate.arm(crash(point, nth))
        database = FaultyDatabase(store, gate, exclusive=store.exclusive)
        mortal = Signals(database, broker, clock, service_broker=FaultyBroker(broker, gate, BrokerObserver()))
        try:
            await run_everything(mortal, tenant)
        except Crash:
            clock.advance(milliseconds=HOLD_MS)
            await run_everything(user, tenant)
        events = [event for event in user.events_of() if event["tenantId"] == tenant]
        (firing,) = [row for row in await user.rows("work_signal_firings") if row["tenant_id"] == tenant]
        assert {event["id"] for event in events} == {f"fired-{firing['firing_id']}"}
        assert (firing["status"], await user.rows("outbox")) == ("enqueued", [])
        if not life.ended:
            break
    assert nth > 1


# Failures


async def test_retried_and_buried(signals: Signals) -> None:
    """A failing firing is retried after its backoff and buried in the end. Then its signal is paused."""
    await signals.create()
    await signals.transition(envelope={"id": "cmd-1", "correlationId": "corr-1"})
    await make_fail(signals)
    rng = random.Random(0)
    for attempt in range(1, MAX_ATTEMPTS):
        await signals.run()
        (row,) = await signals.rows("work_signal_firings")
        wait = Backoff().delay(attempt, rng) // timedelta(milliseconds=1)
        assert (row["status"], row["attempt"], row["available_at"]) == ("queued", attempt, signals.clock.now() + wait)
        again_at = signals.clock.now() + wait
        assert await next_at(signals.firings, signals.clock.now()) == again_at
        signals.clock.set(again_at)
    await signals.run()
    (row,) = await signals.rows("work_signal_firings")
    view = await signals.ask("get-signal", signalId="signal-1")
    (failed,) = signals.events_of("work.signal.failed")
    assert (row["status"], row["attempt"], row["settled_at"]) == ("failed", MAX_ATTEMPTS, signals.clock.now())
    assert (view["status"], view["lastError"]) == ("paused", row["last_error"])
    assert (failed["causationId"], failed["correlationId"]) == ("cmd-1", "corr-1")
    assert failed["payload"]["error"] == row["last_error"]
    assert (signals.fired(), await tasks(signals)) == ([], [])
    assert signals.metrics.given_up == {"work_signal_firings": 1}
    assert signals.metrics.settled_in["work_signal_firings", "retried"] == MAX_ATTEMPTS - 1


async def test_given_up_firing_wakes_the_outbox(signals: Signals) -> None:
    """A buried firing wakes the outbox, so that its event is published at once."""
    await signals.create()
    await signals.transition()
    await signals.sql(f"UPDATE work_signal_firings SET attempt = {MAX_ATTEMPTS + 3}")
    await signals.firings.tick(NOW)
    assert signals.worker_wakes == [("outbox", NOW)]


async def test_firing_of_an_unreadable_signal(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A firing whose signal cannot be read is given up in the end. Passes succeed, and other signals fire."""
    signals = Signals(sqlite, memory_broker, clock)
    await signals.create()
    await signals.create("signal-2")
    await signals.transition()
    async with sqlite.transaction() as tx:
        await tx.fetch("PRAGMA ignore_check_constraints = ON")
        await tx.execute("UPDATE work_signals SET trigger_kind = 'damaged' WHERE signal_id = 'signal-1'")
        await tx.fetch("PRAGMA ignore_check_constraints = OFF")
    for _ in range(MAX_ATTEMPTS):
        await signals.run()
        signals.clock.advance(minutes=10)
    states = {row["signal_id"]: row["status"] for row in await signals.rows("work_signal_firings")}
    assert states == {"signal-1": "failed", "signal-2": "enqueued"}
    assert len(signals.events_of("work.signal.failed")) == 1


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
    await signals.run()
    assert signals.fired() == []
    await signals.transition(eventId="then")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.events_of()] == ["then"]
    assert "lastError" not in await signals.ask("get-signal", signalId="signal-1")


async def test_failing_firing_affects_only_itself(signals: Signals) -> None:
    """One failing firing does not stop the other firings of its batch."""
    names = [f"signal-{number}" for number in range(7)]
    for name in names:
        await signals.create(name)
    await signals.transition()
    await make_fail(signals, "signal-3")
    await signals.run()
    rest = [name for name in names if name != "signal-3"]
    assert (sorted(signals.fired()), sorted(await tasks(signals))) == (rest, rest)
    assert await signals.status("signal-3") == "active"


async def claim_and_die(signals: Signals) -> list[int]:
    """Claim firings and do not settle them. Return their attempts."""
    rows = await signals.firings._claim(signals.clock.now())
    signals.clock.advance(milliseconds=HOLD_MS)
    return [row["attempt"] for row in rows]


@pytest.mark.parametrize("cycles", [1, MAX_ATTEMPTS])
async def test_crash_loop_with_another_cause(signals: Signals, cycles: int) -> None:
    """A process that dies again and again after its claims gives up no firing. Afterwards all of them fire."""
    for name in ("first", "second", "third"):
        await signals.create(name)
    await signals.transition()
    seen = [await claim_and_die(signals) for _ in range(cycles)]
    await signals.run()
    assert seen == [[cycle] * 3 for cycle in range(1, cycles + 1)]
    assert (sorted(signals.fired()), signals.events_of("work.signal.failed")) == (["first", "second", "third"], [])


async def test_firing_that_kills_the_process(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A firing that kills the process three times alone is given up. The others fire."""
    signals = Signals(store, memory_broker, clock)
    for name in ("first", "second", "third"):
        await signals.create(name)
    await signals.transition()
    for _ in range(MAX_ATTEMPTS):
        await claim_and_die(signals)
    for _ in range(3):
        gate = Gate(Process(lambda: None), Counter())
        gate.arm(crash(Point.BEFORE_BEGIN, 2))  # claim the first firing alone, and then fire it
        database = FaultyDatabase(store, gate, exclusive=store.exclusive)
        with pytest.raises(Crash):
            await Signals(database, memory_broker, clock).firings.tick(clock.now())
        clock.advance(milliseconds=HOLD_MS)
    await signals.run()
    (failed,) = signals.events_of("work.signal.failed")
    assert failed["payload"]["error"] == "gave up: claimed and never settled"
    assert sorted([*signals.fired(), failed["payload"]["signalId"]]) == ["first", "second", "third"]
    assert await signals.status(failed["payload"]["signalId"]) == "paused"


async def test_lost_lease_changes_nothing(signals: Signals) -> None:
    """An instance that has lost its lease changes nothing. The new holder fires the signal."""
    await signals.create("kept")
    await signals.transition()
    late = await signals.firings._claim(NOW)
    signals.clock.advance(milliseconds=HOLD_MS)
    other = Signals(signals.database, signals.broker, signals.clock)
    held = await other.firings._claim(signals.clock.now())
    await signals.firings._process(late)
    assert (await signals.status("kept"), await tasks(signals), await signals.rows("outbox")) == ("active", [], [])
    assert signals.metrics.lost == 1
    await other.firings._process(held)
    await other.run()
    assert (signals.fired(), await tasks(signals)) == (["kept"], ["kept"])


async def test_two_instances_at_the_same_time(signals: Signals) -> None:
    """Two instances that process the same firings fire each signal once."""
    for number in range(30):
        await signals.create(f"signal-{number}")
    await signals.transition()
    other = Signals(signals.database, signals.broker, signals.clock)
    for each in (signals, other):
        each.firings._batch_size = 4
    await asyncio.gather(signals.run(), other.run())
    await signals.run()
    assert sorted(signals.fired()) == sorted(await tasks(signals)) == sorted(f"signal-{n}" for n in range(30))


async def test_outage_of_the_database(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Claimed firings are processed after an outage of the database, within the same lease."""
    gate = Gate(Process(lambda: None), Counter())
    database = FaultyDatabase(store, gate, exclusive=store.exclusive)
    signals = Signals(database, memory_broker, clock)
    await signals.create()
    await signals.transition()
    gate.arm(outage(Point.BEFORE_BEGIN, 2))
    with pytest.raises(DatabaseUnavailableError):
        await signals.firings.tick(clock.now())
    await signals.run()
    (firing,) = await signals.rows("work_signal_firings")
    assert (signals.fired(), firing["attempt"]) == (["signal-1"], 1)


# Evaluation


async def store_signals(signals: Signals, count: int, *, item: str = "item-1") -> None:
    """Store many signals that wait for one work item to be blocked."""
    wanted = Definition(item, TriggerKind.EVENT, dump_data(BLOCKED), None)
    keys = [Key("acme", f"signal-{number:05}") for number in range(count)]
    made = {key: Signal(key, Status.ACTIVE, wanted, Position(0, 1), Position(0, 1), NOW) for key in keys}
    async with signals.database.transaction() as tx:
        await store.save_signals(tx, {}, made)


@pytest.mark.slow
async def test_ten_thousand_signals_on_one_work_item(signals: Signals) -> None:
    """The evaluation matches 1,000 signals in each pass, also after a restart, and each signal fires once."""
    await store_signals(signals, 10_000)
    await signals.transition()
    assert (signals.command_wakes, await signals.rows("work_signal_firings")) == ([NOW], [])
    passes = 0
    while (await signals.evaluation.tick(NOW)).done:
        passes += 1
        (row,) = await signals.database.reader.fetch("SELECT COUNT(*) AS count FROM work_signal_firings")
        assert row["count"] == min(1000 * passes, 10_000)
        signals.evaluation = Signals(signals.database, signals.broker, signals.clock).evaluation
    assert passes == 11
    await exhaust(signals.firings, NOW)
    assert signals.metrics.settled_in == {("work_signal_firings", "fired"): 10_000}


async def test_many_unevaluated_transitions(signals: Signals) -> None:
    """One pass creates at most 1,000 firings, for any number of transitions and signals."""
    await store_signals(signals, 40)
    off = Signals(signals.database, signals.broker, signals.clock, enabled=False)
    for number in range(120):
        off.send("TransitionWorkItem", workItemId="item-1", to="blocked", eventId=f"event-{number:03}")
    await off.consume()
    made = []
    while (await signals.evaluation.tick(NOW)).done:
        made.append(len(await signals.rows("work_signal_firings")))
    assert max(later - earlier for earlier, later in itertools.pairwise([0, *made])) <= 1000
    assert made[-1] == 40 * 120
    assert await next_at(signals.evaluation, signals.clock.now()) is None


async def test_many_transitions_of_one_tenant_do_not_delay_another(signals: Signals) -> None:
    """The first pass evaluates the same number of transitions for each tenant, even if one tenant has many."""
    off = Signals(signals.database, signals.broker, signals.clock, enabled=False)
    for number in range(300):
        off.send("TransitionWorkItem", workItemId=f"item-{number}", to="blocked")
    for tenant in ("quiet", "silent"):
        signals.send("CreateWorkSignal", tenant=tenant, signalId=tenant, workItemId="item-1", **EVENT)
        signals.send("TransitionWorkItem", tenant=tenant, workItemId="item-1", to="blocked")
    await off.consume()
    assert (await signals.evaluation.tick(NOW)).done == 35
    assert [row["signal_id"] for row in await signals.rows("work_signal_firings")] == ["quiet", "silent"]


async def test_more_tenants_than_a_pass_has_transitions(signals: Signals) -> None:
    """If there are more tenants than transitions in a pass, the passes take the tenants in turn."""
    off = Signals(signals.database, signals.broker, signals.clock, enabled=False)
    for number in range(250):
        off.send("TransitionWorkItem", tenant=f"tenant-{number}", workItemId="item-1", to="blocked")
    await off.consume()
    assert [(await signals.evaluation.tick(NOW)).done for _ in range(4)] == [100, 100, 50, 0]


async def test_a_damaged_signal_delays_no_other_tenant(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Transitions of other tenants are matched beside one whose waiting signal cannot be read."""
    signals = Signals(sqlite, memory_broker, clock)
    off = Signals(sqlite, memory_broker, clock, enabled=False)
    for tenant in ("a", "b", "c"):
        off.send("CreateWorkSignal", tenant=tenant, signalId=tenant, workItemId="item-1", **EVENT)
        off.send("TransitionWorkItem", tenant=tenant, workItemId="item-1", to="blocked")
    await off.consume()
    async with sqlite.transaction() as tx:
        await tx.fetch("PRAGMA ignore_check_constraints = ON")
        await tx.execute("UPDATE work_signals SET trigger_kind = 'damaged' WHERE signal_id = 'b'")
        await tx.fetch("PRAGMA ignore_check_constraints = OFF")
    assert await signals.evaluation.tick(NOW) == (2, NOW)
    assert [row["signal_id"] for row in await signals.rows("work_signal_firings")] == ["a", "c"]
    assert await signals.evaluation.tick(NOW) == (0, None)
    await signals.sql("UPDATE work_signals SET trigger_kind = 'event'")
    assert (await signals.evaluation.tick(NOW)).done == 1


async def test_disabled_and_enabled_again(signals: Signals) -> None:
    """While the slice is disabled, commands are stored and nothing fires. Afterwards the signals fire."""
    off = Signals(signals.database, signals.broker, signals.clock, enabled=False)
    await off.create()
    await off.remind(iso(after(minutes=1)), "reminder")
    await off.transition(eventId="while-disabled")
    signals.clock.advance(minutes=2)
    assert off.outcomes() == ["created", "created", "transitioned"]
    assert (await signals.evaluation.tick(signals.clock.now())).done == 1
    assert signals.worker_wakes == [("firings", signals.clock.now())]
    await signals.run()
    assert sorted(signals.fired()) == ["reminder", "signal-1"]
