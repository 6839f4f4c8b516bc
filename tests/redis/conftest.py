"""A Redis server of its own for a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.redis import RedisServer
from tests.harness.redis_peer import RedisPeer, redis_peer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """Yield an empty server. The test may stop, kill and start it again."""
    async with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def peer(server: RedisServer) -> AsyncIterator[RedisPeer]:
    """Yield what answers in place of the service."""
    async with redis_peer(server.url) as peer:
        yield peer
