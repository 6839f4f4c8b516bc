"""Runs one attempt of a step."""

import asyncio
import inspect
import logging
from typing import NamedTuple

from timer_service.client.errors import errors_in
from timer_service.user_code import UserCode
from timer_service.worker.errors import ErrorText, HiddenTextError, PermanentError, RetryAfter, describe_error
from timer_service.worker.values import StepCall, to_milliseconds, write_result

log = logging.getLogger(__name__)


class Attempt(NamedTuple):
    """How an attempt of a step ended: with the JSON text of its result, or with an error."""

    text: str = "null"
    error: ErrorText | None = None
    is_retryable: bool = True
    after_ms: int | None = None
    """The delay that the step chose for its next attempt."""


CANCELLED = Attempt(error=ErrorText("CancelledError", "the step was cancelled by itself"))
DROPPED = Attempt(error=ErrorText("CancelledError", "the function no longer waits for this step"), is_retryable=False)


async def run_attempt(call: StepCall, name: str, code: UserCode) -> Attempt:
    """Call the function of a step and return how it ended. Raises only `CancelledError`.

    `name` says what runs, for the log. The timeout counts from the call of the function. A wait for a free thread is
    not the fault of the step.
    """
    is_async = inspect.iscoroutinefunction(call.function)
    ended = await code.run(name, call.function, *call.args, is_async=is_async, seconds=call.timeout)
    if ended is None:
        log.info("an attempt of %s has failed: no result within %s s", name, call.timeout)
        return timed_out(call.timeout)
    if isinstance(ended.error, asyncio.CancelledError):
        return CANCELLED
    if ended.error is not None:
        return _failure(name, ended.error)
    try:
        return Attempt(write_result(ended.value, "the result of the step"))
    except ValueError as error:  # another attempt would have such a result, too
        return Attempt(error=describe_error(error), is_retryable=False)


def end_of(attempt: "asyncio.Task[Attempt]") -> Attempt:
    """Return how a task of `run_attempt` ended."""
    return CANCELLED if attempt.cancelled() else attempt.result()


def timed_out(seconds: float | None) -> Attempt:
    """Return an attempt that has taken longer than its timeout."""
    return Attempt(error=ErrorText("TimeoutError", f"no result within {seconds} s"))


def _failure(name: str, error: BaseException) -> Attempt:
    """Return an attempt that has raised an error, and log its traceback, which is not stored.

    In a group, a `PermanentError` counts first, then the longest `RetryAfter`.
    """
    text = describe_error(error)
    hidden = HiddenTextError(error)
    log.info("an attempt of %s has failed: %s", name, text.type, exc_info=hidden)
    if errors_in(error, PermanentError):
        return Attempt(error=text, is_retryable=False)
    try:
        delays = [to_milliseconds("delay", each.delay) for each in errors_in(error, RetryAfter)]
    except Exception as wrong:  # noqa: BLE001 - a class of the user can lack the delay
        return Attempt(error=describe_error(wrong))
    return Attempt(error=text, after_ms=max(delays, default=None))
