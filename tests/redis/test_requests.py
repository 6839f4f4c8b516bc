"""The requests of tenants at Redis: how the service stops taking them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from timer_service.adapters.redis.connection import Connection
from timer_service.adapters.redis.requests import Requests
from timer_service.adapters.redis.streams import StreamUpkeep
from timer_service.core.values.address import Kind
from timer_service.redis_client import Keys

KEYS = Keys("timer")


async def test_the_driver_swallows_the_end() -> None:
    """`asyncio.wait_for` of Python 3.11, which the driver uses, can swallow a cancellation. The requests end anyway."""
    reading = asyncio.Event()

    async def create_group(*_: Any, **_options: Any) -> None: ...

    async def read(*_: Any, **_options: Any) -> Sequence[Any]:
        reading.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return ()

    connection = Connection("redis://127.0.0.1:1", KEYS, dict, {})
    connection.client = SimpleNamespace(xgroup_create=create_group, xreadgroup=read)
    requests = Requests(connection, KEYS, StreamUpkeep(connection.client, KEYS, manage=False), Kind.QUERY)
    await requests.serve(["get-timer"], lambda _: ())
    await reading.wait()
    async with asyncio.timeout(10):
        await requests.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
