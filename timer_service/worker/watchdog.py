"""Watches the workflow functions of a process: while one runs without await, all tasks of its worker wait.

The event loop cannot notice this, because such a function does not return to it. So a thread looks how long the turns
of functions take, and logs where a long one is.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
SLOW_SECONDS = 5.0
"""A turn that takes longer is logged. After twice as long, the shortest lease has ended."""
_MOST_FRAMES = 5


class _Turn:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.is_logged = False


class Watchdog:
    """The turns of workflow functions, by their threads. They are watched while a worker runs."""

    def __init__(self) -> None:
        self._turns: dict[int, _Turn] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the turns until the block ends."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_LOOK_SECONDS):
                self.look()

        threading.Thread(target=watch, name="workflow-watchdog", daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def run_turn(self, turn: Callable[[], None]) -> None:
        """Run a turn of a function in this thread."""
        thread = threading.get_ident()
        self._turns[thread] = _Turn()
        try:
            turn()
        finally:
            self._turns.pop(thread, None)

    def look(self) -> None:
        """Log the turns that take too long, each once."""
        for thread, turn in list(self._turns.items()):
            if not turn.is_logged and time.monotonic() - turn.began > SLOW_SECONDS:
                turn.is_logged = True
                frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented, for such purposes
                where = "".join(traceback.format_stack(frame)[-_MOST_FRAMES:])
                text = "a workflow function has run for %.0f s without an await; all tasks of its worker wait:\n%s"
                log.warning(text, SLOW_SECONDS, where)


WATCHDOG = Watchdog()
