"""An event loop that a test turns by hand, and SQLite without threads: the same steps always give the same order."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import aiosqlite.core
import pytest

_T = TypeVar("_T")


class SteppedLoop(asyncio.SelectorEventLoop):
    """Runs until nothing more can happen by itself."""

    def __init__(self) -> None:
        super().__init__(_StoppingSelector(self.stop))

    def settle(self) -> None:
        """Run all that can run; what waits to be let on is left waiting."""
        self.run_forever()

    def complete(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run `main` to its end. Raises `InvalidStateError` if it waits for something that never comes."""
        task = self.create_task(main)
        self.settle()
        return task.result()


class _StoppingSelector(selectors.SelectSelector):
    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert not timeout, "nothing here may wait for real time"
        if timeout is None:
            self._stop()
        return super().select(0)


@contextmanager
def sqlite_in_place() -> Iterator[None]:
    """Let aiosqlite run each statement where it is asked for, instead of in a thread of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiosqlite.core, "SimpleQueue", _InPlace)
        patch.setattr(aiosqlite.core, "Thread", _NoThread)
        yield


class _InPlace:
    def put_nowait(self, item: tuple[asyncio.Future[Any], Callable[[], Any]]) -> None:
        future, function = item
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - the future's business, as in the thread
            future.set_exception(error)


class _NoThread:
    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass
