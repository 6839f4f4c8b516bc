"""When the gate opens after a start and after an outage."""

import pytest

from tests.harness.builders import command_address
from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.metrics import RecordingMetrics
from tests.harness.wiring import make_parts
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake import cursor, waiting_rows
from timer_service.core.intake.backlog import LONGEST_WAIT_MS, RECHECK_MS, Backlog, BacklogGate
from timer_service.core.intake.waiting_rows import find_first, rows_of
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.log import LogCursor
from timer_service.core.ports.transactions import in_transaction


async def wake_nothing() -> None:
    """Wake no loop."""


class Site:
    """A gate, a reader that handles one command in each turn, and a clock that the test moves."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.database = database
        self.broker = MemoryBroker()
        self.gate = BacklogGate(self.broker, database)
        self.clock = ManualClock()
        parts = make_parts(database, self.broker, self.clock, RecordingMetrics(), batch_size=1)
        self.reader = parts.reader([], wake_nothing)

    def send(self, number: int = 1) -> None:
        """Store commands in the log. They are invalid, so to handle them is to reject them."""
        for _ in range(number):
            self.broker.send(command_address(), b"")

    async def handle(self, number: int = 1) -> None:
        """Handle commands of the log."""
        for _ in range(number):
            await self.reader.turn()

    async def is_open(self, *, after_ms: int = 0) -> bool:
        self.clock.advance(milliseconds=after_ms)
        return await self.gate.is_open(self.clock.now())

    async def wait(self) -> int:
        """Ask until the gate is open. Return how long that took, in ms."""
        began = self.clock.now()
        while not await self.is_open():
            self.clock.advance(milliseconds=RECHECK_MS)
        return self.clock.now() - began

    def lose_the_broker(self) -> None:
        self.broker.health = Health.down("away")


@pytest.fixture
async def site(sqlite: SqliteDatabase) -> Site:
    """Return a gate of a process that has just begun to read."""
    site = Site(sqlite)
    assert await site.reader.begin()
    return site


async def test_commands_from_before_the_start(site: Site) -> None:
    """The gate opens when these are handled. Commands that arrive meanwhile do not keep it closed."""
    site.send(2)
    found = [await site.is_open()]
    site.send(2)
    await site.handle()
    found.append(await site.is_open())
    await site.handle()
    found.append(await site.is_open())
    assert found == [False, False, True]


async def test_an_empty_log(sqlite: SqliteDatabase) -> None:
    """If no command was stored before the start, the gate is open at once, also if nobody reads. Otherwise it waits."""
    site = Site(sqlite)
    assert await BacklogGate(site.broker, sqlite).is_open(0)
    site.send()
    assert not await site.is_open()


@pytest.mark.parametrize("away", [None, "no leader"])
async def test_the_longest_wait(site: Site, away: str | None) -> None:
    """The gate opens after a minute if a command is never handled, or if the end of the log is not known.

    It stays open until the next outage.
    """
    site.send()
    site.broker.stored.away = away
    waited = [await site.wait(), await site.wait()]
    site.lose_the_broker()
    site.broker.health = HEALTHY
    assert [*waited, await site.wait()] == [LONGEST_WAIT_MS, 0, LONGEST_WAIT_MS]


async def test_each_outage_begins_another_wait(site: Site) -> None:
    """The gate closes with the connection, and waits for the commands that were stored until it was restored."""
    found = [await site.is_open()]
    site.lose_the_broker()
    site.send()
    found.append(await site.is_open(after_ms=RECHECK_MS))
    site.broker.health = HEALTHY
    found.append(await site.is_open(after_ms=RECHECK_MS))
    await site.handle()
    found.append(await site.is_open(after_ms=RECHECK_MS))
    assert found == [True, False, False, True]


async def test_an_outage_between_two_looks(site: Site) -> None:
    """The gate waits for the commands that were stored during an outage, also if it was not asked meanwhile."""
    site.send()
    found = [await site.is_open()]
    site.lose_the_broker()
    site.send()
    site.broker.health = HEALTHY
    for _ in range(2):
        await site.handle()
        found.append(await site.is_open())
    assert found == [False, False, True]


async def test_an_outage_does_not_count_as_waiting(site: Site) -> None:
    """The commands get the whole longest wait after the broker was away, however long that took."""
    site.send()
    found = [await site.is_open()]
    site.lose_the_broker()
    found.append(await site.is_open(after_ms=RECHECK_MS))
    site.broker.health = HEALTHY
    found.append(await site.is_open(after_ms=LONGEST_WAIT_MS))
    assert [*found, await site.wait()] == [False, False, False, LONGEST_WAIT_MS]


async def test_a_clock_that_is_set_back(site: Site) -> None:
    """The gate waits no longer because the clock was set back."""
    site.send()
    found = [await site.is_open(), await site.is_open(after_ms=LONGEST_WAIT_MS - 1)]
    site.clock.advance(milliseconds=-10 * LONGEST_WAIT_MS)
    found.append(await site.is_open())
    assert [*found, await site.is_open(after_ms=1)] == [False, False, False, True]


async def test_waiting_commands(site: Site) -> None:
    """The gate waits for waiting commands, unless they failed or are locked. `is_read` does not wait for them."""
    site.send(2)
    first, second = site.broker.stored.commands
    backlog = Backlog(site.broker, site.database)
    assert await backlog.begin()
    await site.handle(2)
    now = site.clock.now()
    assert (await backlog.is_read(), await backlog.is_applied(now)) == (True, True)
    async with site.database.transaction() as tx:
        await waiting_rows.add(tx, rows_of([first]))
        (row,) = await find_first(tx, ["acme"])
        await waiting_rows.postpone(tx, row, now + 1, 1, "locked")
        await waiting_rows.add(tx, rows_of([second]))  # it is behind the first one
    found = [await backlog.is_read(), await backlog.is_applied(now), await backlog.is_applied(now + 1)]
    assert not await backlog.is_applied(now - 65_000)  # it was postponed while the clock was ahead
    assert not await site.is_open(after_ms=1)
    async with site.database.transaction() as tx:
        for _ in range(2):
            (row,) = await find_first(tx, ["acme"])
            await waiting_rows.advance(tx, row, 1)
    assert [*found, await backlog.is_applied(now + 1)] == [True, True, False, True]


async def set_cursor(site: Site, reached: LogCursor) -> None:
    """Record how far the log was read."""
    taken = await cursor.take(site.database, "another reader", site.clock.now())
    assert taken is not None
    place = taken.place._replace(cursor=reached)
    await in_transaction(site.database, lambda tx: cursor.move(tx, place, site.clock.now()))


@pytest.mark.parametrize(
    ("reached", "is_read"),
    [
        (LogCursor("1", 1, 2, 20), True),
        (LogCursor("1", 1, 1, 10), False),
        (LogCursor("1", 1, 2, 15), False),
        (LogCursor("1", 1, 3, 30), True),
        (LogCursor("1", 1, 3, 15), False),
        (LogCursor("1", 1, 0, 20), True),
        (LogCursor("1", 1, 0, 19), False),
        (LogCursor("2", 2, 3, 30), False),
    ],
)
async def test_how_far_the_log_was_read(site: Site, reached: LogCursor, *, is_read: bool) -> None:
    """The log was read if its end was, or a later command. The times show if it was rolled back and has grown."""
    site.broker.send(command_address(), b"", stored_at=10)
    site.broker.send(command_address(), b"", stored_at=20)
    backlog = Backlog(site.broker, site.database)
    assert await backlog.begin()
    await set_cursor(site, reached)
    assert await backlog.is_read() is is_read


@pytest.mark.parametrize(("kept", "more"), [(0, 2), (1, 0), (1, 1)], ids=["replaced", "rolled back", "grown again"])
async def test_a_log_that_changes_meanwhile(site: Site, kept: int, more: int) -> None:
    """If the log was replaced or rolled back, its new end must be read, also if it has as many commands again."""
    site.send(2)
    backlog = Backlog(site.broker, site.database)
    assert await backlog.begin()
    if kept:
        site.broker.stored.roll_back(1)
    else:
        site.broker.stored.recreate(2)
    for _ in range(more):
        site.broker.send(command_address(), b"", stored_at=30)
    end = await site.broker.log.end()
    found = []
    for reached in (end._replace(sequence=end.sequence - 1, stored_at=0), end):
        await set_cursor(site, reached)
        found.append(await backlog.is_read())
    assert found == [False, True]
