"""Tests of test_permissions.py and test_worker_requests.py, for a tenant that has a server of its own in front.

As there, the tenant may publish and subscribe to everything in its account. `a` is connected to the server in front.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.subscription import Subscription

from tests.e2e.fence.test_permissions import (  # noqa: F401 - these run here with the fixtures below
    test_jetstream_api_gives_no_access_to_another_tenant,
    test_outcomes_are_sent_only_to_inboxes,
    test_replies_stay_in_the_account_of_the_request,
    test_tenant_cannot_acknowledge_for_another_tenant,
    test_tenant_cannot_publish_for_another_tenant,
    test_tenant_cannot_query_another_tenant,
    test_tenant_receives_nothing_of_another_tenant,
    test_tenants_have_no_access_to_hints,
)
from tests.e2e.fence.test_worker_requests import (  # noqa: F401
    test_replies_to_requests_stay_in_the_account,
    test_tenant_cannot_execute_workflows_of_another,
    test_tenant_executes_its_workflows,
)
from tests.harness.fence import PATIENCE_SECONDS, Operator, Peer, connect, without_permissions
from tests.harness.prepared import Front, Prepared
from tests.harness.processes import NatsServer

COUNT = "timer.qry.v1.tenant-a.count-timers"
INBOX = "_INBOX.tenant-a.settled"


class Fronted(Peer):
    """A connection to a server in front. It asks the service, to know that the other server has its messages too."""

    async def settle(self) -> None:
        """Return when both servers have processed all that this peer has sent."""
        await super().settle()
        replies = await self.connection.subscribe(INBOX)
        await self.connection.publish(COUNT, b"", INBOX)
        assert "counts" in json.loads((await replies.next_msg(PATIENCE_SECONDS)).data)
        await replies.unsubscribe()

    async def received(self, *subscriptions: Subscription) -> list[tuple[str, bytes]]:
        """Return the messages that the subscriptions received so far, without those of `settle`."""
        return [each for each in await super().received(*subscriptions) if each[0] not in (COUNT, INBOX)]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return Prepared.with_known_passwords(tmp_path / "prepared", "tenant-b", "--front", "tenant-a:4222")


@pytest.fixture
async def broker(prepared: Prepared, tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats", config=without_permissions(prepared.read("nats.conf"))) as server:
        yield server


@pytest.fixture
async def front(broker: NatsServer, prepared: Prepared, tmp_path: Path) -> AsyncIterator[Front]:
    async with Front(tmp_path / "front", config=without_permissions(prepared.read("fronts/tenant-a.conf"))) as server:
        yield server


@pytest.fixture
async def a(front: Front, operator: Operator) -> AsyncIterator[Peer]:
    peer = await connect(front, "tenant-a", Fronted)
    yield peer
    await peer.connection.close()
