"""The guarded driver against a scripted peer: nothing that a server sends ends the reading or closes the connection."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from nats.aio.msg import Msg

from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.adapters.nats.driver import GuardedClient, ReadMessage


@pytest.fixture
async def peer() -> AsyncIterator[ScriptedPeer]:
    """Return a peer that the client can connect to."""
    async with scripted_peer() as started:
        yield started


@pytest.fixture
def reported() -> list[str]:
    """The errors that the client has reported."""
    return []


@pytest.fixture
async def client(peer: ScriptedPeer, reported: list[str]) -> AsyncIterator[GuardedClient]:
    """Return a client that is connected to the peer and connects again for ever."""
    connected = GuardedClient()

    async def report(error: Exception) -> None:
        reported.append(str(error).lower())

    wait: Any = 0.01  # the driver types it as int
    await connected.connect(peer.url, max_reconnect_attempts=-1, reconnect_time_wait=wait, error_cb=report)
    yield connected
    await connected.close()


async def collect(peer: ScriptedPeer, client: GuardedClient) -> asyncio.Queue[Msg]:
    """Subscribe to `commands`, and return the queue of what arrives."""
    arrived: asyncio.Queue[Msg] = asyncio.Queue()

    async def receive(message: Msg) -> None:
        arrived.put_nowait(message)

    await client.subscribe("commands", cb=receive)
    await peer.until(lambda: peer.subscribed("commands"))
    return arrived


async def next_message(arrived: asyncio.Queue[Msg]) -> Msg:
    async with asyncio.timeout(5):
        return await arrived.get()


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (b"a.\xff", r"a.\xff"),
        (b"a.\x0b.b", "a.\x0b.b"),
        (b"a." + b"x" * 5000, "a." + "x" * 5000),
    ],
)
async def test_any_subject(peer: ScriptedPeer, client: GuardedClient, subject: bytes, text: str) -> None:
    """A message with any subject arrives. Bytes that are not UTF-8 are escaped. The next message arrives too."""
    arrived = await collect(peer, client)
    await peer.deliver("commands", subject, b"1", reply=subject)
    await peer.deliver("commands", b"b", b"2")
    first, second = await next_message(arrived), await next_message(arrived)
    assert (first.subject, first.reply, first.data, second.data) == (text, text, b"1", b"2")
    assert (peer.connections, client.reading) == (1, True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"-ERR 'Maximum Control Line Exceeded'", "maximum control line exceeded"),
        (b"-ERR 'Maximum Payload Violation'", "maximum payload violation"),
        (b"-ERR 'Unknown \xff'", "unknown"),
        (b"-ERR", "nats:"),
    ],
)
async def test_error_of_the_server(
    peer: ScriptedPeer, client: GuardedClient, reported: list[str], line: bytes, reason: str
) -> None:
    """After an error of the server the client reports it, connects again, and has its subscriptions. It stays open."""
    arrived = await collect(peer, client)
    await peer.send(line + b"\r\n")
    await peer.until(lambda: peer.connections == 2 and peer.subscribed("commands"))
    await peer.deliver("commands", b"a", b"1")
    assert (await next_message(arrived)).data == b"1"
    assert reason in reported[0]
    assert not client.is_closed


@pytest.mark.parametrize("raw", [b"NONSENSE\r\n", b"MSG a 1 x\r\n", b"x" * 1_100_000])
async def test_nonsense(peer: ScriptedPeer, client: GuardedClient, raw: bytes) -> None:
    """After a line that is no protocol the client connects again, and reads on."""
    arrived = await collect(peer, client)
    await peer.send(raw)
    await peer.until(lambda: peer.connections == 2 and peer.subscribed("commands"))
    await peer.deliver("commands", b"a", b"1")
    assert (await next_message(arrived)).data == b"1"


async def test_unsent_messages_are_discarded(peer: ScriptedPeer, client: GuardedClient) -> None:
    """What was not sent before a connection is lost can be forgotten, so that the next server does not get it."""
    await collect(peer, client)
    peer.disconnect()
    async with asyncio.timeout(5):
        while client.is_connected:
            await asyncio.sleep(0)
    await client.publish("acknowledgement", b"+ACK")
    client.discard_unsent()
    await peer.until(lambda: peer.connections == 2 and peer.subscribed("commands"))
    await client.publish("later", b"")
    await client.flush()
    assert [subject for subject, _, _ in peer.published] == ["later"]


async def test_a_receiver_that_fails(peer: ScriptedPeer, client: GuardedClient) -> None:
    """It loses its messages, and the reading goes on. It is forgotten with its subscription."""
    arrived = await collect(peer, client)

    def fail(_: Sequence[ReadMessage]) -> None:
        raise RuntimeError("a bug")

    subscription = await client.subscribe_many("many", fail)
    await peer.until(lambda: peer.subscribed("many"))
    await peer.deliver("many", b"a", b"1")
    await peer.deliver("commands", b"a", b"2")
    assert (await next_message(arrived)).data == b"2"
    assert (peer.connections, client.reading, len(client.receivers)) == (1, True, 1)
    await subscription.unsubscribe()
    assert client.receivers == {}


async def test_a_flush_that_was_given_up(peer: ScriptedPeer, client: GuardedClient) -> None:
    """The answer to it does not end the reading."""
    arrived = await collect(peer, client)
    flushing = asyncio.create_task(client.flush())
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait([flushing])
    await client.flush()
    await peer.deliver("commands", b"a", b"1")
    assert (await next_message(arrived)).data == b"1"
    assert (flushing.cancelled(), peer.connections) == (True, 1)


async def test_bytes_in_any_pieces(peer: ScriptedPeer, client: GuardedClient) -> None:
    """Messages arrive whole, however their bytes are divided."""
    arrived = await collect(peer, client)
    sid = next(sid for sid, subject in peer.open.items() if subject == "commands").encode()
    for byte in b"MSG a %b r 3\r\nx\r\n\r\nHMSG a %b 12 15\r\nNATS/1.0\r\n\r\nabc\r\nPING\r\n" % (sid, sid):
        await peer.send(bytes([byte]))
    first, second = await next_message(arrived), await next_message(arrived)
    assert (first.reply, first.data, second.data) == ("r", b"x\r\n", b"abc")
    assert second.headers is not None
    assert list(second.headers.items()) == []
