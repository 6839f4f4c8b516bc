"""What the client raises, besides ValueError for what the caller gave it."""

from collections.abc import Mapping, Sequence
from typing import Any, Self


class TimerServiceError(Exception):
    """Anything the client raises besides ValueError."""


class NoAnswerError(TimerServiceError):
    """The broker or the service did not answer (in time); a command may be handled later all the same."""


class _VerdictError(TimerServiceError):
    def __init__(self, code: str, message: str, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.errors = errors

    @classmethod
    def read(cls, error: Mapping[str, Any]) -> Self:
        """Make one of the `error` of a reply or an answer."""
        return cls(error["code"], error["message"], error.get("errors", ()))


class CommandError(_VerdictError):
    """The service rejected a command; `code` and `errors` (path and reason each) are those of contracts/README.md."""


class QueryError(_VerdictError):
    """The service could not answer a query; `code` and `errors` as of `CommandError`."""
