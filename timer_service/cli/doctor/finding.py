"""The results of checks."""

from datetime import timedelta
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

    value: timedelta
    uncertainty: timedelta
