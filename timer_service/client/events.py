"""The events of the service as values: frozen dataclasses with datetimes. `read_event` reads them.

The fields of a payload have the names of the contracts in snake case. `serviceCallId` is `timer_id`, `from` is
`from_at`, `to` is `to_at`, and the `type` of a workflow is `workflow_type`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, dataclass_transform, get_args, get_origin

from timer_service.client.errors import TimerServiceError
from timer_service.core.values.address import kebab

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


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _Value:
    """Makes each class of events a frozen dataclass."""

    wire_type: ClassVar[str]
    """The type on the wire. By default, it is the name of the class."""
    data_field: ClassVar[str | None] = None
    """The field with JSON of the user, if there is one."""

    def __init_subclass__(cls, wire_type: str | None = None, data_field: str | None = None) -> None:
        super().__init_subclass__()
        cls.wire_type = cls.__name__ if wire_type is None else wire_type
        cls.data_field = data_field or cls.data_field
        dataclass(frozen=True, kw_only=True)(cls)


class Event(_Value, wire_type=""):
    """Something that happened. An event of a type that this version does not know has only these fields.

    `created_at` is when the service created the event, and `raw` is the event in the form of the contracts.
    """

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


class _TimerEvent(Event, Generic[T], data_field="data"):
    """An event of a timer."""

    timer_id: str
    due_at: datetime
    data: T = None  # type: ignore[assignment]  # a timer without data has None, whatever the type

    @property
    def about(self) -> str:
        return f"timer {self.timer_id}"


class DueTimeReached(_TimerEvent[T]):
    """A timer has fired."""

    reached_at: datetime


class TimerExpired(_TimerEvent[T]):
    """A timer would have fired at its expiry or later."""

    expired_at: datetime


class TimersCancelled(Event):
    """All timers with a prefix were cancelled. `command_id` is the id of the CancelTimers."""

    command_id: str
    prefix: str
    count: int


class _ScheduleEvent(Event):
    """An event of a schedule."""

    schedule_id: str

    @property
    def about(self) -> str:
        return f"schedule {self.schedule_id}"


class ScheduleFired(_ScheduleEvent, Generic[T], data_field="data"):
    """A slot of a schedule has fired. `cause` is `slot`, `trigger` or `backfill`."""

    slot_at: datetime
    fired_at: datetime
    cause: str
    missed_since: datetime | None = None
    """The first slot that was skipped since the last firing."""
    data: T = None  # type: ignore[assignment]  # a schedule without data has None, whatever the type


class ScheduleSkipped(_ScheduleEvent):
    """A slot of a schedule started no workflow."""

    slot_at: datetime
    skipped_at: datetime
    cause: str
    reason: str
    workflow_id: str


class ScheduleEnded(_ScheduleEvent):
    """A schedule has no further slot."""

    reason: str


class ScheduleBackfilled(_ScheduleEvent):
    """A backfill has ended. `command_id` is the id of the BackfillSchedule."""

    command_id: str
    from_at: datetime
    to_at: datetime
    count: int
    skipped: int
    reason: str
    next_slot_at: datetime | None = None
    """The first slot that the backfill left."""


class _SignalEvent(Event):
    """An event of a work signal."""

    signal_id: str
    firing_id: str
    dedupe_key: str
    work_item_id: str | None = None

    @property
    def about(self) -> str:
        return f"signal {self.signal_id}" if self.work_item_id is None else f"work item {self.work_item_id}"


class WorkSignalFired(_SignalEvent, wire_type="work.signal.fired"):
    """A work signal has fired: the reminder about a work item."""

    fired_at: datetime
    task_id: str | None = None


class WorkSignalFailed(_SignalEvent, wire_type="work.signal.failed"):
    """A firing of a work signal was given up."""

    attempt: int
    error: str
    failed_at: datetime


class _RunEvent(Event):
    """An event of a run."""

    run_id: str
    attempt: int = 1
    """Greater than 1 after `Runs.retry`. `Runs.report` takes that of a `JobReady`."""

    @property
    def about(self) -> str:
        return f"run {self.run_id}"


class JobReady(_RunEvent, Generic[T], data_field="payload"):
    """All needs of a job are met: execute it."""

    job_name: str
    ready_at: datetime
    upstream_job_outputs: Mapping[str, Any]
    group_name: str | None = None
    outputs_omitted: int | None = None
    """How many outputs did not fit into the event."""
    payload: T = None  # type: ignore[assignment]  # a job without payload has None, whatever the type


class JobSkipped(_RunEvent):
    """A job is skipped, because a job that it needs did not succeed."""

    job_name: str
    reason: str


class RunCompleted(_RunEvent):
    """All jobs of a run have ended. `counts` has the number of jobs by status."""

    status: str
    counts: Mapping[str, int]


class RunRejected(_RunEvent):
    """The graph of a run is invalid."""

    code: str
    path: Sequence[str]


class RunStuck(_RunEvent):
    """The service found and corrected an error of its own in a run."""

    jobs: Sequence[str]


class _WorkflowEvent(Event):
    """An event of a workflow."""

    workflow_id: str
    workflow_type: str

    @property
    def about(self) -> str:
        return f"workflow {self.workflow_id}"


class WorkflowCompleted(_WorkflowEvent, Generic[T], data_field="result"):
    """A workflow has ended with a result."""

    started_at: datetime
    ended_at: datetime
    result: T = None  # type: ignore[assignment]  # a function without a result has None, whatever the type


class WorkflowFailed(_WorkflowEvent):
    """A workflow has failed. `error` has the `type` and the `message` of the error of its function."""

    started_at: datetime
    ended_at: datetime
    code: str
    step: str | None = None
    error: Mapping[str, Any] | None = None


class WorkflowCancelled(_WorkflowEvent):
    """A workflow was cancelled."""

    started_at: datetime
    ended_at: datetime
    reason: str | None = None


class WorkflowBlocked(_WorkflowEvent):
    """Workers cannot continue a workflow: its function does not match what is stored."""

    error: str


class CommandRejected(Event):
    """The service rejected a command, and stored it as a dead letter."""

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
    return kebab(kind.wire_type)


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
    types = get_args(declared) if isinstance(declared, UnionType) else (declared,)
    kinds = {get_origin(each) or each for each in types}
    if datetime in kinds:
        return _from_text
    for kind, wire_kind in {str: str, int: int, Mapping: dict, Sequence: list}.items():
        if kind in kinds:
            return partial(_checked, wire_kind)
    return lambda value: value


def _checked(wanted: type, value: Any) -> Any:
    if not isinstance(value, wanted):
        raise TypeError
    return value


def _from_text(text: Any) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError
    return at.astimezone(UTC)


def _from_milliseconds(number: Any) -> datetime:
    return datetime.fromtimestamp(number / 1000, UTC)


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)
