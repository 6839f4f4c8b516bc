"""The result of a check."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


class Skew(NamedTuple):
    """How far one clock is ahead of another."""

    value: timedelta
    uncertainty: timedelta


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: what was checked, what was found, and how to fix it."""

    check: str
    status: Status
    message: str
    remedy: str | None = None
    skew: Skew | None = None
    """Of a comparison of clocks: how far the clock of this machine is ahead."""
