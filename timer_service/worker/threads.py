"""The threads of a worker, for steps that are not async.

A thread cannot be stopped. So a thread that does not end its call in time is replaced by another one, and the worker
does not wait for it when it stops. All threads are daemons: the process can end while they run.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

MOST_HUNG = 100
"""How many hung threads of a worker are replaced. Further ones take the place of threads that work."""
HUNG_SECONDS = 60
"""A thread that has worked on one call for so long counts as hung until the call ends."""
_PAUSE_SECONDS = 1


class Ended(NamedTuple):
    """How a call ended. An error is a value here: futures refuse some errors, such as StopIteration."""

    value: Any = None
    error: BaseException | None = None


class Threads:
    """Threads that call functions: at most `most` that work, and at most `MOST_HUNG` more that hang.

    A thread hangs if its call was given up, or takes longer than `HUNG_SECONDS`.
    """

    def __init__(self, most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(most)
        self._idle: list[_Thread] = []
        self._late: dict[_Thread, None] = {}
        """Hung threads that are not replaced."""
        self._replaced: set[_Thread] = set()
        self._started = 0
        self._is_stopped = False

    @property
    def hung(self) -> int:
        """The number of threads that hang."""
        return len(self._late) + len(self._replaced)

    async def run(self, function: Callable[[], Any], on_begin: Callable[[], None]) -> Ended:
        """Call a function in a thread, and return how the call ended. `on_begin` is called before it begins."""
        thread = await self._take()
        on_begin()
        ended: asyncio.Future[Ended] = self._loop.create_future()
        thread.patience = self._loop.call_later(HUNG_SECONDS, self._mark_hung, thread)
        thread.calls.put((function, ended))
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not ended.done():
                self._mark_hung(thread)
            raise

    def stop(self) -> None:
        """End the threads: the idle ones now, the others when their calls end."""
        self._is_stopped = True
        for thread in self._idle:
            thread.calls.put(None)
        self._idle.clear()

    async def _take(self) -> "_Thread":
        await self._places.acquire()
        try:
            while not self._idle:
                try:
                    return self._start()
                except RuntimeError as error:  # the system has no more threads: no fault of the step
                    log.warning("no thread can be started: %s", error)
                    await asyncio.sleep(_PAUSE_SECONDS)
            return self._idle.pop()
        except asyncio.CancelledError:
            self._places.release()
            raise

    def _start(self) -> "_Thread":
        self._started += 1
        return _Thread(f"step-{self._started}", self._loop, self._free)

    def _mark_hung(self, thread: "_Thread") -> None:
        if thread in self._late or thread in self._replaced:
            return
        self._late[thread] = None
        log.warning(
            "a step has not ended in %s after its timeout, or after %d s; %d threads hang, and %d are replaced at most",
            *(thread.name, HUNG_SECONDS, self.hung, MOST_HUNG),
        )
        self._replace()

    def _replace(self) -> None:
        """Give the places of hung threads to others, as long as there are not too many."""
        while self._late and len(self._replaced) < MOST_HUNG:
            thread = next(iter(self._late))
            del self._late[thread]
            self._replaced.add(thread)
            self._places.release()

    def _free(self, thread: "_Thread", ended: "asyncio.Future[Ended]", how: Ended) -> None:
        """Note that the call of a thread has ended."""
        if thread.patience is not None:
            thread.patience.cancel()
        if not ended.done():
            ended.set_result(how)
        self._late.pop(thread, None)
        if thread in self._replaced:
            self._replaced.remove(thread)
            thread.calls.put(None)
            self._replace()
            return
        if self._is_stopped:
            thread.calls.put(None)
        else:
            self._idle.append(thread)
        self._places.release()


_Call = tuple[Callable[[], Any], "asyncio.Future[Ended]"]
_OnEnd = Callable[["_Thread", "asyncio.Future[Ended]", Ended], None]


class _Thread:
    """A thread that makes one call after another, until it gets None instead."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, on_end: _OnEnd) -> None:
        self.name = name
        self.patience: asyncio.TimerHandle | None = None
        """Marks the thread as hung if its call takes too long."""
        self.calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._loop = loop
        self._on_end = on_end
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            function, ended = call
            how = _call(function)
            try:
                self._loop.call_soon_threadsafe(self._on_end, self, ended, how)
            except RuntimeError:  # the loop is closed: the worker has stopped
                return
            del call, function, ended, how  # an idle thread keeps nothing of a step


def _call(function: Callable[[], Any]) -> Ended:
    try:
        return Ended(function())
    except BaseException as error:  # noqa: BLE001 - every error of a step is stored
        return Ended(error=error)
