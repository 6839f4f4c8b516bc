"""Signals end the same however their commands are put into batches, and in whatever order they are delivered."""

import asyncio
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.clock import NOW, ManualClock, iso
from tests.harness.signals import BLOCKED, MAX_ATTEMPTS, Signals
from tests.harness.stores import open_sqlite
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database
from timer_service.core.retention import Retention
from timer_service.signals import SLICE

WAITING: dict[str, Any] = {"workItemId": "item-1", "triggerKind": "event", "triggerSpec": BLOCKED}
DONE: dict[str, Any] = WAITING | {"triggerSpec": BLOCKED | {"to": ["done"]}}


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """Return the signals slice over every store in turn."""
    return Signals(store, memory_broker, clock)


async def retain(signals: Signals) -> int:
    """Make one pass of retention; return how many rows it deleted."""
    assert SLICE.delete_settled is not None
    return (await Retention(signals.database, timedelta(days=7), SLICE.delete_settled).tick(signals.clock.now())).done


# One batch, several commands


async def test_more_signals_than_are_matched_at_once_and_a_pause(signals: Signals) -> None:
    """All 39 signals that still wait fire, also when the pause of the 40th stands in the batch of the transition."""
    names = [f"signal-{number:02}" for number in range(40)]
    for name in names:
        signals.send("CreateWorkSignal", signalId=name, **WAITING)
    await signals.consume()
    signals.send("PauseWorkSignal", signalId=names[0])
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    await signals.consume()
    await signals.run()
    assert sorted(signals.fired()) == names[1:]


async def test_ended_and_created_again_in_one_batch(signals: Signals) -> None:
    """A firing of before the end does not fire the signal that is created again, and says why."""
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked", eventId="before")
    signals.send("ResolveWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    await signals.consume()
    (firing,) = await signals.firings_of()
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "active")
    assert (firing["status"], firing["lastError"]) == ("failed", "the signal is resolved")


async def test_queued_firing_when_its_signal_is_ended_and_created_again(signals: Signals) -> None:
    """A firing that was queued before a batch ends with its signal, though the batch creates that again."""
    await signals.create()
    await signals.transition(eventId="before")
    signals.send("ResolveWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    await signals.consume()
    (firing,) = await signals.firings_of()
    await signals.run()
    assert (signals.fired(), firing["lastError"]) == ([], "the signal is resolved")


async def test_signal_that_cannot_be_matched_does_not_fail_the_batch(signals: Signals) -> None:
    """A trigger that raises costs only its own signal: the transition is recorded, and the others fire."""
    for name in ("broken", "sound"):
        await signals.create(name)
    await signals.sql("UPDATE work_signals SET trigger_spec = 'no JSON' WHERE signal_id = 'broken'")
    await signals.transition()
    await signals.run()
    assert (signals.fired(), signals.outcomes()) == (["sound"], ["created", "created", "transitioned"])
    assert [row["evaluate_at"] for row in await signals.rows("work_item_events")] == [None]
    assert signals.broker.dead_letters == []


# Late commands


async def test_resolved_and_created_again_in_reverse(signals: Signals) -> None:
    """A signal that was resolved and created again exists as it was created last, though the resolve comes later."""
    await signals.create()
    signals.send("ResolveWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **DONE)
    await signals.deliver_reversed()
    await signals.transition("blocked")
    await signals.transition("done", eventId="done")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.events_of()] == ["done"]
    assert signals.metrics.commands["ResolveWorkSignal", "resolved"] == 1


async def test_paused_and_created_again_in_reverse(signals: Signals) -> None:
    """A pause that comes after a repeated creation is not overruled by it."""
    await signals.create()
    signals.send("PauseWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    await signals.deliver_reversed()
    await signals.transition()
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "paused")


async def test_transition_between_two_creations_in_reverse(signals: Signals) -> None:
    """A signal waits from its first creation on, though a repeated one was delivered before that."""
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    await signals.deliver_reversed()
    await signals.run()
    assert signals.fired() == ["signal-1"]


async def test_refused_firing_fires_when_a_late_activation_shows_that_it_counts(signals: Signals) -> None:
    """A firing refused because of a pause is queued again when the activation before its cause arrives."""
    await signals.create()
    signals.send("PauseWorkSignal", signalId="signal-1")
    signals.send("ActivateWorkSignal", signalId="signal-1")
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    pause, activate, move = signals.positions[1:]
    signals.broker.deliver(move, pause, activate)
    await handle(signals, [1, 1])
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "paused")
    await signals.consume()
    await signals.run()
    assert (signals.fired(), await signals.status()) == (["signal-1"], "fired")


async def test_fired_signal_of_which_older_commands_are_delivered_late(signals: Signals) -> None:
    """A signal that fired by its second definition is fired again in the end, after its first life came late."""
    signals.send("CreateWorkSignal", signalId="signal-1", **DONE)
    signals.send("ResolveWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    signals.broker.withhold(*signals.positions)
    statuses = []
    for numbers in ((2, 3), (0,), (1,)):
        await signals.deliver_in(*numbers)
        await signals.run()
        statuses.append(await signals.status())
    assert (statuses, signals.fired()) == (["fired", "active", "fired"], ["signal-1"])
    assert await signals.dead_letters() == []


async def test_older_transition_after_its_item_was_created(signals: Signals) -> None:
    """A CreateWorkItem that was delivered first takes no status from an older transition."""
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    signals.send("CreateWorkItem", workItemId="item-1")
    signals.send("TransitionWorkItem", workItemId="item-2", to="blocked")
    signals.send("CreateWorkItem", workItemId="item-2", status="todo")
    await signals.deliver_reversed()
    assert [row["status"] for row in await signals.rows("work_items")] == ["blocked", "blocked"]


async def test_late_signal_sorts_before_those_that_were_matched(signals: Signals) -> None:
    """A transition that was matched with 1,000 signals starts again for a late signal whose id is before theirs."""
    signals.send("CreateWorkSignal", signalId="a-late-one", **WAITING)
    names = [f"signal-{number:04}" for number in range(1000)]
    for name in names:
        signals.send("CreateWorkSignal", signalId=name, **WAITING)
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    late, *others = signals.positions
    signals.broker.deliver(*others, late)
    await handle(signals, [1001])
    await signals.run()
    fired = sorted(signals.fired())
    await signals.consume()
    await signals.run()
    assert (fired, sorted(signals.fired())) == (names, ["a-late-one", *names])


# Causes


async def test_same_event_id_on_another_item(signals: Signals) -> None:
    """A signal that is created again on another work item fires on that item's event of the same id."""
    await signals.create()
    await signals.transition(eventId="1")
    await signals.run()
    await signals.about("Resolve")
    await signals.create(item="item-2")
    await signals.transition(item="item-2", eventId="1")
    await signals.run()
    assert [event["payload"]["workItemId"] for event in signals.events_of()] == ["item-1", "item-2"]
    assert len({event["id"] for event in signals.events_of()}) == 2


@pytest.mark.parametrize("evaluating", [True, False])
async def test_cause_from_before_a_pause_does_not_count_after_it(signals: Signals, *, evaluating: bool) -> None:
    """What happened before a signal was paused and activated fires nothing, however late it is processed."""
    taken_by = Signals(signals.database, signals.broker, signals.clock, evaluating=evaluating)
    await taken_by.create()
    await taken_by.transition()
    await taken_by.about("Pause")
    await taken_by.about("Activate")
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "active")


# Retention and wakes


@pytest.mark.parametrize("verb", ["Pause", "Cancel"])
async def test_tombstones_are_deleted(signals: Signals, verb: str) -> None:
    """What was told of a signal that never came is forgotten after the retention, counted from the last command."""
    await signals.about(verb)
    signals.clock.advance(days=6)
    await signals.about(verb)
    signals.clock.advance(days=6)
    early = await retain(signals)
    signals.clock.advance(days=1, milliseconds=1)
    assert (early, await retain(signals), await signals.rows("work_signals")) == (0, 1, [])


async def test_retention_counts_from_the_last_command(signals: Signals) -> None:
    """A command that changed nothing of an ended signal keeps it: an older creation delivered later must still lose."""
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    (first,) = signals.positions
    await signals.consume()
    await signals.about("Cancel")
    signals.clock.advance(days=6)
    await signals.about("Resolve")
    signals.clock.advance(days=6)
    await retain(signals)
    signals.broker.deliver(first)
    await signals.consume()
    assert await signals.status() == "cancelled"


async def test_given_up_firing_wakes_the_outbox(signals: Signals) -> None:
    """The event of a firing that is given up is published at once."""
    await signals.create()
    await signals.transition()
    await signals.sql(f"UPDATE work_signal_firings SET attempt = {MAX_ATTEMPTS + 1}")
    await signals.firings.tick(NOW)
    assert signals.worker_wakes == [("outbox", NOW)]


# Any history


class Sent(NamedTuple):
    type: str
    fields: dict[str, Any]


NAMES = st.sampled_from(["signal-1", "signal-2"])
ITEMS = st.sampled_from(["item-1", "item-2"])
STATUSES = st.sampled_from(["blocked", "done"])
REMINDER = {"triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": iso(NOW)}}
ON_ITEM = st.builds(
    lambda item, to: {
        "workItemId": item,
        "triggerKind": "event",
        "triggerSpec": {"kind": "work_item.status.transition", "to": [to]},
    },
    ITEMS,
    STATUSES,
)
ABOUT = ["PauseWorkSignal", "ActivateWorkSignal", "CancelWorkSignal", "ResolveWorkSignal"]
COMMANDS = st.one_of(
    st.builds(
        lambda name, spec: Sent("CreateWorkSignal", {"signalId": name, **spec}), NAMES, ON_ITEM | st.just(REMINDER)
    ),
    st.builds(lambda verb, name: Sent(verb, {"signalId": name}), st.sampled_from(ABOUT), NAMES),
    st.builds(lambda item, to: Sent("TransitionWorkItem", {"workItemId": item, "to": to}), ITEMS, STATUSES),
    st.builds(
        lambda item, to: Sent("CreateWorkItem", {"workItemId": item, **to}),
        ITEMS,
        st.just({}) | st.just({"status": "new"}),
    ),
)
HISTORIES = st.lists(COMMANDS, min_size=2, max_size=14)


async def handle(signals: Signals, sizes: Sequence[int]) -> None:
    """Handle waiting commands in batches of some sizes."""
    subscription = await signals.broker.subscribe()
    for size in sizes:
        await signals.consumer.handle(subscription, await subscription.next_batch(size))


async def play(history: Sequence[Sent], order: Sequence[int], sizes: Sequence[int]) -> dict[str, Any]:
    """Deliver a history in some order and batches, then let everything fire; return what is left of it."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_sqlite(Path(folder) / "timers.db") as database:
            signals = Signals(database, MemoryBroker(), ManualClock(NOW))
            for number, sent in enumerate(history):
                signals.send(sent.type, message_id=f"command-{number:02}", **sent.fields)
            signals.broker.deliver(*(signals.positions[number] for number in order))
            await handle(signals, sizes)
            queued = await signals.rows("work_signal_firings")
            await signals.run()
            tables = ("work_items", "work_item_events", "work_signals", "work_item_tasks", "work_signal_firings")
            return {
                "outcomes": signals.outcomes(),
                "fired": sorted(
                    (each["payload"]["signalId"], each["payload"]["dedupeKey"]) for each in signals.events_of()
                ),
                "queued": plain(queued),
                **{table: plain(await signals.rows(table)) for table in tables},
            }


def plain(rows: Sequence[Any], *left_out: str) -> list[dict[str, Any]]:
    """Return rows without some of their columns."""
    return [{name: row[name] for name in row.keys() if name not in left_out} for row in rows]  # noqa: SIM118 - no mapping


def sizes_of(total: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, total), min_size=1, max_size=total).map(lambda sizes: cut(sizes, total))


def cut(sizes: list[int], total: int) -> list[int]:
    """Return sizes that add up to a total."""
    found: list[int] = []
    for size in [*sizes, total]:
        if (left := total - sum(found)) > 0:
            found.append(min(size, left))
    return found


@settings(max_examples=60, deadline=None)
@given(HISTORIES, st.data())
def test_any_batches_leave_the_same(history: list[Sent], data: st.DataObject) -> None:
    """Commands delivered in one order leave the same rows and outcomes and fire the same, in whatever batches."""
    order = data.draw(st.permutations(range(len(history))))
    sizes = data.draw(sizes_of(len(history)))
    single = asyncio.run(play(history, order, [1] * len(history)))
    batched = asyncio.run(play(history, order, sizes))
    for found in (single, batched):
        found["work_signal_firings"] = plain(found["work_signal_firings"], "lease_token")
    assert batched == single


@settings(max_examples=60, deadline=None)
@given(HISTORIES, st.data())
def test_any_order_of_delivery_leaves_the_same(history: list[Sent], data: st.DataObject) -> None:
    """Once all commands are delivered, signals, work items and what has fired are as if delivered in order."""
    order = data.draw(st.permutations(range(len(history))))
    sizes = data.draw(sizes_of(len(history)))
    in_order = asyncio.run(play(history, range(len(history)), [1] * len(history)))
    shuffled = asyncio.run(play(history, order, sizes))
    for table in ("fired", "work_items", "work_item_tasks"):
        assert shuffled[table] == in_order[table]
    assert plain(shuffled["work_item_events"], "evaluated_to") == plain(in_order["work_item_events"], "evaluated_to")
    assert shuffled["work_signals"] == in_order["work_signals"]
