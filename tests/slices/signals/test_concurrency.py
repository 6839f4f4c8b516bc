"""Several instances that handle signals on one PostgreSQL database at the same time."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from tests.harness.builders import schedule_timer
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.locks import wait_for_lock
from tests.harness.signals import BLOCKED, Signals
from tests.harness.timers import Timers
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.events.cause import Cause
from timer_service.core.intake.consumer import Consumer
from timer_service.core.intake.route import CommandResult, Handle, Route
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Position
from timer_service.signals import SLICE, firing_store, store
from timer_service.signals.firings import Firing
from timer_service.signals.items import UNKNOWN, ItemKey, WorkItem
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signal import Key, Signal, SignalCommand, apply_command
from timer_service.signals.steps import Definition, Step, Verb
from timer_service.signals.store import delete_settled
from timer_service.timers import SLICE as TIMERS

ITEM = ItemKey("acme", "item-1")
KEY = Key("acme", "signal-1")


@pytest.fixture
def instances(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> list[Signals]:
    """Four instances, each with its own transactions."""
    return [Signals(postgres, memory_broker, clock) for _ in range(4)]


@pytest.fixture
def signals(instances: list[Signals]) -> Signals:
    return instances[0]


async def handle(instance: Signals) -> None:
    """Handle waiting commands in batches of 7."""
    subscription = await instance.broker.subscribe()
    while instance.broker.waiting:
        await instance.consumer.handle(subscription, await subscription.next_batch(7))


async def fire(instance: Signals, handling: asyncio.Future[None]) -> None:
    """Evaluate and fire while commands are handled, and then process the rest."""
    while not handling.done():
        await instance.evaluation.tick(NOW)
        await instance.firings.tick(NOW)
    await instance.run()


async def run_together(instances: list[Signals]) -> None:
    """Run all instances at the same time until everything is processed."""
    async with asyncio.timeout(60):
        handling = asyncio.ensure_future(all_of(handle, instances))
        await all_of(lambda each: fire(each, handling), instances)
        await handling
        await instances[0].run()


async def all_of(act: Callable[[Signals], Awaitable[None]], instances: list[Signals]) -> None:
    await asyncio.gather(*map(act, instances))


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))])
async def test_creates_and_transitions(instances: list[Signals], caplog: pytest.LogCaptureFixture, seed: int) -> None:
    """If four instances handle creates and transitions in any order, each signal fires once, without deadlocks."""
    caplog.set_level("INFO")
    (one, *_) = instances
    names = [f"signal-{number:03}" for number in range(150)]
    for number, name in enumerate(names):
        item, trigger = f"item-{number % 10}", {"kind": "work_item.status.transition", "to": ["blocked"]}
        one.send("CreateWorkSignal", signalId=name, workItemId=item, triggerKind="event", triggerSpec=trigger)
    for number in range(100):  # the last ten of them block an item each
        one.send("TransitionWorkItem", workItemId=f"item-{number % 10}", to="blocked" if number > 89 else "doing")
    one.broker.shuffle(random.Random(seed))
    await run_together(instances)
    assert sorted(one.fired()) == names
    assert len(await one.rows("work_item_tasks")) == len(names)
    assert one.broker.settlements.retried == []
    assert [record for record in caplog.records if "deadlock" in str(vars(record).get("reason"))] == []


async def test_pauses_and_activations(instances: list[Signals]) -> None:
    """If four instances handle pauses, activations and cancels in any order, the newest command wins."""
    (one, *_) = instances
    names = [f"signal-{number:02}" for number in range(40)]
    activated = names[::2]
    for number, name in enumerate(names):
        await one.create(name, f"item-{number % 5}")
        one.send("PauseWorkSignal", signalId=name)
        one.send("TransitionWorkItem", workItemId=f"item-{number % 5}", to="doing")
        one.send("ActivateWorkSignal" if name in activated else "CancelWorkSignal", signalId=name)
    one.broker.shuffle(random.Random(1))
    await run_together(instances)
    for number in range(5):
        one.send("TransitionWorkItem", workItemId=f"item-{number}", to="blocked")
    await run_together(instances)
    statuses = {row["signal_id"]: row["status"] for row in await one.rows("work_signals")}
    assert statuses == {name: "fired" if name in activated else "cancelled" for name in names}
    assert sorted(one.fired()) == activated


async def test_two_workers_with_the_same_firings(instances: list[Signals]) -> None:
    """Two workers that claim the same firings after an expired lease fire each signal once."""
    (one, *_) = instances
    for number in range(60):
        await one.create(f"signal-{number:02}", f"item-{number % 3}")
    for number in range(3):
        await one.transition(item=f"item-{number}")
    late = await one.firings._claim(NOW)
    now = after(minutes=1)
    one.clock.set(now)
    again = await instances[1].firings._claim(now)
    assert len(late) == len(again) == 60
    await asyncio.gather(one.firings._process(late), instances[1].firings._process(again))
    await one.run()
    assert sorted(one.fired()) == [f"signal-{number:02}" for number in range(60)]
    assert one.metrics.lost == 60


async def test_signal_deleted_during_an_activation(signals: Signals, postgres: PostgresDatabase) -> None:
    """An ActivateWorkSignal ends as not found if retention deletes the signal after the first read."""
    await signals.create()
    await signals.about("Resolve")
    async with postgres.transaction() as tx:
        await store.lock_items(tx, [ITEM])
        activating = asyncio.create_task(signals.about("Activate"))
        await wait_for_lock(postgres)
        await in_transaction(postgres, lambda other: delete_settled(other, NOW + 1, 10))
    await activating
    assert (signals.outcomes(), signals.broker.settlements.retried) == (["created", "not_found", "resolved"], [])


async def test_signal_created_during_an_activation(
    signals: Signals, instances: list[Signals], postgres: PostgresDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """An ActivateWorkSignal is retried if another instance creates the signal after the first read."""
    caplog.set_level("INFO")
    await signals.transition("todo", item="other")
    async with postgres.transaction() as tx:
        await store.lock_items(tx, [ItemKey("acme", "other")])
        signals.send("TransitionWorkItem", workItemId="other", to="doing")
        signals.send("ActivateWorkSignal", signalId="signal-1")
        activating = asyncio.create_task(signals.consume())
        await wait_for_lock(postgres)
        other = instances[1]
        await other.create()
        await other.about("Pause")
        await other.transition()
    await activating
    reasons = [vars(record).get("reason") for record in caplog.records]
    assert "another instance changed the work item of a signal" in reasons
    assert signals.outcomes() == ["ignored_stale", "transitioned", "transitioned"]


async def test_work_item_created_during_its_transition(signals: Signals, postgres: PostgresDatabase) -> None:
    """A TransitionWorkItem is retried if another instance creates the work item and a signal that waits for it."""
    wanted = Definition("item-1", TriggerKind.EVENT, dump_data(BLOCKED), None)
    made, _ = apply_command(None, SignalCommand(KEY, Step(Position(0, 1), Verb.CREATE, wanted), Cause()), NOW)
    async with postgres.transaction() as tx:
        await store.save_items(tx, {}, {ITEM: WorkItem(ITEM)}, NOW)
        await store.save_signals(tx, {}, {KEY: made})
        transition = asyncio.create_task(signals.transition())
        await wait_for_lock(postgres)
    await transition
    await signals.run()
    assert signals.fired() == ["signal-1"]


async def test_requeued_firing_is_not_deleted(signals: Signals, postgres: PostgresDatabase) -> None:
    """Retention skips a firing that a command is queueing again."""
    firing = Firing(KEY, Position(1, 1), "cause", None, NOW, Position(1, 2), Cause())
    await signals.create()
    async with postgres.transaction() as tx:
        await firing_store.add(tx, [firing], NOW)
        await firing_store.fail_unsettled(tx, {(KEY, firing.defined): "over"}, NOW)
    async with postgres.transaction() as tx, asyncio.timeout(10):
        await firing_store.add(tx, [firing], NOW)
        deleted = await in_transaction(postgres, lambda other: delete_settled(other, NOW + 1, 10))
    (row,) = await signals.rows("work_signal_firings")
    assert (deleted, row["status"]) == (0, "queued")


async def test_requeued_transition_is_not_deleted(signals: Signals, postgres: PostgresDatabase) -> None:
    """Retention skips a transition that a late command is queueing again."""
    await signals.transition()
    late = await create_signal(signals)
    async with postgres.transaction() as tx, asyncio.timeout(10):
        await store.requeue_newer_transitions(tx, [late._replace(state=late.state._replace(since=UNKNOWN))], NOW)
        deleted = await in_transaction(postgres, lambda other: delete_settled(other, NOW + 1, 10))
    (row,) = await signals.rows("work_item_events")
    assert (deleted, row["evaluate_at"]) == (0, NOW)


async def create_signal(signals: Signals) -> Signal:
    """Create a signal and return it."""
    await signals.create()
    return (await store.find(signals.database.reader, [KEY]))[KEY]


@pytest.mark.parametrize("reversed_", [False, True])
async def test_slices_lock_in_one_order(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, *, reversed_: bool
) -> None:
    """Timers are always locked before signals, whatever the first command of the batch, so batches cannot deadlock."""
    handled: list[str] = []

    def recording(name: str, handle: Handle) -> Handle:
        async def record(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult | None]:
            handled.append(name)
            return await handle(tx, commands, now)

        return record

    signals, timers = Signals(postgres, memory_broker, clock), Timers(postgres, memory_broker, clock)
    routes = [
        Route(TIMERS.commands, recording("timers", partial(TIMERS.handle, quotas=Quotas())), no_wake),
        Route(SLICE.commands, recording("signals", partial(SLICE.handle, quotas=Quotas())), no_wake),
    ]
    signals.consumer = Consumer(
        database=postgres,
        broker=memory_broker,
        routes=routes,
        clock=clock,
        metrics=signals.metrics,
        batch_size=10,
        reply_prefix="_INBOX.",
    )
    timer = timers.send(schedule_timer("call-1", NOW))
    signals.send("CreateWorkItem", workItemId="item-1")
    (item,) = signals.positions
    memory_broker.deliver(*((item, timer) if reversed_ else (timer, item)))
    await signals.consume()
    assert handled == ["timers", "signals"]


async def no_wake(_at: int, _loop: str | None) -> None:
    """Do nothing."""
