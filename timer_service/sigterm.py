"""What programs do at SIGTERM and SIGINT, and how their processes end even if code of users hangs."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from timer_service.user_code import running

log = logging.getLogger(__name__)

CLOSE_SECONDS = 4
"""How long a program may take to end after the time that its steps or handlers have to finish."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS = 1
_LOG_SECONDS = 0.2
_MOST_FRAMES = 5
_MOST_NAMES = 20
_ENDS = {asyncio.Runner.close.__code__, threading._shutdown.__code__}  # type: ignore[attr-defined]  # noqa: SLF001
"""What the main thread runs while it closes its event loop, and while it waits for threads at the end of Python."""


class LastResort:
    """Ends the process with exit code 1 if it is still there after some seconds. Nothing is lost, as after a kill.

    A task that ignores its cancellation, code that blocks the event loop, or a thread that waits for the database would
    keep the process otherwise. If `is_stuck` is false at that time, it is asked again and again, until `may_go_on`.
    """

    def __init__(
        self,
        seconds: float,
        is_stuck: Callable[[], bool] = lambda: True,
        may_go_on: Callable[[], bool] = lambda: False,
    ) -> None:
        self._seconds = seconds
        self._is_stuck = is_stuck
        self._may_go_on = may_go_on
        self._thread = threading.Thread(target=self._run, name="last-resort", daemon=True)

    def start(self) -> None:
        """Start to count the seconds. Later calls do nothing."""
        with suppress(RuntimeError):  # it was started before
            self._thread.start()

    def _run(self) -> None:
        time.sleep(self._seconds)
        while not self._is_stuck():
            if self._may_go_on():
                return
            time.sleep(_LOOK_SECONDS)
        text = "the process does not end; ending it. Still running: %s. The main thread is at:\n%s"
        names = ", ".join(running()[:_MOST_NAMES]) or "nothing known"
        arguments = [names, stack_of(threading.main_thread().ident)]
        # The log gets some time only, because the part that hangs may hold its lock.
        line = threading.Thread(target=log.error, args=[text, *arguments], daemon=True)
        line.start()
        line.join(_LOG_SECONDS)
        os._exit(1)


def stack_of(thread: int | None) -> str:
    """Return the innermost calls of a thread."""
    return "".join(traceback.format_stack(_frame_of(thread))[-_MOST_FRAMES:])


def _frame_of(thread: int | None) -> Any:
    return sys._current_frames().get(thread or 0)  # noqa: SLF001 - documented


class _Program(NamedTuple):
    stop: Callable[[], None]
    seconds: float
    task: asyncio.Task[Any] | None


class _Programs:
    """The workers and apps of an event loop. They share the handlers of signals."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._found: list[_Program] = []
        self._before: dict[int, Any] = {}
        """The handlers of signals before the first program."""
        self._signals = 0

    def add(self, program: _Program) -> None:
        if not self._found:
            for number in _SIGNALS:
                with suppress(ValueError):  # this is not the main thread
                    # A handler of the event loop would not run while code of users blocks the event loop.
                    self._before[number] = signal.signal(number, self._handle)
        self._found.append(program)

    def remove(self, program: _Program) -> bool:
        """Remove a program. Return whether it was the last one."""
        if len(self._found) == 1:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._found.remove(program)
        return not self._found

    def _handle(self, *_: object) -> None:
        """Stop the programs at the first signal, and cancel them at the next one."""
        self._signals += 1
        is_first = self._signals == 1
        longest = max(each.seconds for each in self._found)
        # `_is_stuck` takes a second, too.
        seconds = longest + CLOSE_SECONDS - _LOOK_SECONDS if is_first else _LOOK_SECONDS
        # If the event loop was closed, the process goes on with something else.
        LastResort(seconds, self._is_stuck, self._loop.is_closed).start()
        for each in self._found:
            end: Callable[[], object] = each.stop if is_first or each.task is None else each.task.cancel
            self._loop.call_soon_threadsafe(end)

    def _is_stuck(self) -> bool:
        """Return whether a program still runs after a second, or the process does not come to its end."""
        hangs = hangs_at_the_end()
        return hangs or bool(self._found)


_programs: dict[asyncio.AbstractEventLoop, _Programs] = {}


@contextmanager
def at_sigterm(stop: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `stop` at SIGTERM or SIGINT, and cancel the current task at the second one. Only in the main thread.

    `seconds` is how long the block may go on after the first signal. The process ends `CLOSE_SECONDS` later if the
    block still runs then, or if the event loop or Python cannot be ended because of code that hangs.
    """
    loop = asyncio.get_running_loop()
    programs = _programs.setdefault(loop, _Programs(loop))
    program = _Program(stop, seconds, asyncio.current_task())
    programs.add(program)
    try:
        yield
    finally:
        if programs.remove(program):
            del _programs[loop]


def hangs_at_the_end() -> bool:
    """Return whether the main thread closes its event loop, or waits for threads at the end of Python, for a second."""
    ending = _ending()
    time.sleep(_LOOK_SECONDS)
    return ending is not None and _ending() is ending


def _ending() -> Any:
    """Return the call in which the main thread closes its event loop or waits for threads at the end of Python."""
    frame = _frame_of(threading.main_thread().ident)
    while frame is not None and frame.f_code not in _ENDS:
        frame = frame.f_back
    return frame
