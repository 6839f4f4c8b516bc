"""Runs the relay of an outbox in a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.harness.user_databases import UserDatabase
from timer_service.client.outbox import OutboxRelay

COUNT = "SELECT COUNT(*) FROM timer_outbox WHERE error IS NULL"
"""How many commands wait to be sent."""


@asynccontextmanager
async def running(relay: OutboxRelay) -> AsyncIterator[None]:
    """Run a relay during the block."""
    task = asyncio.create_task(relay.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until_sent(database: UserDatabase, waiting: int = 0) -> None:
    """Wait until only so many commands wait."""
    async with asyncio.timeout(30):
        while (await database.query(COUNT))[0][0] > waiting:
            await asyncio.sleep(0.02)
