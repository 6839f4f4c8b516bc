"""The Redis connection behind the broker port."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from timer_service.adapters.redis.connection import Connection
from timer_service.adapters.redis.log import RedisLog
from timer_service.adapters.redis.publisher import MAX_MESSAGE_BYTES, Publisher
from timer_service.adapters.redis.requests import Requests
from timer_service.adapters.redis.streams import StreamUpkeep
from timer_service.core.ports.broker import PublishResult, ReceiveRequest, Reply
from timer_service.core.ports.health import Health
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Message
from timer_service.redis_client import ERRORS, Keys, ReadLogin, reason_of

_OVERLAP = timedelta(minutes=1)


class RedisBroker:
    """`core.broker.Broker` on streams of Redis or Valkey."""

    max_message_bytes = MAX_MESSAGE_BYTES
    reading = True
    """The connections are restored for ever."""

    def __init__(self, connection: Connection, keys: Keys, streams: StreamUpkeep, overlap: timedelta) -> None:
        self._connection = connection
        self._keys = keys
        self.streams = streams
        """A worker that looks at the server."""
        self.log = RedisLog(connection, keys, streams, overlap // timedelta(microseconds=1) * 1000)
        """The log of the commands."""
        self.reply_prefixes = (keys.replies,)
        """How the channels begin to which replies may be sent."""
        self._publisher = Publisher(connection.client, keys, streams)
        self._requests: list[Requests] = []

    @classmethod
    async def connect(
        cls,
        url: str,
        prefix: str,
        *,
        login: ReadLogin = dict,
        tls: Mapping[str, Any] | None = None,
        manage_streams: bool,
        overlap: timedelta = _OVERLAP,
    ) -> "RedisBroker":
        """Connect. `login` is called for each connect. `tls`: options of the driver, such as `ssl_ca_certs`.

        `overlap`: another log is read from the time of the last command, and this much earlier, as clocks may differ.

        Raises `StartError` at once if the login is refused or the server may delete streams. Raises it after ten
        seconds, with the last reason, if the server does not answer.
        """
        keys = Keys(prefix)
        connection = Connection(url, keys, login, dict(tls or {}))
        await connection.open()
        streams = StreamUpkeep(connection.client, keys, manage=manage_streams)
        broker = cls(connection, keys, streams, overlap)
        try:
            await streams.prepare()
        except (*ERRORS, StartError) as error:
            await broker.close()
            if isinstance(error, StartError):
                raise
            raise StartError(f"the Redis server does not answer: {reason_of(error)}") from error
        return broker

    @property
    def health(self) -> Health:
        """Down without a connection."""
        return self._connection.health

    @property
    def outages(self) -> int:
        """How many times the connection was lost."""
        return self._connection.outages

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages in their streams. Return one result each."""
        return await self._publisher.publish(messages)

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> Requests:
        """Receive queries or requests."""
        requests = Requests(self._connection, self._keys, self.streams, kind)
        self._requests.append(requests)
        await requests.serve(names, receive)
        return requests

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send replies to the channels that clients listen to."""
        if replies:
            await self._connection.send(replies)

    async def hint(self, loop: str, at: int) -> None:
        """Send a wake-up hint to every instance."""
        if self.health.usable:
            await self._connection.send([Reply(self._keys.hints, b"%b %d" % (loop.encode(), at))])

    async def subscribe_hints(self, on_hint: Callable[[str, int], None]) -> None:
        """Call `on_hint` for every hint of every instance. Messages that are no hints are ignored."""
        self._connection.on_hint.append(on_hint)

    async def wait_lost(self) -> str:
        """Wait for ever: a connection is restored however often it is lost."""
        await asyncio.Event().wait()
        return ""

    async def close(self) -> None:
        """Disconnect."""
        for requests in self._requests:
            await requests.close()
        await self.log.disconnect()
        await self._connection.close()
