"""BackfillSchedule: past slots fire under their own ids, and nothing of the schedule changes."""

import asyncio
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import next_at
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import Schedules, StartingSchedules
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.events import outbox
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Event
from timer_service.schedules import room
from timer_service.schedules.backfill import store as backfill_store

RECHECK_MS = 250
SECONDS = 1200


def minutes(*numbers: int) -> list[str]:
    """Return instants that are minutes after the beginning."""
    return [iso(after(minutes=each)) for each in numbers]


def send_backfill(
    schedules: Schedules, schedule: str = "daily", tenant: str = "acme", *, seconds: int = SECONDS, **fields: Any
) -> None:
    """Put a schedule with a slot each second, and send a backfill of the last seconds."""
    schedules.send("PutSchedule", tenant=tenant, scheduleId=schedule, every="PT1S", **fields)
    span: dict[str, Any] = {"from_": iso(NOW - 1000 * seconds), "to": iso(NOW)}
    schedules.send("BackfillSchedule", tenant=tenant, scheduleId=schedule, limit=10_000, **span)


async def slots_in_outbox(schedules: Schedules) -> Counter[str]:
    """Return how many events of slots of each tenant are in the outbox."""
    rows = await schedules.rows("outbox")
    return Counter(row["tenant_id"] for row in rows if row["message"] == "schedule-fired")


async def test_slots_before_the_schedule(schedules: Schedules) -> None:
    """Slots fire that were before the PutSchedule, with the data of the schedule and the ids of the command."""
    await schedules.put(data={"to": "team"})
    before = await schedules.row()
    schedules.command_wakes.clear()
    assert await schedules.backfill(after(minutes=-3), NOW) == "backfilling"
    assert schedules.command_wakes == [NOW]
    await schedules.fire_backfills()
    events = await schedules.events_of("ScheduleFired")
    names = {"tenantId": "acme", "scheduleId": "daily"}
    fired = {"firedAt": iso(NOW), "cause": "backfill", "data": {"to": "team"}}
    assert [each["payload"] for each in events] == [{**names, **fired, "slotAt": slot} for slot in minutes(-3, -2, -1)]
    (ended,) = await schedules.events_of("ScheduleBackfilled")
    command = ended["payload"].pop("commandId")
    about = {"from": minutes(-3)[0], "to": iso(NOW), "count": 3, "skipped": 0, "reason": "done"}
    assert ended["payload"] == {**names, **about}
    assert {each["causationId"] for each in (*events, ended)} == {command}
    assert await schedules.row() == before
    assert await schedules.rows("schedule_backfills") == []
    assert schedules.metrics.settled_in["schedule_backfills", "fired"] == 3


async def test_ids_of_slots(store: Database, clock: ManualClock) -> None:
    """A slot that has fired before is published under the same id, so the broker or the consumer drops it."""
    schedules = Schedules(store, MemoryBroker(deduplicates=False), clock)
    await schedules.put()
    await schedules.advance(minutes=1)
    clock.advance(seconds=1)
    for first in (-1, 0):
        assert await schedules.backfill(after(minutes=first), after(minutes=5)) == "backfilling"
    clock.advance(minutes=3)
    await schedules.fire_backfills()
    assert [each["to"] for each in await schedules.ends()] == [iso(after(minutes=1, seconds=1))] * 2
    ids = [(each["payload"]["slotAt"], each["id"]) for each in await schedules.events_of("ScheduleFired")]
    assert (len(ids), len(set(ids)), len({each for _, each in ids})) == (6, 3, 3)


async def test_jitter(schedules: Schedules) -> None:
    """A slot that is not due because of its jitter does not fire early, nor later. The event names it."""
    await schedules.put(every="PT1H", jitter="PT1H")
    due = (await schedules.row())["available_at"]
    await schedules.about("Pause")
    schedules.clock.set(due - 1)
    assert await schedules.backfill(NOW, after(hours=2)) == "backfilling"
    await schedules.fire_backfills()
    schedules.clock.set(due)
    assert await schedules.backfill(after(hours=1), after(hours=2)) == "backfilling"
    await schedules.fire_backfills()
    assert await schedules.backfilled() == [iso(NOW), iso(after(hours=1))]
    ends = [(each["count"], each["reason"], each.get("nextSlotAt")) for each in await schedules.ends()]
    assert ends == [(1, "done", iso(after(hours=1))), (1, "done", None)]


async def test_outcomes(schedules: Schedules) -> None:
    """A schedule that is paused or has ended is backfilled, and one that is deleted is not."""
    span = (after(minutes=-2), NOW)
    assert await schedules.backfill(*span) == "not_found"
    await schedules.put()
    assert await schedules.backfill(NOW, after(minutes=1)) == "nothing_due"
    empty = await schedules.request("BackfillSchedule", scheduleId="daily", from_=iso(NOW), to=iso(NOW))
    assert empty["error"]["code"] == "INVALID_PAYLOAD"
    await schedules.about("Pause")
    assert await schedules.backfill(*span) == "backfilling"
    await schedules.put("over", endAt=minutes(-1)[0])
    assert await schedules.backfill(*span, "over") == "backfilling"
    await schedules.fire_backfills()
    assert (await schedules.backfilled(), await schedules.backfilled("over")) == (minutes(-2, -1), minutes(-2))
    await schedules.about("Delete")
    assert await schedules.backfill(*span) == "not_found"


async def test_view(schedules: Schedules) -> None:
    """get-schedule shows the oldest ten backfills that have not ended."""
    send_backfill(schedules, tenant="other")
    await schedules.put()
    reply = await schedules.request("BackfillSchedule", scheduleId="daily", from_=minutes(-9)[0], to=iso(NOW), limit=7)
    assert reply["schedule"]["status"] == "active"
    wanted = {"from": minutes(-9)[0], "to": iso(NOW), "limit": 7, "count": 0, "skipped": 0}
    assert (await schedules.view(upcoming=1))["backfills"] == [{"commandId": reply["commandId"], **wanted}]
    await schedules.put("other")
    assert "backfills" not in await schedules.view("other")
    for _ in range(10):
        assert await schedules.backfill(after(minutes=-3), NOW) == "backfilling"
    assert len((await schedules.view())["backfills"]) == 10
    assert (await schedules.view())["backfills"][0]["commandId"] == reply["commandId"]
    await schedules.fire_backfills()
    assert "backfills" not in await schedules.view()


async def test_limit_of_a_tenant(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A tenant has at most so many open backfills. One that ends makes room."""
    limits = TenantLimits(default=Limits(open_backfills=1))
    schedules = Schedules(store, memory_broker, clock, limits=limits)
    send_backfill(schedules, tenant="other")
    await schedules.put()
    span: dict[str, Any] = {"scheduleId": "daily", "from_": minutes(-3)[0], "to": iso(NOW)}
    assert (await schedules.request("BackfillSchedule", **span))["outcome"] == "backfilling"
    over = await schedules.request("BackfillSchedule", **span)
    assert (over["outcome"], over["limit"]) == ("over_quota", {"name": "open_backfills", "most": 1})
    await schedules.fire_backfills()
    assert (await schedules.request("BackfillSchedule", **span))["outcome"] == "backfilling"


# Workflows


async def test_workflows(starting: StartingSchedules) -> None:
    """With `start`, each slot starts the workflow that it always starts. One that exists counts as fired."""
    await starting.put_start(start={"input": 1})
    await starting.advance(minutes=1)
    await starting.start("daily/" + minutes(-1)[0])
    starting.clock.advance(seconds=1)
    assert await starting.backfill(after(minutes=-2), after(minutes=9)) == "backfilling"
    await starting.fire_backfills()
    assert sorted(await starting.workflows()) == [f"daily/{slot}" for slot in minutes(-2, -1, 0, 1)]
    assert await starting.skipped() == [(minutes(-1)[0], "exists")]
    (end,) = await starting.ends()
    assert (end["count"], end["skipped"]) == (3, 1)
    assert starting.metrics.not_started == {"exists": 1}
    (event,) = await starting.events_of("ScheduleSkipped")
    assert event["payload"]["cause"] == "backfill"
    assert len(starting.offers) == 4
    row = await starting.row()
    assert (row["fired_count"], row["last_skipped_at"]) == (1, None)


async def test_skipped_workflows_are_started_later(starting: StartingSchedules) -> None:
    """A slot that was skipped because of its key starts its workflow in a later backfill, when the key is free."""
    await starting.put_start(start={"concurrencyKey": "only-one", "input": 1})
    ids = [f"daily/{slot}" for slot in minutes(-3, -2, -1)]
    for number, found in enumerate((["waiting", "cancelled", "cancelled"], ["cancelled", "waiting", "cancelled"])):
        await starting.backfill(after(minutes=number - 3), NOW)
        await starting.fire_backfills()
        rows = await starting.workflows()
        assert [rows[each] for each in ids] == found
        await starting.about_workflow("Cancel", ids[number])
    assert await starting.skipped() == [(slot, "busy") for slot in minutes(-2, -1, -1)]
    assert [(each["count"], each["skipped"]) for each in await starting.ends()] == [(1, 2), (1, 1)]
    await starting.backfill(after(minutes=-5), NOW, limit=2)
    await starting.fire_backfills()
    end = (await starting.ends())[-1]
    assert (end["count"], end["skipped"], end["reason"]) == (1, 1, "limit")


async def test_cancelled_workflows(starting: StartingSchedules) -> None:
    """A backfill starts a workflow that was cancelled before the command, and not one that was cancelled after it."""
    await starting.put_start()
    await starting.about_workflow("Cancel", "daily/" + minutes(-2)[0])
    assert await starting.backfill(after(minutes=-2), NOW) == "backfilling"
    await starting.about_workflow("Cancel", "daily/" + minutes(-1)[0])
    await starting.fire_backfills()
    assert await starting.skipped() == [(minutes(-1)[0], "cancelled")]
    assert (await starting.workflows())["daily/" + minutes(-2)[0]] == "waiting"


# Bounds


async def test_slots_of_a_transaction(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction fires at most 250 slots. The next one follows when these events have left the outbox."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", 1000)
    send_backfill(schedules)
    await schedules.consume()
    many = [Event(f"e{number}", "JobReady", "flood", {}, NOW) for number in range(100)]
    await in_transaction(schedules.database, partial(outbox.add, events=many, now=NOW))  # nothing waits for these
    await schedules.backfill_worker.tick(NOW)
    assert await next_at(schedules.backfill_worker, NOW) == NOW + 20
    assert await slots_in_outbox(schedules) == {"acme": 250}
    assert await schedules.fire_backfills() == 4
    assert await schedules.backfilled() == [iso(NOW - 1000 * seconds) for seconds in range(SECONDS, 0, -1)]
    assert [(each["count"], each["reason"]) for each in await schedules.ends()] == [(SECONDS, "done")]


@pytest.mark.parametrize(
    ("bound", "most", "fired"), [("MOST_DATA", 70_000, 3), ("MOST_DATA", 1, 1), ("MOST_COMPUTING_SECONDS", 0, 1)]
)
async def test_data_and_time_of_a_transaction(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch, bound: str, most: int, fired: int
) -> None:
    """A transaction has a share of data and time for each backfill, but at least one slot of each."""
    monkeypatch.setattr(room, bound, 2 * most)
    for tenant in ("acme", "other"):
        send_backfill(schedules, tenant=tenant, data="x" * 20_000)
    await schedules.consume()
    await schedules.backfill_worker.tick(NOW)
    assert await slots_in_outbox(schedules) == {"acme": fired, "other": fired}


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


@pytest.mark.parametrize("is_put_again", [False, True])
async def test_broker_away(schedules: Schedules, *, is_put_again: bool) -> None:
    """Nothing fires while the broker is away, and after that not before older commands were handled."""
    await schedules.put()
    assert await next_at(schedules.backfill_worker, NOW) is None
    await schedules.backfill(after(minutes=-3), NOW)
    schedules.broker.health = Health.down("away")
    assert await next_at(schedules.backfill_worker, NOW) == NOW + RECHECK_MS
    schedules.send("DeleteSchedule")
    if is_put_again:
        schedules.send("PutSchedule", every="PT1M")
    schedules.broker.health = HEALTHY
    assert await next_at(schedules.backfill_worker, NOW) == NOW + RECHECK_MS
    await schedules.consume()
    await schedules.fire_backfills()
    (end,) = await schedules.ends()
    assert (await schedules.backfilled(), end["reason"], "nextSlotAt" in end) == ([], "deleted", False)


# Failures and several instances


@pytest.mark.parametrize("broken", ["zone = 'Moon/Tycho', every_ms = NULL, cron = '* * * * *'", "start = 'no JSON'"])
async def test_a_broken_backfill(schedules: Schedules, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill that cannot be read or computed waits, longer each time, with the error. Others go on."""
    for tenant in ("acme", "other"):
        send_backfill(schedules, tenant=tenant, seconds=3)
    schedules.send("BackfillSchedule", scheduleId="daily", from_=minutes(-9)[0], to=iso(after(minutes=-9) + 1000))
    await schedules.consume()
    position = schedules.positions[1].sequence
    await schedules.sql(f"UPDATE schedule_backfills SET {broken} WHERE position_sequence = {position}")
    await schedules.fire_backfills()
    assert (len(await schedules.backfilled(tenant="other")), await schedules.backfilled()) == (3, minutes(-9))
    (row,) = await schedules.rows("schedule_backfills")
    assert (row["available_at"], row["fired_count"]) == (after(seconds=1), 0)
    assert schedules.metrics.settled_in["schedule_backfills", "failed"] == 1
    schedules.clock.advance(seconds=1)
    await schedules.fire_backfills()
    assert (await schedules.rows("schedule_backfills"))[0]["available_at"] == after(seconds=3)
    await schedules.sql("UPDATE schedule_backfills SET zone = 'UTC', cron = NULL, every_ms = 1000, start = NULL")
    (shown,) = (await schedules.view())["backfills"]
    assert (shown["lastError"], shown["retryAt"]) == (row["last_error"], iso(after(seconds=3)))
    schedules.clock.advance(seconds=2)
    with monkeypatch.context() as bounds:
        bounds.setattr(room, "MOST_SLOTS", 8)
        await schedules.fire_backfills(1)
    (shown,) = (await schedules.view())["backfills"]
    assert "lastError" not in shown
    assert (shown["count"], shown["lastSlotAt"]) == (2, iso(NOW - 2000))
    await schedules.fire_backfills()
    assert len(await schedules.backfilled()) == 4


@pytest.mark.parametrize(
    ("tenants", "error"),
    [("b", ValueError("no")), ("abc", ValueError("no")), ("abc", DatabaseUnavailableError("away"))],
)
async def test_a_transaction_that_fails(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch, tenants: str, error: Exception
) -> None:
    """Only a backfill that fails alone waits. If all fail, or the database is away, no backfill is changed."""
    save = backfill_store.delete

    async def fail(tx: Transaction, keys: Any) -> None:
        if any(key.tenant_id in tenants for key in keys):
            raise error
        await save(tx, keys)

    for tenant in ("a", "b", "c"):
        send_backfill(schedules, tenant=tenant, seconds=3)
    await schedules.consume()
    monkeypatch.setattr(backfill_store, "delete", fail)
    if tenants == "b":
        await schedules.fire_backfills()
        assert [len(await schedules.backfilled(tenant=each)) for each in ("a", "b", "c")] == [3, 0, 3]
    else:
        with pytest.raises(type(error)):
            await schedules.fire_backfills()
    errors = [row["last_error"] for row in await schedules.rows("schedule_backfills")]
    assert errors == (["ValueError"] if tenants == "b" else [None] * 3)


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
    monkeypatch.setattr(room, "MOST_SLOTS", 200)
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
