"""The exceptions of workflows and their steps."""

import traceback
from datetime import timedelta
from itertools import islice
from typing import NamedTuple

from timer_service.client.errors import PermanentError as PermanentError  # noqa: PLC0414 - part of this module's API
from timer_service.client.errors import leaves_of
from timer_service.worker.names import name_of

MAX_TEXT_BYTES = 4096
_MAX_TYPE = 200
_MOST_SHOWN = 5
"""The most errors of an exception group that are shown."""
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
    return ErrorText(name or "Exception", _cut(_text_of(error)))


def trace_of(error: BaseException) -> str:
    """Return the type of an error and its traceback, for the log. It says where the text is, which may have values."""
    calls = "".join(traceback.format_tb(error.__traceback__, -_MOST_CALLS))
    return f"{describe_error(error).type} ({_WHERE})\n{calls}".rstrip()


def _text_of(error: BaseException) -> str:
    """Return the text of an error, followed by the first errors in it if it is a group."""
    try:
        text = str(error)[:MAX_TEXT_BYTES]
        if not isinstance(error, BaseExceptionGroup):
            return text
        shown = (f"{type(each).__name__}: {str(each)[:MAX_TEXT_BYTES]}" for each in leaves_of(error))
        return f"{text}: {'; '.join(islice(shown, _MOST_SHOWN))}"
    except BaseException:  # noqa: BLE001 - code of the user
        return "(the text of this error cannot be shown, because its __str__ raises an error)"


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
