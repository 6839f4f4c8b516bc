"""The events that commands of one transaction are about, and what the commands change."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.events.outbox import OUTBOX, WAITING, EventKey
from timer_service.core.intake.batch import MOST_DATA, Change
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Position
from timer_service.events.contents import HEAD, read_contents
from timer_service.events.messages import DropEvent, ParkEvent, ResubmitEvent, RetryEvent
from timer_service.events.store import PARKED, ParkedEvent, ParkedKey


class Outcome(StrEnum):
    """The outcome of a command on an event."""

    RETRIED = "retried"
    PARKED = "parked"
    RESUBMITTED = "resubmitted"
    DROPPED = "dropped"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    OVER_QUOTA = OVER_QUOTA


class Resubmission(NamedTuple):
    """A parked event that is published again."""

    message_id: str
    """Derived from the command, so that the broker does not take the event for a repeat of an earlier one."""
    key: ParkedKey
    body: str | None
    """None: it is in the row of the parked event."""


class Batch:
    """The events as the commands before the next one have left them."""

    def __init__(self, states: Mapping[EventKey, str], sizes: Mapping[ParkedKey, int], now: int) -> None:
        """`states`: of the events in the outbox. `sizes`: the characters of the parked events that are stored."""
        self._states = dict(states)
        self._sizes = sizes
        self._now = now
        self._room = MOST_DATA
        self._parked: dict[ParkedKey, ParkedEvent | None] = {}
        self.requeued: list[EventKey] = []
        self.resubmissions: list[Resubmission] = []

    @property
    def deleted(self) -> Collection[ParkedKey]:
        """The stored events that are not parked any more, or that were parked again."""
        return [key for key in self._parked if key in self._sizes]

    @property
    def added(self) -> Collection[ParkedEvent]:
        """The events that are parked and not stored yet."""
        return [event for event in self._parked.values() if event is not None]

    def change(self, command: Command) -> Change | None:
        """Return what a command would change; None if the transaction has no room for the body of its event."""
        key = key_of(command)
        if isinstance(key, EventKey):
            return Change(lambda: self._retry(key))
        match command.payload:
            case ParkEvent() as park:
                return self._park(park, key)
            case DropEvent():
                return self._drop(key)
            case _:
                return self._resubmit(command.position, key)

    def _retry(self, key: EventKey) -> CommandResult:
        if (state := self._states.get(key)) is None:
            return CommandResult(Outcome.NOT_FOUND)
        if state != OUTBOX.buried:
            return CommandResult(Outcome.UNCHANGED)
        self._states[key] = WAITING
        self.requeued.append(key)
        return CommandResult(Outcome.RETRIED, self._now)

    def _park(self, payload: ParkEvent, key: ParkedKey) -> Change | None:
        if self._size_of(key) is not None:
            return Change(lambda: CommandResult(Outcome.UNCHANGED))
        body = payload.event.text
        if not self._has_room(len(body)):
            return None
        about = dump_data(read_contents(body[:HEAD]).about)
        parked = ParkedEvent(key, payload.event.type, about, payload.reason, payload.attempts, self._now, body)

        def keep() -> CommandResult:
            self._room -= len(body)
            self._parked[key] = parked
            return CommandResult(Outcome.PARKED)

        return Change(keep, {PARKED: 1})

    def _drop(self, key: ParkedKey) -> Change:
        if self._size_of(key) is None:
            return Change(lambda: CommandResult(Outcome.NOT_FOUND))

        def keep() -> CommandResult:
            self._parked[key] = None
            return CommandResult(Outcome.DROPPED)

        return Change(keep, {PARKED: -1})

    def _resubmit(self, position: Position, key: ParkedKey) -> Change | None:
        size = self._size_of(key)
        if size is None:
            return Change(lambda: CommandResult(Outcome.NOT_FOUND))
        if not self._has_room(size):
            return None

        def keep() -> CommandResult:
            event = self._parked.get(key)
            self._parked[key] = None
            self._room -= size
            message_id = f"resubmitted-{position.epoch}-{position.sequence}"
            self.resubmissions.append(Resubmission(message_id, key, event and event.body))
            self._states[EventKey(key.tenant_id, message_id)] = WAITING
            return CommandResult(Outcome.RESUBMITTED, self._now)

        return Change(keep, {PARKED: -1})

    def _size_of(self, key: ParkedKey) -> int | None:
        """Return how many characters a parked event has; None if it is not parked."""
        if key in self._parked:
            event = self._parked[key]
            return None if event is None else len(event.body)
        return self._sizes.get(key)

    def _has_room(self, size: int) -> bool:
        """Return whether the transaction may have so many more characters. The first event has room in any case."""
        return self._room == MOST_DATA or size <= self._room


def key_of(command: Command) -> EventKey | ParkedKey:
    """Return the event in the outbox, or the parked event, that a command is about."""
    match command.payload:
        case RetryEvent() as retry:
            return EventKey(retry.tenant_id, retry.event_id)
        case ParkEvent() as park:
            return ParkedKey(park.tenant_id, park.consumer, park.event.id)
        case ResubmitEvent() | DropEvent() as payload:
            return ParkedKey(payload.tenant_id, payload.consumer, payload.event_id)
    raise AssertionError("the route admits no other payload")
