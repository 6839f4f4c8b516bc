"""The error of a recurrence that a user wrote, or that this instance cannot compute."""

from typing import Literal

from timer_service.core.values.errors import ExplainedError

RecurrenceCode = Literal["INVALID_CRON", "UNKNOWN_ZONE", "NEVER_FIRES", "INVALID_PAYLOAD"]


class RecurrenceError(ExplainedError):
    """A recurrence is invalid. `field` is the name on the wire; the text says what is wrong and what to write."""

    def __init__(self, code: RecurrenceCode, field: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.message = message
