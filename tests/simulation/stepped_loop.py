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
    """An event loop that stops when no task can continue."""

    def __init__(self) -> None:
        super().__init__(_StoppingSelector(self.stop))

    def settle(self) -> None:
        """Run until no task can continue. Paused tasks stay paused."""
        self.run_forever()

    def run_to_completion(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run `main` and return its result. Raises `InvalidStateError` if `main` cannot finish."""
        task = self.create_task(main)
        self.settle()
        return task.result()


class _StoppingSelector(selectors.SelectSelector):
    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert not timeout, "a task waits for real time"
        if timeout is None:
            self._stop()
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
