"""A transaction reads a bounded amount of data and makes a bounded number of firings. The rest follows in others."""

import math
from itertools import count

import pytest

from tests.harness.clock import ManualClock, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.signals import BLOCKED, Signals
from tests.harness.transactions import recording_route
from timer_service.core.intake import batch
from timer_service.core.ports import turns
from timer_service.core.ports.database import Database
from timer_service.core.values.message import CommandPayload
from timer_service.signals import SLICE
from timer_service.signals.evaluation import Evaluation

WAITING = 30
"""The signals that wait for each work item."""


@pytest.fixture
def signals(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Signals:
    """Return the signals slice on each store in turn. Only data bound a transaction, however slow the machine is."""
    monkeypatch.setattr(turns, "TRANSACTION_SECONDS", math.inf)
    return Signals(store, memory_broker, clock)


async def wake_nothing(*_: object) -> None:
    pass


def record(signals: Signals) -> list[list[CommandPayload]]:
    """Return a list that gets the commands of each transaction."""
    route, applied = recording_route(SLICE, wake_nothing)
    signals.reader = signals.parts.reader([route], wake_nothing)
    return applied


def long_trigger(characters: int) -> dict[str, object]:
    """Return a trigger that is valid, or too long to be valid."""
    long = ["x" * 90] * (characters // 90)
    return {"kind": "work_item.status.transition", "to": ["blocked", *long]}


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


async def test_many_signals_of_many_transitions(signals: Signals) -> None:
    """Transitions that meet many signals are applied in several transactions, in their order."""
    applied = record(signals)
    send_signals(signals, 10)
    send_transitions(signals, 100, items=10)
    await signals.consume()
    with_transitions = [sum(each.type == "TransitionWorkItem" for each in payloads) for payloads in applied if payloads]
    assert [count for count in with_transitions if count] == [67, 33]
    assert len(await signals.rows("work_signal_firings")) == 100 * WAITING


async def test_signals_with_much_data(signals: Signals) -> None:
    """Commands on signals with more than 2 Mi characters are applied in several transactions, whatever their order."""
    for number in range(100):
        spec = {"kind": "other", "text": "x" * 60_000}
        signals.send("CreateWorkSignal", signalId=f"{number:02}", triggerKind="event", triggerSpec=spec)
    await signals.consume()
    applied = record(signals)
    for number in range(100):
        signals.send("PauseWorkSignal", signalId=f"{number:02}")
    await signals.consume()
    assert [len(payloads) for payloads in applied] == [34, 34, 32]
    assert {row["status"] for row in await signals.rows("work_signals")} == {"paused"}


async def test_long_triggers(signals: Signals) -> None:
    """The worker matches a signal with a long trigger. The transaction of the transition does not read the trigger."""
    for name, spec in (("short", BLOCKED), ("long", long_trigger(8000)), ("invalid", long_trigger(60_000))):
        signals.send("CreateWorkSignal", signalId=name, workItemId="item-0", triggerKind="event", triggerSpec=spec)
    send_transitions(signals, 1)
    await signals.consume()
    assert await signals.rows("work_signal_firings") == []
    await signals.run()
    assert sorted(signals.fired()) == ["long", "short"]


@pytest.mark.parametrize("items", [("a", "a"), ("a", "b")], ids=["two tenants", "two work items of a tenant"])
async def test_the_worker_stops_in_time(
    signals: Signals, monkeypatch: pytest.MonkeyPatch, items: tuple[str, str]
) -> None:
    """If each signal takes a second, a pass matches one. Tenants take turns, and so do the transitions of a tenant."""
    monkeypatch.setattr(turns, "TRANSACTION_SECONDS", 0.05)
    tenants = ("acme", "acme") if items == ("a", "b") else ("a", "b")
    for name, tenant, item in zip("ab", tenants, items, strict=True):
        for number in range(3):
            signals.send(
                "CreateWorkSignal",
                tenant=tenant,
                signalId=f"{name}-{number}",
                workItemId=item,
                triggerKind="event",
                triggerSpec=long_trigger(5000),
            )
        signals.send("TransitionWorkItem", tenant=tenant, workItemId=item, to="blocked")
        await signals.consume()
        signals.clock.advance(milliseconds=1)
    slow = Evaluation(signals.parts, monotonic=count().__next__)
    matched = []
    while (await slow.tick(signals.clock.now())).done:
        matched.append([row["signal_id"] for row in await signals.rows("work_signal_firings")])
        signals.clock.advance(milliseconds=1)
    made = [sorted({*after} - {*before}) for before, after in zip([[], *matched], matched, strict=False)]
    assert [each for each in made if each] == [["a-0"], ["b-0"], ["a-1"], ["b-1"], ["a-2"], ["b-2"]]
    await signals.run()
    assert sorted(signals.fired()) == sorted(matched[-1])


async def test_firings_with_much_data(signals: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """The firings of signals with more than 2 Mi characters are processed in several transactions, each once."""
    for number in range(100):
        spec = {"kind": "time.at", "at": iso(signals.clock.now())}
        signals.send("CreateWorkSignal", signalId=f"{number:02}", triggerKind="time", triggerSpec=spec, note="x" * 2000)
    await signals.consume()
    monkeypatch.setattr(batch, "MOST_DATA", 100_000)
    fired = []
    while (await signals.firings.tick(signals.clock.now())).done:
        fired.append(signals.metrics.settled_in["work_signal_firings", "fired"])
    assert fired == [48, 96, 100]
