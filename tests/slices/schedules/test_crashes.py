"""A crash at each await of the handler, the workers and the relay: no slot is lost, and none has two ids."""

import itertools
import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.harness.clock import ManualClock, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import StartingSchedules
from tests.simulation.faults import BrokerObserver, Crash, FaultyBroker, FaultyDatabase, Gate, Point, Process, crash
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database
from timer_service.schedules import room

HOLD_MS = 30_000
MINUTE = 60_000


def send(user: StartingSchedules, tenant: str, start: int) -> None:
    """Send commands for three slots, three backfilled slots and a trigger, with events and with workflows."""
    put: dict[str, Any] = {"every": "PT1M", "startAt": iso(start), "endAt": iso(start + 200_000)}
    put["catchUp"] = {"policy": "all"}
    user.send("PutSchedule", tenant=tenant, scheduleId="event", **put)
    user.send("TriggerSchedule", tenant=tenant, scheduleId="event")
    user.send("PutSchedule", tenant=tenant, scheduleId="free", **put, start={"type": "order", "input": 1})
    user.send("TriggerSchedule", tenant=tenant, scheduleId="free")
    workflow = {"type": "order", "concurrencyKey": "only-one"}
    user.send("PutSchedule", tenant=tenant, scheduleId="busy", **put, start=workflow)
    past: dict[str, Any] = {"every": "PT1M", "startAt": iso(start - 3 * MINUTE), "endAt": iso(start)}
    user.send("PutSchedule", tenant=tenant, scheduleId="past", **past)
    span: dict[str, Any] = {"from": iso(start - 3 * MINUTE), "to": iso(start)}
    user.send("BackfillSchedule", tenant=tenant, scheduleId="past", **span)


async def run(schedules: StartingSchedules) -> None:
    await schedules.consume()
    await schedules.fire_backfills()
    schedules.clock.advance(minutes=3)
    await schedules.fire()


async def check(user: StartingSchedules, tenant: str, start: int) -> None:
    events = [json.loads(message.body) for message in user.broker.events]
    ids, names = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for event in (each for each in events if each["tenantId"] == tenant):
        fields = event["payload"]
        about = (fields.get(name) for name in ("scheduleId", "cause", "slotAt", "count"))
        name = " ".join(str(each) for each in (event["type"], *about) if each is not None)
        ids[name].add(event["id"])
        names[event["id"]].add(name)
    slots = [iso(start + minutes * MINUTE) for minutes in (1, 2, 3)]
    assert set(ids) == {
        *(f"ScheduleFired event slot {slot}" for slot in slots),
        f"ScheduleFired event trigger {iso(start)}",
        *(f"ScheduleFired past backfill {iso(start - minutes * MINUTE)}" for minutes in (1, 2, 3)),
        "ScheduleBackfilled past 3",
        *(f"ScheduleSkipped busy slot {slot}" for slot in slots[1:]),
        *(f"ScheduleEnded {name}" for name in ("event", "free", "busy", "past")),
    }
    assert all(len(each) == 1 for each in (*ids.values(), *names.values()))
    found = await user.workflows(tenant)
    (trigger,) = (name for name in found if name.startswith("free/") and "T" not in name)
    assert sorted(found) == sorted([trigger, *(f"{each}/{slot}" for each in ("free", "busy") for slot in slots)])
    assert Counter(found.values()) == {"waiting": 5, "cancelled": 2}
    assert (await user.rows("outbox"), await user.rows("schedule_backfills")) == ([], [])


async def crash_at_every_call(store: Database, point: Point) -> int:
    """Crash at the first call of a kind, at the second, until a run has no further call. Return how many it has."""
    broker, clock = MemoryBroker(deduplicates=False), ManualClock()
    for nth in itertools.count(1):
        start, tenant = clock.now(), f"tenant-{nth}"
        user = StartingSchedules(store, broker, clock)
        send(user, tenant, start)
        gate = Gate(life := Process(lambda: None), Counter())
        database = FaultyDatabase(store, gate, exclusive=store.exclusive)
        service_broker = FaultyBroker(broker, gate, BrokerObserver())
        victim = StartingSchedules(database, broker, clock, service_broker=service_broker)
        gate.arm(crash(point, nth))
        try:
            await run(victim)
        except Crash:
            clock.advance(milliseconds=HOLD_MS)
            await run(user)
        await check(user, tenant, start)
        if not life.ended:
            return nth - 1
        clock.advance(minutes=1)
    raise AssertionError


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.AFTER_COMMIT, Point.AFTER_PUBLISH])
async def test_kill_around_the_commit(sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, point: Point) -> None:
    """Before the commit the slots are still due. After it the events are in the outbox, and may be published again."""
    monkeypatch.setattr(room, "MOST_SLOTS", 8)  # a portion of a backfill has two slots
    assert await crash_at_every_call(sqlite, point) > 0


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in Point if "reply" not in point])
async def test_kill_anywhere(store: Database, monkeypatch: pytest.MonkeyPatch, point: Point) -> None:
    """However a process dies, each slot has one event or one workflow, and each end one event."""
    monkeypatch.setattr(room, "MOST_SLOTS", 8)
    assert await crash_at_every_call(store, point) > 0
