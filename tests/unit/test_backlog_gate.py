"""When the gate opens after a start and after an outage: with commands that arrive while it waits, and without."""

from typing import cast

import pytest

from timer_service.core.intake.backlog_gate import LONGEST_WAIT_MS, RECHECK_MS, BacklogGate
from timer_service.core.ports.broker import Broker
from timer_service.core.ports.health import HEALTHY, Health


class Stream:
    """A broker with a stream that is handled in order."""

    def __init__(self) -> None:
        self.health = HEALTHY
        self.outages = 0
        self.stored = self.handled = 0
        self._end: int | None = None
        self.looks = 0

    async def caught_up(self, *, restart: bool = False) -> bool:
        self.looks += 1
        if restart or self._end is None:
            self._end = self.stored
        is_settled = self.handled >= self._end
        if is_settled:
            self._end = None
        return is_settled


class Site:
    """A gate, and a clock that the test moves."""

    def __init__(self) -> None:
        self.broker = Stream()
        self.gate = BacklogGate(cast("Broker", self.broker))
        self.now = 1_000_000

    async def is_open(self, *, after_ms: int = 0) -> bool:
        self.now += after_ms
        return await self.gate.is_open(self.now)


@pytest.fixture
def site() -> Site:
    """Return a gate of a process that has just started."""
    return Site()


async def test_commands_that_arrive_during_a_long_backlog(site: Site) -> None:
    """A command that was stored while a long backlog was handled is handled before anything is decided by the time."""
    site.broker.stored = 10
    found = [await site.is_open()]
    site.broker.stored = 12
    site.broker.handled = 10
    found.append(await site.is_open(after_ms=5_000))
    site.broker.handled = 11
    found.append(await site.is_open(after_ms=RECHECK_MS))
    site.broker.handled = 12
    found.append(await site.is_open(after_ms=RECHECK_MS))
    assert found == [False, False, False, True]


@pytest.mark.parametrize(("seconds", "opens"), [(1, True), (1.001, False)])
async def test_commands_that_arrive_during_a_short_backlog(site: Site, seconds: float, *, opens: bool) -> None:
    """Commands that arrive steadily do not keep the gate closed: a backlog of at most a second is waited for once."""
    site.broker.stored = 10
    found = [await site.is_open()]
    site.broker.stored = 20
    site.broker.handled = 10
    found.append(await site.is_open(after_ms=round(seconds * 1000)))
    assert (found, site.broker.looks) == ([False, opens], 2 if opens else 3)


async def test_commands_that_arrive_at_the_end_of_a_long_backlog(site: Site) -> None:
    """The commands that were stored during a long backlog are a short one: the gate does not count a third time."""
    site.broker.stored = 10
    found = [await site.is_open()]
    site.broker.stored, site.broker.handled = 12, 10
    found.append(await site.is_open(after_ms=5_000))
    site.broker.stored, site.broker.handled = 14, 12
    found.append(await site.is_open(after_ms=1_000))
    assert found == [False, False, True]


async def test_an_open_gate_asks_nothing(site: Site) -> None:
    """Without another outage the gate stays open, whatever waits."""
    found = [await site.is_open()]
    site.broker.stored = 10
    found.append(await site.is_open(after_ms=60_000))
    assert (found, site.broker.looks) == ([True, True], 1)


async def test_each_outage_begins_another_wait(site: Site) -> None:
    """The gate closes with the connection, and waits for the commands that were stored until it was restored."""
    found = [await site.is_open()]
    site.broker.health, site.broker.outages = Health.down("away"), 1
    site.broker.stored = 5
    found.append(await site.is_open(after_ms=RECHECK_MS))
    site.broker.health = HEALTHY
    found.append(await site.is_open(after_ms=RECHECK_MS))
    site.broker.handled = 5
    found.append(await site.is_open(after_ms=RECHECK_MS))
    assert found == [True, False, False, True]


async def test_the_longest_wait(site: Site) -> None:
    """The gate opens after a minute, although a command is never handled. Then it looks no more often than before."""
    site.broker.stored = 1
    waited = 0
    while not await site.is_open():
        site.now += RECHECK_MS
        waited += RECHECK_MS
    looks = site.broker.looks
    found = [await site.is_open(after_ms=RECHECK_MS - 1), await site.is_open(after_ms=1)]
    assert (waited, found, site.broker.looks - looks) == (LONGEST_WAIT_MS, [True, True], 1)


async def test_a_new_backlog_does_not_prolong_the_longest_wait(site: Site) -> None:
    """A backlog that never ends keeps the gate closed for a minute, also if it is handled part by part."""
    waited = 0
    site.broker.stored = 1
    while not await site.is_open():
        site.broker.handled = site.broker.stored
        site.broker.stored += 1
        site.now += 5_000
        waited += 5_000
    assert waited == LONGEST_WAIT_MS


async def test_outage_after_the_longest_wait(site: Site) -> None:
    """A gate that opened by its limit closes for the commands of the next outage, and waits for them a minute."""
    site.broker.stored = 1
    while not await site.is_open():
        site.now += RECHECK_MS
    site.broker.outages, site.broker.stored = 1, 5
    waited = 0
    while not await site.is_open():
        site.now += RECHECK_MS
        waited += RECHECK_MS
    assert waited == LONGEST_WAIT_MS


async def test_an_outage_does_not_count_as_waiting(site: Site) -> None:
    """The commands get the whole longest wait after the broker was away, however long that took."""
    site.broker.stored = 1
    found = [await site.is_open()]
    site.broker.health, site.broker.outages = Health.down("away"), 1
    found.append(await site.is_open(after_ms=RECHECK_MS))
    site.broker.health = HEALTHY
    found.append(await site.is_open(after_ms=LONGEST_WAIT_MS))
    found.append(await site.is_open(after_ms=LONGEST_WAIT_MS - 1))
    found.append(await site.is_open(after_ms=1))
    assert found == [False, False, False, False, True]
