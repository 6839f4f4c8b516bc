"""The worker of backfills: its bounds, what it waits for, failures, and several instances."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.databases import Databases
from tests.harness.in_process import exhaust, next_at
from tests.harness.locks import LockedPostgres, open_locked_postgres
from tests.harness.schedules import Schedules, StartingSchedules
from tests.slices.schedules.test_start_locks import insert
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.due.row_counts import RowCounts
from timer_service.core.events import outbox
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.clock_repair import ClockRepair
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Event
from timer_service.schedules import room
from timer_service.schedules.backfill import store as backfill_store
from timer_service.schedules.backfill import worker as backfill_worker
from timer_service.schedules.backfill.store import COUNTED, TIMED

RECHECK_MS = 250
SECONDS = 1200


def send_backfill(schedules: Schedules, schedule: str = "daily", tenant: str = "acme", **fields: Any) -> None:
    """Put a schedule with a slot each second, and send a backfill of the last 20 minutes."""
    schedules.send("PutSchedule", tenant=tenant, scheduleId=schedule, every="PT1S", **fields)
    span: dict[str, Any] = {"from_": iso(after(seconds=-SECONDS)), "to": iso(NOW)}
    schedules.send("BackfillSchedule", tenant=tenant, scheduleId=schedule, limit=10_000, **span)


async def slots_in_outbox(schedules: Schedules) -> Counter[str]:
    """Return how many events of slots of each tenant are in the outbox."""
    rows = await schedules.rows("outbox")
    return Counter(row["tenant_id"] for row in rows if row["message"] == "schedule-fired")


# Bounds


async def test_slots_of_a_transaction(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction fires at most 250 slots. The next one goes on behind them."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", 1000)
    send_backfill(schedules)
    await schedules.consume()
    await schedules.backfill_worker.tick(NOW)
    assert await slots_in_outbox(schedules) == {"acme": 250}
    assert await next_at(schedules.backfill_worker, NOW) == NOW + 20  # the events have not been published
    assert await slots_in_outbox(schedules) == {"acme": 250}
    assert await schedules.fire_backfills() == 4
    assert await schedules.backfilled() == [iso(NOW - 1000 * seconds) for seconds in range(SECONDS, 0, -1)]
    assert [(each["count"], each["reason"]) for each in await schedules.ends()] == [(SECONDS, "done")]


async def test_data_of_a_transaction(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction adds at most so many characters of data, but always one slot of each backfill."""
    monkeypatch.setattr(room, "MOST_DATA", 70_000)
    await schedules.put(data="x" * 20_000)
    await schedules.backfill(after(minutes=-9), NOW)
    await schedules.backfill_worker.tick(NOW)
    assert await slots_in_outbox(schedules) == {"acme": 3}
    await schedules.publish()
    monkeypatch.setattr(room, "MOST_DATA", 1)
    await schedules.backfill_worker.tick(NOW)
    assert await slots_in_outbox(schedules) == {"acme": 1}


async def test_computing_of_a_transaction(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction computes slots for a limited time, but at least one slot of each backfill."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", 0)
    send_backfill(schedules)
    send_backfill(schedules, tenant="other")
    await schedules.consume()
    await schedules.backfill_worker.tick(NOW)
    assert await slots_in_outbox(schedules) == {"acme": 1, "other": 1}


async def test_tenants_share(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tenants share a transaction equally, with one backfill each. Then it is the turn of the others."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", 1000)
    tenants = [f"t{number}" for number in range(7)]
    for tenant in tenants:
        for schedule in ("a", "b"):
            send_backfill(schedules, schedule, tenant)
    await schedules.consume()
    found: list[Counter[str]] = []
    for _ in range(2):
        await schedules.backfill_worker.tick(NOW)
        found.append(await slots_in_outbox(schedules))
        await schedules.publish()
    assert found == [dict.fromkeys(tenants[:5], 50), dict.fromkeys([*tenants[5:], *tenants[:3]], 50)]
    rows = await schedules.rows("schedule_backfills")
    assert {row["fired_count"] for row in rows if row["schedule_id"] == "b"} == {0}


async def test_events_of_others_delay_no_portion(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next portion of a tenant waits for the events of this tenant, however many others wait in the outbox."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", 1000)
    many = [Event(f"e{number}", "JobReady", "flood", {}, NOW) for number in range(100)]
    await in_transaction(schedules.database, partial(outbox.add, events=many, now=NOW))
    send_backfill(schedules)
    await schedules.consume()
    await schedules.backfill_worker.tick(NOW)
    assert await next_at(schedules.backfill_worker, NOW) == NOW + 20
    await schedules.sql("DELETE FROM outbox WHERE tenant_id = 'acme'")
    await schedules.backfill_worker.tick(NOW)
    assert await slots_in_outbox(schedules) == {"acme": 250}


async def test_other_due_slots_do_not_wait(schedules: Schedules) -> None:
    """Between two portions, due slots fire and are published: the pass that fires them knows no backfills."""
    send_backfill(schedules)
    await schedules.consume()
    await schedules.put("other")
    await schedules.backfill_worker.tick(NOW)
    await schedules.advance(minutes=1)
    assert await schedules.fired("other") == [iso(after(minutes=1))]
    assert len(await schedules.rows("schedule_backfills")) == 1


# What it waits for


async def test_broker_away(schedules: Schedules) -> None:
    """Nothing fires while the broker is away, and after that not before older commands were handled."""
    await schedules.put()
    await schedules.backfill(after(minutes=-3), NOW)
    schedules.broker.health = Health.down("away")
    assert await next_at(schedules.backfill_worker, NOW) == NOW + RECHECK_MS
    schedules.send("DeleteSchedule")
    schedules.broker.health = HEALTHY
    assert await next_at(schedules.backfill_worker, NOW) == NOW + RECHECK_MS
    assert await slots_in_outbox(schedules) == {}
    await schedules.consume()
    await schedules.fire_backfills()
    assert (await schedules.backfilled(), [each["reason"] for each in await schedules.ends()]) == ([], ["deleted"])


async def test_nothing_to_do(schedules: Schedules) -> None:
    """Without a backfill, a pass is one statement, and no pass is wanted. A command wakes the loop of the worker."""
    await schedules.put()
    assert await next_at(schedules.backfill_worker, NOW) is None
    schedules.command_wakes.clear()
    await schedules.backfill(after(minutes=-3), NOW)
    assert schedules.command_wakes == [NOW]
    await schedules.backfill_worker.tick(NOW)
    assert ("outbox", NOW) in schedules.worker_wakes


async def test_wrong_clock(schedules: Schedules) -> None:
    """A backfill that waits for an instant that a wrong clock has written is due at once after the repair."""
    await schedules.put()
    await schedules.backfill(after(minutes=-3), NOW)
    await schedules.sql(f"UPDATE schedule_backfills SET available_at = {after(hours=1)}")
    assert await schedules.fire_backfills() == 0
    await exhaust(ClockRepair(schedules.database, schedules.clock, [TIMED]), NOW)
    await schedules.fire_backfills()
    assert len(await schedules.backfilled()) == 3


async def test_gauge(schedules: Schedules) -> None:
    """A gauge has the number of open backfills."""
    await schedules.put()
    for _ in range(2):
        await schedules.backfill(after(minutes=-3), NOW)
    await RowCounts(schedules.database, schedules.metrics, counted=[COUNTED], overdue={}).tick(NOW)
    assert schedules.metrics.counts == {("schedule_backfills", "open"): 2}


# Failures

BROKEN = {
    "unknown zone": "zone = 'Moon/Tycho', every_ms = NULL, cron = '* * * * *'",
    "unreadable start": "start = 'no JSON'",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_broken_backfill(schedules: Schedules, broken: str) -> None:
    """A backfill that cannot be read or computed waits, longer each time, with the error. Others go on."""
    for tenant in ("acme", "other"):
        schedules.send("PutSchedule", tenant=tenant, every="PT1M", scheduleId="daily")
        span: dict[str, Any] = {"from_": iso(after(minutes=-3)), "to": iso(NOW)}
        schedules.send("BackfillSchedule", tenant=tenant, scheduleId="daily", **span)
    schedules.send("BackfillSchedule", scheduleId="daily", from_=iso(after(minutes=-9)), to=iso(after(minutes=-8)))
    await schedules.consume()
    position = schedules.positions[1].sequence
    await schedules.sql(f"UPDATE schedule_backfills SET {broken} WHERE position_sequence = {position}")
    await schedules.fire_backfills()
    assert len(await schedules.backfilled(tenant="other")) == 3
    assert await schedules.backfilled() == [iso(after(minutes=-9))]
    (row,) = await schedules.rows("schedule_backfills")
    assert (row["available_at"], row["fired_count"]) == (after(seconds=1), 0)
    (shown,) = (await schedules.view())["backfills"]
    assert (shown["lastError"], shown["retryAt"]) == (row["last_error"], iso(after(seconds=1)))
    assert schedules.metrics.settled_in["schedule_backfills", "failed"] == 1
    schedules.clock.advance(seconds=1)
    await schedules.fire_backfills()
    assert (await schedules.rows("schedule_backfills"))[0]["available_at"] == after(seconds=3)
    await schedules.sql("UPDATE schedule_backfills SET zone = 'UTC', cron = NULL, every_ms = 60000, start = NULL")
    schedules.clock.advance(seconds=2)
    await schedules.fire_backfills()
    assert len(await schedules.backfilled()) == 4


async def failing(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch, *tenants: str, error: Exception
) -> list[str | None]:
    """Backfill for three tenants while transactions of some of them fail. Return the errors of the rows."""
    save = backfill_store.delete

    async def fail(tx: Transaction, keys: Any) -> None:
        if any(key.tenant_id in tenants for key in keys):
            raise error
        await save(tx, keys)

    for tenant in ("a", "b", "c"):
        schedules.send("PutSchedule", tenant=tenant, every="PT1M", scheduleId="daily")
        schedules.send("BackfillSchedule", tenant=tenant, scheduleId="daily", from_=iso(after(minutes=-3)), to=iso(NOW))
    await schedules.consume()
    monkeypatch.setattr(backfill_store, "delete", fail)
    await schedules.fire_backfills()
    return [row["last_error"] for row in await schedules.rows("schedule_backfills")]


async def test_a_transaction_that_fails(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a transaction fails, each backfill is fired alone. Only the one that fails alone waits."""
    errors = await failing(schedules, monkeypatch, "b", error=ValueError("no"))
    assert errors == ["ValueError"]
    assert [len(await schedules.backfilled(tenant=each)) for each in ("a", "b", "c")] == [3, 0, 3]


@pytest.mark.parametrize("error", [ValueError("no"), DatabaseUnavailableError("away")])
async def test_the_environment_fails(schedules: Schedules, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """If every transaction fails, or the database is away, the pass fails and no backfill is changed."""
    with pytest.raises(type(error)):
        await failing(schedules, monkeypatch, "a", "b", "c", error=error)
    rows = await schedules.rows("schedule_backfills")
    assert [(row["last_error"], row["available_at"], row["fired_count"]) for row in rows] == [(None, NOW, 0)] * 3


# Locks and several instances


@pytest.fixture
async def locks(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LockedPostgres]:
    async with open_locked_postgres(databases, monkeypatch) as opened:
        yield opened


async def test_a_locked_workflow(locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A backfill whose workflow is locked waits a second. That of another tenant goes on."""
    starting = StartingSchedules(locks.database, memory_broker, clock)
    for tenant in ("acme", "other"):
        start = {"type": "order"}
        starting.send("PutSchedule", tenant=tenant, scheduleId="daily", every="PT1M", start=start)
        span: dict[str, Any] = {"from_": iso(after(minutes=-3)), "to": iso(NOW)}
        starting.send("BackfillSchedule", tenant=tenant, scheduleId="daily", **span)
    await starting.consume()
    async with locks.locked(insert(f"daily/{iso(after(minutes=-2))}")):
        await starting.fire_backfills()
        assert (len(await starting.workflows()), len(await starting.workflows("other"))) == (0, 3)
        assert (await starting.rows("schedule_backfills"))[0]["available_at"] == after(seconds=1)
    starting.clock.advance(seconds=1)
    await starting.fire_backfills()
    assert len(await starting.workflows()) == 3


async def test_a_locked_backfill(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A backfill that another instance has locked is skipped, and so are the later ones of its tenant."""
    schedules = Schedules(postgres, memory_broker, clock)
    send_backfill(schedules)
    send_backfill(schedules)
    await schedules.consume()
    async with asyncio.timeout(10), postgres.transaction() as tx:
        await tx.fetch("SELECT 1 FROM schedule_backfills ORDER BY position_sequence LIMIT 1 FOR UPDATE")
        assert await next_at(schedules.backfill_worker, NOW) == NOW + 50
        assert await slots_in_outbox(schedules) == {}


async def test_two_instances(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two instances share the portions of a backfill. Each slot fires once."""
    monkeypatch.setattr(room, "MOST_SLOTS", 50)
    monkeypatch.setattr(backfill_worker, "_LOCKED_PAUSE_MS", 0)
    both = [Schedules(postgres, memory_broker, clock) for _ in range(2)]
    send_backfill(both[0])
    await both[0].consume()
    order = Random(1)
    while await both[0].rows("schedule_backfills"):
        chosen = order.sample(both, 2)
        await asyncio.gather(*(each.backfill_worker.tick(NOW) for each in chosen))
        await both[0].publish()
    assert Counter(await both[0].backfilled()) == {iso(NOW - 1000 * seconds): 1 for seconds in range(1, SECONDS + 1)}
    shares = [each.metrics.settled_in["schedule_backfills", "fired"] for each in both]
    assert (sum(shares), min(shares) > 0) == (SECONDS, True)


async def test_disabled(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While schedules are disabled, backfills are stored, and they fire later."""
    off = Schedules(store, memory_broker, clock, enabled=False)
    await off.put()
    assert await off.backfill(after(minutes=-3), NOW) == "backfilling"
    on = Schedules(store, memory_broker, clock)
    await on.fire_backfills()
    assert len(await on.backfilled()) == 3


# Schema

FORBIDDEN = [
    "to_at = from_at",
    "after_at = from_at - 2",
    "after_at = to_at",
    "slot_limit = 0",
    "fired_count = slot_limit",
    "fired_count = 5, skipped_count = slot_limit - 5",
    "fired_count = -1",
    "skipped_count = -1",
    "cron = '* * * * *'",
    "every_ms = NULL",
    "every_ms = 999",
    "jitter_ms = -1",
    "data = NULL",
    "data_size = 0",
]


async def test_schema_refuses(schedules: Schedules) -> None:
    """Both engines refuse a row that would break a promise of backfills."""
    await schedules.put(data=1)
    await schedules.backfill(after(minutes=-3), NOW)
    for change in FORBIDDEN:
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            await schedules.sql(f"UPDATE schedule_backfills SET {change}")
