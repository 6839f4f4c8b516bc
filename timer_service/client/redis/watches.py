"""The watches of a connection. One task reads the streams of the tenants that are watched."""

import asyncio
from collections.abc import Mapping

from timer_service.cancellation import keep_cancellation
from timer_service.client.redis.pipe import Pipe
from timer_service.client.watches import Watch
from timer_service.core.values.address import Kind
from timer_service.redis_client import ERRORS, Keys, RedisClient

_BLOCK_MS = 1000
"""How long a read waits for events. Then the streams of new tenants are looked for."""
_READ = 100
_FIRST = b"0-0"


class Watches:
    """The watches of a connection."""

    def __init__(self, client: RedisClient, pipe: Pipe, keys: Keys) -> None:
        self._client = client
        self._pipe = pipe
        self._stream = keys.stream
        self._begin = keys.stream(Kind.EVENT) + ":"
        self._watches: list[Watch] = []
        self._places: dict[bytes, bytes] = {}
        """Up to where each stream was read."""
        self._reading: asyncio.Task[None] | None = None

    def end(self) -> None:
        """End every watch, because the connection is lost, and read no more."""
        for watch in self._watches:
            watch.end_lost()
        self._places.clear()
        self._stop()

    async def join(self, watch: Watch) -> None:
        """See `Link.join`. The watch counts when its places are known: until then, each stream would be a new one."""
        keys = await self._find([watch])
        if watch.tenant != "*":  # otherwise other watches, which read the stream, could leave meanwhile
            keys -= self._places.keys()
        for key, last in zip(keys, await asyncio.gather(*map(self._last, keys)), strict=True):
            self._places.setdefault(key, last)
        self._watches.append(watch)
        self._restart()

    async def leave(self, watch: Watch) -> None:
        """See `Link.leave`."""
        if watch not in self._watches:
            return
        self._watches.remove(watch)
        if not any(each.tenant == "*" for each in self._watches):
            watched = {self._stream(Kind.EVENT, each.tenant).encode() for each in self._watches}
            if unwatched := self._places.keys() - watched:
                for key in unwatched:
                    del self._places[key]
                self._restart()

    def _restart(self) -> None:
        """Read the streams that are watched now. What was on its way is read again."""
        self._stop()
        if self._watches:
            self._reading = asyncio.create_task(self._read())

    def _stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self) -> None:
        """Read events and give them to the watches, until the connection is lost or another task reads.

        The driver can swallow a cancellation, and then this task would give every event a second time.
        """
        me = asyncio.current_task()
        try:
            while self._reading is me:
                with keep_cancellation():
                    streams = await self._find(self._watches)
                if any(each.tenant == "*" for each in self._watches) and self._reading is me:
                    new = streams - self._places.keys()  # they were created after the watch began
                    self._places |= dict.fromkeys(new, _FIRST)
                if not self._places:
                    await asyncio.sleep(_BLOCK_MS / 1000)
                    continue
                with keep_cancellation():
                    found = await self._client.xread(dict(self._places), _READ, _BLOCK_MS)
                for key, entries in found if self._reading is me else ():
                    for _, fields in entries:
                        self._give(key, fields)
                    self._places[key] = entries[-1][0]
        except ERRORS:
            if self._reading is me:
                self.end()

    def _give(self, key: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Give an event to the watches that want it."""
        tenant = key.decode().removeprefix(self._begin)
        message = fields.get(b"type", b"").decode(errors="replace")
        for watch in self._watches:
            if watch.tenant in {"*", tenant} and message in watch.messages:
                watch.add(fields.get(b"body", b""))

    async def _find(self, watches: list[Watch]) -> set[bytes]:
        """Return the streams of watches."""
        if all(each.tenant != "*" for each in watches):
            return {self._stream(Kind.EVENT, each.tenant).encode() for each in watches}
        return {key async for key in self._client.scan_iter(f"{self._begin}*", count=1000, _type="STREAM")}

    async def _last(self, key: bytes) -> bytes:
        """Return the id of the last entry of a stream."""
        found = await self._pipe.send(lambda pipeline: pipeline.xrevrange(key, count=1))
        last: bytes = found[0][0] if found else _FIRST
        return last
