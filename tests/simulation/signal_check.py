"""Compares the rows and the published events of signals with the model of signals."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.simulation.service import Row, Service
from tests.simulation.signal_model import Definition, ItemName, SignalName, SignalsModel, Transition, normalize
from timer_service.core.values.message import Position


class FiredFirings:
    """The firings whose events the test has seen."""

    def __init__(self) -> None:
        self._fired: set[str] = set()

    def read_new(self, service: Service) -> list[Row]:
        """Return the firings that fired since the last call."""
        rows = [row for row in service.rows("work_signal_firings") if row["status"] == "enqueued"]
        new = [row for row in rows if row["firing_id"] not in self._fired]
        self._fired |= {row["firing_id"] for row in new}
        return new


def apply_firings(model: SignalsModel, fired: Iterable[Row], now: int) -> None:
    """Apply firings to the model. It asserts that each firing is allowed."""
    for row in fired:
        model.fire(SignalName(row["tenant_id"], row["signal_id"]), row["work_item_id"], row["dedupe_key"], now)


def check_fired(service: Service, fired: Iterable[Row]) -> None:
    """Assert that the cause of each firing matches its signal."""
    signals = {_signal(row): row for row in service.rows("work_signals")}
    events = {(_item(row), row["event_id"]): row for row in service.rows("work_item_events")}
    for row in fired:
        signal = signals[_signal(row)]
        assert signal["status"] == "fired", f"{row['signal_id']} fired but is {signal['status']}"
        if signal["trigger_kind"] == "time":
            assert row["due_at"] <= service.clock.now(), f"{row['signal_id']} fired early"
            continue
        event = events[_item(row), row["dedupe_key"]]
        assert _matches(signal, event), f"{row['signal_id']} fired on {event}, which does not match"


def _matches(signal: Row, event: Row) -> bool:
    spec = json.loads(signal["trigger_spec"])
    return (
        spec.get("kind") == "work_item.status.transition"
        and normalize(event["to_status"]) in map(normalize, spec["to"])
        and _item(event) == (signal["tenant_id"], signal["work_item_id"])
        and _position(event) > _since(signal)
    )


def check_signals(model: SignalsModel, service: Service) -> None:
    """Assert that the tables equal the model."""
    found = {_signal(row): row for row in service.rows("work_signals")}
    assert found.keys() == model.signals.keys()
    for name, signal in model.signals.items():
        row = found[name]
        assert row["status"] == signal.status, f"{name} is {row['status']}, not {signal.status}"
        assert _read_definition(row) == signal.definition[:4], (
            f"{name} waits for {_read_definition(row)}, not {signal.definition}"
        )
        assert _since(row) == signal.since, f"{name} matches after {_since(row)}, not {signal.since}"
    items = {_item(row): row["status"] for row in service.rows("work_items")}
    assert items == {name: item.status for name, item in model.items.items()}
    events = {
        (_item(row), row["event_id"]): Transition(row["to_status"], _position(row))
        for row in service.rows("work_item_events")
    }
    assert events == {
        (name, event_id): event for name, item in model.items.items() for event_id, event in item.events.items()
    }


def check_nothing_missed(service: Service) -> None:
    """Assert that each active signal fired on each matching transition."""
    fired = {
        (_signal(row), row["work_item_id"], row["dedupe_key"])
        for row in service.rows("work_signal_firings")
        if row["status"] == "enqueued"
    }
    events = service.rows("work_item_events")
    assert all(row["evaluate_at"] is None for row in events), "transitions were not evaluated"
    for signal in service.rows("work_signals"):
        if signal["status"] != "active" or signal["trigger_kind"] != "event":
            continue
        for event in events:
            if _matches(signal, event):
                cause = (_signal(signal), event["work_item_id"], event["event_id"])
                assert cause in fired, f"{signal['signal_id']} did not fire on {event['event_id']}"


def check_signal_events(service: Service) -> None:
    """Assert that each fired firing has one event."""
    rows = [row for row in service.rows("work_signal_firings") if row["status"] == "enqueued"]
    events = [event for event in service.events() if event["type"].startswith("work.signal.")]
    assert {event["type"] for event in events} <= {"work.signal.fired"}, "a firing was buried"
    assert Counter(event["payload"]["firingId"] for event in events) == Counter(row["firing_id"] for row in rows)


def check_signals_deleted(service: Service) -> None:
    """Assert that retention deleted the ended signals with all their rows, and no others."""
    signals = {_signal(row): row["status"] for row in service.rows("work_signals")}
    kept = {name for name, status in signals.items() if status in {"active", "paused", "fired"}}
    ended = {name for name, status in signals.items() if status in {"resolved", "cancelled"}}
    assert not ended
    firings = [row for row in service.rows("work_signal_firings") if row["status"] in {"enqueued", "failed"}]
    assert all(row["status"] == "enqueued" and row["work_item_id"] and _signal(row) in kept for row in firings)


def _read_definition(row: Row) -> tuple[Any, ...]:
    return tuple(Definition(row["work_item_id"], row["trigger_kind"], json.loads(row["trigger_spec"]), row["note"])[:4])


def _since(row: Row) -> Position:
    return Position(row["since_epoch"], row["since_sequence"])


def _position(row: Row) -> Position:
    return Position(row["position_epoch"], row["position_sequence"])


def _signal(row: Row) -> SignalName:
    return SignalName(row["tenant_id"], row["signal_id"])


def _item(row: Row) -> ItemName:
    return ItemName(row["tenant_id"], row["work_item_id"])
