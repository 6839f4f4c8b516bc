"""The event loop of one workflow. It has no clock and no sockets, so what it runs can be repeated.

asyncio keeps tasks and futures in sets, and iterates over them. The order of a set depends on hashes, which are
addresses by default. The tasks and futures of this loop have hashes that are the same in each replay.
"""

import asyncio
import logging
import sys
from asyncio import events, tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context as ContextVars
from typing import Any, NoReturn

from timer_service.worker.errors import NotInWorkflowError

log = logging.getLogger(__name__)

_FRAMES_OF_AS_COMPLETED = 5
MOST_CALLBACKS = 1_000_000
"""The most callbacks until the loop is idle. They take about a second, in which the worker does nothing else."""


class EndlessLoopError(BaseException):
    """The function runs on and on without waiting for an effect.

    It is not an `Exception`, because a function that catches every error in a loop would run on.
    """


class _Task(asyncio.Task[Any]):
    def __init__(self, stable_hash: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._stable_hash = stable_hash  # first, because asyncio hashes a task while it initialises it
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._stable_hash


class ReplayFuture(asyncio.Future[Any]):
    """A future of a `ReplayLoop`."""

    on_cancel: Callable[[], object] | None = None

    def __init__(self, stable_hash: int, loop: asyncio.AbstractEventLoop) -> None:
        self._stable_hash = stable_hash
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._stable_hash

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future, and call `on_cancel` unless it had a result."""
        cancelled = super().cancel(msg)
        if cancelled and self.on_cancel is not None:
            self.on_cancel()
        return cancelled


class ReplayLoop(asyncio.AbstractEventLoop):
    """An event loop that runs until it is idle: no callback is ready. `seed` is different for each workflow."""

    def __init__(self, seed: int) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._hash = seed
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        """Every task, in the order of creation."""
        self.is_quiet = False
        """Whether errors that no code catches are dropped without a log line."""

    def run_until_idle(self) -> None:
        """Run callbacks until none is ready. Can be called while another event loop runs in this thread.

        Raises `EndlessLoopError` if there are too many, and forgets those that are left.
        """
        if not self._ready:
            return
        outer = events._get_running_loop()  # noqa: SLF001 - documented for event loops
        outer_task = None if outer is None else tasks.current_task(outer)
        hooks = sys.get_asyncgen_hooks()
        if outer is not None and outer_task is not None:
            tasks._leave_task(outer, outer_task)  # noqa: SLF001 - documented for event loops
        events._set_running_loop(self)  # noqa: SLF001
        sys.set_asyncgen_hooks(firstiter=self._generators.append, finalizer=_ignore)
        try:
            self._run_ready()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(outer)  # noqa: SLF001
            if outer is not None and outer_task is not None:
                tasks._enter_task(outer, outer_task)  # noqa: SLF001

    def _run_ready(self) -> None:
        """Run callbacks until none is ready, but not more than `MOST_CALLBACKS`."""
        for _ in range(MOST_CALLBACKS):
            if not self._ready:
                return
            handle = self._ready.popleft()
            try:
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - as the loops of asyncio do
            except (SystemExit, KeyboardInterrupt):
                continue  # the task that raised it has it as its exception
        self._ready.clear()
        raise EndlessLoopError(
            f"the function has run {MOST_CALLBACKS} callbacks without waiting for an effect: asyncio.sleep(0) in a "
            "loop does not wait. Await an effect, or an event that another branch sets"
        )

    def take_generators(self) -> list[AsyncGenerator[Any, Any]]:
        """Return the asynchronous generators that were started, and forget them.

        The loop keeps them until then: the garbage collector would end them at an instant that cannot be repeated.
        """
        found, self._generators = self._generators, []
        return found

    def call_soon(  # type: ignore[override]  # the stub asks for more than event loops check
        self, callback: Callable[..., Any], *args: Any, context: ContextVars | None = None
    ) -> asyncio.Handle:
        """Run a callback in this turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> ReplayFuture:
        """Return a future whose hash is the same in each replay."""
        return ReplayFuture(self._next_hash(), self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Return a task whose hash is the same in each replay. It starts with the next `run_until_idle`."""
        if self._is_in_as_completed():
            coro.close()
            raise NotInWorkflowError(
                "asyncio.as_completed starts coroutines in an order that a replay cannot repeat: give it tasks"
            )
        task = _Task(self._next_hash(), coro, loop=self, **options)
        self.tasks.append(task)
        return task

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return whether the calling code runs in this loop."""
        return events._get_running_loop() is self  # noqa: SLF001

    def is_closed(self) -> bool:
        """Return False."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that no code has caught. A task that was left behind is no error."""
        if "exception" in context and not self.is_quiet:
            log.warning("in a workflow: %s", context.get("message"), exc_info=context["exception"])

    def _next_hash(self) -> int:
        self._hash += 1
        return self._hash

    @staticmethod
    def _is_in_as_completed() -> bool:
        """Return whether a task is created by `asyncio.as_completed`, which puts coroutines into a set."""
        frame = sys._getframe(2)  # noqa: SLF001 - the caller of `create_task`; there is no other way to know
        for _ in range(_FRAMES_OF_AS_COMPLETED):
            if frame.f_globals.get("__name__") != tasks.__name__ or frame.f_back is None:  # code outside asyncio.tasks
                return False
            if frame.f_code.co_qualname.startswith(("as_completed", "_AsCompletedIterator")):
                return True
            frame = frame.f_back
        return False


def _ignore(_: AsyncGenerator[Any, Any]) -> None:
    """Do nothing with a generator that the garbage collector ends."""


def _refuse(name: str) -> Callable[..., NoReturn]:
    """Return a method that raises `NotInWorkflowError`, for the method of event loops with this name."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotInWorkflowError(
            f"a workflow function has no clock, threads or sockets (loop.{name}), because a replay cannot repeat them: "
            "use ctx.sleep instead of asyncio.sleep, the argument timeout= instead of asyncio.timeout, "
            "and ctx.step for all other work"
        )

    return refuse


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(ReplayLoop):
        setattr(ReplayLoop, _name, _refuse(_name))
