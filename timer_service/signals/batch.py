"""A batch of commands on signals and work items, applied in memory. Pure: the handler reads and writes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from timer_service.core.data import dump_data
from timer_service.core.message import Command
from timer_service.signals import rules
from timer_service.signals.messages import (
    ActivateWorkSignal,
    CancelWorkSignal,
    CreateWorkItem,
    CreateWorkSignal,
    PauseWorkSignal,
    SignalPayload,
    TransitionWorkItem,
)
from timer_service.signals.rules import (
    Cause,
    Decision,
    Definition,
    Firing,
    ItemKey,
    Key,
    Outcome,
    Signal,
    Status,
    Transition,
    WorkItem,
)

AT_ONCE = 32
"""The most active signals of one work item that a transition is held against in the command's own transaction."""


@dataclass(slots=True)
class Batch:
    """What is known, and what commands make of it: each sees what those before it did."""

    now: int
    evaluating: bool
    """Whether transitions are held against signals here, or only kept for later."""
    items: dict[ItemKey, WorkItem]
    signals: dict[Key, Signal]
    """Those that commands name, as they are."""
    waiting: Mapping[Key, Signal]
    """Active signals of the work items that transitions name, the first `AT_ONCE` + 1 of each item."""
    known_events: set[tuple[ItemKey, str]]
    changed_items: set[ItemKey] = field(default_factory=set)
    changed_signals: set[Key] = field(default_factory=set)
    events: list[Transition] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    put_back: list[Firing] = field(default_factory=list)
    ended: list[tuple[Key, str]] = field(default_factory=list)
    """Signals whose firings still to come are to fail, and why."""
    awake: set[Key] = field(default_factory=set)
    """Signals that have come to wait for events."""
    _of_item: defaultdict[ItemKey, set[Key]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        for signal in (*self.waiting.values(), *self.signals.values()):
            self._file(signal)

    def apply(self, command: Command) -> tuple[Outcome, Signal | None, int | None]:
        """Apply one command; return how it ends, the signal it was about, and when there is something to do for it."""
        match command.payload:
            case CreateWorkItem() as payload:
                key = ItemKey(payload.tenant_id, payload.work_item_id)
                verdict, item = rules.create_item(self.items[key], payload.status, command.position)
                self._put_item(item)
                return verdict, None, None
            case TransitionWorkItem() as payload:
                return self._transition(payload, command)
            case _:
                return self._about_signal(command)

    def _transition(self, payload: TransitionWorkItem, command: Command) -> tuple[Outcome, Signal | None, int | None]:
        key = ItemKey(payload.tenant_id, payload.work_item_id)
        event = Transition(
            item=key,
            event_id=payload.event_id or command.id,
            from_status=payload.from_,
            to_status=payload.to,
            occurred_at=self.now if payload.occurred_at is None else payload.occurred_at,
            recorded_at=self.now,
            position=command.position,
            cause=_cause(command),
            evaluate_at=self.now,
        )
        if (key, event.event_id) in self.known_events:
            return Outcome.UNCHANGED, None, None
        self.known_events.add((key, event.event_id))
        verdict, item = rules.transition(self.items[key], payload.to, command.position)
        self._put_item(item)
        return verdict, None, self._evaluate(event)

    def _evaluate(self, event: Transition) -> int | None:
        """Keep an event, evaluated if that can be done here; return when there is something to do for it."""
        signals = self._waiting_for(event.item)
        if not self.evaluating or len(signals) > AT_ONCE:
            self.events.append(event)
            return None
        self.events.append(event._replace(evaluate_at=None))
        found = [rules.firing_on(signal, event) for signal in signals if rules.matches(signal, event)]
        self.firings += found
        return self.now if found else None

    def _waiting_for(self, item: ItemKey) -> list[Signal]:
        known = [self.signals.get(key) or self.waiting[key] for key in self._of_item[item]]
        return [signal for signal in known if signal.item == item and signal.status is Status.ACTIVE]

    def _file(self, signal: Signal) -> None:
        if signal.item is not None:
            self._of_item[signal.item].add(signal.key)

    def _about_signal(self, command: Command) -> tuple[Outcome, Signal | None, int | None]:
        decision = self._decide(command)
        signal = decision.signal
        if signal is None or not decision.changed:
            return decision.verdict, signal, None
        before = self.signals.get(signal.key)
        self.signals[signal.key] = signal
        self.changed_signals.add(signal.key)
        self._file(signal)
        return decision.verdict, signal, self._follow(before, signal, _cause(command))

    def _decide(self, command: Command) -> Decision:
        payload, position = command.payload, command.position
        assert isinstance(payload, SignalPayload)  # noqa: S101 - the others are about work items
        key = Key(payload.tenant_id, payload.signal_id)
        signal = self.signals.get(key)
        match payload:
            case CreateWorkSignal():
                wanted = Definition(
                    payload.work_item_id, payload.trigger_kind, dump_data(payload.trigger_spec), payload.note
                )
                return rules.create(signal, key, wanted, position, self.now)
            case PauseWorkSignal():
                return rules.pause(signal, key, position, self.now)
            case ActivateWorkSignal():
                return rules.activate(signal, position)
            case CancelWorkSignal():
                return rules.cancel(signal, key, position, self.now)
            case _:
                return rules.resolve(signal, key, position, self.now)

    def _follow(self, before: Signal | None, signal: Signal, cause: Cause) -> int | None:
        """Note what follows from a signal's change; return when there is something to do for it."""
        if signal.status in rules.ENDED:
            self.ended.append((signal.key, f"the signal is {signal.status}"))
            self.firings = [each for each in self.firings if each.signal != signal.key]
            return None
        if signal.status is not Status.ACTIVE or (before and before._replace(position=signal.position) == signal):
            return None
        if firing := rules.firing_at(signal, cause):
            self.firings.append(firing)
            if before is not None:
                self.put_back.append(firing)
            return firing.due_at
        if signal.item is not None:
            self.awake.add(signal.key)
            self._look_back(signal)
        return None

    def _look_back(self, signal: Signal) -> None:
        """Have events of this batch evaluated anew that are newer than the signal and yet came before it."""
        for index, event in enumerate(self.events):
            if event.item == signal.item and event.position > signal.since:
                self.events[index] = event._replace(evaluate_at=self.now)

    def _put_item(self, item: WorkItem) -> None:
        if self.items[item.key] != item:
            self.items[item.key] = item
            self.changed_items.add(item.key)


def signal_key(command: Command) -> Key | None:
    """Return which signal a command is about, None if it is about a work item."""
    payload = command.payload
    return Key(payload.tenant_id, payload.signal_id) if isinstance(payload, SignalPayload) else None


def activated_keys(commands: Iterable[Command]) -> set[Key]:
    """Return the signals that commands activate."""
    payloads = (command.payload for command in commands)
    return {Key(each.tenant_id, each.signal_id) for each in payloads if isinstance(each, ActivateWorkSignal)}


def item_keys(commands: Iterable[Command]) -> set[ItemKey]:
    """Return the work items that commands name."""
    named = (CreateWorkItem, TransitionWorkItem, CreateWorkSignal)
    payloads = (command.payload for command in commands)
    return {
        ItemKey(each.tenant_id, each.work_item_id)
        for each in payloads
        if isinstance(each, named) and each.work_item_id is not None
    }


def _cause(command: Command) -> Cause:
    return Cause(command.id, command.correlation_id, command.trace)
