"""The methods of the client for schedules (recurring timers)."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from timer_service.client.checks import (
    check_choice,
    check_text,
    check_topic,
    check_type,
    check_whole,
    check_zone,
    given,
    optional,
    wire_distance,
    wire_duration,
    wire_instant,
)
from timer_service.client.events import ScheduleBackfilled, ScheduleEnded, ScheduleFired, ScheduleSkipped
from timer_service.client.models import UNSET, CalendarInterval, Outcome, Schedule
from timer_service.client.names import CalendarUnit, CatchUpPolicy, ScheduleStatus
from timer_service.client.resource import Resource
from timer_service.client.view import View
from timer_service.client.workflow_start import WorkflowStart, wire_start

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_LATEST = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
"""The last instant that a message can have. No slot follows it."""


class _Slots(View):
    """A reply to `preview-slots`."""

    slots: Sequence[datetime]
    complete: bool


class Schedules(Resource):
    """Methods for schedules, as `TimerClient.schedules`. They raise the same exceptions as `TimerClient`."""

    _id = ("scheduleId", "schedule_id")

    async def put(
        self,
        tenant: str,
        schedule_id: str,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        calendar: CalendarInterval | None = None,
        zone: "str | ZoneInfo | None" = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        max_count: int | None = None,
        jitter: timedelta | None = None,
        catch_up: CatchUpPolicy | None = None,
        late_by: timedelta | None = None,
        catch_up_limit: int | None = None,
        topic: str | None = None,
        data: Any = UNSET,
        start: WorkflowStart[Any] | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Create a schedule, or replace its whole definition. A paused schedule stays paused.

        Its slots are those of `cron` or `calendar` in `zone` (default: UTC), or are `every` apart (whole milliseconds),
        from `start_at` (inclusive) to `end_at` (exclusive). It ends after `max_count` slots. `catch_up` is a
        `CatchUpPolicy`, and docs/schedules.md has the defaults. The events carry `data`, any JSON value. `topic` is the
        last token of their subject. With `start`, each slot starts a workflow instead.
        """
        late = given(
            policy=optional(check_choice, "catch_up", catch_up, CatchUpPolicy),
            lateBy=optional(wire_duration, "late_by", late_by),
            limit=optional(check_whole, "catch_up_limit", catch_up_limit),
        )
        fields = {
            **_recurrence(cron=cron, every=every, calendar=calendar, zone=zone, start_at=start_at, end_at=end_at),
            "maxCount": optional(check_whole, "max_count", max_count),
            "jitter": optional(wire_duration, "jitter", jitter),
            "catchUp": late or None,
            "topic": optional(check_topic, "topic", topic),
            "start": None if start is None else wire_start(start),
        }
        return await self._send("PutSchedule", tenant, schedule_id, timeout_seconds, data, **fields)

    async def pause(self, tenant: str, schedule_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Pause a schedule: no slot fires until it is resumed. If there is none, the next one is paused when put."""
        return await self._send("PauseSchedule", tenant, schedule_id, timeout_seconds)

    async def resume(self, tenant: str, schedule_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """End the pause of a schedule. The slots of the pause do not fire."""
        return await self._send("ResumeSchedule", tenant, schedule_id, timeout_seconds)

    async def trigger(
        self, tenant: str, schedule_id: str, *, data: Any = UNSET, timeout_seconds: float = 10
    ) -> Outcome:
        """Fire once, now, also if the schedule is paused or has ended. `data` replaces the data of the schedule.

        If it starts workflows, `data` replaces their input. If their concurrency key is busy, the outcome is `queued`
        or `skipped_busy`.
        """
        return await self._send("TriggerSchedule", tenant, schedule_id, timeout_seconds, data)

    async def backfill(
        self,
        tenant: str,
        schedule_id: str,
        *,
        from_at: datetime,
        to_at: datetime,
        limit: int | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Fire the past slots in [`from_at`, `to_at`) under their own ids, at most the oldest `limit` (default: 1,000).

        The outcome `backfilling` comes at once. The service then fires the slots, and publishes a `ScheduleBackfilled`
        with their number. It is `nothing_due` if the range begins in the future.
        """
        fields = {
            "from": wire_instant("from_at", from_at),
            "to": wire_instant("to_at", to_at),
            "limit": optional(check_whole, "limit", limit),
        }
        return await self._send("BackfillSchedule", tenant, schedule_id, timeout_seconds, **fields)

    async def delete(self, tenant: str, schedule_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Delete a schedule, and end its pause."""
        return await self._send("DeleteSchedule", tenant, schedule_id, timeout_seconds)

    async def get(
        self, tenant: str, schedule_id: str, *, upcoming: int = 0, timeout_seconds: float = 10
    ) -> Schedule | None:
        """Return a schedule with the next `upcoming` slots (at most 100), or None if it does not exist."""
        number = check_whole("upcoming", upcoming)
        return await self._find("get-schedule", Schedule, tenant, schedule_id, timeout_seconds, upcoming=number)

    def list(
        self,
        tenant: str,
        *,
        status: ScheduleStatus | None = None,
        topic: str | None = None,
        timeout_seconds: float = 10,
    ) -> AsyncIterator[Schedule]:
        """Iterate over the schedules of a tenant, by status and id. `status` and `topic` filter them."""
        filters = {
            "status": optional(check_choice, "status", status, ScheduleStatus),
            "topic": optional(check_topic, "topic", topic),
        }
        return self._list("list-schedules", "schedules", Schedule, tenant, timeout_seconds, **filters)

    async def preview(
        self,
        tenant: str,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        calendar: CalendarInterval | None = None,
        zone: "str | ZoneInfo | None" = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        from_at: datetime | None = None,
        count: int = 10,
        timeout_seconds: float = 10,
    ) -> Sequence[datetime]:
        """Return the first `count` slots (at most 100) of a recurrence from `from_at` on (default: now).

        The other arguments are those of `put`. Nothing is stored. If the slots take long to compute, there are several
        requests, and `timeout_seconds` applies to each of them.
        """
        recurrence = _recurrence(cron=cron, every=every, calendar=calendar, zone=zone, start_at=start_at, end_at=end_at)
        begin = given(**{"from": optional(wire_instant, "from_at", from_at)})
        question = {**recurrence, **begin, "count": check_whole("count", count)}
        slots: list[datetime] = []
        while True:
            page = _Slots.read(await self._connection.ask(tenant, "preview-slots", question, timeout_seconds))
            slots += page.slots
            if page.complete or not page.slots or len(slots) >= count or slots[-1] >= _LATEST:
                return slots
            next_at = wire_instant("from_at", slots[-1] + timedelta(milliseconds=1))
            question |= {"from": next_at, "count": count - len(slots)}

    def watch(
        self, tenant: str = "*", *, schedule_id: str | None = None
    ) -> AsyncIterator[ScheduleFired | ScheduleSkipped | ScheduleEnded | ScheduleBackfilled]:
        """Iterate over the events of the schedules of a tenant, or of all tenants.

        These are `ScheduleFired`, `ScheduleSkipped`, `ScheduleEnded` and `ScheduleBackfilled`. It begins with the
        events that are published from now on.

        With `schedule_id`, only events of the schedules with this id. See `Timers.watch`.
        """
        about = {} if schedule_id is None else self._key(schedule_id)
        names = ("schedule-fired", "schedule-skipped", "schedule-ended", "schedule-backfilled")
        return self._connection.events(tenant, *names, about=about)


def _recurrence(
    *,
    cron: str | None,
    every: timedelta | None,
    calendar: CalendarInterval | None,
    zone: "str | ZoneInfo | None",
    start_at: datetime | None,
    end_at: datetime | None,
) -> dict[str, Any]:
    """Return the fields of a recurrence."""
    if [cron, every, calendar].count(None) != 2:  # noqa: PLR2004 - two of three
        raise ValueError("one of cron, every and calendar must be given")
    return given(
        cron=optional(check_text, "cron", cron),
        every=optional(wire_distance, "every", every),
        calendar=optional(_wire_calendar, "calendar", calendar),
        zone=optional(check_zone, "zone", zone),
        startAt=optional(wire_instant, "start_at", start_at),
        endAt=optional(wire_instant, "end_at", end_at),
    )


def _wire_calendar(argument: str, calendar: Any) -> dict[str, Any]:
    """Return a calendar interval in its wire form."""
    interval = check_type(argument, calendar, CalendarInterval, "a CalendarInterval")
    check_whole(f"{argument}.every", interval.every)
    check_choice(f"{argument}.unit", interval.unit, CalendarUnit)
    anchor = check_type(f"{argument}.anchor", interval.anchor, datetime, "a datetime")
    if anchor.tzinfo is not None or anchor.microsecond:
        raise ValueError(f"{argument}.anchor must have no timezone and no fraction of a second: it is a time in `zone`")
    return interval.document()
