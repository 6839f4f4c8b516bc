"""The wire shape of the signals' commands and events."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StringConstraints

from timer_service.core.data import check_fits
from timer_service.core.instant import Instant
from timer_service.core.message import Identifier, TenantPayload

ItemStatus = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,100}$")]
"""A status of a work item: the user's own word."""

Note = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=2000)]

TriggerSpec = Annotated[
    dict[str, Any],
    AfterValidator(check_fits),
    Field(description="What to wait for, told by its `kind`. One that can't be read is kept and never matches."),
]


class TriggerKind(StrEnum):
    """What a signal waits for: something that happens, or an instant."""

    EVENT = "event"
    TIME = "time"


class Outcome(StrEnum):
    """How a command on a signal or a work item ends."""

    CREATED = "created"
    CREATED_INVALID = "created_invalid"
    EXISTS = "exists"
    TRANSITIONED = "transitioned"
    RECORDED = "recorded"
    PAUSED = "paused"
    ACTIVATED = "activated"
    CANCELLED = "cancelled"
    RESOLVED = "resolved"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_FIRED = "already_fired"
    ALREADY_ENDED = "already_ended"
    IGNORED_STALE = "ignored_stale"


class CreateWorkItem(TenantPayload):
    """Create a work item, in a status if it has one yet."""

    type: ClassVar[str] = "CreateWorkItem"

    work_item_id: Identifier
    status: ItemStatus | None = None


class TransitionWorkItem(TenantPayload):
    """A work item came to another status. Signals that wait for that fire."""

    type: ClassVar[str] = "TransitionWorkItem"

    work_item_id: Identifier
    event_id: Identifier | None = Field(
        default=None, description="Names the transition, so that it counts once; the command's id if absent."
    )
    from_: ItemStatus | None = Field(default=None, alias="from", description="Kept with the event, not checked.")
    to: ItemStatus
    occurred_at: Instant | None = None


class SignalPayload(TenantPayload):
    """A payload about one signal."""

    signal_id: Identifier


class CreateWorkSignal(SignalPayload):
    """Fire once when the trigger comes true."""

    type: ClassVar[str] = "CreateWorkSignal"

    work_item_id: Identifier | None = None
    trigger_kind: TriggerKind
    trigger_spec: TriggerSpec
    note: Note | None = None


class PauseWorkSignal(SignalPayload):
    """Do not fire until it is activated again."""

    type: ClassVar[str] = "PauseWorkSignal"


class ActivateWorkSignal(SignalPayload):
    """Let a paused or fired signal fire on what happens from now on."""

    type: ClassVar[str] = "ActivateWorkSignal"


class CancelWorkSignal(SignalPayload):
    """Do not fire any more."""

    type: ClassVar[str] = "CancelWorkSignal"


class ResolveWorkSignal(SignalPayload):
    """What the signal was for is dealt with."""

    type: ClassVar[str] = "ResolveWorkSignal"


class WorkSignalFired(SignalPayload):
    """A signal has fired. The same firing always has the same envelope id."""

    type: ClassVar[str] = "work.signal.fired"

    firing_id: Identifier
    work_item_id: Identifier | None = None
    dedupe_key: Identifier
    task_id: Identifier | None = None
    fired_at: Instant


class WorkSignalFailed(SignalPayload):
    """A firing was given up after all its attempts, and its signal is paused."""

    type: ClassVar[str] = "work.signal.failed"

    firing_id: Identifier
    work_item_id: Identifier | None = None
    dedupe_key: Identifier
    attempt: int = Field(ge=1)
    error: str
    failed_at: Instant
