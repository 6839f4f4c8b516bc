"""The values a run is made of, and what happens to one job. Pure: no I/O, no clock."""

from enum import StrEnum
from typing import NamedTuple

from timer_service.core.cause import Cause
from timer_service.core.message import Position
from timer_service.runs.messages import IfFailed, JobStatus, RunStatus

NOWHERE = Position(0, 0)
"""The position of a run that was not started, and of a job that was not reported."""
UNFINISHED = frozenset({JobStatus.PENDING, JobStatus.DISPATCHED, JobStatus.RUNNING})
_NOT_FAILURES = frozenset({JobStatus.SUCCESS, JobStatus.SKIPPED})


class Outcome(StrEnum):
    """How a command on a run ends."""

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
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_ENDED = "already_ended"
    IGNORED_STALE = "ignored_stale"


class RunKey(NamedTuple):
    """Which run."""

    tenant_id: str
    run_id: str


class Run(NamedTuple):
    """One run, without its jobs.

    It has a digest once it was started. A run without one is named only: by commands that came before its StartRun, or,
    if its status is `cancelled`, by a CancelRun. That one is a tombstone: an older StartRun is cancelled at once.
    """

    key: RunKey
    status: RunStatus | None
    position: Position
    """Of its StartRun."""
    created_at: int
    digest: str | None = None
    open_jobs: int = 0
    """How many of its jobs have not ended."""
    failed_jobs: int = 0
    """How many of its jobs ended other than as `success` or `skipped`."""
    open_groups: int = 0
    """How many of its groups are not resolved."""
    since: Position = NOWHERE
    """Of the newest CancelRun from before its StartRun. Older commands are stale."""
    pending_bytes: int = 0
    """The size of its pending commands."""
    has_outputs: bool = False
    """Whether some job of it has outputs. Most runs have none, and then no JobReady looks for any."""
    cause: Cause = Cause()
    settled_at: int | None = None
    flaw_code: str | None = None
    flaw_path: str | None = None
    evaluated: bool = True
    """False while the consequences of some commands are left to the sweep."""
    sweep_at: int | None = None

    @property
    def started(self) -> bool:
        """Whether a StartRun was applied."""
        return self.digest is not None

    @property
    def going(self) -> bool:
        """Whether jobs or groups of it are open."""
        return self.status is RunStatus.RUNNING and (self.open_jobs > 0 or self.open_groups > 0)

    @property
    def ended(self) -> bool:
        """Whether it was started and will not change any more."""
        return self.started and self.status is not RunStatus.RUNNING


class Group(NamedTuple):
    """A dynamic group. `digest` is that of the ResolveGroup that named its jobs."""

    name: str
    digest: str | None = None
    resolved_at: int | None = None


class Job(NamedTuple):
    """One job."""

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
    position: Position = NOWHERE
    """Of the newest report that counted."""
    payload: str | None = None
    """As JSON. Written with a new job; not read back."""
    payload_bytes: int = 0
    outputs: str | None = None
    """As JSON. Written with a report; not read back."""
    changed_by: str | None = None
    """The id of the command that led to its last change. Goes into events; not stored."""
    ready_by: str | None = None
    """The id of the command that made it ready. Goes into its JobReady; not stored."""

    @property
    def ended(self) -> bool:
        """Whether its status is final."""
        return self.status not in UNFINISHED

    @property
    def failed(self) -> bool:
        """Whether it ended other than as `success` or `skipped`."""
        return self.ended and self.status not in _NOT_FAILURES

    @property
    def waits(self) -> bool:
        """Whether it is neither ready nor ended."""
        return self.ready_at is None and self.status is JobStatus.PENDING


def mark_ready(job: Job, now: int, changed_by: str | None) -> Job:
    """Return a job whose needs are satisfied."""
    return job._replace(
        ready_at=now,
        open_needs=0,
        open_groups=0,
        stale_at=_stale_at(job, now),
        changed_by=changed_by,
        ready_by=changed_by,
    )


def end(job: Job, status: JobStatus, now: int, reason: str | None = None) -> Job:
    """Return a job that has ended."""
    return job._replace(status=status, settled_at=now, stale_at=None, reason=reason)


def skips(if_failed: IfFailed, upstream: Job) -> bool:
    """Return whether an upstream that has ended means that the job that needs it is skipped."""
    return upstream.status is not JobStatus.SUCCESS and if_failed is IfFailed.SKIP


def report(job: Job, status: JobStatus, position: Position, now: int) -> tuple[Outcome, Job]:
    """Return how a report ends and what becomes of its job, in whatever order reports are delivered.

    An end counts even if a newer report was delivered before it: in order, it would have been final.
    """
    if job.ended:
        return (Outcome.UNCHANGED if job.status is status else Outcome.ALREADY_ENDED), job
    if status in UNFINISHED and position <= job.position:
        return (Outcome.UNCHANGED if position == job.position else Outcome.IGNORED_STALE), job
    if job.waits and (status in UNFINISHED or status is JobStatus.SUCCESS):
        return Outcome.IGNORED_NOT_READY, job
    newest = max(position, job.position)
    if status in UNFINISHED:
        return Outcome.RECORDED, job._replace(status=status, position=newest, stale_at=_stale_at(job, now))
    return Outcome.RECORDED, end(job, status, now)._replace(position=newest)


def _stale_at(job: Job, now: int) -> int | None:
    return None if job.stale_after_ms is None else now + job.stale_after_ms
