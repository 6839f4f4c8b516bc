"""The Redis connection behind the broker port."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from timer_service.adapters.redis.connection import Connection
from timer_service.adapters.redis.log import RedisLog
from timer_service.adapters.redis.publisher import MAX_MESSAGE_BYTES, Publisher
from timer_service.adapters.redis.requests import Requests
from timer_service.adapters.redis.streams import StreamUpkeep
from timer_service.core.ports.broker import ReceiveRequest
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.redis_client import ERRORS, Keys, ReadLogin, reason_of

_OVERLAP = timedelta(minutes=1)


class RedisBroker(Connection):
    """`core.ports.broker.Broker` on streams of Redis or Valkey."""

    max_message_bytes = MAX_MESSAGE_BYTES
    reading = True
    """The connections are restored for ever."""

    def __init__(
        self, url: str, keys: Keys, login: ReadLogin, tls: dict[str, Any], *, manage: bool, overlap: timedelta
    ) -> None:
        super().__init__(url, keys, login, tls)
        self.streams = StreamUpkeep(self.client, keys, manage=manage)
        """A worker that looks at the server."""
        self.log = RedisLog(self, keys, self.streams, overlap // timedelta(microseconds=1) * 1000)
        """The log of the commands."""
        self.publish = Publisher(self.client, keys, self.streams).publish
        """Stores messages in their streams. Returns one result each."""
        self.reply_prefixes = (keys.replies,)
        """How the channels begin to which replies may be sent."""
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
        broker = cls(url, Keys(prefix), login, dict(tls or {}), manage=manage_streams, overlap=overlap)
        try:
            await broker.open()
            await broker.streams.prepare()
        except (*ERRORS, StartError) as error:
            await broker.close()
            if isinstance(error, StartError):
                raise
            raise StartError(f"the Redis server does not answer: {reason_of(error)}") from error
        return broker

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> Requests:
        """Receive queries or requests."""
        requests = Requests(self, self._keys, self.streams, kind)
        self._requests.append(requests)
        await requests.serve(names, receive)
        return requests

    async def wait_lost(self) -> str:
        """Wait for ever: a connection is restored however often it is lost."""
        await asyncio.Event().wait()
        return ""

    async def close(self) -> None:
        """Disconnect."""
        for requests in self._requests:
            await requests.close()
        await self.log.close()
        await super().close()
