"""The values that the client returns, with timezone-aware datetimes. Each field is stated once, with its wire name."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from timer_service.client.names import (
    CalendarUnit,
    CatchUpPolicy,
    EndReason,
    FiringStatus,
    JobStatus,
    OutcomeName,
    RunStatus,
    ScheduleStatus,
    SignalStatus,
    SkipReason,
    TimerState,
    WhenBusy,
)
from timer_service.client.view import Open, View
from timer_service.client.workflow_models import RetryPolicy, Workflow


class _Unset:
    """The default of `data`. It differs from None, which is a JSON value."""

    def __repr__(self) -> str:
        return "<none>"


UNSET: Any = _Unset()


class NewTimer(NamedTuple):
    """A timer to schedule: the arguments of `Timers.schedule`."""

    tenant: str
    timer_id: str
    due_at: datetime | None = None
    data: Any = UNSET
    due_in: timedelta | None = None
    expires_at: datetime | None = None
    late_by: timedelta | None = None
    correlation_id: str | None = None
    topic: str | None = None


class Timer(View, wire={"timer_id": "serviceCallId"}):
    """A timer."""

    tenant: str
    timer_id: str
    state: Open[TimerState]
    due_at: datetime
    registered_at: datetime
    attempt: int
    expires_at: datetime | None = None
    reached_at: datetime | None = None
    expired_at: datetime | None = None
    last_error: str | None = None
    topic: str | None = None
    correlation_id: str | None = None
    data: Any = None


class Counts(View, wire={"by_state": "counts"}):
    """How many timers a tenant has."""

    by_state: Mapping[str, int]
    overdue: int
    """How many Scheduled timers are past their due time."""
    exact: bool
    """False if the service stopped counting at its limit. The numbers are lower bounds then."""
    oldest_due: datetime | None = None
    """The earliest due time of the Scheduled timers."""


class Signal(View):
    """A work signal."""

    tenant: str
    signal_id: str
    status: Open[SignalStatus]
    trigger_kind: str
    trigger_spec: Mapping[str, Any]
    created_at: datetime
    trigger_error: str | None = None
    work_item_id: str | None = None
    note: str | None = None
    last_fired_at: datetime | None = None
    last_error: str | None = None


class Firing(View):
    """A record that the trigger of a signal became true."""

    tenant: str
    firing_id: str
    signal_id: str
    dedupe_key: str
    """It identifies the cause: one cause fires a signal once."""
    status: Open[FiringStatus]
    due_at: datetime
    created_at: datetime
    attempt: int
    work_item_id: str | None = None
    task_id: str | None = None
    settled_at: datetime | None = None
    last_error: str | None = None


class Task(View):
    """The follow-up task of a firing, for its work item."""

    tenant: str
    task_id: str
    work_item_id: str
    signal_id: str
    firing_id: str
    created_at: datetime


class Run(View):
    """A run, without its jobs."""

    tenant: str
    run_id: str
    status: Open[RunStatus]
    created_at: datetime
    open_jobs: int
    unresolved_groups: int
    settled_at: datetime | None = None
    code: str | None = None
    """Why the service rejected the graph."""
    path: Sequence[str] = ()
    """The jobs that the rejection is about."""
    attempt: int = 1
    """Greater than 1 after `Runs.retry`."""


class RunJob(View, wire={"group": "groupName"}):
    """A job of a run."""

    name: str
    status: Open[JobStatus]
    needs: Sequence[Mapping[str, str]]
    """The needs in their wire form: `job` or `group`, and `ifFailed`."""
    group: str | None = None
    ready_at: datetime | None = None
    settled_at: datetime | None = None
    reason: str | None = None
    always: bool = False
    """Whether it runs also if the jobs it needs fail, or the run is cancelled."""
    attempt: int = 1
    """The attempt of the run in which it ran last."""
    outputs: Mapping[str, Any] | None = None


class RunGraph(NamedTuple):
    """A run with all its jobs."""

    run: Run
    counts: Mapping[str, int]
    groups: Mapping[str, bool]
    """For each dynamic group, whether it is resolved."""
    jobs: Sequence[RunJob]

    def document(self) -> dict[str, Any]:
        """Return the run and its jobs as JSON data with the field names of the messages."""
        jobs = [job.document() for job in self.jobs]
        return {**self.run.document(), "counts": self.counts, "groups": self.groups, "jobs": jobs}


class CatchUp(View):
    """Which slots of a schedule fire although they are late."""

    policy: Open[CatchUpPolicy]
    late_by: timedelta
    """Slots that are at most this late fire."""
    limit: int
    """At most this many late slots fire, the newest ones."""


class ScheduleStart(View):
    """The workflow that each slot of a schedule starts."""

    type: str
    queue: str
    input: Any = None
    deadline_in: timedelta | None = None
    retry: RetryPolicy | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    when_busy: Open[WhenBusy] | None = None


class Backfill(View, wire={"from_at": "from", "to_at": "to"}):
    """A backfill of a schedule that has not ended."""

    command_id: str
    from_at: datetime
    to_at: datetime
    limit: int
    count: int
    """How many slots have fired."""
    skipped: int
    """How many slots started no workflow."""
    last_slot_at: datetime | None = None
    """The last slot that was handled. Each earlier slot of the range was handled, too."""
    last_error: str | None = None
    """Why its next slots did not fire. They are tried again."""
    retry_at: datetime | None = None
    """When they are tried again, if there is a `last_error`."""


class CalendarInterval(View):
    """Every so many days, weeks or months at a wall-clock time, from the anchor on."""

    every: int
    unit: Open[CalendarUnit]
    anchor: datetime
    """The first slot, without a timezone: it is in the zone of the schedule."""

    def document(self) -> dict[str, Any]:
        """Return the value as in the messages."""
        return {"every": self.every, "unit": self.unit, "anchor": self.anchor.isoformat()}


class Schedule(View):
    """A schedule."""

    tenant: str
    schedule_id: str
    status: Open[ScheduleStatus]
    cron: str | None = None
    zone: str | None = None
    every: timedelta | None = None
    calendar: CalendarInterval | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_count: int | None = None
    jitter: timedelta
    catch_up: CatchUp
    created_at: datetime
    next_slot_at: datetime | None = None
    fired_count: int
    """How many slots fired since the schedule started, without triggers."""
    missed_since: datetime | None = None
    """The first slot that was skipped since the last firing."""
    last_slot_at: datetime | None = None
    """The last slot that fired."""
    last_fired_at: datetime | None = None
    """When the last slot fired."""
    last_skipped_at: datetime | None = None
    """The last slot that started no workflow."""
    last_skip_reason: Open[SkipReason] | None = None
    """Why."""
    last_error: str | None = None
    """Why the next slot cannot fire. It is tried again every minute."""
    topic: str | None = None
    ended_at: datetime | None = None
    end_reason: Open[EndReason] | None = None
    upcoming: Sequence[datetime] | None = None
    """The next slots: as many as `Schedules.get` was asked for. After a command: the next one, if it is active."""
    backfills: Sequence[Backfill] | None = None
    """The oldest 10 backfills that have not ended, if there are any. Only `Schedules.get` has them."""
    data: Any = None
    start: ScheduleStart | None = None


class BuriedEvent(View, wire={"type": "eventType"}):
    """An event that the service stopped trying to publish."""

    tenant: str
    event_id: str
    type: str
    about: Mapping[str, str]
    """The ids in its payload, for example the run and the job."""
    added_at: datetime
    attempt: int
    last_error: str


class ParkedEvent(View, wire={"type": "eventType"}):
    """An event that a consumer gave up."""

    tenant: str
    consumer: str
    event_id: str
    type: str
    about: Mapping[str, str]
    """The ids in its payload, for example the timer."""
    parked_at: datetime
    reason: str
    attempts: int
    """How often the consumer tried the event."""
    event: Mapping[str, Any] | None = None
    """The whole event, in the form of contracts/README.md. Only `Events.get_parked` returns it."""


class DeadLetter(View):
    """A rejected command in the stream of dead letters."""

    sequence: int
    """Its position in the stream of dead letters."""
    tenant: str
    message: str
    """The last part of the command's subject, such as `schedule-timer`."""
    code: str
    """One of the codes in contracts/README.md."""
    reason: str
    stored_at: datetime
    source_sequence: int
    """The position of the command in the stream of commands."""
    size: int
    """The bytes of the command's body."""
    headers: Mapping[str, str]
    body: str | None = None
    """None if it was not read."""


class ExceededLimit(View):
    """The limit of a tenant that a command would have exceeded."""

    name: str
    most: int
    """How much the tenant may have. The query `get-usage` tells what it has."""


class Outcome(View, wire={"name": "outcome"}):
    """How a command ended. It also holds the timer, signal, schedule, run or workflow after it, if there is one."""

    command_id: str
    name: Open[OutcomeName]
    limit: ExceededLimit | None = None
    """The limit of an outcome `over_quota`."""
    timer: Timer | None = None
    signal: Signal | None = None
    schedule: Schedule | None = None
    run: Run | None = None
    workflow: Workflow | None = None
