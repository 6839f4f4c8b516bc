"""Work items, their transitions, and the rules of both. Pure functions."""

from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.core.values.message import Position
from timer_service.signals.messages import Outcome

UNKNOWN = Position(0, 0)
"""The position of a command that has not been delivered. Every real position is newer."""


class ItemKey(NamedTuple):
    """The key of a work item."""

    tenant_id: str
    work_item_id: str


class WorkItem(NamedTuple):
    """A work item. Its newest transition sets the status. Without a transition its oldest CreateWorkItem sets it."""

    key: ItemKey
    status: str | None = None
    created: Position = UNKNOWN
    """The position of the oldest CreateWorkItem."""
    moved: Position = UNKNOWN
    """The position of the newest transition."""


class NewItem(NamedTuple):
    """The values of a CreateWorkItem command."""

    key: ItemKey
    status: str | None
    position: Position


class Transition(NamedTuple):
    """The values of a TransitionWorkItem command: a work item reached another status."""

    key: ItemKey
    event_id: str
    from_status: str | None
    to_status: str
    occurred_at: int
    recorded_at: int
    position: Position
    cause: Cause
    evaluate_at: int | None = None
    """The instant that orders the queue of unevaluated transitions. None if the transition is evaluated."""
    evaluated_to: str = ""
    """The id of the last signal that the evaluation worker matched with the transition."""


def create_item(item: WorkItem, new: NewItem) -> tuple[WorkItem, Outcome]:
    """Apply a CreateWorkItem. A status from a transition or from an older CreateWorkItem stays."""
    if item.created != UNKNOWN and item.created <= new.position:
        return item, _late(item, new)
    created = item._replace(created=new.position)
    if item.moved != UNKNOWN:
        return created, _late(item, new)
    return created._replace(status=new.status), Outcome.CREATED


def move_item(item: WorkItem, transition: Transition) -> tuple[WorkItem, Outcome]:
    """Apply a new transition. The newest transition sets the status; an older one still counts for signals."""
    if item.moved > transition.position:
        return item, Outcome.RECORDED
    return item._replace(status=transition.to_status, moved=transition.position), Outcome.TRANSITIONED


def _late(item: WorkItem, new: NewItem) -> Outcome:
    return Outcome.IGNORED_STALE if item.moved > new.position else Outcome.UNCHANGED
