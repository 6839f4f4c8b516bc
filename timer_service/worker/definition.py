"""How a program defines its workflows."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from timer_service.client.retry import Retry
from timer_service.worker.names import check_name

if TYPE_CHECKING:  # the context is given to the function
    from timer_service.worker.context import Context


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
