"""The messages of runs: commands, events, and what they share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from timer_service.core.data import check_fits
from timer_service.core.instant import Instant
from timer_service.core.message import Identifier, Payload, TenantPayload

MOST_JOBS = 10_000
MOST_NEEDS = 100_000
"""Of one run, those of groups counted once for each of their jobs: what can be evaluated in seconds."""
_MOST_GROUPS = 1000
_LONGEST_STALE_SECONDS = 31 * 24 * 3600

Json = Annotated[Any, AfterValidator(check_fits)]


class IfFailed(StrEnum):
    """What happens to a job when a job it needs ends other than in success."""

    SKIP = "skip"
    RUN = "run"


class JobStatus(StrEnum):
    """The status of a job."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    TIMED_OUT_STALE = "timed_out_stale"
    DRIFT_DROPPED = "drift_dropped"


class RunStatus(StrEnum):
    """The status of a run."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


class FlawCode(StrEnum):
    """What can be wrong with a graph."""

    CYCLE = "CYCLE"
    UNKNOWN_UPSTREAM = "UNKNOWN_UPSTREAM"
    DUPLICATE_JOB = "DUPLICATE_JOB"
    TOO_LARGE = "TOO_LARGE"


class JobNeed(Payload):
    """Wait for one job."""

    job: Identifier
    if_failed: IfFailed = IfFailed.SKIP


class GroupNeed(Payload):
    """Wait until a dynamic group is resolved, and for all its jobs."""

    group: Identifier
    if_failed: IfFailed = IfFailed.SKIP


Need = Annotated[
    Identifier | JobNeed | GroupNeed,
    Field(union_mode="left_to_right", description="A name is short for {job}."),
]


class NewJob(Payload):
    """A job and what it waits for."""

    name: Identifier
    needs: list[Need] = Field(default_factory=list, max_length=MOST_JOBS)
    payload: Json = Field(default=None, description="Any JSON, at most 64 KiB; handed back in JobReady.")
    stale_after_seconds: int | None = Field(
        default=None,
        ge=1,
        le=_LONGEST_STALE_SECONDS,
        strict=True,
        description="End it as timed_out_stale when it is ready and was not reported for this long.",
    )

    @model_validator(mode="after")
    def _each_need_once(self) -> Self:
        for named in (self.needed_jobs, self.needed_groups):
            if len(dict(named)) < len(named):
                name, _ = Counter(name for name, _ in named).most_common(1)[0]
                raise PydanticCustomError("needs_twice", "needs {name} twice", {"name": repr(name)})
        return self

    @cached_property
    def needed_jobs(self) -> Sequence[tuple[str, IfFailed]]:
        """The jobs it needs by name."""
        return [
            (need, IfFailed.SKIP) if isinstance(need, str) else (need.job, need.if_failed)
            for need in self.needs
            if not isinstance(need, GroupNeed)
        ]

    @cached_property
    def needed_groups(self) -> Sequence[tuple[str, IfFailed]]:
        """The groups it needs."""
        return [(need.group, need.if_failed) for need in self.needs if isinstance(need, GroupNeed)]


class RunPayload(TenantPayload):
    """A payload about one run."""

    run_id: Identifier


class StartRun(RunPayload):
    """Start a job graph: each job becomes ready once the jobs it needs have ended."""

    type: ClassVar[str] = "StartRun"

    jobs: list[NewJob] = Field(max_length=MOST_JOBS)
    groups: Annotated[list[Identifier], AfterValidator(check_fits)] = Field(
        default_factory=list,
        max_length=_MOST_GROUPS,
        description="Dynamic groups, whose jobs a ResolveGroup will name; at most 64 KiB of JSON.",
    )


class ResolveGroup(RunPayload):
    """Name the jobs of a dynamic group, none if it is empty."""

    type: ClassVar[str] = "ResolveGroup"

    group_name: Identifier
    jobs: list[NewJob] = Field(max_length=MOST_JOBS)


class ReportJobStatus(RunPayload):
    """Report the status of a job. An end is final."""

    type: ClassVar[str] = "ReportJobStatus"

    job_name: Identifier
    status: JobStatus
    outputs: Annotated[dict[str, Any], AfterValidator(check_fits)] | None = Field(
        default=None, description="At most 64 KiB of JSON, handed to the jobs that need this one."
    )
    dropped_jobs: list[Identifier] | None = Field(
        default=None, max_length=MOST_JOBS, description="Jobs that turned out not to exist: they end as drift_dropped."
    )

    @model_validator(mode="after")
    def _can_be_reported(self) -> Self:
        if self.status is JobStatus.PENDING:
            raise PydanticCustomError("status", "pending is where a job begins; it can't be reported")
        return self


class CancelRun(RunPayload):
    """End every job of a run that has not ended."""

    type: ClassVar[str] = "CancelRun"


class JobPayload(RunPayload):
    """A payload about one job of a run."""

    job_name: Identifier


class JobReady(JobPayload):
    """A job is ready: everything it needs has ended. A job has at most one such event, always under the same id."""

    type: ClassVar[str] = "JobReady"

    group_name: Identifier | None = None
    payload: Any = None
    upstream_job_outputs: Mapping[str, Any] = Field(description="The outputs of the jobs it needs, by their names.")
    outputs_omitted: int | None = Field(
        default=None, ge=1, description="So many outputs did not fit into this event; get-run has them."
    )
    ready_at: Instant


class JobSkipped(JobPayload):
    """A job is skipped, because a job it needs did not succeed."""

    type: ClassVar[str] = "JobSkipped"

    reason: str


class RunRejected(RunPayload):
    """The graph of a run is invalid; the run does not go on."""

    type: ClassVar[str] = "RunRejected"

    code: FlawCode
    path: list[str] = Field(description="The jobs at fault; of a cycle from a job to itself, each needed by the next.")


class RunCompleted(RunPayload):
    """Every job of a run has ended."""

    type: ClassVar[str] = "RunCompleted"

    status: RunStatus
    counts: Mapping[JobStatus, int] = Field(description="How many jobs ended in each status.")


class RunStuck(RunPayload):
    """Jobs waited although all they need had ended. The sweep released them. This indicates a bug in the service."""

    type: ClassVar[str] = "RunStuck"

    jobs: list[str] = Field(description="A hundred of them at most.")
