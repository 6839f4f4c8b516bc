"""The commands and events of runs, and the types they share."""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from timer_service.core.values.data import check_fits, dump_data
from timer_service.core.values.instant import Instant
from timer_service.core.values.message import STRICT_CAMEL_CASE, Identifier, Payload, TenantPayload

MAX_JOBS = 10_000
MAX_NEEDS = 100_000
"""A need of a resolved group counts once for each of its jobs. A run of this size is evaluated within seconds."""
MAX_STORED_BYTES = 16 * 1024 * 1024
"""The limit for the ids and names that the rows of a run repeat. Each may have 800 bytes."""
MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
"""The limit for the payloads of a run. One report can make all of its jobs ready, and their events repeat them."""
_MAX_GROUPS = 1000
_MAX_STALE_SECONDS = 31 * 24 * 3600
_MAX_FIELDS = 20
"""The most fields of a job or a need, unknown fields included. Each unknown field is a fault, which takes 1 KiB."""

Json = Annotated[Any, AfterValidator(check_fits)]
Attempt = Annotated[int, Field(ge=1, strict=True)]
LaterAttempt = Annotated[int, Field(ge=2, description="The attempt of the run, if a RetryRun began it. Without: 1.")]


class IfFailed(StrEnum):
    """The effect on a job when a job it needs ends with a status other than `success`."""

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
    """The status of a run. `cancelling`: it was cancelled or rejected, and its `always` jobs have not all ended."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


class FlawCode(StrEnum):
    """The reason why a graph is invalid."""

    CYCLE = "CYCLE"
    UNKNOWN_UPSTREAM = "UNKNOWN_UPSTREAM"
    DUPLICATE_JOB = "DUPLICATE_JOB"
    TOO_LARGE = "TOO_LARGE"


# A run has up to 100,000 needs. As models they would take five times as long.
@dataclass(frozen=True, slots=True, config=STRICT_CAMEL_CASE)
class JobNeed:
    """A need of one job."""

    job: Identifier
    if_failed: IfFailed = IfFailed.SKIP


@dataclass(frozen=True, slots=True, config=STRICT_CAMEL_CASE)
class GroupNeed:
    """A need of a dynamic group: the job waits until the group is resolved, and then for each of its jobs."""

    group: Identifier
    if_failed: IfFailed = IfFailed.SKIP


Need = Annotated[
    Identifier | JobNeed | GroupNeed,
    Field(union_mode="left_to_right", description='A string is short for {"job": string}.'),
]


def _named(need: str | JobNeed | GroupNeed) -> tuple[bool, str]:
    """Return whether a need names a group, and the name. A job and a group may have the same name."""
    return (True, need.group) if isinstance(need, GroupNeed) else (False, need if isinstance(need, str) else need.job)


class NewJob(Payload):
    """A job and the jobs and groups it needs."""

    name: Identifier
    needs: list[Need] = Field(default_factory=list, max_length=MAX_JOBS, fail_fast=True)
    payload: Json = Field(default=None, description="Any JSON, at most 64 KiB. JobReady returns it.")
    stale_after_seconds: int | None = Field(
        default=None,
        ge=1,
        le=_MAX_STALE_SECONDS,
        strict=True,
        description="If the job is ready and has no report for this long, it ends as timed_out_stale.",
    )
    always: bool = Field(
        default=False,
        strict=True,
        description="The job runs however the jobs it needs end, and also if the run is cancelled or rejected.",
    )

    @model_validator(mode="after")
    def _each_need_once(self) -> Self:
        """Refuse a job that needs the same job or group twice."""
        if len(self.needs) > 1:
            names = [_named(need) for need in self.needs]
            if len(set(names)) < len(names):
                (_, name), _ = Counter(names).most_common(1)[0]
                raise PydanticCustomError("needs_twice", "needs {name} twice", {"name": repr(name)})
        return self

    @cached_property
    def payload_text(self) -> str | None:
        """The payload as JSON text, or None without one."""
        return dump_data(self.payload) if "payload" in self.model_fields_set else None

    @cached_property
    def needed_jobs(self) -> Sequence[tuple[str, IfFailed]]:
        """The jobs that this job needs by name."""
        return [
            (need, self._if_failed(IfFailed.SKIP))
            if isinstance(need, str)
            else (need.job, self._if_failed(need.if_failed))
            for need in self.needs
            if not isinstance(need, GroupNeed)
        ]

    @cached_property
    def needed_groups(self) -> Sequence[tuple[str, IfFailed]]:
        """The groups that this job needs."""
        return [(need.group, self._if_failed(need.if_failed)) for need in self.needs if isinstance(need, GroupNeed)]

    def _if_failed(self, of_need: IfFailed) -> IfFailed:
        """Return the effect of a failure of a needed job: no failure skips an `always` job."""
        return IfFailed.RUN if self.always else of_need


def _check_sizes(jobs: object) -> object:
    """Return `jobs` unchanged. Raises if a job or a need has too many fields, before a model describes each of them."""
    for number, job in enumerate(_checked(jobs)):
        needs = _checked(job.get("needs")) if isinstance(job, dict) else []
        for each in (job, *needs):
            if isinstance(each, dict) and len(each) > _MAX_FIELDS:
                raise PydanticCustomError(
                    "too_many_fields",
                    "job {number} has an object with {size} fields; the limit is {most}",
                    {"number": number, "size": len(each), "most": _MAX_FIELDS},
                )
    return jobs


def _checked(values: object) -> list[Any]:
    """Return the values of a list, up to the first one too many. Of other values return none: a model refuses them."""
    return values[: MAX_JOBS + 1] if isinstance(values, list) else []


Jobs = Annotated[list[NewJob], Field(max_length=MAX_JOBS, fail_fast=True), BeforeValidator(_check_sizes)]
"""Jobs of a command. The faults of the first invalid job are reported, because a command can have 100,000 faults."""


def _digest(jobs: Sequence[NewJob], groups: Sequence[str]) -> str:
    """Return a digest of a graph. Two graphs with the same jobs, needs and groups in any order have the same digest."""
    described = sorted(
        (
            job.name,
            sorted(job.needed_jobs),
            sorted(job.needed_groups),
            job.stale_after_seconds or 0,
            job.payload_text or "",
            job.always,
        )
        for job in jobs
    )
    return hashlib.sha256(dump_data([described, sorted(groups)]).encode()).hexdigest()


class RunPayload(TenantPayload):
    """The payload of a message about one run."""

    run_id: Identifier


class StartRun(RunPayload):
    """Start a graph of jobs. Each job becomes ready when all jobs it needs have ended."""

    jobs: Jobs
    groups: Annotated[list[Identifier], AfterValidator(check_fits)] = Field(
        default_factory=list,
        max_length=_MAX_GROUPS,
        description="The dynamic groups. A ResolveGroup names the jobs of each group later. At most 64 KiB of JSON.",
        json_schema_extra={"uniqueItems": True},
    )

    @cached_property
    def digest(self) -> str:
        """The digest of the graph."""
        return _digest(self.jobs, self.groups)

    def model_post_init(self, _context: object) -> None:
        """Compute the digest with the command, before its transaction begins."""
        _ = self.digest

    @model_validator(mode="after")
    def _check_groups_differ(self) -> Self:
        if len(set(self.groups)) < len(self.groups):
            name, _ = Counter(self.groups).most_common(1)[0]
            raise PydanticCustomError("group_twice", "groups has {name} twice", {"name": repr(name)})
        return self


class ResolveGroup(RunPayload):
    """Name the jobs of a dynamic group. The list may be empty."""

    group_name: Identifier
    jobs: Jobs

    @cached_property
    def digest(self) -> str:
        """The digest of the jobs."""
        return _digest(self.jobs, ())

    def model_post_init(self, _context: object) -> None:
        """Compute the digest with the command, before its transaction begins."""
        _ = self.digest


class ReportJobStatus(RunPayload):
    """Report the status of a job. A status that ends the job is final."""

    job_name: Identifier
    status: JobStatus
    outputs: Annotated[dict[str, Any], AfterValidator(check_fits)] | None = Field(
        default=None, description="At most 64 KiB of JSON. The jobs that need this job receive it in their JobReady."
    )
    dropped_jobs: list[Identifier] | None = Field(
        default=None,
        max_length=MAX_JOBS,
        fail_fast=True,
        description="Jobs that turned out not to exist. They end as drift_dropped.",
    )
    attempt: Attempt | None = Field(
        default=None,
        description="The attempt of the JobReady. A report of an earlier attempt of the run is ignored. Null: any.",
    )

    @property
    def named_jobs(self) -> Collection[str]:
        """The job of the report and the jobs that it drops, each once, in their order."""
        return dict.fromkeys((self.job_name, *(self.dropped_jobs or ())))

    @model_validator(mode="after")
    def _can_be_reported(self) -> Self:
        """Refuse the status `pending`."""
        if self.status is JobStatus.PENDING:
            raise PydanticCustomError("status", "pending cannot be reported: a job is pending before its first report")
        return self


class CancelRun(RunPayload):
    """Cancel a run: every job that has not ended ends as `cancelled`, except `always` jobs."""


class RetryRun(RunPayload):
    """Run the failed and cancelled jobs of an ended run again, and the jobs that were skipped because of them."""


class RunEvent(RunPayload):
    """The payload of an event of a run."""

    attempt: LaterAttempt | None = None


class JobEvent(RunEvent):
    """The payload of an event of one job of a run."""

    job_name: Identifier


class JobReady(JobEvent):
    """A job is ready: all jobs it needs have ended. A job has at most one JobReady in each attempt of its run."""

    group_name: Identifier | None = None
    payload: Any = None
    upstream_job_outputs: Mapping[str, Any] = Field(description="The outputs of the upstream jobs, by job name.")
    outputs_omitted: int | None = Field(
        default=None, ge=1, description="How many outputs did not fit into this event. get-run shows them."
    )
    ready_at: Instant


class JobSkipped(JobEvent):
    """A job is skipped because a job it needs did not succeed."""

    reason: str


class RunRejected(RunEvent):
    """A run is rejected because its graph is invalid."""

    code: FlawCode
    path: list[str] = Field(
        description="The jobs at fault. A cycle is listed from a job to itself; each job is needed by the next one."
    )


class RunCompleted(RunEvent):
    """A run has ended: all its jobs have ended. Each attempt that ends has one; a rejected run has RunRejected."""

    status: RunStatus
    counts: Mapping[JobStatus, int] = Field(description="The number of jobs by status.")


class RunStuck(RunEvent):
    """Jobs were waiting although all jobs they need had ended. The sweep released them. It is a bug in the service."""

    jobs: list[str] = Field(description="The names of the jobs, at most 100.")
