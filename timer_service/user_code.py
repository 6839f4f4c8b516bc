"""Runs code of users: steps of workflows, and handlers of events. Such code may hang, or go on after a cancellation.

Nothing waits for it longer than it may take. Code that is given up is cancelled. What it does after that is ignored and
logged. If it does not end, it is left behind: neither the program nor `asyncio.run` waits for it.
"""

import asyncio
import ctypes
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

log = logging.getLogger(__name__)

MOST_LEFT = {True: 1000, False: 100}
"""While so many calls that were given up have not ended, no other one begins. True: of async functions."""
PATIENCE_SECONDS = 1


class Ended(NamedTuple):
    """How a call ended. An error is a value here: futures and tasks refuse some errors, such as SystemExit."""

    value: Any = None
    error: BaseException | None = None


@dataclass
class _Call:
    name: str
    code: "asyncio.Future[Ended]"
    """A task, or the end of a thread."""
    given_up_at: float | None = None
    ended_at: float | None = None
    is_left: bool = False
    leaving: asyncio.TimerHandle | None = None

    @property
    def is_async(self) -> bool:
        return isinstance(self.code, asyncio.Task)


class UserCode:
    """The calls of a worker or an app. Functions that are not async run in at most `threads` threads.

    A thread cannot be stopped. So a call that was given up leaves its place to another one. All threads are daemons.
    """

    def __init__(self, threads: int, *, patience: float = PATIENCE_SECONDS) -> None:
        """`patience` is how many seconds code may take to end after it was cancelled, before it is left behind."""
        self._patience = patience
        self._places = asyncio.Semaphore(threads)
        self._calls: dict[asyncio.Future[Ended], _Call] = {}
        """The calls that have not ended, also those that were given up."""
        self._given_up = Counter[bool]()
        """How many of them were given up: of async functions (True), and of those in threads."""
        self._changed = asyncio.Event()
        _all.add(self)

    @property
    def names(self) -> list[str]:
        """What runs here, also after it was given up."""
        return [each.name for each in list(self._calls.values())]

    async def run(
        self, name: str, function: Callable[..., Any], *args: Any, is_async: bool, seconds: float | None = None
    ) -> Ended | None:
        """Call a function, and return how the call ended, or None if it has taken longer than `seconds`.

        Code that is late, or whose caller is cancelled, is given up. The time counts from the call of the function, not
        from the wait for a thread. An awaitable that a function returns in a thread is awaited in the event loop.
        """
        if is_async:
            await self._until_room(is_async=True)
            return await self._wait(name, self._begin(name, lambda: function(*args)), self._end_of(seconds))
        await self._places.acquire()
        try:
            await self._until_room(is_async=False)
        except asyncio.CancelledError:
            self._places.release()
            raise
        until = self._end_of(seconds)
        ended = await self._wait(name, self._begin_thread(name, partial(copy_context().run, function, *args)), until)
        if ended is None or ended.error is not None or not inspect.isawaitable(ended.value):
            return ended
        return await self._wait(name, self._begin(name, lambda: ended.value), until)

    async def close(self) -> None:
        """Give up all calls, and leave behind those that do not end soon."""
        for each in list(self._calls.values()):
            self._give_up(each)
        try:
            if cancelled := [each.code for each in self._calls.values() if each.is_async and not each.is_left]:
                await asyncio.wait(cancelled, timeout=self._patience)
        finally:
            for each in self._calls.values():
                self._leave(each)

    def _end_of(self, seconds: float | None) -> float | None:
        return None if seconds is None else _now() + seconds

    def _begin(self, name: str, call: Callable[[], Awaitable[Any]]) -> "asyncio.Future[Ended]":
        return asyncio.get_running_loop().create_task(_await(call), name=name)

    def _begin_thread(self, name: str, function: Callable[[], Any]) -> "asyncio.Future[Ended]":
        """Call a function in a thread. It has a place."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Ended] = loop.create_future()
        thread = threading.Thread(target=_work, args=(loop, function, ended), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            ended.set_result(Ended(error=error))
        return ended

    async def _wait(self, name: str, code: "asyncio.Future[Ended]", until: float | None) -> Ended | None:
        """Wait for the end of a call, until an instant at most. Give it up if it ends later."""
        call = self._calls[code] = _Call(name, code)
        code.add_done_callback(self._note_end)
        try:
            await asyncio.wait([code], timeout=None if until is None else max(until - _now(), 0))
        finally:
            self._give_up(call)
        # Code that blocks the event loop beyond its time has ended when the timeout is noticed.
        is_late = until is not None and call.ended_at is not None and call.ended_at > until
        return None if is_late or not code.done() else code.result()

    async def _until_room(self, *, is_async: bool) -> None:
        """Wait while too many calls of this kind that were given up have not ended."""
        if self._given_up[is_async] >= MOST_LEFT[is_async]:
            log.error("%d calls that were given up have not ended; the next ones wait", self._given_up[is_async])
        while self._given_up[is_async] >= MOST_LEFT[is_async]:
            self._changed.clear()
            await self._changed.wait()

    def _give_up(self, call: _Call) -> None:
        """Cancel a call that has not ended. From now on, its end is ignored."""
        if call.code.done() or call.given_up_at is not None:
            return
        call.given_up_at = _now()
        self._given_up[call.is_async] += 1
        if call.is_async:
            call.code.cancel()
        else:
            self._places.release()
        call.leaving = asyncio.get_running_loop().call_later(self._patience, self._leave, call)

    def _leave(self, call: _Call) -> None:
        """Leave a call behind that has not ended."""
        if call.code.done() or call.is_left:
            return
        call.is_left = True
        log.warning("%s has not ended after it was given up; nothing waits for it any more", call.name)
        if isinstance(call.code, asyncio.Task):
            leave(call.code)

    def _note_end(self, code: "asyncio.Future[Ended]") -> None:
        """Note when a call ended, and log what code does that was given up."""
        call = self._calls.pop(code)
        call.ended_at = _now()
        if call.given_up_at is None:
            if not call.is_async:
                self._places.release()
            return
        if call.leaving is not None:
            call.leaving.cancel()
        self._given_up[call.is_async] -= 1
        self._changed.set()
        error = asyncio.CancelledError() if code.cancelled() else code.result().error  # cancelled before it began
        if call.is_left or not isinstance(error, asyncio.CancelledError):
            how = "returned a result" if error is None else f"raised {type(error).__name__}"
            seconds = call.ended_at - call.given_up_at
            log.warning("%s has %s %.1f s after it was given up; this is ignored", call.name, how, seconds)


_all: WeakSet[UserCode] = WeakSet()


def running() -> list[str]:
    """Return what runs in this process, also after it was given up. Can be called from any thread."""
    return [name for each in list(_all) for name in each.names]


def leave(task: "asyncio.Task[Any]") -> None:
    """Leave a task behind that does not end: `asyncio.run` does not wait for it.

    It is not freed before it ends: Python would end its coroutine with GeneratorExit, and a coroutine that catches
    everything in a loop would then run for ever, outside the event loop.
    """
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio does
    asyncio.tasks._unregister_task(task)  # noqa: SLF001 - documented for task classes
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
    task.add_done_callback(lambda ended: ctypes.pythonapi.Py_DecRef(ctypes.py_object(ended)))


async def end_tasks(tasks: "Iterable[asyncio.Task[Any]]", *, seconds: float = PATIENCE_SECONDS) -> None:
    """Cancel tasks, wait for their ends for some seconds, and leave behind those that have not ended."""
    found = set(tasks)
    for each in found:
        each.cancel()
    if found:
        _, left = await asyncio.wait(found, timeout=seconds)
        for each in left:
            leave(each)


async def end_loop() -> None:
    """End all other tasks of this event loop, before it is closed. `asyncio.run` would wait for them without end."""
    others = (each for each in asyncio.all_tasks() if each is not asyncio.current_task())
    await end_tasks(others, seconds=2 * PATIENCE_SECONDS)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _await(call: Callable[[], Awaitable[Any]]) -> Ended:
    try:
        return Ended(await call())
    except BaseException as error:  # noqa: BLE001 - the caller gets every error
        return Ended(error=error)


def _work(loop: asyncio.AbstractEventLoop, function: Callable[[], Any], ended: "asyncio.Future[Ended]") -> None:
    """Call a function in this thread, and tell the loop how it ended."""
    try:
        how = Ended(function())
    except BaseException as error:  # noqa: BLE001 - the caller gets every error
        how = Ended(error=error)
    with suppress(RuntimeError):  # the loop is closed: the program ends
        loop.call_soon_threadsafe(ended.set_result, how)
