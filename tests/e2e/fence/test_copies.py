"""What a tenant may publish and subscribe to: the server copies none of its messages for itself."""

import asyncio

from tests.harness.fence import PATIENCE_SECONDS, Operator, Peer, connect
from tests.harness.processes import NatsServer

COUNT = "timer.qry.v1.tenant-a.count-timers"


async def test_tenant_receives_nothing_that_it_publishes(a: Peer) -> None:
    """A tenant cannot publish to what it can subscribe to, so it makes no copies of its own messages."""
    (inbox, events) = await a.subscribe("_INBOX.>", "timer.evt.>")
    for subject in ("_INBOX.tenant-a.own", "timer.evt.v1.tenant-a.due-time-reached", "any"):
        await a.publish(subject, b"x")
    assert await a.received(inbox, events) == []
    assert len(a.violations) == 3


async def test_tenant_subscribes_only_to_what_the_service_sends(broker: NatsServer, operator: Operator) -> None:
    """Other subscriptions are refused."""
    for subject in (">", "any", "timer.cmd.v1.tenant-a.*", "$JS.>", "_INBOX"):
        peer = await connect(broker, "tenant-a")
        await peer.subscribe(subject)
        assert [each.partition(" for ")[0] for each in peer.violations] == ["nats: permissions violation"], subject
        await peer.connection.close()


async def test_clients_do_not_set_an_inbox_prefix_for_queries(broker: NatsServer, operator: Operator) -> None:
    """Replies to queries arrive in any inbox of the tenant, also without the prefix that outcomes need."""
    peer = await connect(broker, "tenant-a")
    (replies,) = await peer.subscribe("_INBOX.any")
    await peer.publish(COUNT, b"{}", "_INBOX.any")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert b"overdue" in (await replies.next_msg(PATIENCE_SECONDS)).data
    assert peer.violations == []
    await peer.connection.close()
