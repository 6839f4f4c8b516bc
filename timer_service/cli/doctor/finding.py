"""The result of a check."""

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
    """The result of one check: what was checked, what was found, and how to fix it."""

    check: str
    status: Status
    message: str
    remedy: str | None = None
