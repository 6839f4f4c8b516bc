"""Queries that are refused while they are read."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from nats.aio.msg import Msg

from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.adapters.nats.asked_client import AskedClient
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.core.ports.broker import QueryReply
from timer_service.core.values.errors import Code

PATTERN = "timer.qry.v1.*.list"
REFUSAL = QueryReply(b'{"error":{}}', Code.BUSY, "ask again later")


class Site(NamedTuple):
    """A connection on which the queries of tenant `a` are refused."""

    peer: ScriptedPeer
    refusals: ScriptedPeer
    """The server to which refusals are sent."""
    client: AskedClient
    refusing: GuardedClient
    refused: list[tuple[str, str]]
    passed: list[bytes]
    """The bodies of the other messages."""

    async def receive(self, wire: bytes) -> None:
        """Receive bytes from the server. `SID` stands for the subscription."""
        await self.peer.send(wire.replace(b"SID", self.peer._subscriptions[PATTERN].encode()))
        for each in (self.client, self.client, self.refusing, self.refusing):
            await each.flush()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return a connection."""
    refused: list[tuple[str, str]] = []

    def refuse(name: str, tenant: str) -> QueryReply | None:
        if tenant != "a":
            return None
        refused.append((name, tenant))
        return REFUSAL

    async with scripted_peer() as peer, scripted_peer() as refusals:
        refusing = GuardedClient()
        await refusing.connect(refusals.url)
        client = AskedClient(b"timer.qry.v1.", "_INBOX.", refuse, refusing)
        await client.connect(peer.url)
        passed: list[bytes] = []

        async def receive(message: Msg) -> None:
            passed.append(message.data)

        await client.subscribe(PATTERN, cb=receive)
        await client.flush()
        yield Site(peer, refusals, client, refusing, refused, passed)
        await client.close()
        await refusing.close()


async def test_many_are_refused_with_one_write(site: Site) -> None:
    """A flood of one tenant is refused, and the queries of another one pass, in any order and with any body."""
    mine = b"".join(b"MSG timer.qry.v1.a.list SID _R_.%d 4\r\n\r\n{}\r\n" % number for number in range(250))
    await site.receive(mine + b"MSG timer.qry.v1.b.list SID _R_.b 2\r\nhi\r\n" + mine)
    assert site.passed == [b"hi"]
    assert len(site.refused) == 500
    headers = b"NATS/1.0\r\nNats-Service-Error-Code: BUSY\r\nNats-Service-Error: ask again later\r\n\r\n"
    assert site.refusals.published == [(f"_R_.{number}", "", headers + REFUSAL.body) for number in range(250)] * 2


async def test_queries_of_other_accounts_are_refused_with_few_writes(site: Site) -> None:
    """The server adds a header to a query of another account. These queries too are refused many at a time."""
    body = b'NATS/1.0\r\nNats-Request-Info: {"acc":"a"}\r\n\r\n{}'
    lines = [b"HMSG timer.qry.v1.a.list SID _R_.%d %d %d\r\n" % (n, len(body) - 2, len(body)) for n in range(250)]
    writes: list[int] = []
    send = site.refusing.send

    async def count(frames: bytes) -> None:
        writes.append(frames.count(b"HPUB"))
        await send(frames)

    site.refusing.send = count  # type: ignore[method-assign]
    await site.receive(b"".join(b"%b%b\r\n" % (line, body) for line in lines))
    assert [to for to, _, _ in site.refusals.published] == [f"_R_.{number}" for number in range(250)]
    assert sum(writes) == 250
    assert len(writes) <= 10


async def test_reply_subjects_that_are_no_inboxes(site: Site) -> None:
    """Nothing is sent to the subject of somebody else."""
    await site.receive(b"MSG timer.qry.v1.a.list SID timer.evt.v1.a.x 2\r\n{}\r\n")
    assert len(site.refused) == 1
    assert (site.passed, site.peer.published, site.refusals.published) == ([], [], [])


async def test_refusals_that_the_server_does_not_take(site: Site) -> None:
    """While too much is not sent, refusals are dropped, and reading goes on."""
    site.refusing._pending_data_size += 10**6
    for _ in range(20):
        await site.client.send_refusals(b"PUB x 0\r\n\r\n" * 100)
    site.refusing._pending_data_size -= 10**6
    await site.receive(b"MSG timer.qry.v1.b.list SID _R_.b 2\r\nhi\r\n")
    assert (site.passed, site.refusals.published) == ([b"hi"], [])


async def test_replies_do_not_wait_behind_refusals(site: Site) -> None:
    """Refusals go over another connection, so a server that has not read them yet reads a reply at once."""
    await site.receive(b"MSG timer.qry.v1.a.list SID _R_.a 2\r\n{}\r\nMSG timer.qry.v1.b.list SID _R_.b 2\r\nhi\r\n")
    await site.client.publish("_R_.b", b"reply")
    await site.client.flush()
    assert [to for to, _, _ in site.peer.published] == ["_R_.b"]
    assert [to for to, _, _ in site.refusals.published] == ["_R_.a"]


async def test_lost_connection_for_refusals(site: Site) -> None:
    """While the connection for refusals is lost, they are dropped, and other queries are answered."""
    await site.refusing.close()
    await site.peer.send(
        b"MSG timer.qry.v1.a.list SID _R_.a 2\r\n{}\r\nMSG timer.qry.v1.b.list SID _R_.b 2\r\nhi\r\n".replace(
            b"SID", site.peer._subscriptions[PATTERN].encode()
        )
    )
    await site.client.flush()
    await site.client.flush()
    assert (site.passed, site.refusals.published) == ([b"hi"], [])


async def test_a_full_queue_of_flushes(site: Site) -> None:
    """Refusing does not wait for the task that writes to the server, however often it is asked to write."""
    flushes = site.refusing._flush_queue
    assert flushes is not None
    for _ in range(2000):  # without a turn of the loop, nothing takes from the queue
        coroutine = site.client.send_refusals(b"PUB x 0\r\n\r\n")
        with pytest.raises(StopIteration):
            coroutine.send(None)
    assert flushes.qsize() == 1
