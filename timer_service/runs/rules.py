"""What a gate decides about one job or one run. Pure: no I/O, no clock."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.message import Position, Trace
from timer_service.runs.messages import IfFailed, JobStatus, RunStatus

NOWHERE = Position(0, 0)
"""Where a run stands that only commands on it have named, and a job that nobody has reported."""
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


class Cause(NamedTuple):
    """What an event gives back of the command that led to it."""

    command_id: str | None = None
    correlation_id: str | None = None
    trace: Trace = Trace()


class Run(NamedTuple):
    """A run as the rules see it. Without a status it is known by name only; without a digest it has no graph."""

    key: RunKey
    status: RunStatus | None
    position: Position
    created_at: int
    digest: str | None = None
    open_jobs: int = 0
    open_groups: int = 0
    cause: Cause = Cause()
    settled_at: int | None = None
    flaw_code: str | None = None
    flaw_path: str | None = None
    evaluated: bool = True
    """False while reports were kept whose consequences are still to be drawn."""
    sweep_at: int | None = None

    @property
    def going(self) -> bool:
        """Whether anything can still happen in it."""
        return self.status is RunStatus.RUNNING and (self.open_jobs > 0 or self.open_groups > 0)


class Edge(NamedTuple):
    """A job needs another, or, before that is resolved, a group."""

    upstream: str
    job: str
    if_failed: IfFailed


class Group(NamedTuple):
    """A dynamic group; its digest is that of what resolved it."""

    name: str
    digest: str | None = None
    resolved_at: int | None = None


class Job(NamedTuple):
    """A job as the rules see it."""

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

    @property
    def ended(self) -> bool:
        """Whether its status is its last."""
        return self.status not in UNFINISHED

    @property
    def waits(self) -> bool:
        """Whether what it needs still decides about it."""
        return self.ready_at is None and self.status is JobStatus.PENDING


def mark_ready(job: Job, now: int) -> Job:
    """Return a job whose needs are satisfied."""
    return job._replace(ready_at=now, open_needs=0, open_groups=0, stale_at=_stale_at(job, now))


def end(job: Job, status: JobStatus, now: int, reason: str | None = None) -> Job:
    """Return a job that has ended."""
    return job._replace(status=status, settled_at=now, stale_at=None, reason=reason)


def refuses(edge: Edge, ended_as: JobStatus) -> bool:
    """Tell whether an edge lets its job go no more, now that the upstream has ended."""
    return ended_as is not JobStatus.SUCCESS and edge.if_failed is IfFailed.SKIP


def report(job: Job, status: JobStatus, position: Position, now: int) -> tuple[Outcome, Job]:
    """Return how a report ends and what becomes of its job, in whatever order reports are delivered.

    An end counts even when a newer report came before it: delivered in order, it would have been final.
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


def completed_as(counts: Mapping[JobStatus, int]) -> RunStatus:
    """Return how a run ended whose jobs all have: failed if one of them did, by whatever name."""
    return RunStatus.SUCCESS if counts.keys() <= _NOT_FAILURES else RunStatus.FAILED


def settled(run: Run, now: int) -> Run:
    """Return a run as it is written: one that does not go on any more is not swept any more."""
    if run.status is RunStatus.RUNNING:
        return run
    return run._replace(settled_at=now if run.settled_at is None else run.settled_at, sweep_at=None)


def _stale_at(job: Job, now: int) -> int | None:
    return None if job.stale_after_ms is None else now + job.stale_after_ms
