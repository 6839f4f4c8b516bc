"""The values that make up a run, and the rules for one job. Pure: no I/O, no clock."""

from enum import StrEnum
from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.values.message import Position
from timer_service.runs.messages import IfFailed, JobStatus, RunStatus

NO_POSITION = Position(0, 0)
"""The position of a run that is not started."""
UNFINISHED = frozenset({JobStatus.PENDING, JobStatus.DISPATCHED, JobStatus.RUNNING})
MAX_ATTEMPTS = 100
"""How often a run can begin. A RetryRun has 100 bytes, and can cause 10,000 JobReady."""
OPEN = frozenset({RunStatus.RUNNING, RunStatus.CANCELLING})
"""The statuses of a run that has not ended."""
RETRIABLE = frozenset({RunStatus.FAILED, RunStatus.CANCELLED})
"""The statuses of a run that a RetryRun can run again."""
_RETRIED = frozenset({JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.TIMED_OUT_STALE})
"""The statuses of the jobs that a RetryRun runs again. For the other failures, a worker has found nothing to run."""
_NOT_FAILURES = frozenset({JobStatus.SUCCESS, JobStatus.SKIPPED})


class Outcome(StrEnum):
    """The outcome of a command on a run."""

    STARTED = "started"
    RUN_REJECTED = "run_rejected"
    EXISTS = "exists"
    RESOLVED = "resolved"
    UNKNOWN_GROUP = "unknown_group"
    RECORDED = "recorded"
    KEPT = "kept"
    NOT_KEPT = "not_kept"
    UNKNOWN_JOB = "unknown_job"
    IGNORED_NOT_READY = "ignored_not_ready"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_ENDED = "already_ended"
    OVER_QUOTA = OVER_QUOTA


class RunKey(NamedTuple):
    """The key of a run."""

    tenant_id: str
    run_id: str


class Run(NamedTuple):
    """One run, without its jobs.

    A run has a status and a `digest` once it was started. Before, it only holds the pending commands that come before
    its StartRun in the log, and is never shown.
    """

    key: RunKey
    status: RunStatus | None
    position: Position
    """The position of its StartRun. The ids of its events depend on it."""
    created_at: int
    digest: str | None = None
    attempt: int = 1
    """How often it has begun: once, and once more for each RetryRun. The ids of its events depend on it."""
    open_jobs: int = 0
    """How many of its jobs have not ended."""
    failed_jobs: int = 0
    """How many of its jobs ended with a status other than `success` and `skipped`."""
    open_groups: int = 0
    """How many of its groups are not resolved."""
    row_count: int = 0
    """How many rows its jobs, needs and groups have. It decides how many runs one transaction loads."""
    stored_bytes: int = 0
    """The bytes of the ids and names that its rows repeat. See `stored_bytes`."""
    payload_bytes: int = 0
    """The bytes of the payloads of its jobs."""
    pending_bytes: int = 0
    """The size of its pending commands."""
    has_outputs: bool = False
    """Whether a job of the run has outputs. If not, its JobReady events are built without reading any."""
    cause: Cause = Cause()
    settled_at: int | None = None
    flaw_code: str | None = None
    flaw_path: str | None = None
    evaluated: bool = True
    """False while the evaluation of some commands is deferred to the sweep."""
    sweep_at: int | None = None

    @property
    def started(self) -> bool:
        """Whether a StartRun was applied."""
        return self.digest is not None

    @property
    def holds_something(self) -> bool:
        """Whether the run was started or holds pending commands. Otherwise it has no row."""
        return self.started or self.pending_bytes > 0

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended and has open jobs or open groups."""
        return self.status in OPEN and (self.open_jobs > 0 or self.open_groups > 0)

    @property
    def takes_jobs(self) -> bool:
        """Whether groups can be resolved. A cancelled or rejected run only ends its `always` jobs."""
        return self.status is RunStatus.RUNNING and self.is_open

    @property
    def ended(self) -> bool:
        """Whether the run was started and its status is final."""
        return self.started and self.status not in OPEN


class Group(NamedTuple):
    """A dynamic group. `digest` is the digest of the ResolveGroup that named its jobs."""

    name: str
    digest: str | None = None
    resolved_at: int | None = None


class Job(NamedTuple):
    """One job. The fields up to `payload_bytes` have the order of the columns that `loader.sql` reads."""

    name: str
    status: JobStatus = JobStatus.PENDING
    group: str | None = None
    ready_at: int | None = None
    open_needs: int = 0
    """How many of the jobs it needs have not ended."""
    open_groups: int = 0
    """How many of the groups it needs are not resolved."""
    settled_at: int | None = None
    reason: str | None = None
    stale_after_ms: int | None = None
    stale_at: int | None = None
    always: bool = False
    """Whether no failure skips the job, and no CancelRun ends it."""
    attempt: int = 1
    """The attempt of the run in which it began."""
    payload_bytes: int = 0
    payload: str | None = None
    """JSON. Written when the job is inserted, and not read back."""
    outputs: str | None = None
    """JSON. Written when a report is recorded, and not read back."""
    caused_by: str | None = None
    """The id of the command that made the job ready or skipped it. Stored only until its event is added."""

    @property
    def ended(self) -> bool:
        """Whether the status is final."""
        return self.status not in UNFINISHED

    @property
    def failed(self) -> bool:
        """Whether the job ended with a status other than `success` and `skipped`."""
        return self.ended and self.status not in _NOT_FAILURES

    @property
    def is_skipped(self) -> bool:
        """Whether the service has skipped the job. A report of this status has no reason."""
        return self.status is JobStatus.SKIPPED and self.reason is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the job is neither ready nor ended."""
        return self.ready_at is None and self.status is JobStatus.PENDING


def mark_ready(job: Job, now: int, caused_by: str | None) -> Job:
    """Return the job as ready."""
    return job._replace(ready_at=now, open_needs=0, open_groups=0, stale_at=_stale_at(job, now), caused_by=caused_by)


def end(job: Job, status: JobStatus, now: int, reason: str | None = None) -> Job:
    """Return the job with a final status. It can no longer become stale."""
    return job._replace(status=status, settled_at=now, stale_at=None, reason=reason)


def begin_again(job: Job, attempt: int) -> Job:
    """Return an ended job as waiting, in a new attempt of its run. Its needs are not counted yet."""
    return Job(
        job.name,
        group=job.group,
        stale_after_ms=job.stale_after_ms,
        always=job.always,
        attempt=attempt,
        payload_bytes=job.payload_bytes,
    )


def runs_again(job: Job) -> bool:
    """Return whether a RetryRun runs an ended job again because of its status."""
    return job.status in _RETRIED


def causes_skip(if_failed: IfFailed, upstream: Job) -> bool:
    """Return whether an edge skips its job, given that `upstream` has ended."""
    return upstream.status is not JobStatus.SUCCESS and if_failed is IfFailed.SKIP


def apply_report(job: Job, status: JobStatus, now: int) -> tuple[Outcome, Job]:
    """Return the outcome of a report, and the job after the report.

    A job that is not ready can only end without success, because a success needs its upstream jobs.
    """
    if job.ended:
        return (Outcome.UNCHANGED if job.status is status else Outcome.ALREADY_ENDED), job
    if job.is_waiting and (status in UNFINISHED or status is JobStatus.SUCCESS):
        return Outcome.IGNORED_NOT_READY, job
    if status in UNFINISHED:
        return Outcome.RECORDED, job._replace(status=status, stale_at=_stale_at(job, now))
    return Outcome.RECORDED, end(job, status, now)


def _stale_at(job: Job, now: int) -> int | None:
    """Return when a job without a further report is stale. None: never."""
    return None if job.stale_after_ms is None else now + job.stale_after_ms
