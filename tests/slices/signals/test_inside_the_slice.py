"""What only shows when time stands still, single deliveries are made again, and rows are read."""

from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import VISIBILITY_TIMEOUT, next_at
from tests.harness.signals import BLOCKED, Signals
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database
from timer_service.core.lease import Lease
from timer_service.core.recovery import take_over_claims
from timer_service.signals.firing_store import FIRINGS

WAITING: dict[str, Any] = {"workItemId": "item-1", "triggerKind": "event", "triggerSpec": BLOCKED}


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """Return the signals slice over every store in turn."""
    return Signals(store, memory_broker, clock)


async def test_wakes_and_lateness(signals: Signals) -> None:
    """A transition wakes those who fire, a firing those who publish; the event says exactly when that was."""
    await signals.create()
    await signals.transition()
    signals.clock.advance(milliseconds=5)
    await signals.run()
    (event,) = signals.events_of()
    assert (signals.command_wakes, signals.worker_wakes) == ([NOW], [("outbox", NOW + 5)])
    assert (event["timestampMs"], event["payload"]["firedAt"]) == (NOW + 5, iso(NOW + 5))
    assert signals.metrics.lateness[0] == 0.005


async def test_second_instance_fires_nothing_twice(signals: Signals) -> None:
    """After a restart, and beside another instance, what has fired does not fire again."""
    await signals.create()
    await signals.transition()
    await signals.run()
    other = Signals(signals.database, signals.broker, signals.clock)
    await take_over_claims(other.database, Lease(FIRINGS, VISIBILITY_TIMEOUT), other.clock.now())
    signals.clock.advance(minutes=10)
    await other.run()
    await signals.run()
    assert signals.fired() == ["signal-1"]
    assert len(await signals.rows("work_item_tasks")) == 1


async def test_only_what_happens_from_its_creation_on(signals: Signals) -> None:
    """A transition before the signal does not fire it; the next one does, and only once."""
    await signals.transition(eventId="before")
    await signals.create()
    await signals.transition(eventId="after")
    signals.clock.advance(milliseconds=1)
    await signals.transition(eventId="later")
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.events_of()] == ["after"]
    failed = [row["last_error"] for row in await signals.rows("work_signal_firings") if row["status"] == "failed"]
    assert failed == ["the signal is fired"]


async def test_time(signals: Signals) -> None:
    """A signal that waits for an instant fires at it, not a millisecond before, without a work item or a task."""
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
    assert await signals.rows("work_item_tasks") == []


async def test_redelivered_transition_makes_one_firing(signals: Signals) -> None:
    """A transition that comes again, as the same command or as another of the same event id, counts once."""
    await signals.create()
    await signals.transition(eventId="event-1")
    await signals.deliver_again(1)
    await signals.transition("done", eventId="event-1")
    await signals.run()
    await signals.deliver_again(1)
    await signals.run()
    assert signals.fired() == ["signal-1"]
    assert len(await signals.rows("work_signal_firings")) == len(await signals.rows("work_item_events")) == 1
    assert signals.outcomes() == ["created", "transitioned", "unchanged", "unchanged", "unchanged"]


async def test_transition_before_its_signal_in_one_batch(signals: Signals) -> None:
    """A transition that stands in a batch before the older command that creates its signal fires it all the same."""
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    signals.broker.deliver(*reversed(signals.positions))
    await signals.consume()
    assert signals.command_wakes == [NOW]
    await signals.run()
    assert signals.fired() == ["signal-1"]


async def test_transition_long_before_its_signal(signals: Signals) -> None:
    """A transition that was evaluated before the older command that creates its signal comes fires it all the same."""
    await signals.create()
    await signals.sql("DELETE FROM work_signals")  # as if that command had not come yet
    await signals.transition()
    await signals.run()
    assert signals.fired() == []
    await signals.deliver_again(0)
    assert signals.command_wakes == [NOW]
    await signals.run()
    assert signals.fired() == ["signal-1"]


async def test_redelivered_commands_undo_nothing(signals: Signals) -> None:
    """Whatever was told of a signal before its last command leaves it as it is when it comes again."""
    await signals.create()
    for verb in ("Pause", "Activate", "Cancel"):
        await signals.about(verb)
    await signals.deliver_again()
    assert await signals.status() == "cancelled"
    assert signals.metrics.commands["CreateWorkSignal", "ignored_stale"] == 1
    assert signals.metrics.commands["CancelWorkSignal", "unchanged"] == 1


async def test_reminder_paused_over_its_instant(signals: Signals) -> None:
    """An instant that passes while its signal is paused fires once it is active again, and then never more."""
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


async def test_cancelled_and_created_anew(signals: Signals) -> None:
    """A signal created anew under the id of a cancelled one is another: what the old one waited for does not count."""
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


async def test_older_transition_leaves_the_newer_status(signals: Signals) -> None:
    """A transition that is delivered late leaves the newer status of its work item."""
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    signals.send("TransitionWorkItem", workItemId="item-1", to="done")
    await signals.deliver_reversed()
    (item,) = await signals.rows("work_items")
    assert item["status"] == "done"


async def test_commands_of_one_batch_see_each_other(signals: Signals) -> None:
    """In one batch each command sees what those before it did, across signals, work items and firings."""
    signals.send("CreateWorkItem", workItemId="item-1")
    for signal in ("fires", "paused", "cancelled", "back"):
        signals.send("CreateWorkSignal", signalId=signal, **WAITING)
    signals.send("PauseWorkSignal", signalId="paused")
    signals.send("PauseWorkSignal", signalId="back")
    signals.send("ActivateWorkSignal", signalId="back")
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked")
    signals.send("CancelWorkSignal", signalId="cancelled")
    signals.send("CreateWorkSignal", signalId="late", **WAITING)
    await signals.consume()
    await signals.run()
    assert sorted(signals.fired()) == ["back", "fires"]
    assert await signals.status("late") == "active"


@pytest.mark.parametrize(
    ("verb", "outcome", "reason"),
    [
        ("Pause", "paused", "the signal is paused"),
        ("Cancel", "cancelled", "the signal is cancelled"),
        ("Resolve", "resolved", "the signal is resolved"),
    ],
)
async def test_signal_that_is_not_active_any_more(signals: Signals, verb: str, outcome: str, reason: str) -> None:
    """A firing whose signal is not active when its turn comes fails, with the reason, and nothing comes of it."""
    await signals.create()
    await signals.transition()
    await signals.about(verb)
    await signals.run()
    (firing,) = (await signals.ask("list-firings", signalId="signal-1"))["firings"]
    assert (firing["status"], firing["lastError"]) == ("failed", reason)
    assert (signals.broker.events, await signals.status()) == ([], outcome)
    assert await signals.rows("work_item_tasks") == []
