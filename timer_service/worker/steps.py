"""Runs one attempt of a step on the worker's event loop, or in a thread."""

import asyncio
import contextvars
import inspect
import logging
from functools import partial
from typing import NamedTuple

from timer_service.threads import Ended, Threads
from timer_service.worker.context import current_step
from timer_service.worker.errors import ErrorText, PermanentError, RetryAfter, describe_error, trace_of
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


async def run_attempt(call: StepCall, threads: Threads) -> Attempt:
    """Call the function of a step and return how it ended. Raises only `CancelledError`.

    The timeout counts from the call of the function. A wait for a free thread is not the fault of the step.
    """
    limit = asyncio.timeout(None)  # `_call` sets its end
    try:
        async with limit:
            ended = await _call(call, threads, limit)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - every error of a step is stored
        if isinstance(error, TimeoutError) and limit.expired():
            return timed_out(call.timeout)
        return _failure(error)
    if ended.error is not None:
        return _failure(ended.error)
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


async def _call(call: StepCall, threads: Threads, limit: asyncio.Timeout) -> Ended:
    """Call the function of a step: a coroutine function in the event loop, another one in a thread."""
    loop = asyncio.get_running_loop()

    def start_timeout() -> None:
        if call.timeout is not None:
            limit.reschedule(loop.time() + call.timeout)

    if inspect.iscoroutinefunction(call.function):
        start_timeout()
        return Ended(await call.function(*call.args))
    ended = await threads.run(partial(contextvars.copy_context().run, call.function, *call.args), start_timeout)
    if ended.error is None and inspect.isawaitable(ended.value):  # such as lambda: client.timers.get(url)
        return Ended(await ended.value)
    return ended


def _failure(error: BaseException) -> Attempt:
    """Return an attempt that has raised an error, and log its traceback, which is not stored."""
    log.info("an attempt of the step %s has failed: %s", current_step(), trace_of(error))
    if not isinstance(error, RetryAfter):
        return Attempt(error=describe_error(error), is_retryable=not isinstance(error, PermanentError))
    try:
        return Attempt(error=describe_error(error), after_ms=to_milliseconds("delay", error.delay))
    except Exception as wrong:  # noqa: BLE001 - a class of the user can lack the delay
        return Attempt(error=describe_error(wrong))
