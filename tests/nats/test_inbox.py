"""The inbox of the pulls: when it must be replaced, and what happens to the last one."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pytest

from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from timer_service.adapters.nats import inbox as module
from timer_service.adapters.nats.inbox import PullInbox
from timer_service.adapters.nats.intake_client import IntakeClient, ReadMessage


def ignore(_messages: Sequence[ReadMessage]) -> None:
    """Ignore messages."""


class Site(NamedTuple):
    """An inbox that is open, and the server that knows it."""

    peer: ScriptedPeer
    client: IntakeClient
    inbox: PullInbox


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return an open inbox."""
    async with scripted_peer() as peer:
        client = IntakeClient()
        await client.connect(peer.url)
        inbox = PullInbox(client, ignore)
        await inbox.open()
        yield Site(peer, client, inbox)
        await client.close()


async def test_a_replaced_inbox_is_closed(site: Site) -> None:
    """The server forgets the last inbox, and the client too. Otherwise they would keep one for each replacement."""
    names = [site.inbox._name]
    before = len(site.client._subs)
    for _ in range(3):
        await site.inbox.replace()
        names.append(site.inbox._name)
    await site.client.flush()
    assert [site.peer.subscribed(f"{name}.*") for name in names] == [False, False, False, True]
    assert (len(set(names)), len(site.client._subs)) == (4, before)


async def test_each_request_of_a_pull_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server remembers each request of a split pull. After a replacement it remembers none."""
    monkeypatch.setattr(module, "_MOST_REQUESTS", 5)
    found: list[bool] = []
    for times in (4, 1):
        await site.inbox.request("next", b"", pull=1, times=times)
        found.append(site.inbox.must_be_replaced)
    await site.inbox.replace()
    assert [*found, site.inbox.must_be_replaced] == [False, True, False]
