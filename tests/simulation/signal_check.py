"""Holds stored rows and published events of signals against the model of signals."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.simulation.service import Row, Service
from tests.simulation.signal_model import Definition, ItemName, SignalName, SignalsModel, Transition, plain
from timer_service.core.message import Position


class FiringsSeen:
    """What became of firings, so that a change can be told from what was so before."""

    def __init__(self) -> None:
        self._fired: set[str] = set()

    def newly_fired(self, service: Service) -> list[Row]:
        rows = [row for row in service.rows("work_signal_firings") if row["status"] == "enqueued"]
        new = [row for row in rows if row["firing_id"] not in self._fired]
        self._fired |= {row["firing_id"] for row in new}
        return new


def follow_firings(model: SignalsModel, fired: Iterable[Row], now: int) -> None:
    """Tell the model which signals have fired, if they may."""
    for row in fired:
        model.fire(SignalName(row["tenant_id"], row["signal_id"]), row["work_item_id"], row["dedupe_key"], now)


def check_fired(service: Service, fired: Iterable[Row]) -> None:
    """Assert, whatever the order of delivery was, that firings have a cause that their signal waits for."""
    signals = {_signal(row): row for row in service.rows("work_signals")}
    events = {(_item(row), row["event_id"]): row for row in service.rows("work_item_events")}
    for row in fired:
        signal = signals[_signal(row)]
        assert signal["status"] == "fired", f"{row['signal_id']} was fired and is {signal['status']}"
        if signal["trigger_kind"] == "time":
            assert row["due_at"] <= service.clock.now(), f"{row['signal_id']} fired early"
            continue
        event = events[_item(row), row["dedupe_key"]]
        assert _matches(signal, event), f"{row['signal_id']} fired on {event}, which it does not wait for"


def _matches(signal: Row, event: Row) -> bool:
    spec = json.loads(signal["trigger_spec"])
    return (
        spec.get("kind") == "work_item.status.transition"
        and plain(event["to_status"]) in map(plain, spec["to"])
        and _item(event) == (signal["tenant_id"], signal["work_item_id"])
        and _position(event) > _since(signal)
    )


def check_signals(model: SignalsModel, service: Service) -> None:
    """Assert that the tables hold what the model does."""
    found = {_signal(row): row for row in service.rows("work_signals")}
    assert {name for name, row in found.items() if row["trigger_kind"] is not None} == model.signals.keys()
    for name, signal in model.signals.items():
        row = found[name]
        assert row["status"] == signal.status, f"{name} is {row['status']}, not {signal.status}"
        assert _told(row) == signal.definition[:4], f"{name} waits for {_told(row)}, not {signal.definition}"
        assert _since(row) == signal.since, f"{name} fires on what is newer than {_since(row)}, not {signal.since}"
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
    """Assert, whatever the order of delivery was, that no active signal waits for a transition that is there."""
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
                assert cause in fired, f"{signal['signal_id']} never fired on {event['event_id']}"


def check_signal_events(service: Service) -> None:
    """Assert that each firing that has fired has one event and, with a work item, one task."""
    rows = [row for row in service.rows("work_signal_firings") if row["status"] == "enqueued"]
    events = [event for event in service.events() if event["type"].startswith("work.signal.")]
    assert {event["type"] for event in events} <= {"work.signal.fired"}, "a firing was given up"
    assert Counter(event["payload"]["firingId"] for event in events) == Counter(row["firing_id"] for row in rows)
    tasks = [row["firing_id"] for row in service.rows("work_item_tasks")]
    assert Counter(tasks) == Counter(row["firing_id"] for row in rows if row["work_item_id"] is not None)


def check_signals_deleted(service: Service) -> None:
    """Assert that retention has deleted what has ended, whole, and nothing else."""
    signals = {_signal(row): row["status"] for row in service.rows("work_signals")}
    kept = {name for name, status in signals.items() if status in {"active", "paused", "fired"}}
    ended = {name for name, status in signals.items() if status in {"resolved", "cancelled"}}
    assert not ended
    assert {_signal(row) for row in service.rows("work_item_tasks")} <= kept


def ends_of_signals(service: Service) -> Mapping[str, Any]:
    """Return what does not depend on the order of delivery: see the docstring of the model."""
    signals = {
        _signal(row): (row["status"], None if row["status"] in {"resolved", "cancelled"} else _told(row))
        for row in service.rows("work_signals")
        if row["trigger_kind"] is not None or row["status"] in {"resolved", "cancelled"}
    }
    items = {_item(row): row["status"] for row in service.rows("work_items")}
    fired = Counter(event["payload"]["signalId"] for event in service.events() if event["type"] == "work.signal.fired")
    return {"signals": signals, "items": items, "fired": fired}


def _told(row: Row) -> tuple[Any, ...]:
    spec = None if row["trigger_spec"] is None else json.loads(row["trigger_spec"])
    return tuple(Definition(row["work_item_id"], row["trigger_kind"], spec, row["note"])[:4])


def _since(row: Row) -> Position:
    return Position(row["since_epoch"], row["since_sequence"])


def _position(row: Row) -> Position:
    return Position(row["position_epoch"], row["position_sequence"])


def _signal(row: Row) -> SignalName:
    return SignalName(row["tenant_id"], row["signal_id"])


def _item(row: Row) -> ItemName:
    return ItemName(row["tenant_id"], row["work_item_id"])
