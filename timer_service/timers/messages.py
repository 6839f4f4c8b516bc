"""Wire models of the commands and events of timers, and the decoding of a usual ScheduleTimer without its model."""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema

from timer_service.core.values.address import TENANT_PATTERN, TOPIC_PATTERN
from timer_service.core.values.data import check_fits, dump_data
from timer_service.core.values.duration import LONGEST_MS, parse_duration
from timer_service.core.values.duration_field import Duration
from timer_service.core.values.instant import LATEST, Instant, out_of_range, parse_instant
from timer_service.core.values.message import Identifier, Payload, PlainCommand, Tenant, TenantPayload, Topic
from timer_service.core.values.paging import PageCursor, PageLimit

_MOST_PLAIN_BYTES = 4 * 1024
"""The time of a larger body goes into its `data`, and a hostile one must not cost much more."""
_LONGEST_ID = 200


class State(StrEnum):
    """The state of a timer."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    EXPIRED = "Expired"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


Data = Annotated[
    Any, AfterValidator(check_fits), Field(description="Any JSON of at most 64 KiB. The event carries it unchanged.")
]


def _is_set(field: str) -> JsonDict:
    """Return a schema for objects in which a field has a value."""
    return {"required": [field], "properties": {field: {"type": ["string", "integer"]}}}


def _check_one_due_time(due_at: int | None, info: ValidationInfo) -> int | None:
    """Return `due_at`. Raises if `due_in`, the field before it, is set too, or if neither is."""
    if "due_in" in info.data and (due_at is None) == (info.data["due_in"] is None):
        reason = "is missing" if due_at is None else "cannot be combined with dueIn"
        raise PydanticCustomError("due_time", "{reason}: give either dueAt or dueIn", {"reason": reason})
    return due_at


def _check_expires_at(expires_at: int | None, info: ValidationInfo) -> int | None:
    """Return `expires_at`. Raises if it is not after `due_at`."""
    if expires_at is None or "due_at" not in info.data:
        return expires_at
    due_at = info.data["due_at"]
    if due_at is None:
        raise PydanticCustomError("expiry", "needs dueAt: with dueIn, give lateBy")
    if expires_at <= due_at:
        raise PydanticCustomError("expiry", "must be after dueAt")
    return expires_at


def _check_late_by(late_by: int | None, info: ValidationInfo) -> int | None:
    """Return `late_by`. Raises if it is 0, if `expires_at` is set too, or if the expiry is after the year 9999."""
    if late_by is None:
        return None
    if late_by == 0:
        raise PydanticCustomError("expiry", "must be longer than 0")
    if info.data.get("expires_at") is not None:
        raise PydanticCustomError("expiry", "cannot be combined with expiresAt")
    if (info.data.get("due_at") or 0) + late_by > LATEST:
        raise out_of_range("must be shorter: the expiry must be between 1970-01-01 and 9999-12-31 (UTC)")
    return late_by


class TimerPayload(TenantPayload):
    """The payload of a command on one timer."""

    service_call_id: Identifier


class PlainTimer(NamedTuple):
    """The payload of a ScheduleTimer as most clients send it: without an expiry. It has either `due_at` or `due_in`."""

    tenant_id: str
    service_call_id: str
    due_at: int | None
    due_in: int | None
    data: str | None
    """As it is stored."""
    topic: str | None = None

    @property
    def type(self) -> str:
        """The type of the command."""
        return "ScheduleTimer"

    @property
    def is_operator_action(self) -> bool:
        """Whether the command is written to the audit log."""
        return False


class ScheduleTimer(TimerPayload):
    """Publish a `DueTimeReached` at `dueAt` or after `dueIn`. A newer ScheduleTimer for this call replaces it."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_is_set("dueAt"), _is_set("dueIn")]})

    due_in: Duration | None = Field(
        default=None, description="The time from when the broker stores the command to the due time, at most 366 days."
    )
    due_at: Annotated[Instant | None, AfterValidator(_check_one_due_time)] = Field(default=None, validate_default=True)
    expires_at: Annotated[Instant | None, AfterValidator(_check_expires_at)] = Field(
        default=None,
        description="If the timer fires at or after this instant, its event is TimerExpired. It is later than dueAt.",
    )
    late_by: Annotated[Duration | None, AfterValidator(_check_late_by)] = Field(
        default=None, description="The time from the due time to the expiry, at most 366 days. It replaces expiresAt."
    )
    topic: Topic | None = Field(default=None, description="The last token of the event's subject, and in the event.")
    data: Data = None

    @classmethod
    def decode_plain(cls, body: bytes) -> PlainCommand | None:
        """Return the command of a usual body, in less time than the models take; None if they must decode it.

        They decode what is unusual: an expiry, unknown fields, ids with characters that cannot be printed, and every
        fault. So the same commands are accepted, and the errors are those of the models: `tests/wire/test_one_pass.py`
        shows it on generated bodies.
        """
        # `validate_json` takes NaN for a number, also in a field that a later one of the same name replaces.
        if len(body) > _MOST_PLAIN_BYTES or b"NaN" in body or b"Infinity" in body:
            return None
        try:
            envelope = _validate(body)
            payload = envelope["payload"]
            tenant, call = envelope["tenantId"], payload["serviceCallId"]
            due_at = parse_instant(payload["dueAt"]) if "dueAt" in payload else None
            due_in = parse_duration(payload["dueIn"]) if "dueIn" in payload else None
            data = dump_data(payload["data"]) if "data" in payload else None
        except ValueError:
            return None
        if (due_at is None) == (due_in is None) or (due_in is not None and due_in > LONGEST_MS):
            return None
        command_id, correlation_id = envelope.get("id"), envelope.get("correlationId")
        for text in (call, command_id, correlation_id, envelope.get("causationId")):  # the models check all of them
            if text is not None and not text.isprintable():  # control characters are not; faster than a pattern
                return None
        if payload.get("tenantId", tenant) != tenant or not _is_tenant(tenant):
            return None
        return command_id, correlation_id, PlainTimer(tenant, call, due_at, due_in, data, payload.get("topic"))


@lru_cache(maxsize=1024)
def _is_tenant(text: str) -> bool:
    return re.fullmatch(TENANT_PATTERN, text) is not None


def _object(required: dict[str, Any], optional: dict[str, Any]) -> core_schema.CoreSchema:
    fields = {name: core_schema.typed_dict_field(schema) for name, schema in required.items()}
    fields |= {name: core_schema.typed_dict_field(schema, required=False) for name, schema in optional.items()}
    return core_schema.typed_dict_schema(fields, extra_behavior="forbid")


_TEXT = core_schema.str_schema(strict=True)
_ID = core_schema.str_schema(strict=True, min_length=1, max_length=_LONGEST_ID)
_OPTIONAL_ID = core_schema.nullable_schema(_ID)
_ANY = core_schema.any_schema()
_TOPIC = core_schema.nullable_schema(core_schema.str_schema(strict=True, pattern=TOPIC_PATTERN))
_PAYLOAD = _object(
    {"serviceCallId": _ID}, {"tenantId": _TEXT, "dueAt": _TEXT, "dueIn": _ANY, "topic": _TOPIC, "data": _ANY}
)
_validate = SchemaValidator(
    _object(
        {"type": core_schema.literal_schema(["ScheduleTimer"]), "tenantId": _TEXT, "payload": _PAYLOAD},
        {
            "id": _OPTIONAL_ID,
            "correlationId": _OPTIONAL_ID,
            "causationId": _OPTIONAL_ID,
            "timestampMs": core_schema.nullable_schema(core_schema.int_schema(strict=True)),
        },
    )
).validate_json


class CancelTimer(TimerPayload):
    """Cancel the timer if it has not fired yet."""


class CancelTimers(TenantPayload):
    """Cancel every timer whose id begins with `prefix` and that has not fired yet. Newer commands win."""

    prefix: Identifier


class RetryTimer(TimerPayload):
    """Publish the event of a Failed timer now. The count of attempts starts again at 0."""

    is_operator_action: ClassVar[bool] = True


class DueTimeReached(TenantPayload):
    """The due time of a timer was reached. If the event is sent more than once, the envelope id is the same."""

    has_topic: ClassVar[bool] = True

    service_call_id: Identifier
    due_at: Instant
    reached_at: Instant
    data: Data = None


class TimerExpired(TenantPayload):
    """A timer fired at or after its expiry. If the event is sent more than once, the envelope id is the same."""

    has_topic: ClassVar[bool] = True

    service_call_id: Identifier
    due_at: Instant
    expired_at: Instant
    data: Data = None


class TimersCancelled(TenantPayload):
    """A CancelTimers is finished: `count` timers were cancelled. The envelope id is the same each time it is sent."""

    command_id: Identifier
    prefix: Identifier
    count: int = Field(ge=0)


class GetTimer(Payload):
    """Ask for the timer with an id (`serviceCallId`)."""

    service_call_id: Identifier


class ListTimers(Payload):
    """Ask for one page of the timers that are due in [dueAfter, dueBefore).

    Scheduled timers are first, the next one first, and then the others, the latest due time first.
    """

    state: State | None = None
    topic: Topic | None = None
    due_before: Instant | None = None
    due_after: Instant | None = None
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class CountTimers(Payload):
    """Ask for the number of timers in each state."""


class TimerView(Payload):
    """A timer in a reply to a command or a query."""

    tenant_id: Tenant
    service_call_id: Identifier
    due_at: Instant
    state: State
    registered_at: Instant
    attempt: int = Field(ge=0, description="The number of attempts to publish the event.")
    expires_at: Instant | None = None
    reached_at: Instant | None = None
    expired_at: Instant | None = None
    last_error: str | None = None
    topic: Topic | None = None
    correlation_id: Identifier | None = None
    data: Any = None


class TimerPage(Payload):
    """A page of timers. If `cursor` is set, send it with the same filters for the next page."""

    timers: list[TimerView]
    cursor: str | None = None


class TimerCounts(Payload):
    """The number of timers in each state. If `exact` is false, the service stopped counting at a limit."""

    counts: Mapping[State, int]
    overdue: int = Field(ge=0, description="The number of Scheduled timers whose due time has passed.")
    exact: bool
    oldest_due: Instant | None = Field(default=None, description="The earliest due time of a Scheduled timer.")
