"""The context of a workflow function: its effects."""

import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from datetime import timedelta
from functools import cached_property
from random import Random
from typing import Any, Protocol, TypeVar, TypeVarTuple, overload

from timer_service.client.convert import read_data, returned_type
from timer_service.client.retry import Retry
from timer_service.worker.errors import NotInWorkflowError
from timer_service.worker.loop import ReplayFuture
from timer_service.worker.names import Identity
from timer_service.worker.values import Kind, StepCall, to_milliseconds

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")
_current_step: contextvars.ContextVar[str] = contextvars.ContextVar("timer_service_step")


class Effects(Protocol):
    """Where a context asks for effects."""

    is_replaying: bool
    """Whether the function repeats what it did before, or is interrupted."""

    def ask(self, kind: Kind, name: str, *, call: StepCall | None = None, ms: int | None = None) -> ReplayFuture:
        """Return the future result of an effect."""


class Context:
    """The first argument of a workflow function. Each effect is a coroutine, which begins when it is awaited.

    Effects can run side by side, for example with `asyncio.gather` or `asyncio.TaskGroup`.
    """

    def __init__(self, identity: Identity, effects: Effects, retry: Retry | None, module: str) -> None:
        """`module` is that of the workflow function."""
        self._identity = identity
        self._effects = effects
        self._retry = None if retry is None else retry.wire
        self._module = module

    @property
    def tenant(self) -> str:
        """The tenant of the workflow."""
        return self._identity.tenant

    @property
    def workflow_id(self) -> str:
        """The id of the workflow."""
        return self._identity.workflow_id

    @property
    def key(self) -> str:
        """The key of the step that runs: 32 hex digits, the same in each of its attempts.

        Send it along with calls to other systems, so that they recognise a repeated call. Raises `NotInWorkflowError`
        outside a step.
        """
        step = current_step()
        if step is None:
            raise NotInWorkflowError("ctx.key is the key of a step: read it in the function of the step")
        return self._identity.derive(f"step {step}")

    @property
    def is_replaying(self) -> bool:
        """Whether the workflow function repeats what it did before, or is interrupted at a park. False in steps.

        Use it for log lines, metrics and the like only: a function that does something else then is not repeatable.
        """
        return _is_silent(self._effects)

    @cached_property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """The logger of the function's module, which says nothing while `is_replaying`.

        Its lines have the fields `tenant` and `workflow_id`, and `step` in a step.
        """
        about = {"tenant": self.tenant, "workflow_id": self.workflow_id}
        return _Logger(logging.getLogger(self._module), about, self._effects)

    @cached_property
    def random(self) -> Random:
        """Random numbers that are the same in each replay. Use them in the workflow function, not in its steps."""
        return Random(self._identity.derive("random"))  # noqa: S311 - repeatable on purpose

    @overload
    def step(
        self,
        name: str,
        function: Callable[[*_Arguments], Awaitable[_T]],
        *args: *_Arguments,
        timeout: timedelta | None = None,
        retry: Retry | None = None,
    ) -> Coroutine[Any, Any, _T]: ...

    @overload
    def step(
        self,
        name: str,
        function: Callable[[*_Arguments], _T],
        *args: *_Arguments,
        timeout: timedelta | None = None,
        retry: Retry | None = None,
    ) -> Coroutine[Any, Any, _T]: ...

    async def step(
        self,
        name: str,
        function: Callable[[*_Arguments], Any],
        *args: *_Arguments,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - the worker applies it, not this function
        retry: Retry | None = None,
    ) -> Any:
        """Call `function` with `args`, store its result and return it. A later replay returns the stored result.

        The result is stored as JSON of at most 64 KiB, and returned as the type that the function declares; without a
        declared type as it is decoded: a tuple becomes a list. A function that is not asynchronous runs in a thread.
        `timeout` limits each attempt, but cannot stop a thread. An attempt that raises an exception is repeated as
        `retry` says. Raises `StepFailed` if no attempt is left, and ValueError if the result has another type.
        """
        kind = returned_type(function)
        seconds = None if timeout is None else to_milliseconds("timeout", timeout) / 1000
        policy: Mapping[str, Any] | None = self._retry if retry is None else retry.wire
        call = StepCall(function, args, seconds, policy, contextvars.copy_context())
        return read_data(kind, await self._effects.ask(Kind.STEP, name, call=call), f"the result of the step {name}")

    async def sleep(self, duration: timedelta) -> None:
        """Sleep. A sleeping workflow needs no process, and its end is an instant that the service has stored."""
        await self._effects.ask(Kind.SLEEP, "sleep", ms=to_milliseconds("duration", duration))

    @overload
    def wait_for(self, name: str, *, timeout: timedelta | None = None) -> Coroutine[Any, Any, Any]: ...

    @overload
    def wait_for(self, name: str, kind: type[_T], *, timeout: timedelta | None = None) -> Coroutine[Any, Any, _T]: ...

    async def wait_for(
        self,
        name: str,
        kind: Any = Any,
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - the service applies it
    ) -> Any:
        """Return the data of the next message with this name as the type `kind`, also if it was sent before.

        Raises `TimeoutError` if there is none within `timeout`, and ValueError if the data do not fit the type.
        """
        ms = None if timeout is None else to_milliseconds("timeout", timeout)
        return read_data(kind, await self._effects.ask(Kind.MESSAGE, name, ms=ms), f"the message {name}")


class _Logger(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, about: Mapping[str, object], effects: Effects) -> None:
        super().__init__(logger, about)
        self._about = about
        self._effects = effects

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name in `logging`
        return not _is_silent(self._effects) and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        step = current_step()
        about = {**self._about, **({} if step is None else {"step": step}), **(kwargs.get("extra") or {})}
        return msg, {**kwargs, "extra": about}


def _is_silent(effects: Effects) -> bool:
    return effects.is_replaying and current_step() is None


def current_step() -> str | None:
    """Return the key of the step that runs, or None outside a step."""
    return _current_step.get(None)


def variables_of_step(key: str, variables: contextvars.Context) -> contextvars.Context:
    """Return the context variables in which an attempt of a step runs: a copy in which `Context.key` is known."""
    copy = variables.copy()
    copy.run(_current_step.set, key)
    return copy
