"""The events of the service as values: frozen dataclasses with datetimes. `read_event` reads them.

The fields of a payload have the names of the contracts in snake case. `serviceCallId` is `timer_id`, `from` is
`from_at`, `to` is `to_at`, and the `type` of a workflow is `workflow_type`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, get_args, get_origin

from timer_service.client.errors import TimerServiceError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

_ENVELOPE = {
    "id": "id",
    "tenant": "tenantId",
    "created_at": "timestampMs",
    "correlation_id": "correlationId",
    "causation_id": "causationId",
    "topic": "topic",
}
_RENAMED = {"timer_id": "serviceCallId", "from_at": "from", "to_at": "to", "workflow_type": "type"}


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened. An event of a type that this version does not know has only these fields.

    `created_at` is when the service created the event, and `raw` is the event in the form of the contracts.
    """

    wire_type: ClassVar[str] = ""
    """The type on the wire."""
    data_field: ClassVar[str | None] = None
    """The field with JSON of the user, if there is one."""

    id: str
    """The same however often the event is published."""
    tenant: str
    created_at: datetime
    correlation_id: str | None = None
    causation_id: str | None = None
    """The id of the command that caused the event."""
    topic: str | None = None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def type(self) -> str:
        """The type on the wire, such as `DueTimeReached`."""
        return str(self.raw["type"])

    @property
    def about(self) -> str:
        """What the event is about: the timer, schedule, run, workflow or work item, or else only this event."""
        return f"event {self.id}"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _TimerEvent(Event, Generic[T]):
    """An event of a timer."""

    data_field: ClassVar[str | None] = "data"

    timer_id: str
    due_at: datetime
    data: T = None  # type: ignore[assignment]  # a timer without data has None, whatever the type

    @property
    def about(self) -> str:
        return f"timer {self.timer_id}"


@dataclass(frozen=True, kw_only=True)
class DueTimeReached(_TimerEvent[T]):
    """A timer has fired."""

    wire_type: ClassVar[str] = "DueTimeReached"

    reached_at: datetime


@dataclass(frozen=True, kw_only=True)
class TimerExpired(_TimerEvent[T]):
    """A timer would have fired at its expiry or later."""

    wire_type: ClassVar[str] = "TimerExpired"

    expired_at: datetime


@dataclass(frozen=True, kw_only=True)
class TimersCancelled(Event):
    """All timers with a prefix were cancelled. `command_id` is the id of the CancelTimers."""

    wire_type: ClassVar[str] = "TimersCancelled"

    command_id: str
    prefix: str
    count: int


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _ScheduleEvent(Event):
    """An event of a schedule."""

    schedule_id: str

    @property
    def about(self) -> str:
        return f"schedule {self.schedule_id}"


@dataclass(frozen=True, kw_only=True)
class ScheduleFired(_ScheduleEvent, Generic[T]):
    """A slot of a schedule has fired. `cause` is `slot`, `trigger` or `backfill`."""

    wire_type: ClassVar[str] = "ScheduleFired"
    data_field: ClassVar[str | None] = "data"

    slot_at: datetime
    fired_at: datetime
    cause: str
    missed_since: datetime | None = None
    """The first slot that was skipped since the last firing."""
    data: T = None  # type: ignore[assignment]  # a schedule without data has None, whatever the type


@dataclass(frozen=True, kw_only=True)
class ScheduleSkipped(_ScheduleEvent):
    """A slot of a schedule started no workflow."""

    wire_type: ClassVar[str] = "ScheduleSkipped"

    slot_at: datetime
    skipped_at: datetime
    cause: str
    reason: str
    workflow_id: str


@dataclass(frozen=True, kw_only=True)
class ScheduleEnded(_ScheduleEvent):
    """A schedule has no further slot."""

    wire_type: ClassVar[str] = "ScheduleEnded"

    reason: str


@dataclass(frozen=True, kw_only=True)
class ScheduleBackfilled(_ScheduleEvent):
    """A backfill has ended. `command_id` is the id of the BackfillSchedule."""

    wire_type: ClassVar[str] = "ScheduleBackfilled"

    command_id: str
    from_at: datetime
    to_at: datetime
    count: int
    skipped: int
    reason: str
    next_slot_at: datetime | None = None
    """The first slot that the backfill left."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _SignalEvent(Event):
    """An event of a work signal."""

    signal_id: str
    firing_id: str
    dedupe_key: str
    work_item_id: str | None = None

    @property
    def about(self) -> str:
        return f"signal {self.signal_id}" if self.work_item_id is None else f"work item {self.work_item_id}"


@dataclass(frozen=True, kw_only=True)
class WorkSignalFired(_SignalEvent):
    """A work signal has fired: the reminder about a work item."""

    wire_type: ClassVar[str] = "work.signal.fired"

    fired_at: datetime
    task_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkSignalFailed(_SignalEvent):
    """A firing of a work signal was given up."""

    wire_type: ClassVar[str] = "work.signal.failed"

    attempt: int
    error: str
    failed_at: datetime


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _RunEvent(Event):
    """An event of a run."""

    run_id: str
    attempt: int = 1
    """Greater than 1 after `Runs.retry`. `Runs.report` takes that of a `JobReady`."""

    @property
    def about(self) -> str:
        return f"run {self.run_id}"


@dataclass(frozen=True, kw_only=True)
class JobReady(_RunEvent, Generic[T]):
    """All needs of a job are met: execute it."""

    wire_type: ClassVar[str] = "JobReady"
    data_field: ClassVar[str | None] = "payload"

    job_name: str
    ready_at: datetime
    upstream_job_outputs: Mapping[str, Any]
    group_name: str | None = None
    outputs_omitted: int | None = None
    """How many outputs did not fit into the event."""
    payload: T = None  # type: ignore[assignment]  # a job without payload has None, whatever the type


@dataclass(frozen=True, kw_only=True)
class JobSkipped(_RunEvent):
    """A job is skipped, because a job that it needs did not succeed."""

    wire_type: ClassVar[str] = "JobSkipped"

    job_name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunCompleted(_RunEvent):
    """All jobs of a run have ended. `counts` has the number of jobs by status."""

    wire_type: ClassVar[str] = "RunCompleted"

    status: str
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class RunRejected(_RunEvent):
    """The graph of a run is invalid."""

    wire_type: ClassVar[str] = "RunRejected"

    code: str
    path: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class RunStuck(_RunEvent):
    """The service found and corrected an error of its own in a run."""

    wire_type: ClassVar[str] = "RunStuck"

    jobs: Sequence[str]


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _WorkflowEvent(Event):
    """An event of a workflow."""

    workflow_id: str
    workflow_type: str

    @property
    def about(self) -> str:
        return f"workflow {self.workflow_id}"


@dataclass(frozen=True, kw_only=True)
class WorkflowCompleted(_WorkflowEvent, Generic[T]):
    """A workflow has ended with a result."""

    wire_type: ClassVar[str] = "WorkflowCompleted"
    data_field: ClassVar[str | None] = "result"

    started_at: datetime
    ended_at: datetime
    result: T = None  # type: ignore[assignment]  # a function without a result has None, whatever the type


@dataclass(frozen=True, kw_only=True)
class WorkflowFailed(_WorkflowEvent):
    """A workflow has failed. `error` has the `type` and the `message` of the error of its function."""

    wire_type: ClassVar[str] = "WorkflowFailed"

    started_at: datetime
    ended_at: datetime
    code: str
    step: str | None = None
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkflowCancelled(_WorkflowEvent):
    """A workflow was cancelled."""

    wire_type: ClassVar[str] = "WorkflowCancelled"

    started_at: datetime
    ended_at: datetime
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkflowBlocked(_WorkflowEvent):
    """Workers cannot continue a workflow: its function does not match what is stored."""

    wire_type: ClassVar[str] = "WorkflowBlocked"

    error: str


@dataclass(frozen=True, kw_only=True)
class CommandRejected(Event):
    """The service rejected a command, and stored it as a dead letter."""

    wire_type: ClassVar[str] = "CommandRejected"

    command_id: str
    code: str
    message: str
    command_type: str | None = None
    errors: Sequence[Mapping[str, str]] = ()


EVENTS: Sequence[type[Event]] = (
    DueTimeReached,
    TimerExpired,
    TimersCancelled,
    ScheduleFired,
    ScheduleSkipped,
    ScheduleEnded,
    ScheduleBackfilled,
    WorkSignalFired,
    WorkSignalFailed,
    JobReady,
    JobSkipped,
    RunCompleted,
    RunRejected,
    RunStuck,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowCancelled,
    WorkflowBlocked,
    CommandRejected,
)
WITH_TOPIC: Sequence[type[Event]] = (DueTimeReached, TimerExpired, ScheduleFired)
"""The events that can have a topic."""

_BY_TYPE = {each.wire_type: each for each in EVENTS}


def read_event(body: bytes) -> Event:
    """Return the event in a message. Raises `TimerServiceError` if the message is none."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TimerServiceError(f"this is no event: it is not JSON: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
        raise TimerServiceError("this is no event: it is not a JSON object with a type")
    kind = _BY_TYPE.get(raw["type"], Event)
    payload = raw.get("payload")
    if not isinstance(payload, dict):
        raise TimerServiceError("this is no event: it has no payload")
    values: dict[str, Any] = {"raw": raw}
    wire = ""
    try:
        for part, parts in zip((raw, payload), _parts_of(kind.wire_type), strict=True):
            for name, wire, read, is_required in parts:
                found = part.get(wire)
                if found is not None or is_required:
                    values[name] = read(found)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise TimerServiceError(f"this is no event: {wire} is missing or wrong") from error
    return kind(**values)


def message_of(kind: type[Event]) -> str:
    """Return the part of the subject that events of a type have in common, such as `due-time-reached`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.wire_type).replace(".", "-").lower()


class _Part(NamedTuple):
    """A field of an event: its name here and on the wire, and the function that reads its value."""

    name: str
    wire: str
    read: Callable[[Any], Any]
    is_required: bool


@cache
def _parts_of(wire_type: str) -> tuple[Sequence[_Part], Sequence[_Part]]:
    """Return the fields of an event in its envelope, and in its payload."""
    declared = [each for each in fields(_BY_TYPE.get(wire_type, Event)) if each.name != "raw"]
    envelope = [_part(each, _ENVELOPE[each.name]) for each in declared if each.name in _ENVELOPE]
    payload = [each for each in declared if each.name not in _ENVELOPE]
    return envelope, [_part(each, _RENAMED.get(each.name) or _camel(each.name)) for each in payload]


def _part(declared: "Field[Any]", wire: str) -> _Part:
    read = _from_milliseconds if wire == _ENVELOPE["created_at"] else _reader(declared.type)
    return _Part(declared.name, wire, read, declared.default is MISSING)


def _reader(declared: Any) -> Callable[[Any], Any]:
    """Return the function that reads the values of a field. It raises an error if a value has another type."""
    kinds = {get_origin(each) or each for each in _members(declared)}
    if datetime in kinds:
        return _from_text
    for kind, wire_kind in {str: str, int: int, Mapping: dict, Sequence: list}.items():
        if kind in kinds:
            return _checked(wire_kind)
    return _anything


def _members(declared: Any) -> Iterator[Any]:
    """Return the types of a union without None, or the type itself."""
    types = get_args(declared) if isinstance(declared, UnionType) else (declared,)
    return (each for each in types if each is not NoneType)


def _checked(wanted: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, wanted):
            raise TypeError
        return value

    return read


def _anything(value: Any) -> Any:
    return value


def _from_text(text: Any) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError
    return at.astimezone(UTC) if at.tzinfo is not UTC else at


def _from_milliseconds(number: Any) -> datetime:
    return datetime.fromtimestamp(number / 1000, UTC)


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)
