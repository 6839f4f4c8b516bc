"""A service as a client over Redis sees it: it answers by functions of the test."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from redis.exceptions import RedisError

from tests.harness.waiting import until
from timer_service.redis_client import RedisClient, new_client

Fields = Mapping[str, Any]
Reply = Callable[[Fields], Mapping[str, Any] | None]


def scheduled(fields: Fields) -> Mapping[str, Any]:
    return {"commandId": fields["id"], "outcome": "scheduled"}


class RedisPeer:
    """Reads commands, queries and requests of workers, also those of the tenant acme alone."""

    def __init__(self, client: RedisClient) -> None:
        self.client = client
        self.commands: list[Fields] = []
        self.outcome: Reply = scheduled
        """The outcome of a command; None: no outcome."""
        self.answer: Reply = lambda _: {"error": {"code": "NOT_FOUND", "message": "no such timer"}}
        """The answer to a query or a request of a worker; None: no answer."""

    async def run(self) -> None:
        """Answer until cancelled, also after an outage."""
        places = {f"timer:{kind}{tenant}": "0" for kind in ("cmd", "qry", "wrk") for tenant in ("", ":acme")}
        while True:
            try:
                for key, entries in await self.client.xread(places, block=500):
                    for entry_id, fields in entries:
                        await self._handle(
                            key.decode(), {name.decode(): value.decode() for name, value in fields.items()}
                        )
                        places[key.decode()] = entry_id
            except (RedisError, OSError):
                await asyncio.sleep(0.05)

    async def until_commands(self, number: int) -> None:
        await until(lambda: len(self.commands) >= number)

    async def _handle(self, key: str, fields: Fields) -> None:
        if ":cmd" in key:
            self.commands.append({"key": key, **fields})
        reply = self.outcome(fields) if ":cmd" in key else self.answer(fields)
        if reply is not None and "reply-to" in fields:
            await self.client.publish(fields["reply-to"], json.dumps(reply))


@asynccontextmanager
async def redis_peer(url: str) -> AsyncIterator[RedisPeer]:
    """Yield a peer that answers."""
    async with new_client(url, "peer") as client:
        peer = RedisPeer(client)
        running = asyncio.create_task(peer.run())
        try:
            yield peer
        finally:
            running.cancel()
            await asyncio.wait([running])
