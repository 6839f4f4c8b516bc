"""The worker that matches transitions which their commands did not match."""

import itertools
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import exhaust, next_at
from tests.harness.memory_broker import MemoryBroker
from tests.harness.signals import BLOCKED, Signals
from tests.slices.signals.test_firings import damage
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Position
from timer_service.signals import store
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signal import Definition, Key, Signal, Status

EVENT: Any = {"triggerKind": "event", "triggerSpec": BLOCKED}


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """The signals slice on each store in turn."""
    return Signals(store, memory_broker, clock)


@pytest.fixture
def off(signals: Signals) -> Signals:
    """The same slice while it is disabled."""
    return Signals(signals.database, signals.broker, signals.clock, enabled=False)


async def store_signals(signals: Signals, count: int) -> None:
    """Store many signals that wait for one work item to be blocked."""
    wanted = Definition("item-1", TriggerKind.EVENT, dump_data(BLOCKED), None)
    keys = [Key("acme", f"signal-{number:05}") for number in range(count)]
    made = {key: Signal(key, Status.ACTIVE, wanted, Position(0, 1), Position(0, 1), NOW) for key in keys}
    async with signals.database.transaction() as tx:
        await store.save_signals(tx, {}, made)


async def test_many_signals_on_one_work_item(signals: Signals) -> None:
    """The evaluation matches 1,000 signals in each pass, also after a restart, and each signal fires once."""
    await store_signals(signals, 2500)
    await signals.transition()
    assert (signals.command_wakes, await signals.rows("work_signal_firings")) == ([NOW], [])
    made = []
    while (await signals.evaluation.tick(NOW)).done:
        made.append(len(await signals.rows("work_signal_firings")))
        signals.evaluation = Signals(signals.database, signals.broker, signals.clock).evaluation
    assert made == [1000, 2000, 2500]
    await exhaust(signals.firings, NOW)
    assert signals.metrics.settled_in == {("work_signal_firings", "fired"): 2500}


async def test_many_unevaluated_transitions(signals: Signals, off: Signals) -> None:
    """One pass creates at most 1,000 firings, for any number of transitions and signals."""
    await store_signals(signals, 40)
    for number in range(120):
        off.send("TransitionWorkItem", workItemId="item-1", to="blocked", eventId=f"event-{number:03}")
    await off.consume()
    made = []
    while (await signals.evaluation.tick(NOW)).done:
        made.append(len(await signals.rows("work_signal_firings")))
    assert max(later - earlier for earlier, later in itertools.pairwise([0, *made])) <= 1000
    assert made[-1] == 40 * 120
    assert await next_at(signals.evaluation, signals.clock.now()) is None


async def test_tenants_take_turns(signals: Signals, off: Signals) -> None:
    """Tenants get equal shares of a pass. If there are too many for one pass, the next one continues with the next."""
    for number in range(300):
        off.send("TransitionWorkItem", workItemId=f"item-{number}", to="blocked")
    for number in range(149):
        off.send("TransitionWorkItem", tenant=f"tenant-{number:03}", workItemId="item-1", to="blocked")
    await off.consume()
    done = [(await signals.evaluation.tick(NOW)).done for _ in range(2)]
    left = {row["tenant_id"] for row in await signals.rows("work_item_events") if row["evaluate_at"] is not None}
    assert (done, left) == ([100, 51], {"acme"})


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
    await damage(sqlite, "b")
    assert await signals.evaluation.tick(NOW) == (2, NOW)
    assert [row["signal_id"] for row in await signals.rows("work_signal_firings")] == ["a", "c"]
    assert await signals.evaluation.tick(NOW) == (0, None)
    await signals.sql("UPDATE work_signals SET trigger_kind = 'event'")
    assert (await signals.evaluation.tick(NOW)).done == 1


async def test_disabled_and_enabled_again(signals: Signals, off: Signals) -> None:
    """While the slice is disabled, commands are stored and nothing fires. Afterwards the signals fire."""
    await off.create()
    await off.remind(iso(after(minutes=1)), "reminder")
    await off.transition(eventId="while-disabled")
    signals.clock.advance(minutes=2)
    assert off.outcomes() == ["created", "created", "transitioned"]
    assert (await signals.evaluation.tick(signals.clock.now())).done == 1
    assert signals.worker_wakes == [("firings", signals.clock.now())]
    await signals.run()
    assert sorted(signals.fired()) == ["reminder", "signal-1"]
