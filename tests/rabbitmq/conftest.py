"""RabbitMQ for tests of what only RabbitMQ has."""

from collections.abc import AsyncIterator

import pytest

from tests.harness.rabbit_harness import RabbitHarness, rabbit_harness
from tests.harness.rabbit_peer import RabbitPeer


@pytest.hookimpl(tryfirst=True)  # before the option -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test over RabbitMQ is slow: its server takes seconds to start."""
    for item in items:
        if "rabbit" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
async def rabbit(request: pytest.FixtureRequest) -> AsyncIterator[RabbitHarness]:
    """Yield a broker without messages, and a user of it."""
    async with rabbit_harness(request) as started:
        yield started


@pytest.fixture
async def peer(rabbit: RabbitHarness) -> RabbitPeer:
    """Return what answers in place of the service."""
    peer = RabbitPeer(await rabbit.user.channel(), rabbit.prefix)
    await peer.open()
    return peer
