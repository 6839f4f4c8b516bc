"""Wire models of the commands and events of schedules."""

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, NoReturn, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from timer_service.core.service.workflow_start import (
    DEFAULT_QUEUE,
    ConcurrencyFields,
    EffectName,
    Json,
    RetryPolicy,
    WorkflowSpec,
)
from timer_service.core.values.data import check_fits
from timer_service.core.values.duration import DAY, SECOND
from timer_service.core.values.duration_field import WRITE_DURATION, Duration, parse_between, schema_between
from timer_service.core.values.instant import Instant
from timer_service.core.values.message import Identifier, Payload, TenantPayload, Topic
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.interval import MAX_EVERY, WALL_PATTERN, CalendarInterval, Unit, parse_wall_time
from timer_service.schedules.calendar.recurrence import Recurrence, parse_recurrence

MAX_ID_WITH_START = 150
"""The most characters in the id of a schedule that starts workflows."""
MAX_LIMIT = 1000
"""The most late slots of a schedule that fire."""
MAX_BACKFILL = 10_000
"""The most slots of a backfill."""


class Status(StrEnum):
    """The status of a schedule. A tombstone is `deleted`; no reply shows it."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"
    DELETED = "deleted"


class ShownStatus(StrEnum):
    """The status of a schedule in replies."""

    ACTIVE = Status.ACTIVE
    PAUSED = Status.PAUSED
    ENDED = Status.ENDED


class EndReason(StrEnum):
    """Why a schedule has ended."""

    END_AT = "end_at"
    MAX_COUNT = "max_count"
    NO_MORE_SLOTS = "no_more_slots"


class FiringCause(StrEnum):
    """What fired a schedule, or should have started a workflow."""

    SLOT = "slot"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    """A past slot, because of a BackfillSchedule."""


class BackfillEnd(StrEnum):
    """Why a backfill has ended."""

    DONE = "done"
    """No slot of its range is left that is due."""
    LIMIT = "limit"
    """It has handled as many slots as it may, and one or more are left."""
    DELETED = "deleted"
    """The schedule was deleted."""


class SkipReason(StrEnum):
    """Why a slot or a trigger started no workflow."""

    BUSY = "busy"
    """The concurrency key is busy."""
    EXISTS = "exists"
    """There is another workflow with the id."""
    CANCELLED = "cancelled"
    """The workflow was cancelled before."""
    OVER_QUOTA = "over_quota"
    """The tenant would exceed a limit."""


class Policy(StrEnum):
    """Which slots fire that are later than `lateBy`: only the newest if all are late, none, or all."""

    LAST = "last"
    SKIP = "skip"
    ALL = "all"


Every = Annotated[
    int,
    parse_between(SECOND, 366 * DAY, ": write `calendar`, with `months` and an `anchor`"),
    WRITE_DURATION,
    schema_between(SECOND, 366 * DAY),
]
Jitter = Annotated[int, parse_between(0, DAY), WRITE_DURATION, schema_between(0, DAY)]
WallTime = Annotated[str, BeforeValidator(parse_wall_time), WithJsonSchema({"type": "string", "pattern": WALL_PATTERN})]
LateBy = Annotated[int, parse_between(SECOND, DAY), WRITE_DURATION, schema_between(SECOND, DAY)]

ScheduleData = Annotated[
    Any, AfterValidator(check_fits), Field(description="Any JSON of at most 64 KiB. The events carry it unchanged.")
]


class CatchUp(Payload):
    """Which slots fire that are late, because the service or the broker was away."""

    policy: Policy = Policy.LAST
    late_by: LateBy = Field(default=60 * SECOND, description="Slots that are at most this late fire. Default: PT1M.")
    limit: int = Field(
        default=100, ge=1, le=MAX_LIMIT, strict=True, description="At most the newest `limit` late slots fire."
    )


class Calendar(Payload):
    """Every so many days, weeks or months from an anchor on."""

    every: int = Field(ge=1, le=MAX_EVERY, strict=True, description="How many units are between slots.")
    unit: Unit
    anchor: WallTime = Field(
        description="The first slot, a wall-clock time in `zone`. Each slot has its time of day, and its weekday or day"
        " of the month. In a month without this day, the slot is on the last day."
    )


class RecurrenceFields(Payload):
    """The fields that define slots."""

    cron: StrictStr | None = Field(
        default=None, description="A cron expression of 5 fields, or of 6 with seconds first."
    )
    every: Every | None = Field(
        default=None, description="The distance of slots: an ISO 8601 duration, or whole milliseconds."
    )
    calendar: Calendar | None = None
    zone: StrictStr | None = Field(
        default=None, description="An IANA time zone, for `cron` and `calendar`. Default: UTC."
    )
    start_at: Instant | None = Field(default=None, description="No slot is earlier.")
    end_at: Instant | None = Field(default=None, description="Every slot is earlier.")

    @cached_property
    def recurrence(self) -> Recurrence:
        """The slots of these fields."""
        return parse_recurrence(
            cron=self.cron,
            every=self.every,
            calendar=None if self.calendar is None else CalendarInterval(**self.calendar.model_dump()),
            zone=self.zone,
            start_at=self.start_at,
            end_at=self.end_at,
        )

    @model_validator(mode="after")
    def _check_recurrence(self) -> Self:
        try:
            _ = self.recurrence
        except RecurrenceError as error:
            _refuse(error)
        return self


def _refuse(error: RecurrenceError) -> NoReturn:
    """Raise the error of a field. Its type becomes the code of the rejection."""
    fault = PydanticCustomError(error.code.lower(), "{reason}", {"reason": error.message})
    raise ValidationError.from_exception_data(
        "recurrence", [InitErrorDetails(type=fault, loc=(error.field,), input=None)]
    ) from error


class SchedulePayload(TenantPayload):
    """The payload of a command on one schedule."""

    schedule_id: Identifier


class Start(ConcurrencyFields):
    """The workflow that each slot starts. Its id is `<scheduleId>/<slotAt>`."""

    workflow_type: EffectName = Field(alias="type", description="The name of the function.")
    queue: EffectName = DEFAULT_QUEUE
    input: Json = None
    deadline_in: Duration | None = Field(
        default=None, description="The time from the start to the deadline, at most 366 days."
    )
    retry: RetryPolicy | None = Field(default=None, description="The default of its steps.")

    @property
    def spec(self) -> WorkflowSpec:
        """All but the input."""
        return WorkflowSpec(
            workflow_type=self.workflow_type,
            queue=self.queue,
            deadline_in=self.deadline_in,
            retry=None if self.retry is None else self.retry.model_dump_json(),
            concurrency=self.concurrency,
        )


class PutSchedule(SchedulePayload, RecurrenceFields):
    """Create a schedule, or replace its whole definition. A paused schedule stays paused."""

    type: ClassVar[str] = "PutSchedule"

    max_count: int | None = Field(default=None, ge=1, lt=2**31, strict=True, description="End after so many slots.")
    jitter: Jitter | None = Field(
        default=None,
        description="Each slot fires later by a part of this, which depends only on the slot. Default: PT0S.",
    )
    catch_up: CatchUp | None = None
    topic: Topic | None = Field(
        default=None, description="The last token of the subject of each ScheduleFired, and in the event."
    )
    data: ScheduleData = None
    start: Start | None = Field(default=None, description="Each slot starts a workflow, and has no ScheduleFired.")

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        """Refuse `data` and `topic` beside `start`, and an id that would be too long for the ids of workflows."""
        if self.start is None:
            return self
        if self.topic is not None:
            text = "cannot be combined with start: a slot that starts a workflow has no ScheduleFired"
            _refuse(RecurrenceError("INVALID_PAYLOAD", "topic", text))
        if "data" in self.model_fields_set:
            _refuse(RecurrenceError("INVALID_PAYLOAD", "data", "cannot be combined with start: write start.input"))
        if len(self.schedule_id) > MAX_ID_WITH_START:
            text = f"has more than {MAX_ID_WITH_START} characters, and the ids of workflows begin with it"
            _refuse(RecurrenceError("INVALID_PAYLOAD", "scheduleId", text))
        return self


class PauseSchedule(SchedulePayload):
    """Fire no slot until the schedule is resumed. If there is no such schedule, the next one is paused."""

    type: ClassVar[str] = "PauseSchedule"
    is_operator_action: ClassVar[bool] = True


class ResumeSchedule(SchedulePayload):
    """End a pause. The slots of the pause do not fire."""

    type: ClassVar[str] = "ResumeSchedule"
    is_operator_action: ClassVar[bool] = True


class DeleteSchedule(SchedulePayload):
    """Delete the schedule, and end its pause."""

    type: ClassVar[str] = "DeleteSchedule"


class TriggerSchedule(SchedulePayload):
    """Fire once, now, also if the schedule is paused or has ended.

    A schedule with `start` starts a workflow. `data` is its input then.
    """

    type: ClassVar[str] = "TriggerSchedule"
    is_operator_action: ClassVar[bool] = True

    data: ScheduleData = None


class BackfillSchedule(SchedulePayload):
    """Fire the past slots in [`from`, `to`), also if the schedule is paused or has ended.

    They fire as the schedule is defined now, under their own ids. An event ScheduleBackfilled follows.
    """

    type: ClassVar[str] = "BackfillSchedule"
    is_operator_action: ClassVar[bool] = True

    from_: Instant = Field(alias="from", description="No slot is earlier.")
    to: Instant = Field(description="Every slot is earlier, also than the time at which the command is stored.")
    limit: int = Field(
        default=1000, ge=1, le=MAX_BACKFILL, strict=True, description="At most the oldest `limit` slots fire."
    )

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.from_ >= self.to:
            _refuse(RecurrenceError("INVALID_PAYLOAD", "to", "must be later than `from`"))
        return self


class ScheduleFired(SchedulePayload):
    """A slot of the schedule fired, or a trigger. If the event is sent more than once, the envelope id is the same."""

    type: ClassVar[str] = "ScheduleFired"
    has_topic: ClassVar[bool] = True

    slot_at: Instant
    fired_at: Instant
    cause: FiringCause
    missed_since: Instant | None = Field(
        default=None, description="The first slot that was skipped since the last firing."
    )
    data: ScheduleData = None


class ScheduleSkipped(SchedulePayload):
    """A slot or a trigger started no workflow. If the event is sent more than once, the envelope id is the same."""

    type: ClassVar[str] = "ScheduleSkipped"

    slot_at: Instant
    skipped_at: Instant
    cause: FiringCause
    reason: SkipReason
    workflow_id: Identifier = Field(description="The id of the workflow that was not started.")


class ScheduleEnded(SchedulePayload):
    """The schedule has no further slot."""

    type: ClassVar[str] = "ScheduleEnded"

    reason: EndReason


class ScheduleBackfilled(SchedulePayload):
    """A BackfillSchedule has ended. If the event is sent more than once, the envelope id is the same."""

    type: ClassVar[str] = "ScheduleBackfilled"

    command_id: Identifier = Field(description="The id of the BackfillSchedule.")
    from_: Instant = Field(alias="from")
    to: Instant = Field(description="That of the command, or the time of the command if that is earlier.")
    count: int = Field(ge=0, description="How many slots fired.")
    skipped: int = Field(ge=0, description="How many slots started no workflow.")
    reason: BackfillEnd
    next_slot_at: Instant | None = Field(
        default=None,
        description="The first slot that is left. With the reason `limit`, continue from there. With `done`, it is not"
        " due yet because of its jitter.",
    )
