"""Several commands in one batch. The simulation compares random batches with the model."""

from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.signals import BLOCKED, Signals
from timer_service.core.ports.database import Database

WAITING: dict[str, Any] = {"workItemId": "item-1", "triggerKind": "event", "triggerSpec": BLOCKED}
DONE: dict[str, Any] = WAITING | {"triggerSpec": BLOCKED | {"to": ["done"]}}


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """The signals slice on each store in turn."""
    return Signals(store, memory_broker, clock)


# Several commands in one batch


async def test_commands_of_one_batch_see_each_other(signals: Signals) -> None:
    """Each command of a batch sees the effects of the earlier ones on signals, work items and firings."""
    for _ in range(2):
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
    assert signals.outcomes().count("unchanged") == 1


async def test_more_signals_than_the_inline_limit(signals: Signals) -> None:
    """A transition fires all 39 active signals if the 40th signal is paused in the same batch."""
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
    """A firing from before the end of a signal fails with the reason, and does not fire the new signal."""
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked", eventId="before")
    signals.send("ResolveWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    await signals.consume()
    (firing,) = await signals.firings_of()
    assert (firing["status"], firing["lastError"]) == ("failed", "the signal is resolved")
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked", eventId="after")
    signals.send("ResolveWorkSignal", signalId="signal-1")
    signals.send("CreateWorkSignal", signalId="signal-1", **WAITING)
    signals.send("TransitionWorkItem", workItemId="item-1", to="blocked", eventId="last")
    await signals.consume()
    await signals.run()
    assert [event["payload"]["dedupeKey"] for event in signals.events_of()] == ["last"]


# Causes


@pytest.mark.parametrize("evaluating", [True, False])
async def test_transition_before_a_pause_does_not_count(signals: Signals, *, evaluating: bool) -> None:
    """A transition from before a pause does not fire the signal after it is activated, however late it is processed."""
    handled_by = Signals(signals.database, signals.broker, signals.clock, enabled=evaluating)
    await handled_by.create()
    await handled_by.transition()
    await handled_by.about("Pause")
    await handled_by.about("Activate")
    await signals.run()
    assert (signals.fired(), await signals.status()) == ([], "active")
