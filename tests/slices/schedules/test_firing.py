"""Slots fire when they are due, each once."""

import json
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import next_at
from tests.harness.schedules import Schedules
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import HEALTHY, Health


async def test_put_and_fire(schedules: Schedules) -> None:
    """Each slot fires when it is due, with the data and the cause of the PutSchedule."""
    reply = await schedules.request(
        "PutSchedule", every="PT1M", data={"report": 7}, envelope={"id": "put-1", "correlationId": "corr"}
    )
    assert (reply["outcome"], reply["schedule"]["nextSlotAt"]) == ("created", iso(after(minutes=1)))
    await schedules.advance(milliseconds=59_999)
    assert await schedules.fired() == []
    await schedules.advance(milliseconds=1)
    await schedules.advance(minutes=1)
    first, second = await schedules.events_of("ScheduleFired")
    assert first["payload"] == {
        "tenantId": "acme",
        "scheduleId": "daily",
        "slotAt": iso(after(minutes=1)),
        "firedAt": iso(after(minutes=1)),
        "cause": "slot",
        "data": {"report": 7},
    }
    assert (first["correlationId"], first["causationId"]) == ("corr", "put-1")
    assert second["payload"]["slotAt"] == iso(after(minutes=2))
    assert first["id"] != second["id"]
    row = await schedules.row()
    assert (row["after_at"], row["slot_at"], row["fired_count"]) == (after(minutes=2), after(minutes=3), 2)
    assert row["after_at"] > NOW


@pytest.mark.parametrize("recurrence", [{"every": "PT1M"}, {"cron": "* * * * *"}], ids=["every", "cron"])
@pytest.mark.parametrize(("missed", "fires"), [(0, 1), (1, 2), (5, 6), (10_000, 100)])
async def test_all_after_missed_slots(
    schedules: Schedules, missed: int, fires: int, recurrence: dict[str, str]
) -> None:
    """After a time without a service, the policy `all` fires the newest 100 slots in bounded time."""
    await schedules.put(**recurrence, catchUp={"policy": "all"})
    began = time.process_time()
    await schedules.advance(minutes=missed + 1)
    assert time.process_time() - began < 1
    events = await schedules.events_of("ScheduleFired")
    slots = [each["payload"]["slotAt"] for each in events]
    assert slots == [iso(after(minutes=missed + 2 - fires + number)) for number in range(fires)]
    skipped = missed + 1 - fires
    assert [each["payload"].get("missedSince") for each in events] == [
        iso(after(minutes=1)) if skipped else None,
        *[None] * (fires - 1),
    ]
    assert schedules.metrics.missed == (skipped if "every" in recurrence else min(skipped, 100))
    assert schedules.metrics.lateness[:fires] == [60.0 * (fires - 1 - number) for number in range(fires)]


@pytest.mark.parametrize(("policy", "slots"), [("last", [5]), ("skip", []), ("all", [1, 2, 3, 4, 5])])
async def test_policies_after_an_outage_of_the_broker(schedules: Schedules, policy: str, slots: list[int]) -> None:
    """While the broker is away nothing fires, so the outbox stays empty. After that each policy decides."""
    await schedules.put(catchUp={"policy": policy, "lateBy": "PT10S"})
    schedules.broker.health = Health.down("away")
    for _ in range(5):
        schedules.clock.advance(minutes=1)
        assert await next_at(schedules.worker, schedules.clock.now()) == schedules.clock.now() + 250
    assert await schedules.rows("outbox") == []
    schedules.broker.health = HEALTHY
    await schedules.advance(seconds=30)
    assert await schedules.fired() == [iso(after(minutes=number)) for number in slots]
    await schedules.advance(seconds=30)
    (event,) = [
        each["payload"]
        for each in await schedules.events_of("ScheduleFired")
        if each["payload"]["slotAt"] == iso(after(minutes=6))
    ]
    assert event.get("missedSince") == (iso(after(minutes=1)) if policy == "skip" else None)


async def test_disabled_slice(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While schedules are disabled commands are stored, and triggers fire. Then each schedule follows its policy."""
    off = Schedules(store, memory_broker, clock, enabled=False)
    assert [await off.put(), await off.about("Trigger")] == ["created", "triggered"]
    clock.advance(minutes=10)
    assert len(await off.events_of("ScheduleFired")) == 1
    on = Schedules(store, memory_broker, clock)
    await on.fire()
    assert await on.fired() == [iso(after(minutes=9)), iso(after(minutes=10))]


async def test_pass_sleeps_until_the_next_slot(schedules: Schedules) -> None:
    """The worker asks for its next pass when the next slot is due."""
    await schedules.put("late", every="PT1H")
    await schedules.put("early", cron="5 9 * * *")
    assert schedules.command_wakes == [after(hours=1), after(minutes=5)]
    assert await next_at(schedules.worker, NOW) == after(minutes=5)
    schedules.clock.set(after(minutes=5))
    assert await next_at(schedules.worker, after(minutes=5)) == after(hours=1)
    assert schedules.worker_wakes == [("outbox", after(minutes=5))]


async def test_jitter(schedules: Schedules) -> None:
    """Schedules with one slot fire at different instants, each at the same one after a restart, never early."""
    for number in range(20):
        await schedules.put(f"s-{number}", every="PT1H", jitter="PT10M")
    rows = {row["schedule_id"]: row for row in await schedules.all_rows()}
    due = {name: row["available_at"] for name, row in rows.items()}
    assert {row["slot_at"] for row in rows.values()} == {after(hours=1)}
    assert len(set(due.values())) > 10
    assert all(after(hours=1) <= at < after(hours=1, minutes=10) for at in due.values())
    events: list[Any] = []
    for at in sorted(due.values()):
        schedules.clock.set(at)
        restarted = Schedules(schedules.database, schedules.broker, schedules.clock)
        await restarted.fire()
        events = [json.loads(each.body) for each in await restarted.stored()]
        assert {each["payload"]["scheduleId"] for each in events} == {name for name, when in due.items() if when <= at}
    assert {each["payload"]["slotAt"] for each in events} == {iso(after(hours=1))}


async def test_jitter_of_another_put(schedules: Schedules) -> None:
    """A Put that changes only the jitter moves the due time of the next slot, and not the slot."""
    await schedules.put(every="PT1H", jitter="PT10M")
    await schedules.put(every="PT1H")
    row = await schedules.row()
    assert (row["slot_at"], row["available_at"]) == (after(hours=1), after(hours=1))


async def test_bounds_of_a_pass(schedules: Schedules) -> None:
    """A pass fires at most 100 slots of a schedule and 1,000 in all. The rest stays due, in order."""
    for number in range(12):
        await schedules.put(f"s-{number}", catchUp={"policy": "all", "limit": 150})
    schedules.clock.advance(minutes=150)
    counts: list[tuple[int, int]] = []
    while (done := (await schedules.worker.tick(schedules.clock.now())).done) or not counts:
        counts.append((done, len(await schedules.rows("outbox"))))
    assert max(later[1] - before[1] for before, later in pairwise([(0, 0), *counts])) <= 1000
    assert counts[0][1] <= 1000
    assert counts[-1][1] == 12 * 150
    for number in range(12):
        assert await schedules.fired(f"s-{number}") == [iso(after(minutes=minute)) for minute in range(1, 151)]


async def test_bytes_of_a_pass(schedules: Schedules) -> None:
    """A pass publishes at most 8 MiB of data. A schedule with much data does not keep others from firing."""
    for number in range(3):
        await schedules.put(f"large-{number}", data="x" * 65_000, catchUp={"policy": "all", "lateBy": "P1D"})
    await schedules.put("small", data="y")
    schedules.clock.advance(minutes=100)
    sizes = [0]
    while (await schedules.worker.tick(schedules.clock.now())).done:
        sizes.append(sum(len(row["body"] or "") + (row["large_body"] or 0) for row in await schedules.rows("outbox")))
    assert max(later - before for before, later in pairwise(sizes)) <= 9 * 1024 * 1024
    assert [len(await schedules.fired(f"large-{number}")) for number in range(3)] == [100] * 3
    assert await schedules.fired("small") == [iso(after(minutes=99)), iso(after(minutes=100))]


async def test_fairness(schedules: Schedules) -> None:
    """If more schedules are due than a pass holds, each tenant gets a share, and no slot is fired twice."""
    for number in range(1500):
        schedules.send("PutSchedule", tenant="large", scheduleId=f"s-{number:04}", every="PT1H")
    schedules.clock.advance(seconds=1)
    for tenant in ("small", "other"):
        schedules.send("PutSchedule", tenant=tenant, scheduleId="one", every="PT1H", startAt=iso(after(seconds=5)))
    await schedules.consume()
    schedules.clock.advance(hours=2)
    await schedules.worker.tick(schedules.clock.now())
    tenants = Counter(row["tenant_id"] for row in await schedules.rows("outbox"))
    assert (tenants["small"], tenants["other"]) == (1, 1)
    await schedules.fire()
    assert len(await schedules.stored("large")) == 1500
