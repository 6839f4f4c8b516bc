"""Fixtures of the tests of deploy/nats.conf: a server, the service with its login, the operator and two tenants."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.fence import CONFIG, PASSWORDS, SERVICE_LOGIN, Operator, Peer, connect
from tests.harness.processes import NatsServer, Service


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats", config=CONFIG, **PASSWORDS) as server:
        yield server


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Service]:
    async with Service(tmp_path / "service", broker.url, **SERVICE_LOGIN, TIMER_LOG_FORMAT="json") as running:
        yield running


@pytest.fixture
async def operator(broker: NatsServer, service: Service) -> AsyncIterator[Operator]:
    peer = await connect(broker, "operator", Operator)
    await peer.create_consumer("tenant-a")
    await peer.create_consumer("tenant-b")
    yield peer
    await peer.connection.close()


@pytest.fixture
async def a(broker: NatsServer, operator: Operator) -> AsyncIterator[Peer]:
    peer = await connect(broker, "tenant-a")
    yield peer
    await peer.connection.close()


@pytest.fixture
async def b(broker: NatsServer, operator: Operator) -> AsyncIterator[Peer]:
    peer = await connect(broker, "tenant-b")
    yield peer
    await peer.connection.close()
