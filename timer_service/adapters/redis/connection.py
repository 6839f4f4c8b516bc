"""The connections to Redis: their health, their outages, and the hints, whose connection is watched."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from timer_service.core.ports.broker import Reply
from timer_service.core.ports.health import HEALTHY, Health, OutageLog, RecentFailure, log_waiting
from timer_service.core.values.errors import StartError
from timer_service.core.values.parts import split
from timer_service.redis_client import ERRORS, Keys, ReadLogin, RedisClient, is_refused, new_client, reason_of

log = logging.getLogger(__name__)

_OPEN_SECONDS = 10
_RECONNECT_SECONDS = 0.2  # bounds how late timers fire after an outage
_PING_SECONDS = 2
_REFUSED_SECONDS = 30
_HINT_DIGITS = 15
_MOST_REPLIES = 500
_REPLY_BYTES = 256 * 1024
_PART = "the Redis server"


class Connection:
    """A pool of connections, and one that is watched: while it is lost, the broker counts as away."""

    def __init__(self, url: str, keys: Keys, login: ReadLogin, tls: dict[str, Any]) -> None:
        self._url = url
        self._login = login
        self._tls = tls
        self._keys = keys
        self.client = self.new_client("timer-service")
        self.outages = 0
        """How many times the connection was lost."""
        self._on_hint: list[Callable[[str, int], None]] = []
        self._up = asyncio.Event()
        self._reason = "not connected yet"
        self._outage = OutageLog(part=_PART, quiet_seconds=0)
        self._refused = RecentFailure(_REFUSED_SECONDS)
        """Whether the server refuses to publish to channels."""
        self._watching: asyncio.Task[None] | None = None
        self._closed = False
        """The driver can swallow the cancellation of the task."""

    def new_client(self, name: str, on_connect: Callable[[], None] = lambda: None) -> RedisClient:
        """Return another pool of connections, with the same login. `on_connect` is called for each of them."""
        return new_client(self._url, name, login=self._login, on_connect=on_connect, **self._tls)

    @property
    def health(self) -> Health:
        """Down while the connection is lost."""
        if not self._up.is_set():
            return Health.down(f"not connected to {_PART}: {self._reason}")
        refused = self._refused.health.reason
        return HEALTHY if refused is None else Health(reason=f"replies and hints cannot be sent: {refused}")

    async def open(self) -> None:
        """Connect. Raises `StartError` at once if the login is refused, and after ten seconds without an answer.

        Close it then, too.
        """
        give_up_at = time.monotonic() + _OPEN_SECONDS
        with log_waiting(f"{_PART} (TIMER_BROKER_URL)", lambda: self._reason):
            while not await self._answers():
                if time.monotonic() > give_up_at:
                    raise StartError(f"cannot connect to {_PART} (TIMER_BROKER_URL): {self._reason}")
                await asyncio.sleep(_RECONNECT_SECONDS)
            self._watching = asyncio.create_task(self._watch(), name="redis")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._up.wait(), _OPEN_SECONDS)
        if not self._up.is_set():
            raise StartError(f"cannot subscribe to the channel {self._keys.hints}: {self._reason}")

    async def _answers(self) -> bool:
        """Return whether the server answers. Raises `StartError` if it refuses the login."""
        try:
            await self.client.ping()
        except ERRORS as error:
            self._reason = reason_of(error)
            if is_refused(error):
                raise StartError(f"{_PART} refuses the login: {self._reason} (TIMER_BROKER_...)") from error
            return False
        return True

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send replies to the channels that clients listen to. They may be lost; nothing is raised."""
        for part in split(replies, lambda each: len(each.body), max_count=_MOST_REPLIES, max_bytes=_REPLY_BYTES):
            pipeline = self.client.pipeline(transaction=False)
            for each in part:
                pipeline.publish(each.to, each.body)
            try:
                answers = await pipeline.execute(raise_on_error=False)
            except ERRORS as error:
                log.warning("could not send replies", extra={"count": len(part), "reason": reason_of(error)})
                continue
            if refusals := [each for each in answers if isinstance(each, Exception)]:
                self._refused.record(reason_of(refusals[0]))

    async def hint(self, loop: str, at: int) -> None:
        """Send a wake-up hint to every instance."""
        if self.health.usable:
            await self.reply([Reply(self._keys.hints, b"%b %d" % (loop.encode(), at))])

    async def subscribe_hints(self, on_hint: Callable[[str, int], None]) -> None:
        """Call `on_hint` for every hint of every instance. Messages that are no hints are ignored."""
        self._on_hint.append(on_hint)

    async def close(self) -> None:
        """Disconnect."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.client.aclose()

    async def _watch(self) -> None:
        """Receive hints. The server must answer on this connection; otherwise the connection is lost."""
        while not self._closed:
            async with self.client.pubsub() as subscription:
                try:
                    await subscription.subscribe(self._keys.hints)
                    await self._receive(subscription)
                except ERRORS as error:
                    self._lose(reason_of(error))
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _receive(self, subscription: Any) -> None:
        """Receive hints until the server does not answer."""
        asked = False
        while not self._closed:
            message = await subscription.get_message(timeout=_PING_SECONDS)
            if message is None:
                if asked:
                    raise TimeoutError("it does not answer")
                await subscription.ping()
            asked = message is None
            if message is None:
                continue
            if message["type"] == "subscribe":
                self._up.set()
                self._outage.record_success()
            if message["type"] == "message":
                loop, _, at = message["data"].partition(b" ")
                if at.isdigit() and len(at) <= _HINT_DIGITS:
                    for call in self._on_hint:
                        call(loop.decode(errors="replace"), int(at))

    def _lose(self, reason: str) -> None:
        if self._up.is_set():
            self.outages += 1
        self._up.clear()
        self._reason = reason
        self._outage.record_failure(reason)
