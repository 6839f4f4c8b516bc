"""RabbitMQ for tests of what only RabbitMQ has."""

from collections.abc import AsyncIterator

import pytest

from tests.harness.rabbit_harness import RabbitHarness, rabbit_harness


@pytest.fixture
async def rabbit(request: pytest.FixtureRequest) -> AsyncIterator[RabbitHarness]:
    """Yield a broker without messages, and a user of it."""
    async with rabbit_harness(request) as started:
        yield started
