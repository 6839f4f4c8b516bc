"""Instants: Unix milliseconds in the code, ISO 8601 with an offset on the wire."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, LiteralString

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

_OFFSET = r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_PATTERN = rf"^\d{{4}}-\d{{2}}-\d{{2}}[Tt]\d{{2}}:\d{{2}}:\d{{2}}(\.\d+)?{_OFFSET}$"
_ISO = re.compile(  # not T24, which `fromisoformat` reads as the next day since Python 3.14
    r"(?P<date>(?P<year>\d{4})-\d{2}-\d{2}[Tt](?!24)\d{2}:\d{2}:\d{2})(\.(?P<fraction>\d+))?"
    rf"(?P<offset>{_OFFSET})",
    re.ASCII,
)
_USUAL = re.compile(r"\d{4}-\d{2}-\d{2}T(?!24)\d{2}:\d{2}:\d{2}(\.\d{3})?Z", re.ASCII)
_WRITE = "must be an ISO 8601 instant with an offset, such as 2026-11-21T09:00:00Z (UTC) or 2026-11-21T10:00:00+01:00"
_AMBIGUOUS = (  # texts that other programs read as instants, and what is unknown
    (r"[+-]?\d+(\.\d*)?", "; a number may count seconds or milliseconds"),
    (r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?)?", "; without an offset, it may be in any time zone"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last instant with a four-digit year


def parse_instant(text: object) -> int:
    """Return an ISO 8601 instant as Unix milliseconds. A finer fraction is rounded up.

    Raises `PydanticCustomError` with type `instant` if the text is not an instant with an offset, or with type
    `due_at_out_of_range` if it is not between 1970-01-01 and 9999-12-31 (UTC).
    """
    if (at := _parse_usual(text)) is not None:
        return at
    match = _ISO.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PydanticCustomError("instant", "{reason}", {"reason": _WRITE + _what_is_unknown(text)})
    if match["year"] == "0000":  # a year of ISO 8601 that datetime does not support
        raise out_of_range()
    try:
        whole = datetime.fromisoformat(f"{match['date']}{match['offset']}".upper())
    except ValueError as error:
        raise PydanticCustomError("instant", "is not a valid instant: {why}", {"why": str(error)}) from error
    at = (whole - _EPOCH) // timedelta(milliseconds=1) + _ceil_milliseconds(match["fraction"] or "0")
    if not 0 <= at <= LATEST:
        raise out_of_range()
    return at


def _what_is_unknown(value: object) -> str:
    """Return why a value could be several instants, as the end of a sentence; an empty text if it is none."""
    text = "0" if type(value) in {int, float} else value
    found = (why for form, why in _AMBIGUOUS if isinstance(text, str) and re.fullmatch(form, text, re.IGNORECASE))
    return next(found, "")


def _parse_usual(text: object) -> int | None:
    """Return an instant in UTC with or without milliseconds; None for any other text. Takes a third of the time."""
    if not isinstance(text, str) or not _USUAL.fullmatch(text):
        return None
    try:
        at = round(datetime.fromisoformat(text).timestamp() * 1000)  # exact: there are at most milliseconds
    except ValueError:
        return None
    return at if at >= 0 else None


def out_of_range(
    reason: LiteralString = "must be between 1970-01-01 and 9999-12-31 (UTC)",
) -> PydanticCustomError:
    """Return the error of an instant that cannot be written with a four-digit year."""
    return PydanticCustomError("due_at_out_of_range", reason)


def _ceil_milliseconds(digits: str) -> int:
    """Return the digits of a fraction of a second as milliseconds, rounded up."""
    return int(digits[:3].ljust(3, "0")) + bool(digits[3:].strip("0"))


@lru_cache(maxsize=4096)  # a batch of events repeats a few instants; formatting one costs as much as an event's JSON
def format_instant(at: int) -> str:
    """Return Unix milliseconds as ISO 8601 in UTC, always with milliseconds."""
    seconds, milliseconds = divmod(at, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def format_optional(at: int | None) -> str | None:
    """Return an instant as ISO 8601, or None for None."""
    return None if at is None else format_instant(at)


Instant = Annotated[
    int,
    BeforeValidator(parse_instant),
    PlainSerializer(format_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _PATTERN}),
]
