from datetime import timedelta

import pytest

from tests.harness.builders import in_state, scheduled
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.metrics import RecordingMetrics
from tests.harness.timers import Timers, put_timers
from timer_service.core.due.loop import Pass
from timer_service.core.due.row_counts import RowCounts, overdue_sql
from timer_service.core.ports.database import Database
from timer_service.core.service.upkeep import Retention
from timer_service.timers import store as timer_store
from timer_service.timers.messages import State
from timer_service.timers.rules import Timer

RETENTION = timedelta(days=7)
EXPIRED = after(days=7, milliseconds=1)
"""The first instant at which a row that was settled at NOW is older than the retention time."""
BATCH = 500


@pytest.fixture
def retention(store: Database) -> Retention:
    return Retention(store, RETENTION, timer_store.delete_settled)


async def write(database: Database, *timers: Timer) -> None:
    """Write timers in any state."""
    fired = [timer for timer in timers if timer.state in {State.REACHED, State.EXPIRED}]
    async with database.transaction() as tx:
        await put_timers(tx, [timer for timer in timers if timer not in fired])
        await put_timers(
            tx,
            [each._replace(state=State.SCHEDULED, available_at=each.settled_at, settled_at=None) for each in fired],
        )
        await tx.executemany(
            "UPDATE timer_schedules SET state = :state, available_at = NULL, reached_at = :reached_at, "
            "expired_at = :expired_at WHERE tenant_id = :tenant_id AND service_call_id = :service_call_id",
            [
                {
                    **each.key._asdict(),
                    "state": each.state,
                    "reached_at": each.reached_at,
                    "expired_at": each.expired_at,
                }
                for each in fired
            ],
        )


async def remaining(database: Database) -> list[str]:
    rows = await database.reader.fetch("SELECT service_call_id FROM timer_schedules ORDER BY service_call_id")
    return [row["service_call_id"] for row in rows]


# Retention


async def test_retention_through_the_service(timers: Timers) -> None:
    """Every settled timer is deleted exactly one millisecond after the retention time."""
    await timers.schedule("fired")
    await timers.schedule("expired", NOW - 1, lateBy="PT0.001S")
    await timers.tick()
    await timers.schedule("cancelled", after(days=400))
    await timers.cancel("cancelled")
    await timers.schedule("waits", after(days=400))
    retention = Retention(timers.database, RETENTION, timer_store.delete_settled)
    kept = (await retention.tick(EXPIRED - 1)).done, await remaining(timers.database)
    deleted = (await retention.tick(EXPIRED)).done, await remaining(timers.database)
    assert kept == (0, ["cancelled", "expired", "fired", "waits"])
    assert deleted == (3, ["waits"])


@pytest.mark.parametrize("state", [State.SCHEDULED, State.FAILED])
async def test_scheduled_and_failed_timers_are_kept(store: Database, retention: Retention, state: State) -> None:
    """A scheduled timer, even if it is overdue, and a failed timer are never deleted."""
    await write(store, in_state(state, scheduled()), in_state(state, scheduled("early", due_at=0)))
    assert (await retention.tick(after(days=10_000))).done == 0
    assert await remaining(store) == ["call-1", "early"]


async def test_claimed_timers_are_kept(timers: Timers) -> None:
    """A claimed timer is not deleted, even if its due time is long past."""
    await timers.schedule(due_at=0)
    async with timers.database.transaction() as tx:
        assert len(await timers.lease.claim(tx, NOW, 10)) == 1
    retention = Retention(timers.database, RETENTION, timer_store.delete_settled)
    assert (await retention.tick(EXPIRED)).done == 0
    assert await remaining(timers.database) == ["call-1"]


async def test_retention_counts_from_settlement(store: Database, retention: Retention) -> None:
    """The retention time starts when a timer fires or is cancelled, not at its due time."""
    await write(store, in_state(State.REACHED, scheduled("late", due_at=0), at=NOW))
    await write(store, in_state(State.CANCELLED, scheduled("also late", due_at=0), at=NOW))
    assert ((await retention.tick(EXPIRED - 1)).done, (await retention.tick(EXPIRED)).done) == (0, 2)


async def test_a_later_command_does_not_extend_the_retention(timers: Timers) -> None:
    """The retention time of a settled timer goes on when a command finds it settled."""
    await timers.schedule()
    await timers.tick()
    timers.clock.set(EXPIRED)
    await timers.schedule()
    assert timers.outcomes() == {"scheduled": 1, "ignored_reached": 1}
    assert (await Retention(timers.database, RETENTION, timer_store.delete_settled).tick(EXPIRED)).done == 1


def settled(kind: str, call: str, at: int) -> Timer:
    match kind:
        case "cancelled":
            return in_state(State.CANCELLED, scheduled(call), at=at)
        case "expired":
            return in_state(State.EXPIRED, scheduled(call, due_at=0), at=at)
        case _:
            return in_state(State.REACHED, scheduled(call), at=at)


@pytest.mark.parametrize("kind", ["reached", "expired", "cancelled"])
async def test_retention_in_batches(store: Database, retention: Retention, kind: str) -> None:
    """A pass deletes at most one batch, oldest first, and asks for another pass until no expired row remains."""
    calls = [f"call-{number:04}" for number in range(2 * BATCH + 1)]
    newest_first = [settled(kind, call, NOW + number) for number, call in enumerate(calls)][::-1]
    await write(store, *newest_first, scheduled("z"))
    now = after(days=8)
    passes = []
    for _ in range(4):
        deleted, next_at = await retention.tick(now)
        passes.append((deleted, len(await remaining(store)), next_at is not None and next_at > now))
        assert await remaining(store) == [*calls[sum(count for count, *_ in passes) :], "z"]
    assert passes == [
        (BATCH, BATCH + 2, True),
        (BATCH, 2, True),
        (1, 1, False),
        (0, 1, False),
    ]


# Row counts


def row_counts_of(store: Database, metrics: RecordingMetrics) -> RowCounts:
    return RowCounts(
        store, metrics, counted=timer_store.COUNTED, overdue={timer_store.TIMERS.name: overdue_sql(timer_store.TIMERS)}
    )


async def test_row_counts(store: Database, metrics: RecordingMetrics, clock: ManualClock) -> None:
    """The gauges show how many timers of all tenants are in each state, how many are overdue, and for how long."""
    await write(
        store,
        scheduled("a", NOW - 2500),
        scheduled("b", NOW, tenant="other"),
        scheduled("c", NOW + 1),
        in_state(State.REACHED, scheduled("d")),
        in_state(State.REACHED, scheduled("e")),
        in_state(State.CANCELLED, scheduled("f")),
        in_state(State.EXPIRED, scheduled("i")),
        in_state(State.FAILED, scheduled("h", NOW - 90_000)),
    )
    row_counts = row_counts_of(store, metrics)
    assert await row_counts.tick(clock.now()) == Pass(8)
    assert metrics.counts == {
        ("timer_schedules", "Scheduled"): 3,
        ("timer_schedules", "Reached"): 2,
        ("timer_schedules", "Expired"): 1,
        ("timer_schedules", "Cancelled"): 1,
        ("timer_schedules", "Failed"): 1,
    }
    assert metrics.overdues["timer_schedules"] == [(2, 2.5)]


async def test_row_counts_of_an_empty_table(store: Database, metrics: RecordingMetrics) -> None:
    """For an empty table the gauge of each state is 0, and nothing is overdue."""
    assert await row_counts_of(store, metrics).tick(NOW) == Pass(0)
    assert metrics.counts == {("timer_schedules", state): 0 for state in State}
    assert metrics.overdues["timer_schedules"] == [(0, 0.0)]


async def test_row_counts_after_all_fired(timers: Timers) -> None:
    """A timer is overdue until it fires or is claimed."""
    row_counts = row_counts_of(timers.database, timers.metrics)
    for call in ("a", "b"):
        await timers.schedule(call, NOW - 1000)
    await row_counts.tick(NOW)
    async with timers.database.transaction() as tx:
        await timers.lease.claim(tx, NOW, 1)
    await row_counts.tick(NOW)
    await timers.tick()
    await row_counts.tick(NOW)
    assert timers.metrics.overdues["timer_schedules"] == [(2, 1.0), (1, 1.0), (0, 0.0)]
    assert timers.metrics.counts["timer_schedules", "Scheduled"] == 1
