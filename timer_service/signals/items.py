"""Work items and their transitions: values and decisions. Pure."""

from typing import NamedTuple

from timer_service.core.message import Position, Trace
from timer_service.signals.messages import Outcome

UNKNOWN = Position(0, 0)
"""The position of a command that has not been delivered. Every real position is newer."""


class ItemKey(NamedTuple):
    """Which work item."""

    tenant_id: str
    work_item_id: str


class Cause(NamedTuple):
    """What an event repeats of the command that caused it."""

    command_id: str | None = None
    correlation_id: str | None = None
    trace: Trace = Trace()


class WorkItem(NamedTuple):
    """A work item: the status of its newest transition, or of its oldest CreateWorkItem if it has no transition."""

    key: ItemKey
    status: str | None = None
    created: Position = UNKNOWN
    """The position of its oldest CreateWorkItem."""
    moved: Position = UNKNOWN
    """The position of its newest transition."""


class NewItem(NamedTuple):
    """A CreateWorkItem."""

    key: ItemKey
    status: str | None
    position: Position


class Transition(NamedTuple):
    """A TransitionWorkItem: a work item came to another status."""

    key: ItemKey
    event_id: str
    from_status: str | None
    to_status: str
    occurred_at: int
    recorded_at: int
    position: Position
    cause: Cause
    evaluate_at: int | None = None
    """Its place in the queue of unevaluated transitions; None once it is evaluated."""
    evaluated_to: str = ""
    """The last signal that the worker has matched it with."""


def create_item(item: WorkItem, new: NewItem) -> tuple[WorkItem, Outcome]:
    """Decide a CreateWorkItem. A status from a transition stays, and so does one from an older CreateWorkItem."""
    if item.created != UNKNOWN and item.created <= new.position:
        return item, _late(item, new)
    created = item._replace(created=new.position)
    if item.moved != UNKNOWN:
        return created, _late(item, new)
    return created._replace(status=new.status), Outcome.CREATED


def move_item(item: WorkItem, transition: Transition) -> tuple[WorkItem, Outcome]:
    """Decide a transition that is new: it counts for signals in any case, but the newest one sets the status."""
    if item.moved > transition.position:
        return item, Outcome.RECORDED
    return item._replace(status=transition.to_status, moved=transition.position), Outcome.TRANSITIONED


def _late(item: WorkItem, new: NewItem) -> Outcome:
    return Outcome.IGNORED_STALE if item.moved > new.position else Outcome.UNCHANGED
