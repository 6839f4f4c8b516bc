"""The lines of a file for `timers import`: each is a timer as a JSON object. Pure."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import BinaryIO, NamedTuple

from pydantic import Field, ValidationError
from pydantic_core import from_json

from timer_service.client import NewTimer
from timer_service.core.values.codec import rejection_of
from timer_service.core.values.errors import Code, Fault, Rejection
from timer_service.core.values.message import Identifier
from timer_service.timers.messages import ScheduleTimer

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_LINE = 1024 * 1024
_MOST_LINES = 5000
"""The service handles the first timers of a batch while the last are published. At the end of each batch one waits for
the other, so small batches are slow, above all on a busy machine. Larger ones gain little, and cost memory."""
_BATCH_BYTES = 8 * 1024 * 1024


class LineFault(NamedTuple):
    """A fault of a line: its number, the field, and the reason."""

    line: int
    field: str
    reason: str


class NumberedTimer(NamedTuple):
    """A timer of a file, the number of its line, and the bytes of the line."""

    line: int
    timer: NewTimer
    size: int


class _Line(ScheduleTimer):
    """A ScheduleTimer, with the correlation id of its envelope."""

    correlation_id: Identifier | None = Field(default=None)


def read_lines(tenant: str, file: BinaryIO) -> Iterator[NumberedTimer | LineFault]:
    """Yield the timers and the faults of the lines of a file. Empty lines are skipped."""
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
        if line.isspace():
            continue
        try:
            yield NumberedTimer(number, _read_line(tenant, line), len(line))
        except Rejection as rejection:
            for fault in rejection.faults or [Fault("(line)", rejection.message)]:
                yield LineFault(number, fault.path, fault.reason)


def batches(timers: Iterable[NumberedTimer]) -> Iterator[Sequence[NumberedTimer]]:
    """Divide timers into batches, bounded by count and by bytes."""
    batch: list[NumberedTimer] = []
    size = 0
    for timer in timers:
        if batch and (len(batch) >= _MOST_LINES or size + timer.size > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(timer)
        size += timer.size
    if batch:
        yield batch


def _read_line(tenant: str, line: bytes) -> NewTimer:
    if len(line) > _LONGEST_LINE:
        raise Rejection(Code.TOO_LARGE, f"is longer than {_LONGEST_LINE} bytes")
    try:
        fields = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise Rejection(Code.INVALID_JSON, f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Rejection(Code.INVALID_JSON, "must be an object, such as " + _example())
    if "dueIn" in fields:
        raise _rejection("dueIn", "cannot be used here: a second import would move the timer. Give dueAt")
    if fields.setdefault("tenantId", tenant) != tenant:
        raise _rejection("tenantId", f"must be {tenant!r}, or missing")
    try:
        read = _Line.model_validate(fields, by_alias=True, by_name=False)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_PAYLOAD, "the line", error) from error
    return NewTimer(
        tenant,
        read.service_call_id,
        due_at=_instant(read.due_at),
        expires_at=_instant(read.expires_at),
        late_by=None if read.late_by is None else timedelta(milliseconds=read.late_by),
        correlation_id=read.correlation_id,
        **({"data": fields["data"]} if "data" in fields else {}),
    )


def _rejection(field: str, reason: str) -> Rejection:
    return Rejection(Code.INVALID_PAYLOAD, f"{field} {reason}", [Fault(field, reason)])


def _instant(at: int | None) -> datetime | None:
    return None if at is None else _EPOCH + timedelta(milliseconds=at)


def _example() -> str:
    return json.dumps({"serviceCallId": "call-1", "dueAt": "2030-01-01T08:00:00Z"})
