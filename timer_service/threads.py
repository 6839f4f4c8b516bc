"""Threads for functions of users that are not async: steps of workflows, and handlers of events.

A thread cannot be stopped. So a call that was given up leaves its place to another one, and the program does not wait
for it when it stops. All threads are daemons: the process can end while they run.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

MOST_HUNG = 100
"""How many calls that were given up leave their places. Further ones keep them until they end."""


class Ended(NamedTuple):
    """How a call ended. An error is a value here: futures refuse some errors, such as StopIteration."""

    value: Any = None
    error: BaseException | None = None


class Threads:
    """Calls functions in threads: at most `most`, and at most `MOST_HUNG` more that were given up."""

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)
        self._hung = 0
        self._started = 0

    async def run(self, function: Callable[[], Any], on_begin: Callable[[], None]) -> Ended:
        """Call a function in a thread, and return how the call ended. `on_begin` is called before it begins."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Ended] = loop.create_future()
        ended.add_done_callback(self._leave)
        on_begin()
        self._started += 1
        thread = threading.Thread(target=_work, args=(loop, function, ended), name=f"step-{self._started}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            ended.set_result(Ended(error=error))
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not ended.done() and self._hung < MOST_HUNG:
                self._give_up(thread, ended)
            raise

    def _leave(self, _: "asyncio.Future[Ended]") -> None:
        """Release the place of a call that has ended."""
        self._places.release()

    def _give_up(self, thread: threading.Thread, ended: "asyncio.Future[Ended]") -> None:
        """Release the place of a call that has not ended. Its end will release none, but one more can be given up."""
        self._hung += 1
        log.warning("a call that was given up has not ended in %s; %d threads hang", thread.name, self._hung)
        ended.remove_done_callback(self._leave)
        ended.add_done_callback(self._end_hung)
        self._places.release()

    def _end_hung(self, _: "asyncio.Future[Ended]") -> None:
        self._hung -= 1


def _work(loop: asyncio.AbstractEventLoop, function: Callable[[], Any], ended: "asyncio.Future[Ended]") -> None:
    """Call a function in this thread, and tell the loop how it ended."""
    try:
        how = Ended(function())
    except BaseException as error:  # noqa: BLE001 - the caller gets every error
        how = Ended(error=error)
    with suppress(RuntimeError):  # the loop is closed: the worker has stopped
        loop.call_soon_threadsafe(ended.set_result, how)
