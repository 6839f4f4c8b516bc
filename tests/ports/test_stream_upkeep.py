"""The upkeep of the streams: missing, changed and full streams are reported or repaired."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig
from nats.js.errors import NotFoundError

from tests.harness.builders import event
from tests.harness.clock import NOW
from tests.harness.processes import PATIENCE_SECONDS, NatsServer
from timer_service.adapters.nats import NatsBroker
from timer_service.core.ports.broker import PublishStatus
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.message import Kind

STREAMS = {Kind.COMMAND: "TIMER_CMD", Kind.EVENT: "TIMER_EVT", Kind.DEAD_LETTER: "TIMER_DLQ"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """Yield the operator's access to the streams, which exist."""
    async with await nats.connect(server.url) as operator:
        async with connected(server, manage=True):
            pass
        yield operator.jetstream()


@asynccontextmanager
async def connected(server: NatsServer, *, manage: bool) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.connect(server.url, "timer", reply_prefix="_INBOX.", manage_streams=manage)
    try:
        yield broker
    finally:
        await broker.close()


async def request(js: JetStreamContext, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer of JetStream as the server sends it. The driver's types may lack settings."""
    reply: dict[str, Any] = json.loads((await js._nc.request(f"$JS.API.{name}", json.dumps(body).encode())).data)
    assert "error" not in reply, reply
    return reply


def stream_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if "stream" in each.message and each.levelno >= logging.INFO]


async def test_healthy_streams(server: NatsServer, js: JetStreamContext, caplog: pytest.LogCaptureFixture) -> None:
    """Streams that are as they should be are healthy, and nothing is logged."""
    async with connected(server, manage=True) as broker:
        await broker.streams.tick(NOW)
        assert broker.streams.health == dict.fromkeys(STREAMS, HEALTHY)
    assert stream_lines(caplog) == []


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
    """If streams are not managed, a missing stream is reported until the operator creates it. Two lines say so.

    Meanwhile the streams are checked every second.
    """
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
    assert not missing.usable
    assert stream_lines(caplog) == [
        "stream TIMER_EVT is unavailable",
        "a stream was created again; messages that only the old one had are lost",
        "stream TIMER_EVT is available again",
    ]


@pytest.mark.parametrize("manage", [True, False])
async def test_changed_stream(server: NatsServer, js: JetStreamContext, *, manage: bool) -> None:
    """A setting that the service needs is set again, or reported if streams are not managed."""
    async with connected(server, manage=manage) as broker:
        config = (await js.stream_info("TIMER_CMD")).config
        await js.update_stream(config.evolve(discard=DiscardPolicy.OLD))
        await broker.streams.tick(NOW)
        found = (await js.stream_info("TIMER_CMD")).config.discard
        reason = broker.streams.health[Kind.COMMAND].reason or ""
    if manage:
        assert (found, reason) == (DiscardPolicy.NEW, "")
    else:
        assert found == DiscardPolicy.OLD
        assert reason.startswith('stream TIMER_CMD needs discard = "new"')


@pytest.mark.parametrize(
    "change",
    [
        ("no_ack", True, False),
        ("max_msg_size", 20, -1),
        ("max_msgs_per_subject", 1, -1),
        ("subject_transform", {"src": ">", "dest": "other.>"}, None),
        ("allow_rollup_hdrs", True, False),
    ],
    ids=lambda change: change[0],
)
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("manage", [True, False])
async def test_settings_that_lose_messages(
    server: NatsServer, js: JetStreamContext, kind: Kind, change: tuple[str, Any, Any], *, manage: bool
) -> None:
    """A setting with which a stream refuses, deletes or moves messages, or does not answer, is changed or reported."""
    name, (setting, value, needed) = STREAMS[kind], change
    async with connected(server, manage=manage) as broker:
        config = (await request(js, f"STREAM.INFO.{name}", {}))["config"]
        await request(js, f"STREAM.UPDATE.{name}", {**config, setting: value})
        await broker.streams.tick(NOW)
        config = (await request(js, f"STREAM.INFO.{name}", {}))["config"]
        found = config.get(setting, None if needed is None else False)
        reason = broker.streams.health[kind].reason
    problem = f"stream {name} needs {setting} = {json.dumps(needed)}: change the stream, or set"
    if manage:
        assert (found, reason) == (needed, None)
    else:
        assert (found, reason) == (value, f"{problem} TIMER_MANAGE_STREAMS=true")


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("manage", [True, False])
async def test_subjects_of_the_operator(server: NatsServer, js: JetStreamContext, kind: Kind, *, manage: bool) -> None:
    """A stream that lacks the subject of the service gets it or is reported. The operator's subjects stay in it."""
    async with connected(server, manage=manage) as broker:
        config = (await js.stream_info(STREAMS[kind])).config
        own = ["ours.>", "zone.*"]
        both = ["ours.>", *(config.subjects or ()), "zone.*"]
        await js.update_stream(config.evolve(subjects=own))
        await broker.streams.tick(NOW)
        found = (await js.stream_info(STREAMS[kind])).config.subjects
        reason = broker.streams.health[kind].reason or ""
    assert (found, reason.partition(":")[0]) == (
        (both, "") if manage else (own, f"stream {STREAMS[kind]} needs subjects = {json.dumps(both)}")
    )


@pytest.mark.parametrize("manage", [True, False])
async def test_events_that_a_subject_refuses(
    server: NatsServer, js: JetStreamContext, caplog: pytest.LogCaptureFixture, *, manage: bool
) -> None:
    """A stream that refuses the next event of a tenant is changed, with a line that says so, or reported."""
    async with connected(server, manage=manage) as broker:
        config = (await js.stream_info("TIMER_EVT")).config
        await js.update_stream(config.evolve(max_msgs_per_subject=2, discard_new_per_subject=True))
        await broker.streams.tick(NOW)
        found = (await js.stream_info("TIMER_EVT")).config
        reason = broker.streams.health[Kind.EVENT].reason
    needs = "stream TIMER_EVT needs max_msgs_per_subject = -1, discard_new_per_subject = false"
    wanted = (-1, False, None) if manage else (2, True, needs)
    problem = reason and reason.partition(":")[0]
    assert (found.max_msgs_per_subject, found.discard_new_per_subject or False, problem) == wanted
    changes = [record for record in caplog.records if record.getMessage() == "changing the settings of a stream"]
    changed = {"max_msgs_per_subject": -1, "discard_new_per_subject": False}
    assert [record.__dict__["settings"] for record in changes] == [changed] * manage


@pytest.mark.parametrize(
    "settings",
    [
        {"allow_msg_ttl": True, "subject_delete_marker_ttl": 5_000_000_007, "allow_direct": True},
        {"deny_delete": True, "deny_purge": True, "allow_batched": True},
        {"max_age": 604_800_123_456_789, "duplicate_window": 60_000_000_007, "first_seq": 10, "compression": "s2"},
        {"max_msgs": 10_000, "max_bytes": 10**9, "max_msg_size": 1_048_576},
        {"max_consumers": 9, "consumer_limits": {"max_ack_pending": 50_000, "inactive_threshold": 3_600_000_000_001}},
        {"republish": {"src": ">", "dest": "copy.>", "headers_only": True}, "metadata": {"owner": "ops"}},
        {"sources": [{"name": "OTHER", "filter_subject": "x", "opt_start_time": "2026-01-01T00:00:00.123456789Z"}]},
    ],
    ids=",".join,
)
async def test_an_update_keeps_the_settings_of_the_operator(
    server: NatsServer, js: JetStreamContext, settings: dict[str, Any]
) -> None:
    """An update of a stream changes only the settings that the service needs. The others stay to the nanosecond."""
    await js.delete_stream("TIMER_EVT")
    config = {"name": "TIMER_EVT", "subjects": ["timer.evt.v1.*.*"], "description": "ours", **settings}
    before = (await request(js, "STREAM.CREATE.TIMER_EVT", config))["config"]
    async with connected(server, manage=True):
        after = (await request(js, "STREAM.INFO.TIMER_EVT", {}))["config"]
    for each in before, after:
        each["metadata"] = {name: text for name, text in each["metadata"].items() if not name.startswith("_nats.")}
    assert after == {**before, "discard": "new", "allow_atomic": True}
    assert before.keys() >= settings.keys()


async def test_stream_with_asynchronous_writes(server: NatsServer, js: JetStreamContext) -> None:
    """A stream with `persist_mode: async` cannot take atomic batches. It is used without them."""
    await js.delete_stream("TIMER_EVT")
    config = {"name": "TIMER_EVT", "subjects": ["timer.evt.v1.*.*"], "discard": "new", "persist_mode": "async"}
    await request(js, "STREAM.CREATE.TIMER_EVT", config)
    async with connected(server, manage=True) as broker:
        (result,) = await broker.publish([event(1)])
        assert result.status is PublishStatus.PUBLISHED
    assert not (await js.stream_info("TIMER_EVT")).config.allow_atomic


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


async def test_full_stream_at_the_start(server: NatsServer, js: JetStreamContext) -> None:
    """A stream that is full when the service starts is reported at once."""
    config = (await js.stream_info("TIMER_EVT")).config
    await js.update_stream(config.evolve(max_msgs=1))
    await js.publish("timer.evt.v1.acme.test", b"x")
    async with connected(server, manage=True) as broker:
        assert not broker.streams.health[Kind.EVENT].usable


async def test_streams_without_a_connection(server: NatsServer, js: JetStreamContext) -> None:
    """Without a connection nothing is known about the streams, so nothing is reported about them."""
    async with connected(server, manage=True) as broker:
        await server.terminate()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while broker.health.usable:
                await asyncio.sleep(0.01)
        await broker.streams.tick(NOW)
        assert broker.streams.health == dict.fromkeys(STREAMS, HEALTHY)
