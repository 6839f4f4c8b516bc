"""The storage of the account and of the server: without room, the commands of users are refused too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import APIError

from tests.harness.builders import event
from tests.harness.clock import NOW
from tests.harness.processes import NatsServer
from timer_service.adapters.nats import NatsBroker
from timer_service.core.ports.broker import PublishStatus
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.address import Kind

_STORE = '"/data"'
SERVER_LIMIT = f"port: 4222\njetstream {{ store_dir: {_STORE}, max_file_store: 4MB }}"
ACCOUNT_LIMIT = f"""
port: 4222
jetstream {{ store_dir: {_STORE} }}
accounts {{ A {{ jetstream {{ max_file: 4MB, max_mem: 1MB }}, users: [
  {{ user: operator, password: x }}
  {{ user: service, password: x }}
] }} }}
no_auth_user: service
"""


@asynccontextmanager
async def connected(folder: Path, config: str) -> AsyncIterator[tuple[NatsBroker, JetStreamContext]]:
    """Yield the broker of the service, and the operator's access to the streams."""
    async with NatsServer(folder / "nats", config=config) as server:
        broker = await NatsBroker.connect(server.url, "timer", reply_prefix="_INBOX.", manage_streams=True)
        try:
            async with await nats.connect(server.url, user="operator", password="x") as operator:
                yield broker, operator.jetstream()
        finally:
            await broker.close()


async def fill(js: JetStreamContext) -> None:
    """Publish commands until the broker has no room for another one."""
    with suppress(APIError):
        for _ in range(100):
            await js.publish("timer.cmd.v1.acme.test", b"x" * 60_000)
    with pytest.raises(APIError, match="resource"):
        await js.publish("timer.cmd.v1.acme.test", b"x" * 60_000)


@pytest.mark.parametrize("config", [SERVER_LIMIT, ACCOUNT_LIMIT], ids=["server", "account"])
async def test_refused_event(tmp_path: Path, config: str) -> None:
    """If the broker has no room for an event, it has none for commands either, until an event is stored again."""
    async with connected(tmp_path, config) as (broker, js):
        await fill(js)
        await broker.streams.tick(NOW)
        before = broker.streams.health[Kind.COMMAND]
        (refused,) = await broker.publish([event(size=60_000)])
        full = broker.streams.health[Kind.COMMAND]
        await js.purge_stream("TIMER_CMD")
        (stored,) = await broker.publish([event(size=60_000)])
        assert before == broker.streams.health[Kind.COMMAND] == HEALTHY
    assert [refused.status, stored.status] == [PublishStatus.FULL, PublishStatus.PUBLISHED]
    assert full.reason == f"the broker has no room for events, and commands need the same storage: {refused.reason}"
