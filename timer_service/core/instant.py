"""Instants: epoch milliseconds inside, ISO 8601 with an offset on the wire."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

_OFFSET = r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_PATTERN = rf"^\d{{4}}-\d{{2}}-\d{{2}}[Tt]\d{{2}}:\d{{2}}:\d{{2}}(\.\d+)?{_OFFSET}$"
_ISO = re.compile(
    r"(?P<date>(?P<year>\d{4})-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2})(\.(?P<fraction>\d+))?"
    rf"(?P<offset>{_OFFSET})",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last instant ISO 8601 can write in four-digit years


def parse_instant(text: object) -> int:
    """Read an ISO 8601 instant as epoch milliseconds, rounding a finer fraction up.

    Raises `PydanticCustomError`: `instant` when it isn't one or lacks an offset, `due_at_out_of_range` outside
    1970-01-01 to 9999-12-31 (UTC).
    """
    match = _ISO.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PydanticCustomError("instant", "must be an ISO 8601 instant with an offset, such as 2026-11-21T09:00:00Z")
    if match["year"] == "0000":  # a year that ISO 8601 knows and datetime does not
        raise _out_of_range()
    try:
        whole = datetime.fromisoformat(f"{match['date']}{match['offset']}".upper())
    except ValueError as error:
        raise PydanticCustomError("instant", "is no instant: {why}", {"why": str(error)}) from error
    at = (whole - _EPOCH) // timedelta(milliseconds=1) + _ceil_milliseconds(match["fraction"] or "0")
    if not 0 <= at <= LATEST:
        raise _out_of_range()
    return at


def _out_of_range() -> PydanticCustomError:
    return PydanticCustomError("due_at_out_of_range", "must lie between 1970-01-01 and 9999-12-31 (UTC)")


def _ceil_milliseconds(digits: str) -> int:
    return int(digits[:3].ljust(3, "0")) + bool(digits[3:].strip("0"))


@lru_cache(maxsize=4096)  # a batch of events repeats a few instants, and formatting one costs as much as its JSON
def format_instant(at: int) -> str:
    """Write epoch milliseconds as ISO 8601 in UTC, always with milliseconds."""
    seconds, milliseconds = divmod(at, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def format_known(at: int | None) -> str | None:
    """Write an instant that may not be known."""
    return None if at is None else format_instant(at)


Instant = Annotated[
    int,
    BeforeValidator(parse_instant),
    PlainSerializer(format_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _PATTERN}),
]
