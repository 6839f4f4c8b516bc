"""The exceptions of the client. A wrong argument raises ValueError instead."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:  # the models raise these errors
    from timer_service.client.workflow_models import Workflow, WorkflowError

_Error = TypeVar("_Error", bound=BaseException)
_MOST_TEXT = 4096
_MOST_SHOWN = 5
"""The most errors of an exception group that are shown."""


class TimerServiceError(Exception):
    """The base class of the exceptions of the client."""


class ShortTraceback:
    """Leaves out of the traceback of a `TimerServiceError` what its text says: the calls inside, and their errors."""

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Let the traceback of an error begin again outside the block."""
        if isinstance(error, TimerServiceError):
            error.__traceback__ = error.__cause__ = None


class NoAnswerError(TimerServiceError):
    """The broker or the service did not answer in time. The service may still handle the command later."""


class _CodedError(TimerServiceError):
    def __init__(self, code: str, message: str, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.errors = errors

    @classmethod
    def read(cls, error: Any) -> Self:
        """Return the exception for the `error` field of a reply."""
        found = error if isinstance(error, Mapping) else {}
        return cls(str(found.get("code", "INTERNAL")), str(found.get("message", "")), found.get("errors", ()))


class CommandError(_CodedError):
    """The service rejected a command.

    `code` is one of the codes in contracts/README.md. `errors` has a `path` and a `reason` for each wrong field.
    """


class QueryError(_CodedError):
    """The service could not answer a query. `code` and `errors` are as in `CommandError`."""


class WorkflowEndedError(TimerServiceError):
    """A workflow ended without a result: it failed, or it was cancelled.

    `workflow` is its last state, with the `code` of a failure or the `reason` of a cancellation. `error` is the error
    of its function.
    """

    def __init__(self, workflow: "Workflow", error: "WorkflowError | None") -> None:
        detail = workflow.reason if error is None else f"{error.type}: {error.message}"
        why = ": ".join(filter(None, [workflow.code, detail]))
        name = f"the workflow {workflow.tenant}/{workflow.workflow_id}"
        super().__init__(f"{name} is {workflow.status}" + (f": {why}" if why else ""))
        self.workflow = workflow
        self.error = error


class PermanentError(Exception):
    """Raise it in a step or a handler that must not be tried again."""


class RetryLater(Exception):  # noqa: N818 - a request for a retry
    """Raise it in a handler when something that it needs is away, such as a database.

    The handler is called again after `delay` (at most 10 minutes). This attempt does not count. The event stays in this
    process until then, and counts as one of those in progress.
    """

    def __init__(self, delay: timedelta, message: str = "") -> None:
        if not timedelta(0) <= delay <= timedelta(minutes=10):
            raise ValueError("delay must lie between 0 and 10 minutes")
        super().__init__(message)
        self.delay = delay


class AlreadyHandled(Exception):  # noqa: N818 - the event needs nothing more
    """The event was handled before: `TimerApp.once` found its mark. It ends the handler with success."""


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Return the errors in an exception group and in the groups inside it, or the error itself."""
    unvisited = [error]  # the next one is the last one; no recursion, because groups can be deep
    while unvisited:
        each = unvisited.pop()
        if isinstance(each, BaseExceptionGroup):
            unvisited += reversed(each.exceptions)
        else:
            yield each


def text_of(error: BaseException) -> str:
    """Return the text of an error, followed by the first errors in it if it is a group. Raises nothing."""
    try:
        if not isinstance(error, BaseExceptionGroup):
            return str(error)[:_MOST_TEXT]
        shown = (f"{type(each).__name__}: {str(each)[:_MOST_TEXT]}" for each in islice(leaves_of(error), _MOST_SHOWN))
        return f"{str(error)[:_MOST_TEXT]}: {'; '.join(shown)}"
    except BaseException:  # noqa: BLE001 - code of the user
        return "(the text of this error cannot be shown, because its __str__ raises an error)"


def errors_in(error: BaseException, kind: type[_Error]) -> list[_Error]:
    """Return the errors of a class: the error itself, or those in an exception group. Their causes do not count."""
    return [each for each in leaves_of(error) if isinstance(each, kind)]
