"""The exceptions of workflows and their steps."""

from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple

from timer_service.client.errors import PermanentError as PermanentError  # noqa: PLC0414 - part of this module's API
from timer_service.client.errors import text_of
from timer_service.core.values.errors import ExplainedError
from timer_service.worker.names import name_of

MAX_TEXT_BYTES = 4096
_MAX_TYPE = 200
_MOST_CALLS = 20
"""The most calls of a traceback that are shown, the innermost ones."""
_WHERE = "its text may have values of users; `timer-service workflows get` shows it"


class ErrorText(NamedTuple):
    """The name of an exception's class, and its text: all that is stored of an error."""

    type: str
    message: str


def describe_error(error: BaseException) -> ErrorText:
    """Return what is stored of an error. Its text is cut to 4 KiB, and names the errors in an exception group.

    It raises nothing, even if the text of a user's error cannot be read.
    """
    name = "".join(character for character in type(error).__name__ if character.isprintable())[:_MAX_TYPE]
    return ErrorText(name or "Exception", _cut(text_of(error)))


class HiddenTextError(ExplainedError):
    """An error of a user as the log shows it: with its traceback, and in place of its text, where the text is."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{describe_error(error).type} ({_WHERE})")
        innermost = deque(_calls(error.__traceback__), maxlen=_MOST_CALLS)
        self.__traceback__ = innermost[0] if innermost else None


def _calls(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")


class StepFailed(Exception):  # noqa: N818 - the name that the documentation uses: the step has failed
    """A step has failed and has no attempt left. A replay raises the same error, so it has no original exception.

    `key` is the key of the step, such as `charge` or `charge:1`. `name` is its name. `type` and `text` are those of
    the error of the last attempt.
    """

    def __init__(self, key: str, error: ErrorText) -> None:
        texts = (f"the step {key} failed", error.type, error.message)
        super().__init__(": ".join(text for text in texts if text))  # an error may have no text
        self.key = key
        self.name = name_of(key)
        self.type = error.type
        self.text = error.message


class RetryAfter(Exception):  # noqa: N818 - a request for a retry
    """Raise it in a step to choose the delay of the next attempt. The step has as many attempts as before."""

    def __init__(self, delay: timedelta, message: str = "") -> None:
        super().__init__(message)
        self.delay = delay


_WHAT_TO_DO = (
    "The function has changed since this workflow ran, or depends on more than ctx. Run the function as it was until "
    "its workflows have ended, and give the changed one a new type"
)


class NonDeterministicError(Exception):
    """The function of a workflow did not repeat what it did before. It has changed, or depends on more than `ctx`.

    `expected` is the stored effect, and `found` is what the function did instead.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}; found {found}. {_WHAT_TO_DO}")
        self.expected = expected
        self.found = found


class NotInWorkflowError(RuntimeError):
    """A workflow function called something that a replay cannot repeat, such as a clock or a socket."""


class Interrupted(BaseException):
    """The task of this worker has ended, but the workflow goes on later, or elsewhere, or was cancelled.

    Every effect of the function raises it, so that its `finally` blocks run. It is not an `Exception`: do not catch it.
    """
