"""Values that a replay and a worker exchange: effects, their results, and decisions. Pure."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context as ContextVars
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic_core import from_json

from timer_service.client.convert import to_json
from timer_service.core.values.data import MAX_DATA_BYTES
from timer_service.core.values.duration import LONGEST_MS
from timer_service.worker.errors import ErrorText, describe_error

_LEVELS_AROUND_A_RESULT = 12
"""A message nests a result this deep at most. The parser of the service has a limit for the whole message."""


class Kind(StrEnum):
    """The kind of an effect, as on the wire."""

    STEP = "step"
    SLEEP = "sleep"
    MESSAGE = "message"


class Outcome(NamedTuple):
    """The end of an effect: a value, or, if `failed`, an error. A message that never came has no error text."""

    value: Any = None
    failed: bool = False
    error: ErrorText = ErrorText("", "")


class StoredEffect(NamedTuple):
    """An effect that the service has stored. It is open if it has no outcome."""

    key: str
    kind: str
    outcome: Outcome | None = None
    seq: int | None = None
    """The number under which the function got the outcome."""
    failures: int = 0
    start_in_ms: int | None = None
    """When an open step may start again, counted from when the effect was read."""
    over_in_ms: int | None = None
    """When an open wait is over at the latest, counted from when the effect was read."""

    @classmethod
    def read(cls, view: Mapping[str, Any]) -> "StoredEffect":
        """Return an effect from its wire form."""
        return cls(
            view["key"],
            view["kind"],
            _read_outcome(view),
            view.get("seq"),
            view.get("failures", 0),
            view.get("startInMs"),
            view.get("overInMs"),
        )


def _read_outcome(view: Mapping[str, Any]) -> Outcome | None:
    """Return the outcome in the wire form of an effect; None if the effect is open."""
    match view["status"]:
        case "open":
            return None
        case "done":
            return Outcome(view.get("result"))
        case _:
            error = view.get("error") or {}
            return Outcome(failed=True, error=ErrorText(error.get("type", ""), error.get("message", "")))


class StepCall(NamedTuple):
    """What a step calls in each of its attempts."""

    function: Callable[..., Any]
    args: Sequence[Any]
    timeout: float | None
    """The time limit of an attempt, in seconds."""
    retry: Mapping[str, Any] | None
    """The retry policy in its wire form, if it is not that of the workflow."""
    variables: ContextVars


class Effect(NamedTuple):
    """An effect that the function has asked for and that may begin."""

    key: str
    kind: Kind
    after: int
    """How many results the function had got. They must be stored before the effect begins."""
    call: StepCall | None = None
    ms: int | None = None
    """The length of a sleep, or the timeout of a wait for a message."""
    start_in_ms: int = 0
    """When an open step may start again, counted from when it was read."""
    failures: int = 0
    """How many attempts of the step have failed."""
    is_stored: bool = False
    """Whether the service knows the step."""


class Finished(NamedTuple):
    """The function has returned, or raised an error."""

    result: Any = None
    error: BaseException | None = None


class Decision(NamedTuple):
    """What an idle function wants: effects to begin, steps that it no longer waits for, or its end."""

    begin: Sequence[Effect] = ()
    dropped: Sequence[Effect] = ()
    finished: Finished | None = None


def write_result(value: Any, what: str) -> str:
    """Return a result as JSON text. Raises ValueError, with `what` as the subject, if it cannot be stored."""
    try:
        text = to_json(value)
        size = len(text.encode())
        if size <= MAX_DATA_BYTES:  # raises an error if the value is nested too deeply
            from_json("[" * _LEVELS_AROUND_A_RESULT + text + "]" * _LEVELS_AROUND_A_RESULT)
    except Exception as error:  # an object of the user can raise any error
        raise ValueError(f"{what} cannot be stored as JSON: {describe_error(error).message}") from error
    if size > MAX_DATA_BYTES:
        raise ValueError(f"{what} has {size} bytes of JSON; the limit is {MAX_DATA_BYTES}")
    return text


def to_milliseconds(argument: str, duration: timedelta) -> int:
    """Return a duration in milliseconds, rounded up. Raises ValueError with the name of the argument."""
    if not isinstance(duration, timedelta):
        raise ValueError(f"{argument} must be a timedelta")  # noqa: TRY004 - like every wrong argument
    ms = -(-duration // timedelta(milliseconds=1))  # `//` rounds down, so this rounds up
    if not 0 <= ms <= LONGEST_MS:
        raise ValueError(f"{argument} must lie between 0 and 366 days")
    return ms
