"""When held polls are over. Those of about the same instant end together, with one timer and one write of replies.

To wake the process costs several times as much as to answer a poll. The workers poll again together, so the service
also receives their next polls together.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import islice

from timer_service.workflows.polls import Poll

_EARLY_MS = 100
"""How much earlier than its `waitMs` a poll ends at most."""
_LONG_MS = 1000
"""A poll with a shorter `waitMs` does not end earlier."""
_PER_TURN = 200
"""How many polls end before other tasks run."""


def end_of(now_ms: int, wait_ms: int) -> int:
    """Return when a poll ends that may wait so long from now."""
    end = now_ms + wait_ms
    return end if wait_ms < _LONG_MS else end - end % _EARLY_MS


class PollEnds:
    """The ends of the held polls, by the monotonic clock of the event loop."""

    def __init__(self, on_end: Callable[[Sequence[Poll]], None]) -> None:
        """`on_end` is called with polls whose time is up. They are forgotten before."""
        self._on_end = on_end
        self._ends: dict[Poll, int] = {}
        self._polls: dict[int, dict[Poll, None]] = {}
        self._timers: dict[int, asyncio.Handle] = {}

    def add(self, poll: Poll, wait_ms: int) -> None:
        """Let a poll end, at the latest after `wait_ms`."""
        loop = asyncio.get_running_loop()
        end = self._ends[poll] = end_of(math.ceil(loop.time() * 1000), wait_ms)
        if end not in self._polls:
            self._polls[end] = {}
            self._timers[end] = loop.call_at(end / 1000, self._end, end)
        self._polls[end][poll] = None

    def remove(self, poll: Poll) -> None:
        """Forget a poll, if it is known."""
        if (end := self._ends.pop(poll, None)) is None:
            return
        del self._polls[end][poll]
        if not self._polls[end]:
            del self._polls[end]
            self._timers.pop(end).cancel()

    def _end(self, end: int) -> None:
        """End some polls, and the others in the next turn of the loop."""
        polls = list(islice(self._polls[end], _PER_TURN))
        self._timers[end] = asyncio.get_running_loop().call_soon(self._end, end)
        for poll in polls:
            self.remove(poll)
        self._on_end(polls)
