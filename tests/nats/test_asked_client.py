"""Queries that are refused while they are read."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from nats.aio.msg import Msg

from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.adapters.nats.asked_client import AskedClient
from timer_service.core.broker import QueryReply
from timer_service.core.errors import Code

PATTERN = "timer.qry.v1.*.list"
REFUSAL = QueryReply(b'{"error":{}}', Code.BUSY, "ask again later")


class Site(NamedTuple):
    """A connection on which the queries of tenant `a` are refused."""

    peer: ScriptedPeer
    client: AskedClient
    refused: list[tuple[str, str]]
    passed: list[bytes]
    """The bodies of the other messages."""

    async def receive(self, wire: bytes) -> None:
        """Receive bytes from the server. `SID` stands for the subscription."""
        await self.peer.send(wire.replace(b"SID", self.peer._subscriptions[PATTERN].encode()))
        await self.client.flush()
        await self.client.flush()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return a connection."""
    refused: list[tuple[str, str]] = []

    def refuse(name: str, tenant: str) -> QueryReply | None:
        if tenant != "a":
            return None
        refused.append((name, tenant))
        return REFUSAL

    async with scripted_peer() as peer:
        client = AskedClient(b"timer.qry.v1.", "_INBOX.", refuse)
        await client.connect(peer.url)
        passed: list[bytes] = []

        async def receive(message: Msg) -> None:
            passed.append(message.data)

        await client.subscribe(PATTERN, cb=receive)
        await client.flush()
        yield Site(peer, client, refused, passed)
        await client.close()


async def test_many_are_refused_with_one_write(site: Site) -> None:
    """A flood of one tenant is refused, and the queries of another one pass, in any order and with any body."""
    mine = b"".join(b"MSG timer.qry.v1.a.list SID _R_.%d 4\r\n\r\n{}\r\n" % number for number in range(250))
    await site.receive(mine + b"MSG timer.qry.v1.b.list SID _R_.b 2\r\nhi\r\n" + mine)
    assert site.passed == [b"hi"]
    assert len(site.refused) == 500
    headers = b"NATS/1.0\r\nNats-Service-Error-Code: BUSY\r\nNats-Service-Error: ask again later\r\n\r\n"
    assert site.peer.published == [(f"_R_.{number}", "", headers + REFUSAL.body) for number in range(250)] * 2


async def test_reply_subjects_that_are_no_inboxes(site: Site) -> None:
    """Nothing is sent to the subject of somebody else."""
    await site.receive(b"MSG timer.qry.v1.a.list SID timer.evt.v1.a.x 2\r\n{}\r\n")
    assert len(site.refused) == 1
    assert (site.passed, site.peer.published) == ([], [])


async def test_refusals_that_the_server_does_not_take(site: Site) -> None:
    """While too much is not sent, refusals are dropped, and reading goes on."""
    site.client._pending_data_size += 10**6
    for _ in range(20):
        await site.client.send_refusals(b"PUB x 0\r\n\r\n" * 100)
    site.client._pending_data_size -= 10**6
    await site.receive(b"MSG timer.qry.v1.b.list SID _R_.b 2\r\nhi\r\n")
    assert (site.passed, site.peer.published) == ([b"hi"], [])


async def test_a_full_queue_of_flushes(site: Site) -> None:
    """Refusing does not wait for the task that writes to the server, however often it is asked to write."""
    flushes = site.client._flush_queue
    assert flushes is not None
    for _ in range(2000):  # without a turn of the loop, nothing takes from the queue
        coroutine = site.client.send_refusals(b"PUB x 0\r\n\r\n")
        with pytest.raises(StopIteration):
            coroutine.send(None)
    assert flushes.qsize() == 1
