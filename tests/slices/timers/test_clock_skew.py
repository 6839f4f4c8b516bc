"""Several instances on one database, each with its own clock."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.harness.clock import NOW, ManualClock, after
from tests.harness.timers import Timers, bodies
from tests.harness.wiring import VISIBILITY_TIMEOUT
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.ports.database import Database
from timer_service.core.values.message import Message


@pytest.mark.parametrize("published_first", ["theirs", "ours"])
async def test_lease_expired_on_one_clock_only(
    store: Database, memory_broker: MemoryBroker, published_first: str
) -> None:
    """An instance whose clock is ahead claims a row that another instance holds. The timer still fires once."""
    ours = Timers(store, memory_broker, ManualClock())
    ahead = ManualClock(NOW + VISIBILITY_TIMEOUT.seconds * 1000 + 1)
    theirs = Timers(store, memory_broker, ahead)
    await ours.schedule(due_at=NOW)
    they_claimed = asyncio.Event()

    async def overtake(_: Sequence[Message]) -> None:
        memory_broker.before_publishing = hold if published_first == "ours" else nothing
        tasks.append(asyncio.create_task(theirs.tick()))
        await (they_claimed.wait() if published_first == "ours" else tasks[0])

    async def hold(_: Sequence[Message]) -> None:
        memory_broker.before_publishing = nothing
        they_claimed.set()
        await our_tick

    async def nothing(_: Sequence[Message]) -> None:
        """Publish."""

    tasks: list[asyncio.Task[int]] = []
    memory_broker.before_publishing = overtake
    async with asyncio.timeout(30):
        our_tick = asyncio.create_task(ours.tick())
        claimed = await our_tick, await tasks[0]
    row = await ours.row()
    assert claimed == (1, 1)
    assert (ours.metrics.lost, theirs.metrics.lost) == (1, 0)
    assert (row["state"], row["reached_at"], row["attempt"]) == ("Reached", ahead.now(), 2)
    assert [each["id"] for each in bodies(memory_broker.events)] == [row["event_id"]]


async def test_rescheduled_by_an_instance_whose_clock_is_behind(store: Database, memory_broker: MemoryBroker) -> None:
    """An instance whose clock is behind reschedules a timer that another instance holds. The timer fires again."""
    ours = Timers(store, memory_broker, ManualClock())
    theirs = Timers(store, memory_broker, ManualClock(after(seconds=-5)))
    await theirs.schedule(due_at=NOW)

    async def reschedule(_: Sequence[Message]) -> None:
        memory_broker.before_publishing = nothing
        await theirs.schedule(due_at=after(seconds=1))

    async def nothing(_: Sequence[Message]) -> None:
        """Publish."""

    memory_broker.before_publishing = reschedule
    await ours.tick()
    waiting = await ours.row()
    ours.clock.advance(seconds=1)
    await ours.tick()
    assert (ours.metrics.lost, waiting["state"]) == (1, "Scheduled")
    assert [each["payload"]["dueAt"][17:19] for each in bodies(memory_broker.events)] == ["00", "01"]
    assert len({each["id"] for each in bodies(memory_broker.events)}) == 2


async def test_locked_rows_are_skipped(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A claim skips rows that another instance has locked, and does not try again at once."""
    timers = Timers(postgres, memory_broker, clock)
    await timers.schedule(due_at=NOW)
    async with postgres.transaction() as other:
        await other.fetch("SELECT 1 AS one FROM timer_schedules /* for update */")
        claimed = await timers.tick()
        again_at = await timers.next_at()
    assert (claimed, again_at) == (0, NOW + 5)
    clock.set(NOW + 5)
    assert (await timers.tick(), timers.fired()) == (1, ["call-1"])
