"""How a program defines its workflows."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from timer_service.core.duration import format_duration
from timer_service.worker.names import check_name
from timer_service.worker.values import to_milliseconds

if TYPE_CHECKING:  # the context needs the retry policy
    from timer_service.worker.context import Context

_MOST_ATTEMPTS = 1000
_LARGEST_FACTOR = 100
_LONGEST_FIRST = timedelta(days=1)
_LONGEST_CAP = timedelta(days=7)


@dataclass(frozen=True)
class Retry:
    """When a failed step is tried again: after a random time of at most `first`, then `factor` times as long each time.

    No delay is longer than `cap`. After `max_attempts` attempts the step has failed: it raises `StepFailed`.
    """

    max_attempts: int = 5
    first: timedelta = timedelta(seconds=1)
    factor: float = 2
    cap: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= _MOST_ATTEMPTS:
            raise ValueError(f"max_attempts must lie between 1 and {_MOST_ATTEMPTS}")
        if not 1 <= self.factor <= _LARGEST_FACTOR:
            raise ValueError(f"factor must lie between 1 and {_LARGEST_FACTOR}")
        if not timedelta() <= self.first <= _LONGEST_FIRST:
            raise ValueError("first must lie between 0 and 1 day")
        if not timedelta() <= self.cap <= _LONGEST_CAP:
            raise ValueError("cap must lie between 0 and 7 days")

    def wire(self) -> Mapping[str, Any]:
        """Return the policy in its wire form."""
        first, cap = (format_duration(to_milliseconds("retry", each)) for each in (self.first, self.cap))
        return {"maxAttempts": self.max_attempts, "first": first, "factor": self.factor, "cap": cap}


@dataclass(frozen=True)
class WorkflowFunction:
    """A workflow function, its type, and the default retry policy of its steps."""

    type: str
    function: Callable[["Context", Any], Awaitable[Any]]
    retry: Retry | None = None


def workflow(
    type_name: str, *, retry: Retry | None = None
) -> Callable[[Callable[["Context", Any], Awaitable[Any]]], WorkflowFunction]:
    """Return a decorator that makes a workflow of an asynchronous function of `ctx` and the input.

    `type_name` is the type that `client.workflows.start` names. `retry` is the retry policy of the steps that have no
    policy; without it, the policy of the start applies.
    """
    check_name("type_name", type_name)

    def decorate(function: Callable[["Context", Any], Awaitable[Any]]) -> WorkflowFunction:
        if not inspect.iscoroutinefunction(function):
            raise ValueError(f"the workflow {type_name} must be an async function")
        return WorkflowFunction(type_name, function, retry)

    return decorate
