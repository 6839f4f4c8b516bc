"""Streams for the commands of each tenant, from which the stream of commands takes them, on a real server."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import NoStreamResponseError

from tests.harness.clock import NOW
from tests.harness.processes import PATIENCE_SECONDS, NatsServer
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.subjects import Subjects
from timer_service.cli.tenant_streams import separate_tenants
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.address import Kind

SUBJECTS = Subjects("timer")


@asynccontextmanager
async def operator(server: NatsServer) -> AsyncIterator[Client]:
    async with await nats.connect(server.url, allow_reconnect=False) as client:
        yield client


@asynccontextmanager
async def service(server: NatsServer) -> AsyncIterator[NatsBroker]:
    """Connect a broker, and open its log at the first command."""
    broker = await NatsBroker.connect(server.url, "timer", reply_prefix="_INBOX.", manage_streams=True)
    try:
        await broker.log.open(None, "ours")
        yield broker
    finally:
        await broker.close()


async def publish(client: Client, tenant: str, *bodies: str) -> None:
    for body in bodies:
        await client.jetstream().publish(f"timer.cmd.v1.{tenant}.schedule-timer", body.encode())


async def read(broker: NatsBroker, count: int) -> list[str]:
    """Read commands, and return their bodies in the order of the log."""
    bodies: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(bodies) < count:
            bodies += [each.body.decode() for each in (await broker.log.read(100, 100_000, 1)).commands]
    return bodies


async def until_taken(client: Client, count: int, *, left: int = 0) -> Sequence[str]:
    """Wait until the stream of commands has so many, and only `left` wait. Return all that it has."""
    async with asyncio.timeout(3 * PATIENCE_SECONDS):  # on a busy machine, a restart of the server took more than one
        while (found := await state(client, "TIMER_CMD"))["messages"] < count or await waiting(client) > left:
            await asyncio.sleep(0.02)
    js = client.jetstream()
    stored = range(found["first_seq"], found["last_seq"] + 1)
    return [((await js.get_msg("TIMER_CMD", each)).data or b"").decode() for each in stored]


async def waiting(client: Client) -> int:
    """Return how many commands the streams of the tenants still have."""
    sources = (await config(client, "TIMER_CMD"))["sources"]
    return sum([(await state(client, each["name"]))["messages"] for each in sources])


async def state(client: Client, stream: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (await request(client, f"STREAM.INFO.{stream}"))["state"]
    return found


async def config(client: Client, stream: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (await request(client, f"STREAM.INFO.{stream}"))["config"]
    return found


async def test_shared_stream_is_converted(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """A shared stream keeps its commands, and those from the new streams are behind them. The service reads on.

    It recognizes repeats for the shortest time only, because two tenants may use the same id.
    """
    async with operator(server) as client, service(server) as broker:
        await publish(client, "a", "old")
        assert await read(broker, 1) == ["old"]
        assert await separate_tenants(client, SUBJECTS, ["a", "b"]) == ["a", "b"]
        assert (await config(client, "TIMER_CMD"))["duplicate_window"] == 100_000_000
        await publish(client, "a", "new of a")
        await publish(client, "b", "new of b")
        assert sorted(await read(broker, 2)) == ["new of a", "new of b"]
        await broker.streams.tick(NOW)
        assert broker.streams.health[Kind.COMMAND] == HEALTHY
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_tenants_are_added(server: NatsServer) -> None:
    """A second run adds only what is missing, and keeps the settings that the operator has changed."""
    async with operator(server) as client:
        await separate_tenants(client, SUBJECTS, ["a"])
        own = SUBJECTS.tenant_commands("a")
        await request(client, f"STREAM.UPDATE.{own}", {**await config(client, own), "max_bytes": 7_000_000})
        await request(client, "STREAM.UPDATE.TIMER_CMD", {**await config(client, "TIMER_CMD"), "subjects": ["other"]})
        before = [await config(client, name) for name in ("TIMER_CMD", own)]
        assert await separate_tenants(client, SUBJECTS, ["a"]) == []
        assert [await config(client, name) for name in ("TIMER_CMD", own)] == before
        assert await separate_tenants(client, SUBJECTS, ["b"]) == ["b"]
        assert await config(client, own) == before[1]
        await publish(client, "a", "of a")
        await publish(client, "b", "of b")
        assert sorted(await until_taken(client, 2)) == ["of a", "of b"]
        with pytest.raises(NoStreamResponseError):
            await publish(client, "c", "of c")


async def test_unfinished_run_is_continued(server: NatsServer) -> None:
    """If a run has ended early, the next one completes it."""
    async with operator(server) as client:
        await separate_tenants(client, SUBJECTS, ["a", "b"])
        await publish(client, "b", "before")
        await until_taken(client, 1)
        own = SUBJECTS.tenant_commands("a")
        await request(client, f"STREAM.UPDATE.{own}", {**await config(client, own), "subjects": ["other"]})
        await request(client, f"STREAM.DELETE.{SUBJECTS.tenant_commands('b')}")
        assert await separate_tenants(client, SUBJECTS, ["a", "b"]) == ["b"]
        await publish(client, "a", "of a")
        await publish(client, "b", "of b")
        assert sorted(await until_taken(client, 3)) == ["before", "of a", "of b"]


@pytest.mark.slow
async def test_crash_of_the_server(server: NatsServer) -> None:
    """A crash in the middle of a backlog loses, repeats and reorders nothing."""
    bodies = [f"command {number}" for number in range(3_000)]
    async with operator(server) as client:
        await separate_tenants(client, SUBJECTS, ["a"])
        js = client.jetstream()
        await asyncio.gather(
            *[await js.publish_async("timer.cmd.v1.a.schedule-timer", body.encode()) for body in bodies]
        )
        assert await waiting(client) > 0
        await server.kill()
    await server.start()
    async with operator(server) as client:
        assert await until_taken(client, len(bodies)) == bodies


@pytest.mark.slow
async def test_stream_of_commands_has_no_room(server: NatsServer) -> None:
    """While the stream of commands is full, commands wait in the streams of the tenants. None is lost or repeated."""
    async with operator(server) as client:
        await separate_tenants(client, SUBJECTS, ["a", "b"])
        free = await config(client, "TIMER_CMD")
        await request(client, "STREAM.UPDATE.TIMER_CMD", {**free, "max_msgs": 10})
        for tenant in ("a", "b"):
            await publish(client, tenant, *(f"{tenant} {number}" for number in range(100)))
        assert len(await until_taken(client, 10, left=200)) == 10
        await request(client, "STREAM.UPDATE.TIMER_CMD", free)
        found = await until_taken(client, 200)
        assert [each for each in found if each[0] == "a"] == [f"a {number}" for number in range(100)]
        assert [each for each in found if each[0] == "b"] == [f"b {number}" for number in range(100)]
