"""Runs one attempt of a step on the worker's event loop, or in a thread."""

import asyncio
import contextvars
import inspect
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

from timer_service.worker.errors import ErrorText, PermanentError, RetryAfter, describe_error
from timer_service.worker.values import StepCall, to_milliseconds, write_result


class Attempt(NamedTuple):
    """How an attempt of a step ended: with the JSON text of its result, or with an error."""

    text: str = "null"
    error: ErrorText | None = None
    is_retryable: bool = True
    after_ms: int | None = None
    """The delay that the step chose for its next attempt."""


DROPPED = Attempt(error=ErrorText("CancelledError", "the function no longer waits for this step"), is_retryable=False)


async def run_attempt(call: StepCall, threads: Executor) -> Attempt:
    """Call the function of a step and return how it ended. Raises only `CancelledError`."""
    limit = asyncio.timeout(call.timeout)
    try:
        async with limit:
            value = await _call(call, threads)
    except TimeoutError as error:
        late = ErrorText("TimeoutError", f"no result within {call.timeout} s")
        return Attempt(error=late if limit.expired() else describe_error(error))
    except PermanentError as error:
        return Attempt(error=describe_error(error), is_retryable=False)
    except RetryAfter as error:
        return _retry_after(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every error of a step is stored
        return Attempt(error=describe_error(error))
    try:
        return Attempt(write_result(value, "the result of the step"))
    except ValueError as error:  # another attempt would have such a result, too
        return Attempt(error=describe_error(error), is_retryable=False)


async def _call(call: StepCall, threads: Executor) -> Any:
    if inspect.iscoroutinefunction(call.function):
        return await call.function(*call.args)
    function = partial(contextvars.copy_context().run, call.function, *call.args)
    value = await asyncio.get_running_loop().run_in_executor(threads, function)
    return await value if inspect.isawaitable(value) else value  # such as lambda: client.get(url)


def _retry_after(error: RetryAfter) -> Attempt:
    try:
        return Attempt(error=describe_error(error), after_ms=to_milliseconds("delay", error.delay))
    except (ValueError, OverflowError) as wrong:
        return Attempt(error=describe_error(wrong))
