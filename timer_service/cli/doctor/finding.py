"""What doctor finds."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, what was seen, and what to do about it."""

    check: str
    status: Status
    message: str
    remedy: str | None = None
