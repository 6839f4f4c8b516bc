"""When the stream is listed, and which subjects are looked at for tenants that wait."""

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.js.errors import Error as JetStreamError

from timer_service.adapters.nats import tenant_search
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.listing import Listing
from timer_service.adapters.nats.subjects import Subjects
from timer_service.adapters.nats.tenant_search import TenantSearch

NOW = 1000.0


class Site:
    """A stream with one command of each tenant, and the search with its clock."""

    def __init__(self) -> None:
        self.now = NOW
        self.largest_body = 1_000_000
        self.commands: dict[str, int] = {"a": 1, "b": 2}
        """The sequence of the command of each tenant."""
        self.fails = False
        self.listings = 0
        self.reads: list[str] = []
        """The tenants whose commands were read."""
        self.on_listing: Callable[[], None] = lambda: None
        self.search = TenantSearch(cast("DurableConsumer", self), Subjects("timer"), ["schedule-timer"])
        self.search.stream_ends_at(5)

    async def subjects(self, _pattern: str) -> Listing:
        self.listings += 1
        self.on_listing()
        if self.fails:
            raise JetStreamError
        numbers = {f"timer.cmd.v1.{tenant}.schedule-timer": 1 for tenant in self.commands}
        return Listing(json.dumps({"state": {"last_seq": 5, "subjects": numbers}}, separators=(",", ":")).encode())

    async def read(self, sequence: int, subject: str) -> Mapping[str, Any] | None:
        tenant = subject.split(".")[3]
        self.reads.append(tenant)
        if self.fails:
            raise JetStreamError
        return {"seq": self.commands[tenant]} if self.commands[tenant] >= sequence else None

    async def find(self, *skipped: str, position: int = 0) -> list[str]:
        """Look for tenants with commands after a position."""
        return sorted(await self.search.find(lambda tenant: tenant in skipped, lambda _: position))

    def take_for_listing(self, seconds: float) -> None:
        self.on_listing = lambda: setattr(self, "now", self.now + seconds)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    started = Site()
    monkeypatch.setattr(tenant_search, "time", SimpleNamespace(monotonic=lambda: started.now))
    return started


async def test_tenants_that_wait_are_found(site: Site) -> None:
    """The tenants with a command after the position are found. Those to skip are not looked at, but later."""
    assert (await site.find("b", position=1), site.reads) == ([], ["a"])
    assert (await site.find(position=1), site.reads) == (["b"], ["a", "b"])


async def test_a_look_that_fails_finds_nobody(site: Site) -> None:
    """A tenant whose command cannot be read is not found now. It is looked at again."""
    await site.find("a", "b")
    site.fails = True
    assert await site.find() == []
    site.fails = False
    assert await site.find() == ["a", "b"]


async def test_a_new_backlog_is_listed_at_once(site: Site) -> None:
    """A backlog that stays the same is listed once in a second, a new one at once."""
    counts: list[int] = []
    for ends in (False, False, True):
        if ends:
            site.search.forget_backlog()
        await site.find()
        counts.append(site.listings)
        site.now += 0.4
    assert counts == [1, 1, 2]


@pytest.mark.parametrize(
    ("size", "added", "at_once"),
    [(1000, 4096, [1, 3]), (2 * 1024 * 1024, 0, [1, 1]), (1000, 4097, [1, 1]), (1000, -1, [1, 1])],
)
async def test_small_listings_come_at_once(
    monkeypatch: pytest.MonkeyPatch, size: int, added: int, at_once: list[int]
) -> None:
    """After a small listing, the next one asks for several types of commands at once, unless many were added.

    A large one takes much memory, and the server closes a connection that must keep too much.
    """
    now, asked, most, end = NOW, 0, 0, 5

    async def subjects(_pattern: str) -> Listing:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(0)
        asked -= 1
        return Listing(b'{"state":{"last_seq":%d}}'.ljust(size) % end)

    monkeypatch.setattr(tenant_search, "time", SimpleNamespace(monotonic=lambda: now))
    consumer = cast("DurableConsumer", SimpleNamespace(subjects=subjects, largest_body=1))
    search = TenantSearch(consumer, Subjects("timer"), ["schedule-timer", "cancel-timer", "start-run", "put"])
    found: list[int] = []
    for _ in range(2):
        now, most = now + 100, 0
        await search.find(lambda _: False, lambda _: 0)
        found.append(most)
        end += added
    assert found == at_once


async def test_a_listing_at_once_that_fails(site: Site) -> None:
    """If one of the types that are asked for at once cannot be listed, the listing has failed. The next asks singly."""
    search = TenantSearch(cast("DurableConsumer", site), Subjects("timer"), ["schedule-timer", "put", "start-run"])
    await search.list_while_idle()

    def fail_from_the_second() -> None:
        site.fails = site.listings > 1

    site.on_listing = fail_from_the_second
    for asked in (3, 2):
        site.now, site.listings = site.now + 100, 0
        with pytest.raises(JetStreamError):
            await search.list_while_idle()
        assert site.listings == asked


async def test_a_command_that_is_added_during_a_listing(site: Site) -> None:
    """If the stream grows while it is listed, the listing may lack the new command, so it is listed again."""
    site.on_listing = lambda: site.search.stream_ends_at(6)
    await site.find()
    site.now += 0.4
    await site.find()
    assert site.listings == 2


async def test_slow_listings_are_rare_while_nothing_waits(site: Site) -> None:
    """While nothing waits, listings take a hundredth of the time at most."""
    site.take_for_listing(1)
    await site.search.list_while_idle()
    assert [site.search.is_idle_listing_due(site.now + seconds) for seconds in (99, 101)] == [False, True]


async def test_listings_that_failed_pause_while_nothing_waits(site: Site) -> None:
    """After a listing that failed, none begins before the pause is over, also while nothing waits."""
    site.fails = True
    with pytest.raises(JetStreamError):
        await site.search.list_while_idle()
    assert [site.search.is_idle_listing_due(site.now + seconds) for seconds in (0.9, 1.1)] == [False, True]


async def test_nothing_is_looked_at_after_an_idle_listing(site: Site) -> None:
    """A listing while nothing waits makes no subject a candidate."""
    await site.search.list_while_idle()
    assert (await site.find(), site.reads, site.listings) == ([], [], 1)


async def test_when_all_waiting_commands_are_known(site: Site) -> None:
    """A listing shows all commands that come to wait only if one was made before, while nothing waited."""
    site.search.all_is_delivered()
    found = [site.search._knows_all]
    await site.search.list_while_idle()
    site.search.all_is_delivered()
    assert [*found, site.search._knows_all] == [False, True]


@pytest.mark.parametrize(("size", "groups", "at_once"), [(1, [4, 8, 16, 32], 64), (10**6, [4, 2, 2, 2], 2)])
async def test_looks_at_once(site: Site, size: int, groups: list[int], at_once: int) -> None:
    """More and more subjects are looked at in one go while the answers are small, and few after a large answer."""
    looked: list[float] = []

    async def look(_subject: str) -> int:
        looked.append(site.now)
        return size

    def subjects() -> Any:
        for number in range(sum(groups)):
            if number in itertools.accumulate(groups):
                site.now += 0.01
            yield str(number)

    found = await tenant_search._look_at_each(subjects(), look, 2, 4, NOW + 100)
    assert ([len(list(group)) for _, group in itertools.groupby(looked)], found) == (groups, at_once)
