"""What can go wrong, as the core names it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """The codes of `CommandRejected`, of replies and of query errors."""

    INVALID_JSON = "INVALID_JSON"
    INVALID_ENVELOPE = "INVALID_ENVELOPE"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    TENANT_MISMATCH = "TENANT_MISMATCH"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    DUE_AT_OUT_OF_RANGE = "DUE_AT_OUT_OF_RANGE"
    TOO_LARGE = "TOO_LARGE"
    NOT_FOUND = "NOT_FOUND"
    CONFLICT = "CONFLICT"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input: the path of the field and why."""

    path: str
    reason: str


class Rejection(Exception):  # noqa: N818 - a verdict on an input, not an error of ours
    """An input that can never be handled."""

    def __init__(self, code: Code, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.faults = tuple(faults)


class DatabaseUnavailableError(Exception):
    """The database can't be used right now; nothing was committed, try again."""


class ConflictError(Exception):
    """Another instance wrote the same rows meanwhile; nothing was committed, try again."""


class StartError(Exception):
    """The service can't start as it is set up; the message says what to mend."""
