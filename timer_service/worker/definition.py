"""What a program defines: its workflows, and the settings of its worker."""

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from timer_service.client.retry import Retry
from timer_service.worker.names import check_name

if TYPE_CHECKING:  # the context is given to the function
    from timer_service.worker.context import Context

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class WorkflowFunction(Generic[_In, _Out]):
    """A workflow function, its type, and the default retry policy of its steps."""

    type: str
    function: Callable[["Context", _In], Awaitable[_Out]]
    retry: Retry | None = None


class Decorator(Protocol):
    """Makes a workflow of a function."""

    def __call__(self, function: Callable[["Context", _In], Awaitable[_Out]], /) -> WorkflowFunction[_In, _Out]:
        """Return the workflow."""


def workflow(type_name: str, *, retry: Retry | None = None) -> Decorator:
    """Return a decorator that makes a workflow of an asynchronous function of `ctx` and the input.

    The input and the result are JSON, and are converted to the types that the function declares.
    `type_name` is the type that `client.workflows.start` names. `retry` is the retry policy of the steps that have no
    policy; without it, the policy of the start applies.
    """
    check_name("type_name", type_name)

    def decorate(function: Callable[["Context", _In], Awaitable[_Out]]) -> WorkflowFunction[_In, _Out]:
        if not inspect.iscoroutinefunction(function):
            raise ValueError(f"the workflow {type_name} must be an async function")
        return WorkflowFunction(type_name, function, retry)

    return decorate


@dataclass(frozen=True)
class Settings:
    """What the parts of a worker have to know. Times are in seconds."""

    tenant: str
    workflows: Mapping[str, WorkflowFunction[Any, Any]]
    queue: str = "default"
    name: str | None = None
    slots: int = 100
    lease_seconds: float = 30
    wait_seconds: float = 10
    """How long the service holds a poll."""
    shutdown_seconds: float = 20
    """How long steps may take to finish after the worker was stopped."""
    worker_id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def request_seconds(self) -> float:
        """How long to wait for a reply before the request is repeated."""
        return min(5, self.lease_seconds / 3)
