"""An event loop that runs only when a test says so, and SQLite without threads. Both make tests repeatable."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import aiosqlite.core
import pytest

_T = TypeVar("_T")


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop that stops when no task can continue. Its time moves only when a test sets `elapsed`."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.has_timers = False
        """Whether tasks may wait for time. If not, waiting for it is an error."""
        super().__init__(_StoppingSelector(self))

    def time(self) -> float:
        """Return the seconds that have elapsed."""
        return self.elapsed

    @property
    def next_timer(self) -> float | None:
        """When the next timer fires."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return min((each.when() for each in timers if not each.cancelled()), default=None)

    def cancel_timers(self) -> None:
        for each in list(self._scheduled):  # type: ignore[attr-defined]
            each.cancel()

    def settle(self) -> None:
        """Run until no task can continue. Paused tasks stay paused."""
        self.run_forever()

    def run_to_completion(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run `main` and return its result. Raises `InvalidStateError` if `main` cannot finish."""
        task = self.create_task(main)
        self.settle()
        return task.result()


class _StoppingSelector(selectors.SelectSelector):
    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert not timeout or self._loop.has_timers, "a task waits for real time"
        if timeout != 0:
            self._loop.stop()
        return super().select(0)


@contextmanager
def sqlite_without_threads() -> Iterator[None]:
    """Let aiosqlite run each statement in the calling thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiosqlite.core, "SimpleQueue", _SynchronousQueue)
        patch.setattr(aiosqlite.core, "Thread", _UnstartedThread)
        yield


class _SynchronousQueue:
    def put_nowait(self, item: tuple[asyncio.Future[Any], Callable[[], Any]]) -> None:
        future, function = item
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - the future carries it, as in the thread
            future.set_exception(error)


class _UnstartedThread:
    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass
