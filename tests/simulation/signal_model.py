"""A simple model of signals, for commands in the order of the log.

The time of a firing depends on the worker. So the model applies each firing of the worker and asserts these rules:

- A firing may fire only an active signal. Its cause is a matching transition that is newer than `since`, or a due
  instant. `since` is the position of the command that created the signal or activated it last.
- When no work is left, every active signal has fired on each matching transition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from timer_service.core.values.instant import parse_instant
from timer_service.core.values.message import Position

ENDED = {"resolved", "cancelled"}


class SignalName(NamedTuple):
    """The key of a signal."""

    tenant: str
    signal: str


class ItemName(NamedTuple):
    """The key of a work item."""

    tenant: str
    item: str


class Transition(NamedTuple):
    """A transition of a work item."""

    to: str
    position: Position


class Definition(NamedTuple):
    """A signal's definition: statuses of a work item, or an instant. Both are empty if the trigger is invalid."""

    item: str | None
    kind: str
    spec: Any
    note: str | None
    statuses: frozenset[str] = frozenset()
    at: int | None = None

    @property
    def invalid(self) -> bool:
        return not self.statuses and self.at is None


@dataclass(slots=True)
class SignalModel:
    """One signal."""

    status: str
    since: Position
    definition: Definition

    def matches(self, item: str, transition: Transition) -> bool:
        wanted = self.definition
        return wanted.item == item and transition.position > self.since and normalize(transition.to) in wanted.statuses


@dataclass(slots=True)
class ItemModel:
    """One work item that a CreateWorkItem or a TransitionWorkItem has named."""

    status: str | None = None
    events: dict[str, Transition] = field(default_factory=dict)


def normalize(status: str) -> str:
    return status.strip().casefold()


def read_definition(payload: Mapping[str, Any]) -> Definition:
    """Return the definition in a CreateWorkSignal."""
    kind, spec, item = payload["triggerKind"], payload["triggerSpec"], payload.get("workItemId")
    statuses: frozenset[str] = frozenset()
    at = None
    if kind == "event" and item and spec.get("kind") == "work_item.status.transition" and spec.get("to"):
        statuses = frozenset(map(normalize, spec["to"]))
    if kind == "time" and spec.get("kind") == "time.at" and "at" in spec:
        at = parse_instant(spec["at"])
    return Definition(item, kind, spec, payload.get("note"), statuses, at)


class SignalsModel:
    """All signals and work items."""

    def __init__(self) -> None:
        self.signals: dict[SignalName, SignalModel] = {}
        self.items: dict[ItemName, ItemModel] = {}
        self.fired = 0

    # Commands

    def command(self, kind: str, payload: Mapping[str, Any], position: Position, command_id: str) -> str:
        """Apply one command and return its outcome."""
        tenant = payload["tenantId"]
        if kind in {"CreateWorkItem", "TransitionWorkItem"}:
            item = ItemName(tenant, payload["workItemId"])
            if kind == "CreateWorkItem":
                return self._create_item(item, payload)
            return self._transition(item, payload, position, command_id)
        name = SignalName(tenant, payload["signalId"])
        if kind == "CreateWorkSignal":
            return self._create(name, payload, position)
        return self._change(name, kind, position)

    def _create_item(self, name: ItemName, payload: Mapping[str, Any]) -> str:
        if name in self.items:
            return "unchanged"
        self.items[name] = ItemModel(payload.get("status"))
        return "created"

    def _transition(self, name: ItemName, payload: Mapping[str, Any], position: Position, command_id: str) -> str:
        item = self.items.setdefault(name, ItemModel())
        event_id = payload.get("eventId", command_id)
        if event_id in item.events:
            return "unchanged"
        item.events[event_id] = Transition(payload["to"], position)
        item.status = payload["to"]
        return "transitioned"

    def _create(self, name: SignalName, payload: Mapping[str, Any], position: Position) -> str:
        wanted, signal = read_definition(payload), self.signals.get(name)
        if signal is not None and signal.status not in ENDED:
            return "unchanged" if signal.definition == wanted else "exists"
        self.signals[name] = SignalModel("active", position, wanted)
        return "created_invalid" if wanted.invalid else "created"

    def _change(self, name: SignalName, kind: str, position: Position) -> str:
        verb = kind.removesuffix("WorkSignal")
        wanted = {"Pause": "paused", "Activate": "active", "Cancel": "cancelled", "Resolve": "resolved"}[verb]
        signal = self.signals.get(name)
        if signal is None:
            return "not_found"
        if signal.status == wanted:
            return "unchanged"
        if signal.status in ENDED:
            return "already_ended"
        timed = signal.definition.at is not None
        if signal.status == "fired" and (verb in {"Pause", "Cancel"} or (verb == "Activate" and timed)):
            return "already_fired"
        signal.status = wanted
        if verb == "Activate" and not timed:
            signal.since = position
        return "activated" if verb == "Activate" else wanted

    # Firings

    def fire(self, name: SignalName, item: str | None, cause: str, now: int) -> None:
        """Apply a firing that fired its signal. Assert that it is allowed."""
        signal = self.signals[name]
        assert signal.status == "active", f"{name} fired while it was {signal.status}"
        if signal.definition.at is not None:
            assert signal.definition.at <= now, f"{name} fired early"
        else:
            event = self.items[ItemName(name.tenant, item or "")].events[cause]
            assert signal.matches(item or "", event), f"{name} fired on {event}, which does not match: {signal}"
        signal.status = "fired"
        self.fired += 1

    def missed(self, now: int) -> Iterable[str]:
        """Yield a description of each active signal that should have fired."""
        for name, signal in self.signals.items():
            if signal.status != "active":
                continue
            if signal.definition.at is not None and signal.definition.at <= now:
                yield f"{name} did not fire at its instant"
            item = self.items.get(ItemName(name.tenant, signal.definition.item or ""), ItemModel())
            for event_id, event in item.events.items():
                if signal.matches(signal.definition.item or "", event):
                    yield f"{name} did not fire on {event_id}, {event}: {signal}"
