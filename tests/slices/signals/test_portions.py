"""A transaction matches a bounded number of signals with transitions. The other commands follow in further ones."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.signals import BLOCKED, Signals
from tests.harness.transactions import recording_route
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database
from timer_service.signals import SLICE

WAITING = 30
"""The signals that wait for each work item."""


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """Return the signals slice on each store in turn."""
    return Signals(store, memory_broker, clock)


def send_signals(signals: Signals, items: int) -> None:
    for item in range(items):
        for number in range(WAITING):
            signals.send(
                "CreateWorkSignal",
                signalId=f"signal-{item}-{number}",
                workItemId=f"item-{item}",
                triggerKind="event",
                triggerSpec=BLOCKED,
            )


def send_transitions(signals: Signals, count: int, items: int = 1) -> None:
    for number in range(count):
        signals.send("TransitionWorkItem", workItemId=f"item-{number % items}", to="blocked", eventId=f"event-{number}")


@pytest.mark.parametrize("in_one_batch", [False, True])
async def test_many_signals_of_many_transitions(signals: Signals, *, in_one_batch: bool) -> None:
    """Transitions that meet many signals are applied in several transactions, in their order."""
    route, applied = recording_route(SLICE, signals._woken)
    signals.consumer = signals.parts.consumer([route])
    send_signals(signals, 10)
    if not in_one_batch:
        await signals.consume()
    send_transitions(signals, 300, items=10)
    await signals.consume()
    with_transitions = [sum(each.type == "TransitionWorkItem" for each in payloads) for payloads in applied if payloads]
    assert [count for count in with_transitions if count] == [66, 66, 66, 66, 36]
    assert len(await signals.rows("work_signal_firings")) == 300 * WAITING


async def test_many_transitions_without_signals(signals: Signals) -> None:
    """Any number of transitions that no signal waits for are applied in one transaction."""
    route, applied = recording_route(SLICE, signals._woken)
    signals.consumer = signals.parts.consumer([route])
    send_transitions(signals, 1000, items=10)
    await signals.consume()
    assert [len(payloads) for payloads in applied] == [1000]
