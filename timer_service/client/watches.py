"""A watch: the events of one iteration, from when it begins."""

import asyncio
from collections.abc import Sequence

from timer_service.client.errors import NoAnswerError

READ_AHEAD_BYTES = 128 * 1024 * 1024
"""What a watch may keep for a program that reads it slowly."""
_OVERHEAD_BYTES = 64
"""What an event takes in memory beside its body."""
_TURN = 1_000
"""After so many events without a pause, other tasks have a turn."""
_LOST = "the connection to the broker has ended, and so has this watch; events may be missing until it begins again"
_TOO_SLOW = "the events were read too slowly, so this watch has ended; events may be missing until it begins again"


class Watch:
    """The events of one iteration, in the order in which they were received."""

    def __init__(self, tenant: str, messages: Sequence[str]) -> None:
        """Take events of a tenant or, with `*`, of all; of types in kebab case, with and without a topic."""
        self.tenant = tenant
        self.messages = messages
        self._bodies: asyncio.Queue[bytes | None] = asyncio.Queue()
        """The events that were not taken. None is the end."""
        self._bytes = 0
        self._taken = 0
        self._end_reason: str | None = None
        """Why there are no more events, or None before the end."""

    def add(self, body: bytes) -> None:
        """Keep an event until it is taken. Never waits: a watch that would keep too much ends instead."""
        if self._end_reason is not None:
            return
        size = len(body) + _OVERHEAD_BYTES
        if self._bytes + size > READ_AHEAD_BYTES:
            self.end(_TOO_SLOW)
            return
        self._bytes += size
        self._bodies.put_nowait(body)

    def end(self, reason: str) -> None:
        """Take no more events, because some may be missing from here on."""
        if self._end_reason is None:
            self._end_reason = reason
            self._bodies.put_nowait(None)

    def end_lost(self) -> None:
        """End the watch, because the connection is lost."""
        self.end(_LOST)

    async def next(self) -> bytes:
        """Return the next event. Raises `NoAnswerError` after the last one before the end."""
        self._taken += 1
        if self._taken % _TURN == 0:
            await asyncio.sleep(0)
        body = await self._bodies.get()
        if body is None:
            raise NoAnswerError(str(self._end_reason))
        self._bytes -= len(body) + _OVERHEAD_BYTES
        return body
