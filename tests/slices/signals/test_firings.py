import asyncio
import itertools
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import VISIBILITY_TIMEOUT, exhaust, next_at
from tests.harness.signals import BLOCKED, MAX_ATTEMPTS, Signals
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
from timer_service.core.backoff import Backoff
from timer_service.core.broker import BrokerFeatures
from timer_service.core.cause import Cause
from timer_service.core.data import dump_data
from timer_service.core.database import Database
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.lease import Lease
from timer_service.core.message import Position
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.outbox import OUTBOX
from timer_service.core.recovery import take_over_claims
from timer_service.core.retention import Retention
from timer_service.core.row_counts import RowCounts
from timer_service.signals import store
from timer_service.signals.firing_store import COUNTED, FIRINGS
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signals import Definition, Key, SignalCommand, Step, Verb, apply_command
from timer_service.signals.store import delete_settled

HOLD_MS = VISIBILITY_TIMEOUT // timedelta(milliseconds=1)
EVENT: Any = {"triggerKind": "event", "triggerSpec": BLOCKED}
FORGETFUL = BrokerFeatures(deduplicates=False, max_message_bytes=1024 * 1024)


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """Return the signals slice over every store in turn."""
    return Signals(store, memory_broker, clock)


async def poison(signals: Signals, signal: str = "signal-1") -> None:
    """Have no firing of a signal succeed: its task is there already."""
    (firing,) = [row for row in await signals.rows("work_signal_firings") if row["signal_id"] == signal]
    await signals.sql(
        "INSERT INTO work_item_tasks (tenant_id, task_id, work_item_id, signal_id, firing_id, created_at) "
        f"VALUES ('acme', 'task-{firing['firing_id']}', 'poison', 'poison', 'poison', 0)"
    )


async def tasks(signals: Signals) -> list[str]:
    return [row["signal_id"] for row in await signals.rows("work_item_tasks") if row["signal_id"] != "poison"]


# Crashes


async def live(signals: Signals, tenant: str) -> None:
    """Handle what is waiting and let everything go as far as it can."""
    await take_over_claims(signals.database, Lease(FIRINGS, VISIBILITY_TIMEOUT), signals.clock.now())
    await take_over_claims(signals.database, Lease(OUTBOX, VISIBILITY_TIMEOUT), signals.clock.now())
    await signals.consume()
    await signals.run()


@pytest.mark.parametrize("point", [point for point in Point if "reply" not in point])
async def test_crash_everywhere(store: Database, clock: ManualClock, point: Point) -> None:
    """Wherever the process dies between a command and its event's settling: one task, one firing, one event id.

    At every await of a kind in turn, until a whole life passes none more.
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
        database = FaultyDatabase(store, gate, exclusive=store.exclusive, committed=_ignore, failed=_ignore)
        mortal = Signals(database, broker, clock, through=FaultyBroker(broker, gate, BrokerObserver()))
        try:
            await live(mortal, tenant)
        except Crash:
            broker.redeliver()
            clock.advance(milliseconds=HOLD_MS)
            await live(user, tenant)
        events = [event for event in user.events_of() if event["tenantId"] == tenant]
        (firing,) = [row for row in await user.rows("work_signal_firings") if row["tenant_id"] == tenant]
        task = [row["firing_id"] for row in await user.rows("work_item_tasks") if row["tenant_id"] == tenant]
        assert ({event["id"] for event in events}, task) == ({f"fired-{firing['firing_id']}"}, [firing["firing_id"]])
        assert (firing["status"], await user.rows("outbox")) == ("enqueued", [])
        if not life.ended:
            break
    assert nth > 1


def _ignore(_: object) -> None:
    """What is committed is looked at in the end."""


# Failures


async def test_retry_and_burial(signals: Signals) -> None:
    """A firing that fails waits exactly its backoff, is given up in the end, pauses its signal and tells its tenant."""
    await signals.create()
    await signals.transition(envelope={"id": "cmd-1", "correlationId": "corr-1"})
    await poison(signals)
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


async def test_failed_firing_hides_nothing_that_comes_later(signals: Signals) -> None:
    """After a firing was given up and its signal activated, the next transition fires it."""
    await signals.create()
    await signals.transition()
    await poison(signals)
    for _ in range(MAX_ATTEMPTS):
        await signals.run()
        signals.clock.advance(minutes=10)
    await signals.about("Activate")
    await signals.run()
    assert signals.fired() == []
    await signals.transition(eventId="then")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.events_of()] == ["then"]
    assert "lastError" not in await signals.ask("get-signal", signalId="signal-1")


async def test_one_poisoned_firing_costs_only_itself(signals: Signals) -> None:
    """Beside a firing that fails, the others of its batch fire, each with its task, in the same tick."""
    names = [f"signal-{number}" for number in range(7)]
    for name in names:
        await signals.create(name)
    await signals.transition()
    await poison(signals, "signal-3")
    await signals.run()
    rest = [name for name in names if name != "signal-3"]
    assert (sorted(signals.fired()), sorted(await tasks(signals))) == (rest, rest)
    assert await signals.status("signal-3") == "active"


async def claim_and_die(signals: Signals) -> list[int]:
    """Claim firings and never settle them; return their attempts."""
    rows = await signals.firings._claim(signals.clock.now())
    assert await next_at(signals.firings, signals.clock.now()) == signals.clock.now() + HOLD_MS
    signals.clock.advance(milliseconds=HOLD_MS)
    return [row["attempt"] for row in rows]


async def test_firing_that_kills_the_process(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A firing that kills the process is tried alone in the end and given up; the others of its claims fire."""
    gate = Gate(Process(lambda: None), Counter())
    database = FaultyDatabase(store, gate, exclusive=store.exclusive, committed=_ignore, failed=_ignore)
    mortal, signals = Signals(database, memory_broker, clock), Signals(store, memory_broker, clock)
    for name in ("first", "second", "third"):
        await signals.create(name)
    await signals.transition()
    seen = [await claim_and_die(signals) for _ in range(MAX_ATTEMPTS)]
    gate.arm(crash(Point.BEFORE_BEGIN, 4))  # claim, recount all, recount the first, and then fire it
    with pytest.raises(Crash):
        await mortal.firings.tick(clock.now())
    clock.advance(milliseconds=HOLD_MS)
    await signals.run()
    (failed,) = signals.events_of("work.signal.failed")
    assert seen == [[attempt] * 3 for attempt in range(1, MAX_ATTEMPTS + 1)]
    assert failed["payload"]["error"] == "gave up: claimed and never settled"
    assert sorted([*signals.fired(), failed["payload"]["signalId"]]) == ["first", "second", "third"]
    assert await signals.status(failed["payload"]["signalId"]) == "paused"


async def test_lost_lease_leaves_everything_as_it_is(signals: Signals) -> None:
    """Whoever has lost its lease changes nothing: the signal is active, without a task, until the new holder fires."""
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


async def test_instances_that_race(signals: Signals) -> None:
    """Two instances that process the same firings at once fire each signal once between them."""
    for number in range(30):
        await signals.create(f"signal-{number}")
    await signals.transition()
    other = Signals(signals.database, signals.broker, signals.clock)
    for each in (signals, other):
        each.firings._batch_size = 4
    await asyncio.gather(signals.run(), other.run())
    await signals.run()
    assert sorted(signals.fired()) == sorted(await tasks(signals)) == sorted(f"signal-{n}" for n in range(30))


async def test_database_that_goes_away(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Firings that were claimed when the database went away are processed once it is back, their leases lasting."""
    gate = Gate(Process(lambda: None), Counter())
    database = FaultyDatabase(store, gate, exclusive=store.exclusive, committed=_ignore, failed=_ignore)
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


async def make(signals: Signals, count: int, *, item: str = "item-1") -> None:
    """Make many signals that wait for one work item to be blocked."""
    wanted = Definition(item, TriggerKind.EVENT, dump_data(BLOCKED), None)
    keys = [Key("acme", f"signal-{number:05}") for number in range(count)]
    creation = Step(Position(0, 1), Verb.CREATE, wanted)
    made = {key: apply_command(None, SignalCommand(key, creation, Cause()), NOW)[0] for key in keys}
    async with signals.database.transaction() as tx:
        await store.save_signals(tx, {}, made)


async def test_ten_thousand_signals_on_one_work_item(signals: Signals) -> None:
    """They are held against a transition a thousand at a time; a restart goes on behind those, and each fires once."""
    await make(signals, 10_000)
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
    (row,) = await signals.database.reader.fetch("SELECT COUNT(DISTINCT signal_id) AS count FROM work_item_tasks")
    assert row["count"] == 10_000


async def test_many_events_to_catch_up_with(signals: Signals) -> None:
    """However many events wait for however many signals, one pass makes no more than a thousand firings."""
    await make(signals, 40)
    off = Signals(signals.database, signals.broker, signals.clock, evaluating=False)
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
    """The first pass evaluates an equal share of each tenant, however much one of them has left."""
    off = Signals(signals.database, signals.broker, signals.clock, evaluating=False)
    for number in range(300):
        off.send("TransitionWorkItem", workItemId=f"item-{number}", to="blocked")
    for tenant in ("quiet", "silent"):
        signals.send("CreateWorkSignal", tenant=tenant, signalId=tenant, workItemId="item-1", **EVENT)
        signals.send("TransitionWorkItem", tenant=tenant, workItemId="item-1", to="blocked")
    await off.consume()
    assert (await signals.evaluation.tick(NOW)).done == 35
    assert [row["signal_id"] for row in await signals.rows("work_signal_firings")] == ["quiet", "silent"]


async def test_more_tenants_than_a_pass_has_transitions(signals: Signals) -> None:
    """With very many tenants, passes take turns, and none is left out."""
    off = Signals(signals.database, signals.broker, signals.clock, evaluating=False)
    for number in range(250):
        off.send("TransitionWorkItem", tenant=f"tenant-{number}", workItemId="item-1", to="blocked")
    await off.consume()
    assert [(await signals.evaluation.tick(NOW)).done for _ in range(4)] == [100, 100, 50, 0]


async def test_switched_off_and_on(signals: Signals) -> None:
    """While it is off commands are taken and nothing fires; once it is on, what has happened meanwhile fires."""
    off = Signals(signals.database, signals.broker, signals.clock, evaluating=False)
    await off.create()
    await off.remind(iso(after(minutes=1)), "reminder")
    await off.transition(eventId="meanwhile")
    signals.clock.advance(minutes=2)
    assert off.outcomes() == ["created", "created", "transitioned"]
    assert (await signals.evaluation.tick(signals.clock.now())).done == 1
    assert signals.worker_wakes == [("firings", signals.clock.now())]
    await signals.run()
    assert sorted(signals.fired()) == ["reminder", "signal-1"]


# Upkeep


async def test_retention(signals: Signals) -> None:
    """What is settled goes after the retention, to the millisecond; what waits, and a fired signal's task, stays."""
    for name in ("fired", "resolved", "waits"):
        await signals.create(name, f"item of {name}")
    for name in ("fired", "resolved"):
        await signals.transition(item=f"item of {name}")
    await signals.run()
    await signals.about("Resolve", "resolved")
    retention = Retention(signals.database, timedelta(days=7), delete_settled)
    early = (await retention.tick(after(days=7))).done
    deleted = (await retention.tick(after(days=7, milliseconds=1))).done
    left = [row["signal_id"] for row in await signals.rows("work_signals")]
    assert (early, deleted, left) == (0, 5, ["fired", "waits"])
    assert await tasks(signals) == ["fired"]
    assert await signals.rows("work_signal_firings") == await signals.rows("work_item_events") == []


async def test_census(signals: Signals) -> None:
    """The gauges tell of firings to come and given up, and of events not yet evaluated."""
    off = Signals(signals.database, signals.broker, signals.clock, evaluating=False)
    await off.transition()
    await signals.remind(iso(NOW - 2000), "overdue")
    await signals.remind(iso(after(days=1)), "waits")
    await signals.remind(iso(NOW), "cancelled")
    await signals.about("Cancel", "cancelled")
    metrics: MetricsPort = signals.metrics
    await RowCounts(signals.database, metrics, counted=COUNTED, leased=[FIRINGS]).tick(NOW)
    assert signals.metrics.counts == {
        ("work_signal_firings", "pending"): 2,
        ("work_signal_firings", "failed"): 1,
        ("work_item_events", "unevaluated"): 1,
    }
    assert signals.metrics.overdues == {"work_signal_firings": [(1, 2.0)]}


FORBIDDEN = {
    "work_signal_firings": [
        "available_at = NULL",
        "available_at = due_at - 1",
        "status = 'failed'",
        "status = 'enqueued', available_at = NULL, settled_at = due_at - 1",
        "lease_token = 'token'",
        "status = 'done'",
        "attempt = -1",
        "position_epoch = -1",
    ],
    "work_signals": [
        "status = 'fired'",
        "status = 'cancelled'",
        "unused_since = 1",
        "status = NULL",
        "since_epoch = -1",
        "defined_epoch = 0, defined_sequence = 0",
        "trigger_spec = NULL",
        "trigger_kind = 'cron'",
        "status = 'done'",
    ],
}


async def test_schema_refuses(signals: Signals) -> None:
    """The schema itself refuses rows that would break a promise, whatever the code does."""
    await signals.create()
    await signals.transition()
    for table, changes in FORBIDDEN.items():
        for change in changes:
            with pytest.raises(Exception, match=r"(?i)check constraint"):
                await signals.sql(f"UPDATE {table} SET {change}")
