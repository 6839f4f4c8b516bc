"""What the consumer remembers of a batch: how long it lasts, whose turn comes next, and what it forgets."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from tests.harness.builders import schedule_timer
from tests.harness.clock import NOW, ManualClock
from tests.harness.timers import Timers
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.consumer import Consumer
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.ports.broker import Reply
from timer_service.core.ports.database import Transaction
from timer_service.core.values.errors import ConflictError, DatabaseBlockedError, DatabaseUnavailableError
from timer_service.core.values.message import Command, Kind
from timer_service.timers import SLICE

DONE = CommandResult("scheduled")
Handle = Callable[[Sequence[Command]], Sequence[CommandResult | None]]


class Site:
    """A consumer whose handler a test scripts, in memory and on SQLite."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.wakes: list[tuple[int, str | None]] = []
        """The instants for which loops were woken, and the loops."""
        self.handle: Handle = lambda commands: [DONE] * len(commands)
        parts = make_parts(timers.database, timers.broker, timers.clock, timers.metrics)
        self.consumer: Consumer = parts.consumer([Route(SLICE.commands, self._handle, self._wake)])

    async def _handle(self, _tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult | None]:
        return self.handle(commands)

    async def _wake(self, at: int, loop: str | None) -> None:
        self.wakes.append((at, loop))

    async def run(self, *tenants: str) -> tuple[bool, int]:
        """Send a command of each tenant, if any, and handle one batch."""
        for number, tenant in enumerate(tenants):
            self.timers.send(schedule_timer(f"call-{number}", tenant=tenant), tenant=tenant)
        subscription = await self.timers.broker.subscribe()
        return await self.consumer.handle(subscription, await subscription.next_batch(100))

    def one_at_a_time(self, milliseconds: int) -> Handle:
        """Return a handler that applies one command in each transaction, which takes some time."""

        def handle(commands: Sequence[Command]) -> Sequence[CommandResult | None]:
            self.timers.clock.advance(milliseconds=milliseconds)
            return [DONE, *[None] * (len(commands) - 1)]

        return handle

    @property
    def waiting(self) -> str:
        """The tenants of the commands to deliver next, in order."""
        return "".join(self.timers.broker._log[position].address.tenant for position in self.timers.broker.waiting)


@pytest.fixture
def site(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> Site:
    return Site(Timers(sqlite, memory_broker, clock))


@pytest.mark.parametrize(("milliseconds", "handled"), [(49, 4), (50, 3), (150, 1)])
async def test_a_batch_lasts_150_ms(site: Site, milliseconds: int, handled: int) -> None:
    """Another transaction of a batch begins in the first 150 ms. The rest is put back, and nothing pauses."""
    site.handle = site.one_at_a_time(milliseconds)
    assert await site.run(*"aaaaa") == (False, 5 - handled)
    assert len(site.timers.broker.settlements.acknowledged) == handled


async def test_a_clock_that_is_set_back_ends_the_batch(site: Site) -> None:
    """If the clock is set back while a batch is handled, its rest is put back."""
    site.handle = site.one_at_a_time(-1)
    assert await site.run(*"aaa") == (False, 2)


async def test_tenants_with_a_handled_command_come_last(site: Site) -> None:
    """Tenants take turns in what is put back. A tenant with a command that was just handled comes last."""
    site.handle = site.one_at_a_time(150)
    await site.run(*"aabbc")
    assert site.waiting == "bcab"


async def test_tenants_take_turns_in_a_batch(site: Site) -> None:
    """Of the commands that a transaction has left, those of tenants without a handled command come first."""
    turns: list[str] = []
    one = site.one_at_a_time(1)

    def handle(commands: Sequence[Command]) -> Sequence[CommandResult | None]:
        turns.append(commands[0].tenant)
        return one(commands)

    site.handle = handle
    await site.run(*"aabbc")
    assert (turns[:3], sorted(turns)) == (list("abc"), list("aabbc"))


async def test_a_batch_that_meets_conflicts_is_divided(site: Site) -> None:
    """If a large transaction always meets conflicts with other instances, its commands are handled in smaller ones."""
    sizes: Counter[int] = Counter()

    def handle(commands: Sequence[Command]) -> Sequence[CommandResult | None]:
        sizes[len(commands)] += 1
        if len(commands) > 1:
            raise ConflictError("deadlock detected")
        return [DONE] * len(commands)

    site.handle = handle
    assert await site.run(*"abcd") == (False, 0)
    assert sizes == {4: 5, 2: 10, 1: 4}
    assert len(site.timers.broker.settlements.acknowledged) == 4


async def test_a_command_is_settled_last(site: Site) -> None:
    """If the process dies after a commit, the command comes again, and its reply and its wake-ups are repeated."""
    site.handle = lambda commands: [DONE._replace(wake_at=NOW)] * len(commands)
    seen: list[tuple[int, int]] = []
    reply = site.timers.broker.reply

    async def record(replies: Sequence[Reply]) -> None:
        seen.append((len(site.wakes), len(site.timers.broker.settlements.acknowledged)))
        await reply(replies)

    site.timers.broker.reply = record  # type: ignore[method-assign]
    site.timers.send(schedule_timer(), {"Timer-Reply-To": "_INBOX.me"})
    await site.run()
    assert (seen, len(site.timers.broker.settlements.acknowledged)) == ([(1, 0)], 1)


async def test_an_outage_leaves_nothing_behind(site: Site) -> None:
    """When commands are handled again, the outage is over for them, and their deliveries that did not count."""

    def fail(_commands: Sequence[Command]) -> Sequence[CommandResult | None]:
        raise DatabaseUnavailableError("away")

    outages = site.consumer._applier._outages
    works, site.handle = site.handle, fail
    assert await site.run(*"ab") == (True, 0)
    before = (len(site.consumer._attempts._excused), list(outages._failing))
    site.handle = works
    site.timers.broker.redeliver()
    assert await site.run() == (False, 0)
    assert before == (2, ["commands"])
    assert (site.consumer._attempts._excused, outages._failing) == ({}, {})


async def test_a_lock_leaves_nothing_behind(site: Site) -> None:
    """After a transaction of several tenants was blocked, each is handled apart. Those that succeed are forgotten."""
    sizes: list[int] = []

    def block_large_ones(commands: Sequence[Command]) -> Sequence[CommandResult | None]:
        sizes.append(len(commands))
        if len(commands) > 2:
            raise DatabaseBlockedError("lock timeout")
        return [DONE] * len(commands)

    site.handle = block_large_ones
    await site.run(*"abab")
    watched = set(site.consumer._blocked._tenants)
    await site.run()
    assert (sizes, watched, site.consumer._blocked._tenants) == ([4, 2, 2], {"a", "b"}, {})


async def test_a_command_is_not_rejected_without_its_database(site: Site, sqlite: SqliteDatabase) -> None:
    """While the file of the database is lost, a command that cannot be read waits too, as others do."""
    path = sqlite._files._paths[0]
    elsewhere = path.with_name("elsewhere.db")
    path.rename(elsewhere)
    position = site.timers.send(b"{")
    assert await site.run() == (True, 0)
    settled = site.timers.broker.settlements
    before = (settled.retried, list(settled.terminated), list(site.timers.broker.dead_letters))
    elsewhere.rename(path)
    site.timers.broker.redeliver()
    await site.run()
    assert before == ([(position, timedelta(seconds=1))], [], [])
    assert settled.terminated == [position]


async def test_a_rejected_command_leaves_nothing_behind(site: Site) -> None:
    """When a rejected command is settled, it is forgotten which of its messages were stored, and how often not."""
    broker = site.timers.broker
    broker.refuses = lambda message: message.address.kind is Kind.DEAD_LETTER
    site.timers.send(b"{")
    remembered: list[tuple[int, int]] = []
    rejector = site.consumer._rejector
    while not broker.settlements.terminated:
        await site.run()
        broker.redeliver()
        remembered.append((len(rejector._stored), len(rejector._refusals._failures)))
    assert remembered == [(1, 1)] * 9 + [(0, 0)]


async def test_loops_are_woken_for_the_earliest_row(site: Site) -> None:
    """A batch wakes each loop once, for the earliest row that its commands wrote for this loop."""
    results = [
        CommandResult("scheduled", at, loop=loop) for at, loop in ((5, None), (3, None), (4, "outbox"), (9, None))
    ]
    site.handle = lambda _commands: results
    await site.run(*"aaaa")
    assert site.wakes == [(3, None), (4, "outbox")]


async def test_a_blocked_transaction_ends_the_batch(site: Site) -> None:
    """What is left of a batch after a blocked transaction is put back: other transactions may meet the same lock."""
    sizes: list[int] = []

    def block(commands: Sequence[Command]) -> Sequence[CommandResult | None]:
        sizes.append(len(commands))
        raise DatabaseBlockedError("lock timeout")

    site.handle = block
    await site.run(*"abab")
    assert await site.run() == (False, 4)
    assert sizes == [4, 2]


async def test_a_row_for_workers_that_has_a_deadline_too(site: Site) -> None:
    """A loop that a result names is woken, also if workers take the row. Without a name, no loop is woken."""
    for_workers = CommandResult("started", 5, lane=("a", "main", "pay"))
    results = [for_workers, for_workers._replace(wake_at=7, loop="deadlines")]
    site.handle = lambda _commands: results
    await site.run(*"aa")
    assert site.wakes == [(7, "deadlines")]


@pytest.mark.parametrize(("fault", "counting"), [("has_no_room_for", 0), ("refuses", 1)])
async def test_a_wait_for_room_does_not_count_against_a_command(site: Site, fault: str, counting: int) -> None:
    """A delivery counts if the broker refuses the dead letter, and not if the broker has no room for it."""
    setattr(site.timers.broker, fault, lambda message: message.address.kind is Kind.DEAD_LETTER)
    site.timers.send(b"{")
    subscription = await site.timers.broker.subscribe()
    (delivery,) = batch = await subscription.next_batch(1)
    await site.consumer.handle(subscription, batch)
    assert site.consumer._attempts.of(delivery) == counting
