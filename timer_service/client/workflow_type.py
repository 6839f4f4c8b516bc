"""What the client knows of a workflow function: its type, its input and its result."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from timer_service.client.checks import check_text

Input = TypeVar("Input")
Result = TypeVar("Result")
_In_contra = TypeVar("_In_contra", contravariant=True)
_Out_co = TypeVar("_Out_co", covariant=True)


@runtime_checkable
class WorkflowType(Protocol[_In_contra, _Out_co]):
    """A function with the decorator `@workflow` of `timer_service.worker`, with its input and its result."""

    @property
    def type(self) -> str:
        """The type of the workflow: the name under which workers know it."""

    @property
    def function(self) -> Callable[[Any, _In_contra], Awaitable[_Out_co]]:
        """The function."""


def check_workflow_type(argument: object) -> WorkflowType[Any, Any]:
    """Return a workflow function. Raises ValueError if it is something else, such as the name of a type."""
    if isinstance(argument, WorkflowType):
        return argument
    raise ValueError("workflow_type must be a function with the decorator @workflow")


def name_of_type(workflow: str | WorkflowType[Any, Any]) -> str:
    """Return the name of a type of workflows. Raises ValueError if there is none."""
    return check_text("workflow_type", getattr(workflow, "type", workflow))
