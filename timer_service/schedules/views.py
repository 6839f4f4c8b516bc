"""The queries of schedules and their replies: the wire shapes."""

from typing import Any

from pydantic import Field

from timer_service.core.service.workflow_start import ConcurrencyView, EffectName, RetryPolicy
from timer_service.core.values.instant import Instant
from timer_service.core.values.message import Identifier, Payload, Tenant, Topic
from timer_service.core.values.paging import PageCursor, PageLimit
from timer_service.schedules.messages import Calendar, CatchUp, EndReason, RecurrenceFields, ShownStatus, SkipReason

MAX_SLOTS = 100
"""The most slots that a query returns."""


class GetSchedule(Payload):
    """Ask for one schedule by its id."""

    schedule_id: Identifier
    upcoming: int = Field(
        default=0, ge=0, le=MAX_SLOTS, strict=True, description="How many of the next slots to return."
    )


class ListSchedules(Payload):
    """Ask for one page of schedules, by status and id: those that have ended are the last."""

    status: ShownStatus | None = None
    topic: Topic | None = None
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class PreviewSlots(RecurrenceFields):
    """Ask for the slots of a recurrence. Nothing is stored."""

    from_: Instant | None = Field(default=None, alias="from", description="No slot is earlier. Default: now.")
    count: int = Field(default=10, ge=1, le=MAX_SLOTS, strict=True)


class StartView(ConcurrencyView):
    """The workflow that each slot starts, in a reply."""

    workflow_type: EffectName = Field(alias="type")
    queue: EffectName
    input: Any = None
    deadline_in: str | None = Field(default=None, description="An ISO 8601 duration.")
    retry: RetryPolicy | None = None


class BackfillView(Payload):
    """A backfill that has not ended, in a reply."""

    command_id: Identifier = Field(description="The id of the BackfillSchedule.")
    from_: Instant = Field(alias="from")
    to: Instant
    limit: int
    count: int = Field(ge=0, description="How many slots have fired.")
    skipped: int = Field(ge=0, description="How many slots started no workflow.")
    last_slot_at: Instant | None = Field(
        default=None, description="The last slot that was handled. Each earlier slot of the range was handled, too."
    )
    last_error: str | None = Field(default=None, description="Why its next slots did not fire. They are tried again.")
    retry_at: Instant | None = Field(default=None, description="When they are tried again, if there is a `lastError`.")


class ScheduleView(Payload):
    """A schedule in a reply to a command or a query."""

    tenant_id: Tenant
    schedule_id: Identifier
    status: ShownStatus
    cron: str | None = None
    zone: str | None = None
    every: str | None = Field(default=None, description="An ISO 8601 duration.")
    calendar: Calendar | None = None
    start_at: Instant | None = None
    end_at: Instant | None = None
    max_count: int | None = None
    jitter: str = Field(description="An ISO 8601 duration.")
    catch_up: CatchUp
    created_at: Instant
    next_slot_at: Instant | None = Field(default=None, description="The next slot; missing unless it is active.")
    fired_count: int = Field(ge=0, description="The slots that fired since the schedule started, without triggers.")
    missed_since: Instant | None = Field(
        default=None, description="The first slot that was skipped since the last firing."
    )
    last_slot_at: Instant | None = Field(default=None, description="The last slot that fired.")
    last_fired_at: Instant | None = Field(default=None, description="When the last slot fired.")
    last_skipped_at: Instant | None = Field(default=None, description="The last slot that started no workflow.")
    last_skip_reason: SkipReason | None = None
    last_error: str | None = Field(
        default=None, description="Why the next slot cannot fire. It is tried again within a minute."
    )
    topic: Topic | None = None
    ended_at: Instant | None = None
    end_reason: EndReason | None = None
    upcoming: list[Instant] | None = Field(
        default=None,
        description="The next slots; fewer if computing them takes too long. The reply to a command has the next one.",
    )
    backfills: list[BackfillView] | None = Field(
        default=None, description="The oldest 10 backfills that have not ended. Only get-schedule shows them."
    )
    data: Any = None
    start: StartView | None = None


class SchedulePage(Payload):
    """A page of schedules, by status and id. If `cursor` is set, send it with the same filter for the next page."""

    schedules: list[ScheduleView]
    cursor: str | None = None


class SlotPreview(Payload):
    """The slots of a recurrence, in order."""

    slots: list[Instant]
    complete: bool = Field(
        description="False: computing took too long. Ask again, with `from` after the last slot, for the rest."
    )
