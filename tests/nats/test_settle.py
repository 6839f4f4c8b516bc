"""How many writes settling takes, and what is sent without a connection."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.adapters.nats.settle import HANDLED, returned_for, settle

REPLIES = [f"$JS.ACK.TIMER_CMD.timer-service.1.{number}.{number}.17.0" for number in range(500)]


class Site:
    """A connection, and what the client writes to it."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self.peer = peer
        self.client = GuardedClient()
        self.writes: list[int] = []
        """How many chunks each write has."""

    async def connect(self) -> None:
        wait: Any = 0.01

        async def ignore(_error: Exception) -> None:
            pass

        await self.client.connect(self.peer.url, max_reconnect_attempts=-1, reconnect_time_wait=wait, error_cb=ignore)
        transport: Any = self.client._transport
        write = transport.writelines

        def count(chunks: list[bytes]) -> None:
            self.writes.append(len(chunks))
            write(chunks)

        transport.writelines = count


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return a connection."""
    async with scripted_peer() as peer:
        started = Site(peer)
        await started.connect()
        yield started
        await started.client.close()


async def test_a_batch_is_settled_in_one_write(site: Site) -> None:
    """The server gets a message to each reply subject, and the client has written once, one chunk."""
    await settle(site.client, REPLIES, HANDLED)
    await site.peer.until(lambda: len(site.peer.published) == len(REPLIES))
    assert site.peer.published == [(reply, "", b"+ACK") for reply in REPLIES]
    assert site.writes == [1]


async def test_nothing_is_settled_later_on_another_connection(site: Site) -> None:
    """What is settled without a connection is not sent on the next one: the stream may be another one there."""
    site.peer.disconnect()
    async with asyncio.timeout(10):
        while site.client.is_connected:
            await asyncio.sleep(0)
    await settle(site.client, REPLIES, HANDLED)
    assert site.client._pending == []


async def test_nothing_to_settle(site: Site) -> None:
    """Without reply subjects nothing is sent: an empty message would end the connection."""
    await settle(site.client, [], HANDLED)
    await site.client.flush()
    assert (site.peer.published, site.peer.connections) == ([], 1)


def test_delays_are_in_nanoseconds() -> None:
    """The server counts the delay of a retry in nanoseconds."""
    assert returned_for(timedelta(seconds=1.5)) == b'-NAK {"delay": 1500000000}'
