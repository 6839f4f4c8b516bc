"""Servers in containers. TIMER_TEST_NATS_IMAGE and TIMER_TEST_POSTGRES_IMAGE name their images."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
from testcontainers.community.postgres import PostgresContainer
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from tests.harness.databases import LOST
from tests.harness.postgres import SETTINGS, SIGNALS, StopMode
from tests.harness.processes import unused_port

_NATS_IMAGE = os.environ.get("TIMER_TEST_NATS_IMAGE", "nats:2")
_POSTGRES_IMAGE = os.environ.get("TIMER_TEST_POSTGRES_IMAGE", "postgres:17")
_PATIENCE_SECONDS = 30


@contextmanager
def nats_container() -> Iterator["DockerNats"]:
    """Run a nats-server with JetStream."""
    # `NatsContainer` is not used, because importing its module emits warnings about its own code.
    ready = LogMessageWaitStrategy("Server is ready").with_poll_interval(0.05)
    container = DockerContainer(_NATS_IMAGE).with_command("-js").waiting_for(ready)
    with container.with_bind_ports(4222, unused_port()) as started:  # Docker would choose a new port at each restart
        yield DockerNats(f"nats://{started.get_container_host_ip()}:{started.get_exposed_port(4222)}", started)


@contextmanager
def postgres_container() -> Iterator["DockerPostgres"]:
    """Run a Postgres server."""
    command = ["postgres", *(word for setting in SETTINGS for word in ("-c", setting))]
    container = PostgresContainer(
        _POSTGRES_IMAGE, username="postgres", password="postgres", dbname="postgres", driver=None
    )
    with container.with_command(command).with_bind_ports(5432, unused_port()) as started:
        yield DockerPostgres(started)


class DockerNats:
    """A nats-server that keeps its streams and port across restarts."""

    def __init__(self, url: str, container: DockerContainer) -> None:
        self.url = url
        self._container: Any = container.get_wrapped_container()

    async def start(self) -> None:
        """Start the server again. Do not wait for it, because clients reconnect on their own."""
        await asyncio.to_thread(self._container.start)

    async def terminate(self) -> None:
        """Stop the server."""
        await asyncio.to_thread(self._container.stop)


class DockerPostgres:
    """A Postgres server that keeps its data and port across restarts."""

    def __init__(self, container: PostgresContainer) -> None:
        self.url = container.get_connection_url()
        self._container: Any = container.get_wrapped_container()

    async def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        await asyncio.to_thread(self._container.start)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not await self._answers():
                await asyncio.sleep(0.05)

    async def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server. After `immediate`, it recovers at the next start, as after a crash."""
        await self._end(SIGNALS[mode].name)

    async def kill(self) -> None:
        """Kill the server with SIGKILL. Return when all its processes have ended."""
        await self._end("SIGKILL")

    async def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again."""
        await self.stop(mode)
        await self.start()

    async def _end(self, number: str) -> None:
        await asyncio.to_thread(self._container.kill, number)
        await asyncio.to_thread(self._container.wait, timeout=_PATIENCE_SECONDS)

    async def _answers(self) -> bool:
        try:
            connection = await asyncpg.connect(self.url)
        except LOST:
            return False
        await connection.close()
        return True
