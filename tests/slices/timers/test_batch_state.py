"""What follows from the results of a batch: smaller transactions, wake-ups and replies."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.harness.builders import schedule_timer
from tests.harness.clock import ManualClock
from tests.harness.timers import Timers
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.ports.database import Transaction
from timer_service.core.values.errors import ConflictError
from timer_service.core.values.message import Command
from timer_service.timers import SLICE

DONE = CommandResult("scheduled")
Handle = Callable[[Sequence[Command]], Sequence[CommandResult]]


class Site:
    """A reader whose handler a test scripts, in memory and on SQLite."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.wakes: list[tuple[int, str | None]] = []
        """The instants for which loops were woken, and the loops."""
        self.handle: Handle = lambda commands: [DONE] * len(commands)
        timers.read_for(Route(SLICE.commands, self._handle, self._wake))

    async def _handle(self, _tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        return self.handle(commands)

    async def _wake(self, at: int, loop: str | None) -> None:
        self.wakes.append((at, loop))

    async def run(self, *tenants: str) -> None:
        """Send a command of each tenant, and handle all."""
        for number, tenant in enumerate(tenants):
            self.timers.send(schedule_timer(f"call-{number}", tenant=tenant), tenant=tenant)
        await self.timers.consume()


@pytest.fixture
def site(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> Site:
    return Site(Timers(sqlite, memory_broker, clock))


async def test_a_batch_that_meets_conflicts_is_divided(site: Site) -> None:
    """If a large transaction always meets conflicts with other instances, its commands are handled in smaller ones."""
    sizes: Counter[int] = Counter()

    def handle(commands: Sequence[Command]) -> Sequence[CommandResult]:
        sizes[len(commands)] += 1
        if len(commands) > 2:
            raise ConflictError("deadlock detected")
        return [DONE] * len(commands)

    site.handle = handle
    await site.run(*"abcd")
    assert sizes == {4: 10, 2: 2}  # five tries of the log, and as many of the waiting commands
    assert site.timers.outcomes() == {"scheduled": 4}


async def test_loops_are_woken_for_the_earliest_row(site: Site) -> None:
    """A batch wakes each loop once, for the earliest row that its commands wrote for this loop."""
    results = [
        CommandResult("scheduled", at, loop=loop) for at, loop in ((5, None), (3, None), (4, "outbox"), (9, None))
    ]
    site.handle = lambda _commands: results
    await site.run(*"aaaa")
    assert site.wakes == [(3, None), (4, "outbox")]


async def test_a_row_for_workers_that_has_a_deadline_too(site: Site) -> None:
    """A loop that a result names is woken, also if workers take the row. Without a name, no loop is woken."""
    for_workers = CommandResult("started", 5, lane=("a", "main", "pay"))
    results = [for_workers, for_workers._replace(wake_at=7, loop="deadlines")]
    site.handle = lambda _commands: results
    await site.run(*"aa")
    assert site.wakes == [(7, "deadlines")]


async def test_an_error_after_the_commit(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """If a loop cannot be woken for a row, its command has taken effect all the same, once."""
    handled: list[str] = []

    async def fail(_at: int, _loop: str | None) -> None:
        raise RuntimeError("a surprise")

    async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        handled.extend(each.tenant for each in commands)
        return [DONE._replace(wake_at=1)] * len(commands)

    site.timers.read_for(Route(SLICE.commands, handle, fail))
    await site.run("a")
    await site.run("b")
    assert handled == ["a", "b"]
    assert "the work after a commit failed" in caplog.text
