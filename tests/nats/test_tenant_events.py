"""Streams from which tenants read their events, on a real server."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from tests.harness.processes import PATIENCE_SECONDS, NatsServer
from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.subjects import Subjects
from timer_service.cli.tenant_streams import stream_events
from timer_service.core.values.errors import StartError

SUBJECTS = Subjects("timer")
TENANTS = ["a", "b"]


@pytest.fixture
async def operator(server: NatsServer) -> AsyncIterator[Client]:
    async with await nats.connect(server.url, reconnect_time_wait=0.01) as client:
        await client.jetstream().add_stream(name="TIMER_EVT", subjects=["timer.evt.v1.*.>"])
        yield client


async def publish(client: Client, tenant: str, *bodies: bytes) -> None:
    for body in bodies:
        await client.jetstream().publish(f"timer.evt.v1.{tenant}.due-time-reached", body)


async def read(js: JetStreamContext, tenant: str, count: int) -> list[bytes]:
    """Read and acknowledge events of a tenant."""
    subscription = await js.pull_subscribe_bind(tenant, stream=f"TIMER_EVT_{tenant}")
    bodies: list[bytes] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(bodies) < count:
            for message in await subscription.fetch(count - len(bodies), timeout=PATIENCE_SECONDS):
                bodies.append(message.data)
                await message.ack_sync()
    await subscription.unsubscribe()
    return bodies


async def read_until(js: JetStreamContext, tenant: str, last: bytes) -> list[bytes]:
    """Read and acknowledge events of a tenant until one of them is `last`."""
    bodies: list[bytes] = []
    while last not in bodies:
        bodies += await read(js, tenant, 1)
    return bodies


async def test_each_tenant_reads_its_own_events(operator: Client) -> None:
    """A tenant gets the events that are stored already and later ones, in their order, and none of another tenant."""
    await publish(operator, "a", b"1", b"2")
    assert await stream_events(operator, SUBJECTS, TENANTS) == {"a": "TIMER_EVT_a", "b": "TIMER_EVT_b"}
    await publish(operator, "b", b"of b")
    await publish(operator, "a", b"3")
    js = operator.jetstream()
    assert await read(js, "a", 3) == [b"1", b"2", b"3"]
    assert await read(js, "b", 1) == [b"of b"]


async def test_streams_that_exist_stay(operator: Client) -> None:
    """A second run changes nothing, also not what the operator has changed, and replaces a deleted consumer."""
    await stream_events(operator, SUBJECTS, ["a"])
    await publish(operator, "a", b"1", b"2")
    js = operator.jetstream()
    await read(js, "a", 1)
    config = (await request(operator, "STREAM.INFO.TIMER_EVT_a"))["config"]
    await request(operator, "STREAM.UPDATE.TIMER_EVT_a", {**config, "max_bytes": 1000})
    await js.delete_consumer("TIMER_EVT_a", "a")
    await stream_events(operator, SUBJECTS, ["a"])
    found = (await request(operator, "STREAM.INFO.TIMER_EVT_a"))["config"]
    assert (found["max_bytes"], found["max_age"]) == (1000, 0), "an event stays until it is acknowledged"
    assert await read(js, "a", 1) == [b"2"]


async def test_stream_with_other_messages(operator: Client) -> None:
    """A stream of a tenant that does not take its events from the stream of events, or not only these, is not used."""
    await operator.jetstream().add_stream(name="TIMER_EVT_a", subjects=["other"])
    await stream_events(operator, SUBJECTS, ["b"])
    config = (await request(operator, "STREAM.INFO.TIMER_EVT_b"))["config"]
    await request(operator, "STREAM.UPDATE.TIMER_EVT_b", {**config, "subjects": ["more"]})
    for tenant in TENANTS:
        with pytest.raises(StartError, match=f"the stream TIMER_EVT_{tenant} does not take the events of {tenant}: "):
            await stream_events(operator, SUBJECTS, [tenant])


@pytest.mark.slow
async def test_full_stream_loses_no_event(operator: Client) -> None:
    """While a tenant does not read, its stream is full. When it reads, all later events arrive, in their order."""
    await stream_events(operator, SUBJECTS, ["a"])
    config = (await request(operator, "STREAM.INFO.TIMER_EVT_a"))["config"]
    await request(operator, "STREAM.UPDATE.TIMER_EVT_a", {**config, "max_bytes": 2000})
    bodies = [b"%d" % number + b"x" * 300 for number in range(20)]
    await publish(operator, "a", *bodies)
    assert await read(operator.jetstream(), "a", len(bodies)) == bodies


@pytest.mark.slow
async def test_older_copy_of_the_stream_of_events(operator: Client, server: NatsServer, tmp_path: Path) -> None:
    """If the stream of events is restored from an older copy, the server would skip new events. The error says so."""
    await stream_events(operator, SUBJECTS, ["a"])
    await publish(operator, "a", b"1")
    (stored,) = await asyncio.to_thread(lambda: [*tmp_path.glob("**/streams/TIMER_EVT")])
    await server.terminate()
    await asyncio.to_thread(shutil.copytree, stored, tmp_path / "copy")
    await server.start()
    async with await nats.connect(server.url) as client:
        await publish(client, "a", b"2")
        await read_until(client.jetstream(), "a", b"2")
    await server.terminate()
    await asyncio.to_thread(shutil.rmtree, stored)
    await asyncio.to_thread(shutil.copytree, tmp_path / "copy", stored)
    await server.start()
    async with await nats.connect(server.url) as client:
        with pytest.raises(StartError, match="TIMER_EVT_a has taken events that TIMER_EVT does not have: delete it"):
            await stream_events(client, SUBJECTS, ["a"])
        await client.jetstream().delete_stream("TIMER_EVT_a")
        await stream_events(client, SUBJECTS, ["a"])
        await publish(client, "a", b"3")
        assert await read(client.jetstream(), "a", 2) == [b"1", b"3"]
