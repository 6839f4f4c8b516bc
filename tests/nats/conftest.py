"""A nats-server of its own for a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.processes import NatsServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Yield a server without streams. The test may stop, kill and start it again."""
    async with NatsServer(tmp_path / "nats") as server:
        yield server
