"""The upkeep of the streams: missing, changed and full streams are reported or repaired."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from tests.harness.clock import NOW
from tests.harness.processes import PATIENCE_SECONDS, NatsServer
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.faults import STORED, Answer, Fault
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.address import Kind

STREAMS = {Kind.COMMAND: "TIMER_CMD", Kind.EVENT: "TIMER_EVT", Kind.DEAD_LETTER: "TIMER_DLQ"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def operator(server: NatsServer) -> AsyncIterator[Client]:
    """Yield the connection of an operator. The streams exist."""
    async with await nats.connect(server.url) as operator:
        async with connected(server, manage=True):
            pass
        yield operator


@pytest.fixture
def js(operator: Client) -> JetStreamContext:
    return operator.jetstream()


@asynccontextmanager
async def connected(server: NatsServer, *, manage: bool) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.connect(server.url, "timer", reply_prefix="_INBOX.", manage_streams=manage)
    try:
        yield broker
    finally:
        await broker.close()


def stream_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if "stream" in each.message and each.levelno >= logging.INFO]


@pytest.mark.parametrize("kind", STREAMS)
async def test_missing_stream_is_created(
    server: NatsServer, js: JetStreamContext, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that was deleted is created again with its settings, and one line says so."""
    async with connected(server, manage=True) as broker:
        before = (await js.stream_info(STREAMS[kind])).config
        await js.delete_stream(STREAMS[kind])
        await broker.streams.tick(NOW)
        await broker.streams.tick(NOW)
        assert broker.streams.health[kind] == HEALTHY
    assert (await js.stream_info(STREAMS[kind])).config == before
    assert stream_lines(caplog) == ["a stream was created again; messages that only the old one had are lost"]


async def test_missing_stream_is_reported(
    server: NatsServer, js: JetStreamContext, caplog: pytest.LogCaptureFixture
) -> None:
    """If streams are not managed, a missing stream is reported, once a second, until the operator creates it."""
    caplog.set_level(logging.INFO)
    async with connected(server, manage=False) as broker:
        config = (await js.stream_info("TIMER_EVT")).config
        await js.delete_stream("TIMER_EVT")
        checks = [await broker.streams.tick(NOW) for _ in range(3)]
        missing = broker.streams.health[Kind.EVENT]
        with pytest.raises(NotFoundError):
            await js.stream_info("TIMER_EVT")
        await js.add_stream(config)
        checks.append(await broker.streams.tick(NOW))
        assert broker.streams.health[Kind.EVENT] == HEALTHY
    assert [each.next_at for each in checks] == [NOW + 1000, NOW + 1000, NOW + 1000, None]
    assert missing.reason == "stream TIMER_EVT is missing: create it, or set TIMER_MANAGE_STREAMS=true"
    assert stream_lines(caplog) == [
        "stream TIMER_EVT is unavailable",
        "a stream was created again; messages that only the old one had are lost",
        "stream TIMER_EVT is available again",
    ]


SUBJECTS = {kind: f"timer.{kind}.v1.*.{'>' if kind is Kind.EVENT else '*'}" for kind in STREAMS}


@pytest.mark.parametrize(
    ("setting", "value", "needed"),
    [
        ("discard", "old", "new"),
        ("no_ack", True, False),
        ("max_msg_size", 20, -1),
        ("max_msgs_per_subject", 1, -1),
        ("subject_transform", {"src": ">", "dest": "other.>"}, None),
        ("allow_rollup_hdrs", True, False),
        ("subjects", ["ours.>"], ["ours.>", SUBJECTS[Kind.EVENT]]),
        ("subjects", ["timer.evt.v1.*.*"], [SUBJECTS[Kind.EVENT]]),
        ("subjects", ["timer.evt.v1.*.*", "timer.evt.v1.a.b.>", "z"], [SUBJECTS[Kind.EVENT], "z"]),
    ],
)
@pytest.mark.parametrize("manage", [True, False])
async def test_settings_that_lose_messages(
    server: NatsServer, operator: Client, setting: str, value: Any, needed: Any, *, manage: bool
) -> None:
    """A setting with which a stream refuses, deletes or moves messages, or does not answer, is changed or reported."""
    async with connected(server, manage=manage) as broker:
        config = (await request(operator, "STREAM.INFO.TIMER_EVT", {}))["config"]
        await request(operator, "STREAM.UPDATE.TIMER_EVT", {**config, setting: value})
        await broker.streams.tick(NOW)
        config = (await request(operator, "STREAM.INFO.TIMER_EVT", {}))["config"]
        found = config.get(setting, None if needed is None else False)
        reason = broker.streams.health[Kind.EVENT].reason
    problem = f"stream TIMER_EVT needs {setting} = {json.dumps(needed)}: change the stream, or set"
    assert (found, reason) == ((needed, None) if manage else (value, f"{problem} TIMER_MANAGE_STREAMS=true"))


async def test_streams_without_atomic_batches(server: NatsServer, operator: Client) -> None:
    """A stream of the operator may refuse batches, which are only faster. That of commands does: tenants send to it."""
    stream = {**(await request(operator, "STREAM.INFO.TIMER_EVT", {}))["config"], "allow_atomic": False}
    for config, managed in ((stream, [False]), ({**stream, "persist_mode": "async"}, [False, True])):
        await request(operator, "STREAM.DELETE.TIMER_EVT")
        await request(operator, "STREAM.CREATE.TIMER_EVT", config)
        for manage in managed:
            async with connected(server, manage=manage) as broker:
                assert not broker.streams.atomic - {Kind.DEAD_LETTER}
    commands = (await request(operator, "STREAM.INFO.TIMER_CMD"))["config"]
    assert not commands.get("allow_atomic")


async def test_for_how_long_events_are_kept(server: NatsServer, operator: Client) -> None:
    """It is the age of the stream, whatever the operator makes of it."""
    kept = []
    async with connected(server, manage=False) as broker:
        config = (await request(operator, "STREAM.INFO.TIMER_EVT", {}))["config"]
        for max_age in (config["max_age"], 120_000_000_000, 0):
            await request(operator, "STREAM.UPDATE.TIMER_EVT", {**config, "max_age": max_age})
            await broker.streams.tick(NOW)
            kept.append(broker.streams.keeps_events_for)
    assert kept == [timedelta(days=7), timedelta(minutes=2), None]


async def test_an_update_keeps_the_settings_of_the_operator(
    server: NatsServer, operator: Client, js: JetStreamContext
) -> None:
    """An update of a stream changes only the settings that the service needs. The others stay to the nanosecond."""
    await js.delete_stream("TIMER_EVT")
    config = {
        "name": "TIMER_EVT",
        "subjects": [SUBJECTS[Kind.EVENT]],
        "description": "ours",
        "metadata": {"owner": "ops"},
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": 5_000_000_007,
        "allow_direct": True,
        "max_age": 604_800_123_456_789,
        "duplicate_window": 60_000_000_007,
        "first_seq": 10,
        "compression": "s2",
        "max_msgs": 10_000,
        "max_bytes": 10**9,
        "max_msg_size": 1_048_576,
        "max_consumers": 9,
        "republish": {"src": ">", "dest": "copy.>", "headers_only": True},
    }
    before = (await request(operator, "STREAM.CREATE.TIMER_EVT", config))["config"]
    async with connected(server, manage=True):
        after = (await request(operator, "STREAM.INFO.TIMER_EVT", {}))["config"]
    for each in before, after:
        each["metadata"] = {name: text for name, text in each["metadata"].items() if not name.startswith("_nats.")}
    assert after == {**before, "discard": "new", "allow_atomic": True}
    assert before.keys() >= config.keys()


@pytest.mark.parametrize(
    "limit", [StreamConfig(max_bytes=100_000), StreamConfig(max_msgs=3)], ids=["max_bytes", "max_msgs"]
)
async def test_full_stream(server: NatsServer, js: JetStreamContext, limit: StreamConfig) -> None:
    """A stream that is at one of its limits is reported as full, with the limit, until it has room again."""
    async with connected(server, manage=True) as broker:
        config = (await js.stream_info("TIMER_EVT")).config
        await js.update_stream(config.evolve(max_bytes=limit.max_bytes, max_msgs=limit.max_msgs))
        for _ in range(2):
            await js.publish("timer.evt.v1.acme.test", b"x" * 33_000)
        await broker.streams.tick(NOW)
        room = broker.streams.health[Kind.EVENT]
        await js.publish("timer.evt.v1.acme.test", b"x" * 33_000)
        await broker.streams.tick(NOW)
        full = broker.streams.health[Kind.EVENT]
        await js.purge_stream("TIMER_EVT")
        await broker.streams.tick(NOW)
        assert (room, broker.streams.health[Kind.EVENT]) == (HEALTHY, HEALTHY)
    assert not full.usable
    assert (full.reason or "").startswith("stream TIMER_EVT is full: it has ")
    assert f"{'max_msgs = 3' if limit.max_msgs else 'max_bytes = 100000'};" in (full.reason or "")


async def test_broker_without_room(server: NatsServer) -> None:
    """While the broker has no room for events, it has none for commands. An event that is stored shows its end."""
    refused = Answer(Fault.NO_STORAGE, "the disk is full")
    seen = []
    async with connected(server, manage=True) as broker:
        for kind, answers in ((Kind.EVENT, [STORED, refused]), (Kind.DEAD_LETTER, [STORED]), (Kind.EVENT, [STORED])):
            broker.streams.record(kind, answers)
            seen.append(broker.streams.health[Kind.COMMAND].usable)
    assert seen == [False, False, True]


async def test_streams_without_a_connection(server: NatsServer, js: JetStreamContext) -> None:
    """Without a connection nothing is known about the streams, so nothing is reported about them."""
    async with connected(server, manage=True) as broker:
        await server.terminate()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while broker.health.usable:
                await asyncio.sleep(0.01)
        await broker.streams.tick(NOW)
        assert broker.streams.health == dict.fromkeys(STREAMS, HEALTHY)
