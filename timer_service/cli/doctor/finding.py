"""The results of checks."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """The result of one check: what was checked, what was found, and how to fix it."""

    check: str
    status: Status
    message: str
    remedy: str | None = None


class Skew(NamedTuple):
    """How far the clock of this machine is ahead of another one."""

    clock: str
    """The other one, such as `the broker's clock`."""
    value: timedelta
    uncertainty: timedelta


def measure_skew(clock: str, *, asked_at: datetime, reading: datetime) -> Skew:
    """Return the skew of a clock that was read between a request and its reply, which has just arrived."""
    half = (datetime.now(UTC) - asked_at) / 2
    return Skew(clock, asked_at + half - reading, half)
