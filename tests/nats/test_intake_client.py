"""Messages that are handed over while they are read."""

from collections.abc import AsyncIterator
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

        await client.subscribe_at_once("inbox.*", received.append)
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
