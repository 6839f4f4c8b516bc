"""Messages that are handed over while they are read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial
from typing import NamedTuple

import pytest

from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.adapters.nats.intake_client import IntakeClient, ReadMessage


class Site(NamedTuple):
    """A connection with a subscription, and the messages that it has received."""

    peer: ScriptedPeer
    client: IntakeClient
    received: list[ReadMessage]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return a connection."""
    async with scripted_peer() as peer:
        client = IntakeClient()
        await client.connect(peer.url)
        received: list[ReadMessage] = []

        await client.subscribe_at_once("inbox.*", received.extend)
        await client.flush()
        yield Site(peer, client, received)
        await client.close()


async def test_a_message_is_not_queued(site: Site) -> None:
    """A message has arrived when the next one is read: no other task runs in between."""
    (interest,) = site.client._subs.values()
    await site.peer.deliver("inbox.*", b"timer.x", b"body", reply=b"to", headers=b"NATS/1.0\r\nName: value\r\n\r\n")
    await site.client.flush()
    (message,) = site.received
    assert message == (b"timer.x", b"to", b"NATS/1.0\r\nName: value\r\n\r\n", b"body")
    assert interest._received == 0


async def test_nothing_comes_after_the_end_of_a_subscription(site: Site) -> None:
    """A message that was on its way when the subscription ended is dropped."""
    (interest,) = site.client._subs.values()
    await site.peer.deliver("inbox.*", b"timer.x", b"1")
    await site.client.flush()
    await site.client.drain_subscription(interest)
    site.peer._subscriptions["inbox.*"] = str(interest._id)
    await site.peer.deliver("inbox.*", b"timer.x", b"2")
    await site.client.flush()
    assert ([each.body for each in site.received], site.client._receivers) == ([b"1"], {})


async def test_other_subscriptions_are_queued_as_usual(site: Site) -> None:
    """A plain subscription of the same client gets its own messages."""
    other = await site.client.subscribe("other.*")
    await site.client.flush()
    await site.peer.deliver("other.*", b"other.x", b"body")
    assert (await other.next_msg(timeout=10)).data == b"body"
    assert site.received == []


WIRE = (
    b"HMSG timer.a 7 to.1 12 16\r\nNATS/1.0\r\n\r\nbody\r\n"
    b"MSG timer.b 7 to.2 0\r\n\r\n"
    b"MSG timer.c 7 2\r\n\r\n\r\n"
    b"+OK\r\n"
    b"HMSG timer.d 7 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    b"MSG timer.e 8 to.5 4\r\nMSG \r\n"
    b"MSG timer.f 7 to.6 9\r\nMSG x 7 1\r\n"
)
MESSAGES = [
    ReadMessage(b"timer.a", b"to.1", b"NATS/1.0\r\n\r\n", b"body"),
    ReadMessage(b"timer.b", b"to.2", b"", b""),
    ReadMessage(b"timer.c", b"", b"", b"\r\n"),
    ReadMessage(b"timer.d", b"", b"NATS/1.0\r\n\r\n", b""),
    ReadMessage(b"timer.f", b"to.6", b"", b"MSG x 7 1"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 61, 1000])
async def test_messages_are_the_same_however_they_arrive(size: int) -> None:
    """Whole messages are taken at once, and others in steps. None is lost or changed."""
    client = IntakeClient()
    received: list[ReadMessage] = []
    client._receivers[b"7"] = received.extend
    for start in range(0, len(WIRE), size):
        await client._ps.parse(WIRE[start : start + size])
    assert received == MESSAGES
    assert client._ps.buf == b""


async def test_what_a_receiver_returns_or_raises() -> None:
    """An error of the receiver is logged. What it returns is done before the next messages are read."""
    client = IntakeClient()
    done: list[list[bytes]] = []

    async def settle(subjects: list[bytes]) -> None:
        await asyncio.sleep(0)
        done.append(subjects)

    def receive(messages: Sequence[ReadMessage]) -> Awaitable[None] | None:
        subjects = [message.subject for message in messages]
        if subjects == [b"timer.d"]:
            raise ValueError
        if b"timer.b" in subjects:
            return settle(subjects)
        done.append(subjects)
        return None

    client._receivers[b"7"] = receive
    await client._ps.parse(WIRE)
    assert done == [[b"timer.a", b"timer.b"], [b"timer.c"], [b"timer.f"]]


async def test_how_many_messages_are_handed_over_at_once() -> None:
    """A receiver gets at most 50 messages at once, and never those of another one."""
    client = IntakeClient()
    received: list[tuple[bytes, int]] = []

    def receive(number: bytes, messages: Sequence[ReadMessage]) -> None:
        received.append((number, len(messages)))

    client._receivers.update({number: partial(receive, number) for number in (b"7", b"8")})
    await client._ps.parse(b"MSG a 7 to 0\r\n\r\n" * 60 + b"MSG a 8 to 0\r\n\r\n" * 2)
    assert received == [(b"7", 50), (b"7", 10), (b"8", 2)]
