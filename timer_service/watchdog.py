"""Watches the event loop of a worker or an app: while code of the user runs without await, everything else waits.

The loop cannot notice this, because such code does not return to it. So a thread looks, and logs where it is.
"""

import asyncio
import logging
import threading
import time

from timer_service.sigterm import stack_of

log = logging.getLogger(__name__)

SLOW_SECONDS = 5.0
"""Code that takes longer is logged. After twice as long, the shortest lease has ended."""


async def watch_loop(consequence: str) -> None:
    """Log each time that code blocks this event loop for long, and the consequence, until cancelled."""
    watchdog = _Watchdog(threading.get_ident(), asyncio.get_running_loop(), consequence)
    threading.Thread(target=watchdog.look, name="timer-watchdog", daemon=True).start()
    try:
        while True:
            watchdog.seen_at = time.monotonic()
            await asyncio.sleep(SLOW_SECONDS / 5)
    finally:
        watchdog.done.set()


class _Watchdog:
    def __init__(self, thread: int, loop: asyncio.AbstractEventLoop, consequence: str) -> None:
        self.done = threading.Event()
        self.seen_at = time.monotonic()
        """When the loop went on last."""
        self._thread = thread
        self._loop = loop
        self._consequence = consequence

    def look(self) -> None:
        """Look until the loop ends."""
        logged_at = 0.0
        while not self.done.wait(SLOW_SECONDS / 5):
            seen_at = self.seen_at
            if seen_at != logged_at and time.monotonic() - seen_at > SLOW_SECONDS:
                logged_at = seen_at
                task = asyncio.current_task(self._loop)
                who = "code" if task is None else f"code ({task.get_name()})"
                text = "%s has run for %.0f s without an await; %s:\n%s"
                log.warning(text, who, SLOW_SECONDS, self._consequence, stack_of(self._thread))
