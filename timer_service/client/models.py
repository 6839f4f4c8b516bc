"""The values that the client returns, with timezone-aware datetimes. Each field is stated once, with its wire name."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError
from pydantic.alias_generators import to_camel

from timer_service.client.errors import TimerServiceError


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_Instant = Annotated[datetime, PlainSerializer(_iso, when_used="json")]
_Tenant = Annotated[str, Field(alias="tenantId")]


class View(BaseModel):
    """A value that the service returned. Fields that a newer service adds are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, frozen=True, extra="ignore")

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Self:
        """Return the value in an answer of the service. Raises `TimerServiceError` if the answer has another form."""
        try:
            return cls.model_validate(answer)
        except ValidationError as error:
            raise TimerServiceError(f"the service sent an answer that this client cannot read: {error}") from error

    def document(self) -> dict[str, Any]:
        """Return the value as JSON data with the field names of the messages, without fields at their default."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


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


class Timer(View):
    """A timer."""

    tenant: _Tenant
    call: Annotated[str, Field(alias="serviceCallId")]
    state: str
    """A `State`, or a state that a newer service has added."""
    due_at: _Instant
    registered_at: _Instant
    attempt: int
    expires_at: _Instant | None = None
    reached_at: _Instant | None = None
    expired_at: _Instant | None = None
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
    oldest_due: _Instant | None = None
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

    tenant: _Tenant
    name: Annotated[str, Field(alias="signalId")]
    status: str
    """A `SignalStatus`, or a status that a newer service has added."""
    trigger_kind: str
    trigger_spec: Mapping[str, Any]
    created_at: _Instant
    trigger_error: str | None = None
    item: Annotated[str | None, Field(alias="workItemId")] = None
    note: str | None = None
    last_fired_at: _Instant | None = None
    last_error: str | None = None


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

    tenant: _Tenant
    name: Annotated[str, Field(alias="runId")]
    status: str
    """A `RunStatus`, or a status that a newer service has added."""
    created_at: _Instant
    open_jobs: int
    unresolved_groups: int
    settled_at: _Instant | None = None
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
    ready_at: _Instant | None = None
    settled_at: _Instant | None = None
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


class BuriedEvent(View):
    """An event that the service stopped trying to publish."""

    tenant: _Tenant
    event_id: str
    type: Annotated[str, Field(alias="eventType")]
    about: Mapping[str, str]
    """The ids in its payload, for example the run and the job."""
    added_at: _Instant
    attempt: int
    last_error: str


class Outcome(View):
    """How a command ended. It also holds the timer, signal or run after the command, if there is one."""

    command_id: str
    name: Annotated[str, Field(alias="outcome")]
    """One of the outcomes in contracts/README.md, or an outcome that a newer service has added."""
    timer: Timer | None = None
    signal: Signal | None = None
    run: Run | None = None
