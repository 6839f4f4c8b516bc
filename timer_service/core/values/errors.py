"""The errors and rejection codes of the core."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """The codes in `CommandRejected` events, replies and query errors."""

    INVALID_JSON = "INVALID_JSON"
    INVALID_ENVELOPE = "INVALID_ENVELOPE"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    TENANT_MISMATCH = "TENANT_MISMATCH"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    DUE_AT_OUT_OF_RANGE = "DUE_AT_OUT_OF_RANGE"
    INVALID_CRON = "INVALID_CRON"
    UNKNOWN_ZONE = "UNKNOWN_ZONE"
    NEVER_FIRES = "NEVER_FIRES"
    TOO_LARGE = "TOO_LARGE"
    NOT_FOUND = "NOT_FOUND"
    CONFLICT = "CONFLICT"
    BUSY = "BUSY"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of an input: the path of the field and the reason."""

    path: str
    reason: str


class Rejection(Exception):  # noqa: N818 - a decision about an input, not a fault of the service
    """An input that can never be handled."""

    def __init__(self, code: Code, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.faults = tuple(faults)


class DatabaseUnavailableError(Exception):
    """The database cannot be used now. Nothing was committed; retry later."""


class DatabaseSetupError(DatabaseUnavailableError):
    """The schema or the grants of the database do not fit this version. An operator must act."""


class DatabaseBusyError(DatabaseUnavailableError):
    """The database works, but all connections of this instance are in use. Nothing was committed; retry later."""


class DatabaseBlockedError(DatabaseUnavailableError):
    """A statement waited too long for a lock, or took too long. The database answers: other statements may succeed.

    Nothing was committed; retry later.
    """


class ConflictError(Exception):
    """Another instance wrote the same rows. Nothing was committed; retry."""


class DuplicateError(Exception):
    """A row would have the key of another one, which another instance may just have written. Nothing was committed.

    If it happens again with the rows of now, it is the fault of what the transaction was to do.
    """


class ExplainedError(ValueError):
    """An error whose text is a whole explanation for users. It contains no values but those that may be shown."""


class DamagedDataError(ExplainedError):
    """A stored value is damaged. The message does not contain the value."""


class StartError(Exception):
    """The service cannot start or go on with its current settings or environment. The message says what to fix."""
