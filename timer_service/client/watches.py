"""Watches of events. The watches of a subject share one subscription: a server may allow few of them per connection."""

import asyncio
from collections.abc import Sequence
from functools import partial

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from timer_service.client.calls import Calls
from timer_service.client.errors import NoAnswerError
from timer_service.core.ports.completion import run_to_completion

READ_AHEAD_BYTES = 128 * 1024 * 1024
"""What a watch may keep for a program that reads it slowly."""
_OVERHEAD_BYTES = 64
"""What an event takes in memory beside its body."""
_TURN = 1_000
"""After so many events without a pause, other tasks have a turn."""
_LOST = "the connection to the broker has ended; events may be missing from here on"
_TOO_SLOW = "the events were read too slowly; events may be missing from here on"


class Watch:
    """The events of one iteration, in the order in which they were received."""

    def __init__(self, subjects: Sequence[str]) -> None:
        self.subjects = subjects
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


class Watches:
    """The watches of a connection. There is a subscription to each subject that has watches."""

    def __init__(self, client: Client, calls: Calls) -> None:
        self._client = client
        self._calls = calls
        self._watches: list[Watch] = []
        self._subscriptions: dict[str, Subscription] = {}
        self._updating = asyncio.Lock()

    def end(self) -> None:
        """End every watch, because the connection is lost."""
        for watch in self._watches:
            watch.end(_LOST)

    async def join(self, watch: Watch) -> None:
        """Begin to receive. After it the watch misses no event. `leave` must follow, also after an error."""
        self._watches.append(watch)
        await self._calls.run(self._update())
        # The driver sends a flush before data that it holds back: only the second one follows the subscriptions.
        await self._calls.run(self._client.flush())
        await self._calls.run(self._client.flush())

    async def leave(self, watch: Watch) -> None:
        """Receive no more, also if the caller is cancelled meanwhile."""
        self._watches.remove(watch)
        await run_to_completion(self._update())

    async def _update(self) -> None:
        """Subscribe to the subjects that have watches, and unsubscribe from the others.

        One update follows the other: watches join and leave while the driver waits.
        """
        async with self._updating:
            watched = {subject for watch in self._watches for subject in watch.subjects}
            for subject in self._subscriptions.keys() - watched:
                subscription = self._subscriptions.pop(subject)
                if not self._client.is_closed:  # closing ended all subscriptions
                    await subscription.unsubscribe()
            for subject in sorted(watched - self._subscriptions.keys()):
                # The driver swallows a cancellation here, so no subscription is lost. The limits of 0 are none: the
                # driver would drop messages above limits, and few are pending, because `_receive` never waits.
                self._subscriptions[subject] = await self._client.subscribe(
                    subject, cb=partial(self._receive, subject), pending_msgs_limit=0, pending_bytes_limit=0
                )

    async def _receive(self, subject: str, message: Msg) -> None:
        """Give an event to the watches of the subject of its subscription."""
        for watch in self._watches:
            if subject in watch.subjects:
                watch.add(message.data)
