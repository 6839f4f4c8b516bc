"""What the broker of NATS remembers of a connection, and forgets with it, against a scripted server."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import pytest

from tests.harness.builders import event
from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.core.ports.broker import PublishResult, PublishStatus, QueryReply, Replies, Request
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import Code

NONSENSE = b"NONSENSE\r\n"
"""The client ends the connection after this line, and reports no error."""
DENIED = b"-ERR 'Permissions Violation for Publish to \"timer.evt.v1.acme.due-time-reached\"'\r\n"


def answer(subject: str, body: bytes) -> dict[str, Any]:
    """Answer as a JetStream without streams, which creates every stream and stores every message."""
    if subject.startswith("$JS.API.STREAM.INFO."):
        return {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
    if subject.startswith("$JS.API.STREAM.CREATE."):
        state = {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0}
        return {"config": {"max_bytes": -1, "max_msgs": -1, **json.loads(body)}, "state": state, "created": "now"}
    return {"stream": "TIMER_EVT", "seq": 1}


@pytest.fixture
async def peer() -> AsyncIterator[ScriptedPeer]:
    """Return a peer that plays JetStream."""
    async with scripted_peer() as started:
        started.answer = answer
        yield started


@pytest.fixture
async def broker(peer: ScriptedPeer) -> AsyncIterator[NatsBroker]:
    """Return a broker that is connected to the peer."""
    connected = await NatsBroker.connect(peer.url, "timer", reply_prefix="_INBOX.", manage_streams=True)
    yield connected
    await connected.close()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():
            await asyncio.sleep(0.001)


async def reconnect(peer: ScriptedPeer, broker: NatsBroker) -> None:
    """Cut the connection, and wait until the broker is connected again."""
    before = broker.outages
    peer.disconnect()
    await until(lambda: broker.outages > before and broker.connections[0].client.is_connected)


async def test_a_denied_permission_is_forgotten_with_the_connection(peer: ScriptedPeer, broker: NatsBroker) -> None:
    """A permission that one server has denied says nothing about the next server."""
    await peer.send(DENIED)
    await until(lambda: broker.health.reason is not None)
    denied = broker.health
    await reconnect(peer, broker)
    assert denied.usable
    assert "permissions violation" in (denied.reason or "").lower()
    assert broker.health == HEALTHY


async def test_a_denied_hint_is_harmless(peer: ScriptedPeer, broker: NatsBroker) -> None:
    """Without a permission for hints, other instances only see new work later. The health says nothing."""
    await peer.send(DENIED.replace(b"timer.evt.v1.acme.due-time-reached", b"timer.wake.v1.timers"))
    await until(lambda: "timer.wake" in broker.connections[0].last_error)
    assert broker.health == HEALTHY


async def test_the_reason_of_an_outage_is_forgotten_with_it(
    peer: ScriptedPeer, broker: NatsBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of an earlier outage is not the reason of the next one, which has none."""
    caplog.set_level(logging.INFO)
    reasons: list[str | None] = []
    for raw in (b"-ERR 'Stale Connection'\r\n", NONSENSE):
        await peer.send(raw)
        await until(lambda: not broker.health.usable)
        reasons.append(broker.health.reason)
        await until(lambda: caplog.messages.count("the broker is available again") == len(reasons))
    away = "not connected to the broker:"
    assert reasons == [f"{away} nats: stale connection", f"{away} connection lost"]


def refuse_all(request: Request) -> Replies:
    return [(request, QueryReply(b"busy", Code.BUSY, "ask again later"))]


async def test_a_flood_of_queries_is_refused_while_it_is_read(peer: ScriptedPeer, broker: NatsBroker) -> None:
    """Each query of the flood gets its refusal."""
    await broker.serve(Kind.QUERY, ["list"], refuse_all)
    await peer.until(lambda: peer.subscribed("timer.qry.v1.*.list"))
    for number in range(500):
        await peer.deliver("timer.qry.v1.*.list", b"timer.qry.v1.a.list", b"hi", reply=b"_R_.%d" % number)
    await peer.until(lambda: len(peer.published) >= 500)
    replies = {to: body for to, _, body in peer.published if to.startswith("_R_.")}
    assert len(replies) == 500
    assert {body[-4:] for body in replies.values()} == {b"busy"}


async def test_publishes_in_progress_end_with_the_connection(peer: ScriptedPeer, broker: NatsBroker) -> None:
    """An event whose acknowledgement cannot arrive any more is unavailable at once, not after the usual timeout."""
    peer.answer = lambda _subject, _body: None
    publishing = asyncio.create_task(broker.publish([event()]))
    await peer.until(lambda: any(subject.startswith("timer.evt") for subject, _, _ in peer.published))
    began = time.monotonic()
    peer.disconnect()
    (result,) = await publishing
    assert result == PublishResult(PublishStatus.UNAVAILABLE, "connection lost")
    assert time.monotonic() - began < 2.5, "an acknowledgement may take 5 s"


@pytest.mark.parametrize("which", [0, 1])
async def test_a_connection_that_is_closed_for_good(broker: NatsBroker, which: int) -> None:
    """The service learns that one of its connections is closed and will not be restored."""
    if which == 1:
        await broker.serve(Kind.QUERY, [], refuse_all)
    lost = asyncio.create_task(broker.wait_lost())
    connection = broker.connections[which]
    await connection.flush()  # the peer answers the last connection
    assert not lost.done()
    connection.last_error = "its reason"
    await connection.client.close()
    async with asyncio.timeout(10):
        assert await lost == "its reason"


@pytest.mark.parametrize("which", [0, 1])
async def test_a_connection_that_is_not_read(broker: NatsBroker, which: int) -> None:
    """The service learns that nothing reads one of its connections. A lost one is being restored, for ever."""
    await broker.serve(Kind.QUERY, [], refuse_all)
    connection = broker.connections[which]
    client, seen = connection.client, [broker.reading]
    for is_connected in (True, False):
        connection.client = cast("GuardedClient", SimpleNamespace(reading=False, is_connected=is_connected))
        seen.append(broker.reading)
    connection.client = client
    assert seen == [True, False, True]
    assert client.options["max_reconnect_attempts"] == -1


async def test_unsent_messages_do_not_reach_the_next_server(peer: ScriptedPeer, broker: NatsBroker) -> None:
    """What is not sent when the connection is lost, such as a hint, is not sent later."""
    connection = broker.connections[0]

    def publish() -> None:
        with suppress(StopIteration, nats.errors.Error):  # it only adds the message
            connection.client.publish("hint", b"").send(None)

    connection.on_lost.append(publish)
    await reconnect(peer, broker)
    await connection.flush()
    assert "hint" not in [subject for subject, _, _ in peer.published]
