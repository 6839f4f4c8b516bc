"""The values that the client returns, with timezone-aware datetimes. Each field is stated once, with its wire name."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from timer_service.client.view import Duration, Instant, TenantId, View
from timer_service.client.workflow_models import RetryPolicy, Workflow


class State(StrEnum):
    """The state of a timer."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    EXPIRED = "Expired"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


class _Unset:
    """The default of `data`. It differs from None, which is a JSON value."""

    def __repr__(self) -> str:
        return "<none>"


UNSET: Any = _Unset()


class NewTimer(NamedTuple):
    """A timer to schedule: the arguments of `TimerClient.schedule`."""

    tenant: str
    call: str
    due_at: datetime | None = None
    data: Any = UNSET
    due_in: timedelta | None = None
    expires_at: datetime | None = None
    late_by: timedelta | None = None
    correlation_id: str | None = None


class Timer(View):
    """A timer."""

    tenant: TenantId
    call: Annotated[str, Field(alias="serviceCallId")]
    state: str
    """A `State`, or a state that a newer service has added."""
    due_at: Instant
    registered_at: Instant
    attempt: int
    expires_at: Instant | None = None
    reached_at: Instant | None = None
    expired_at: Instant | None = None
    last_error: str | None = None
    correlation_id: str | None = None
    data: Any = None


class Counts(View):
    """How many timers a tenant has."""

    by_state: Annotated[Mapping[str, int], Field(alias="counts")]
    overdue: int
    """How many Scheduled timers are past their due time."""
    exact: bool
    """False if the service stopped counting at its limit. The numbers are lower bounds then."""
    oldest_due: Instant | None = None
    """The earliest due time of the Scheduled timers."""


class SignalStatus(StrEnum):
    """The status of a work signal."""

    ACTIVE = "active"
    PAUSED = "paused"
    FIRED = "fired"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"


class Signal(View):
    """A work signal."""

    tenant: TenantId
    name: Annotated[str, Field(alias="signalId")]
    status: str
    """A `SignalStatus`, or a status that a newer service has added."""
    trigger_kind: str
    trigger_spec: Mapping[str, Any]
    created_at: Instant
    trigger_error: str | None = None
    item: Annotated[str | None, Field(alias="workItemId")] = None
    note: str | None = None
    last_fired_at: Instant | None = None
    last_error: str | None = None


class Firing(View):
    """A record that the trigger of a signal became true."""

    tenant: TenantId
    firing_id: str
    signal: Annotated[str, Field(alias="signalId")]
    dedupe_key: str
    """It identifies the cause: one cause fires a signal once."""
    status: str
    """`queued`, `enqueued` (the signal has fired) or `failed`; or one that a newer service has added."""
    due_at: Instant
    created_at: Instant
    attempt: int
    item: Annotated[str | None, Field(alias="workItemId")] = None
    task_id: str | None = None
    settled_at: Instant | None = None
    last_error: str | None = None


class Task(View):
    """The follow-up task of a firing, for its work item."""

    tenant: TenantId
    task_id: str
    item: Annotated[str, Field(alias="workItemId")]
    signal: Annotated[str, Field(alias="signalId")]
    firing_id: str
    created_at: Instant


class RunStatus(StrEnum):
    """The status of a run."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


class ReportedStatus(StrEnum):
    """A status of a job that a worker can report."""

    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    TIMED_OUT_STALE = "timed_out_stale"
    DRIFT_DROPPED = "drift_dropped"


class Run(View):
    """A run, without its jobs."""

    tenant: TenantId
    name: Annotated[str, Field(alias="runId")]
    status: str
    """A `RunStatus`, or a status that a newer service has added."""
    created_at: Instant
    open_jobs: int
    unresolved_groups: int
    settled_at: Instant | None = None
    code: str | None = None
    """Why the service rejected the graph."""
    path: Sequence[str] = ()
    """The jobs that the rejection is about."""


class RunJob(View):
    """A job of a run."""

    name: str
    status: str
    needs: Sequence[Mapping[str, str]]
    """The needs in their wire form: `job` or `group`, and `ifFailed`."""
    group: Annotated[str | None, Field(alias="groupName")] = None
    ready_at: Instant | None = None
    settled_at: Instant | None = None
    reason: str | None = None
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


class ScheduleStatus(StrEnum):
    """The status of a schedule."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class CatchUpPolicy(StrEnum):
    """Which slots fire that are more than `late_by` late: only the newest if all are that late, none, or all."""

    LAST = "last"
    SKIP = "skip"
    ALL = "all"


class CatchUp(View):
    """Which slots of a schedule fire although they are late."""

    policy: str
    """A `CatchUpPolicy`, or a policy that a newer service has added."""
    late_by: Duration
    """Slots that are at most this late fire."""
    limit: int
    """At most this many late slots fire, the newest ones."""


class ScheduleStart(View):
    """The workflow that each slot of a schedule starts."""

    type: str
    queue: str
    input: Any = None
    deadline_in: Duration | None = None
    retry: RetryPolicy | None = None
    concurrency_key: str | None = None


class Backfill(View):
    """A backfill of a schedule that has not ended."""

    command_id: str
    from_at: Annotated[Instant, Field(alias="from")]
    to_at: Annotated[Instant, Field(alias="to")]
    limit: int
    count: int
    """How many slots have fired."""
    skipped: int
    """How many slots started no workflow."""
    last_slot_at: Instant | None = None
    """The last slot that was handled. Each earlier slot of the range was handled, too."""
    last_error: str | None = None
    """Why its next slots did not fire. They are tried again."""
    retry_at: Instant | None = None
    """When they are tried again, if there is a `last_error`."""


class Schedule(View):
    """A schedule."""

    tenant: TenantId
    name: Annotated[str, Field(alias="scheduleId")]
    status: str
    """A `ScheduleStatus`, or a status that a newer service has added."""
    cron: str | None = None
    zone: str | None = None
    every: Duration | None = None
    start_at: Instant | None = None
    end_at: Instant | None = None
    max_count: int | None = None
    jitter: Duration
    catch_up: CatchUp
    created_at: Instant
    next_slot_at: Instant | None = None
    fired_count: int
    """How many slots fired since the schedule started, without triggers."""
    missed_since: Instant | None = None
    """The first slot that was skipped since the last firing."""
    last_slot_at: Instant | None = None
    """The last slot that fired."""
    last_fired_at: Instant | None = None
    """When the last slot fired."""
    last_skipped_at: Instant | None = None
    """The last slot that started no workflow."""
    last_skip_reason: str | None = None
    """Why: `busy`, `exists`, `cancelled` or `over_quota`."""
    last_error: str | None = None
    """Why the next slot cannot fire. It is tried again every minute."""
    ended_at: Instant | None = None
    end_reason: str | None = None
    upcoming: Sequence[Instant] | None = None
    """The next slots, if `Schedules.get` was asked for them."""
    backfills: Sequence[Backfill] | None = None
    """The oldest 10 backfills that have not ended, if there are any. Only `Schedules.get` has them."""
    data: Any = None
    start: ScheduleStart | None = None


class BuriedEvent(View):
    """An event that the service stopped trying to publish."""

    tenant: TenantId
    event_id: str
    type: Annotated[str, Field(alias="eventType")]
    about: Mapping[str, str]
    """The ids in its payload, for example the run and the job."""
    added_at: Instant
    attempt: int
    last_error: str


class ParkedEvent(View):
    """An event that a consumer gave up."""

    tenant: TenantId
    consumer: str
    event_id: str
    type: Annotated[str, Field(alias="eventType")]
    about: Mapping[str, str]
    """The ids in its payload, for example the timer."""
    parked_at: Instant
    reason: str
    attempts: int
    """How often the consumer tried the event."""
    event: Mapping[str, Any] | None = None
    """The whole event, in the form of contracts/README.md. Only `Events.get_parked` returns it."""


class DeadLetter(View):
    """A rejected command in the stream of dead letters."""

    sequence: int
    """Its position in the stream of dead letters."""
    tenant: TenantId
    message: str
    """The last part of the command's subject, such as `schedule-timer`."""
    code: str
    """One of the codes in contracts/README.md."""
    reason: str
    stored_at: Instant
    source_sequence: int
    """The position of the command in the stream of commands."""
    size: int
    """The bytes of the command's body."""
    headers: Mapping[str, str] = {}
    body: str | None = None
    """None if it was not read."""


class ExceededLimit(View):
    """The limit of a tenant that a command would have exceeded."""

    name: str
    most: int
    """How much the tenant may have. The query `get-usage` tells what it has."""


class Outcome(View):
    """How a command ended. It also holds the timer, signal, schedule, run or workflow after it, if there is one."""

    command_id: str
    name: Annotated[str, Field(alias="outcome")]
    """One of the outcomes in contracts/README.md, or an outcome that a newer service has added."""
    limit: ExceededLimit | None = None
    """The limit of an outcome `over_quota`."""
    timer: Timer | None = None
    signal: Signal | None = None
    schedule: Schedule | None = None
    run: Run | None = None
    workflow: Workflow | None = None
