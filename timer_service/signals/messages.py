"""Wire models of the commands and events of work signals."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StringConstraints

from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.values.data import check_fits
from timer_service.core.values.instant import Instant
from timer_service.core.values.message import Identifier, TenantPayload

ItemStatus = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,100}$")]
"""A status of a work item. Users choose their own statuses."""

Note = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=2000)]

TriggerSpec = Annotated[
    dict[str, Any],
    AfterValidator(check_fits),
    Field(description="The condition that the signal waits for, by `kind`. An invalid spec is stored and never fires."),
]


class TriggerKind(StrEnum):
    """What a signal waits for: an event of a work item, or an instant."""

    EVENT = "event"
    TIME = "time"


class Outcome(StrEnum):
    """The outcome of a command on a signal or a work item."""

    CREATED = "created"
    CREATED_INVALID = "created_invalid"
    EXISTS = "exists"
    TRANSITIONED = "transitioned"
    PAUSED = "paused"
    ACTIVATED = "activated"
    CANCELLED = "cancelled"
    RESOLVED = "resolved"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_FIRED = "already_fired"
    ALREADY_ENDED = "already_ended"
    OVER_QUOTA = OVER_QUOTA


class CreateWorkItem(TenantPayload):
    """Create a work item, with a status if it already has one."""

    work_item_id: Identifier
    status: ItemStatus | None = None


class TransitionWorkItem(TenantPayload):
    """A work item reached another status. This fires the active signals that wait for it."""

    work_item_id: Identifier
    event_id: Identifier | None = Field(
        default=None, description="Identifies the transition, so that it counts once. Default: the id of the command."
    )
    from_: ItemStatus | None = Field(default=None, alias="from", description="The previous status. It is not checked.")
    to: ItemStatus
    occurred_at: Instant | None = None


class SignalPayload(TenantPayload):
    """The payload of a message about one signal."""

    signal_id: Identifier


class CreateWorkSignal(SignalPayload):
    """Create a signal. It fires once when its trigger becomes true."""

    work_item_id: Identifier | None = None
    trigger_kind: TriggerKind
    trigger_spec: TriggerSpec
    note: Note | None = None


class PauseWorkSignal(SignalPayload):
    """Pause a signal. It does not fire until it is activated again."""


class ActivateWorkSignal(SignalPayload):
    """Activate a paused or fired signal. Only transitions after this command in the stream fire it."""

    is_operator_action: ClassVar[bool] = True


class CancelWorkSignal(SignalPayload):
    """Cancel a signal. It no longer fires."""


class ResolveWorkSignal(SignalPayload):
    """End a signal whose work is done. It no longer fires."""


class WorkSignalFired(SignalPayload):
    """A signal has fired. If the event is sent more than once, the envelope id is the same."""

    type: ClassVar[str] = "work.signal.fired"

    firing_id: Identifier
    work_item_id: Identifier | None = None
    dedupe_key: Identifier
    task_id: Identifier | None = None
    fired_at: Instant


class WorkSignalFailed(SignalPayload):
    """A firing was given up after all its attempts. Its signal is paused."""

    type: ClassVar[str] = "work.signal.failed"

    firing_id: Identifier
    work_item_id: Identifier | None = None
    dedupe_key: Identifier
    attempt: int = Field(ge=1)
    error: str
    failed_at: Instant
