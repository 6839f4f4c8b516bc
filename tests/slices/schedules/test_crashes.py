"""A crash at each await of the handler, the workers and the relay: no slot is lost, and none has two ids."""

import itertools
import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.harness.clock import ManualClock, iso
from tests.harness.schedules import Schedules, StartingSchedules
from tests.simulation.faults import BrokerObserver, Crash, FaultyBroker, FaultyDatabase, Gate, Point, Process, crash
from timer_service.adapters.memory import FEATURES, MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.broker import BrokerFeatures
from timer_service.core.ports.database import Database
from timer_service.schedules import room

FORGETFUL = BrokerFeatures(deduplicates=False, max_message_bytes=FEATURES.max_message_bytes)
HOLD_MS = 30_000


def mortal(store: Database, broker: MemoryBroker, clock: ManualClock, gate: Gate) -> Schedules:
    """Return a process that crashes at the armed point of its gate."""
    database = FaultyDatabase(store, gate, exclusive=store.exclusive)
    return Schedules(database, broker, clock, service_broker=FaultyBroker(broker, gate, BrokerObserver()))


async def run_everything(schedules: Schedules) -> None:
    """Handle the commands, fire the due slots and publish."""
    await schedules.consume()
    await schedules.fire()


async def slots_by_id(schedules: Schedules, tenant: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the ids of each slot, and the slots of each id, of the published events of a tenant."""
    ids, slots = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for message in schedules.broker.events:
        event = json.loads(message.body)
        if event["tenantId"] == tenant and event["type"] == "ScheduleFired":
            name = f"{event['payload']['cause']} {event['payload']['slotAt']}"
            ids[name].add(event["id"])
            slots[event["id"]].add(name)
    return ids, slots


async def crash_at_every_call(store: Database, point: Point) -> int:
    """Crash at the first call of a kind, then at the second, until a run has no further call. Return how many it has.

    The process dies while it fires.
    """
    broker, clock = MemoryBroker(features=FORGETFUL), ManualClock()
    for nth in itertools.count(1):
        start = clock.now()
        tenant = f"tenant-{nth}"
        user = Schedules(store, broker, clock)
        user.send("PutSchedule", tenant=tenant, every="PT1M", startAt=iso(start), maxCount=3, catchUp={"policy": "all"})
        user.send("TriggerSchedule", tenant=tenant)
        gate = Gate(life := Process(lambda: None), Counter())
        victim = mortal(store, broker, clock, gate)
        try:
            await user.consume()
            clock.advance(minutes=5)
            gate.arm(crash(point, nth))
            await run_everything(victim)
        except Crash:
            clock.advance(milliseconds=HOLD_MS)
            clock.set(max(clock.now(), start + 5 * 60_000))
            await run_everything(user)
        ids, slots = await slots_by_id(user, tenant)
        wanted = {f"slot {iso(start + number * 60_000)}" for number in (1, 2, 3)} | {f"trigger {iso(start)}"}
        assert set(ids) == wanted, point
        assert all(len(each) == 1 for each in (*ids.values(), *slots.values())), point
        assert await user.rows("outbox") == []
        if not life.ended:
            return nth - 1
        clock.advance(minutes=1)
    raise AssertionError


FIRING = [point for point in Point if "reply" not in point]


@pytest.mark.parametrize("point", [point for point in FIRING if "commit" not in point and "publish" not in point])
async def test_kill_in_a_pass(store: Database, point: Point) -> None:
    """A process that dies in a pass leaves its slots due, with the same ids."""
    assert await crash_at_every_call(store, point) > 0


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
async def test_kill_around_the_commit(store: Database, point: Point) -> None:
    """Before the commit the slots are still due. After it the events are in the outbox."""
    assert await crash_at_every_call(store, point) > 0


@pytest.mark.parametrize("point", [Point.BEFORE_PUBLISH, Point.AFTER_PUBLISH])
async def test_kill_around_publishing(store: Database, point: Point) -> None:
    """An event that was published before its row was deleted is published again, under the same id."""
    assert await crash_at_every_call(store, point) > 0


async def crash_while_starting(store: Database, point: Point) -> int:
    """Crash at the first call of a kind, at the second, until a run has no further call. Return how many it has."""
    broker, clock = MemoryBroker(features=FORGETFUL), ManualClock()
    for nth in itertools.count(1):
        start, tenant = clock.now(), f"tenant-{nth}"
        user = StartingSchedules(store, broker, clock)
        end = iso(start + 200_000)  # not `maxCount`: the schedule whose slots are skipped must end, too
        put: dict[str, Any] = {"every": "PT1M", "startAt": iso(start), "endAt": end, "catchUp": {"policy": "all"}}
        workflow: dict[str, Any] = {"type": "order", "input": nth, "concurrencyKey": "only-one"}
        user.send("PutSchedule", tenant=tenant, scheduleId="free", **put, start={"type": "order", "input": nth})
        user.send("PutSchedule", tenant=tenant, scheduleId="busy", **put, start=workflow)
        user.send("TriggerSchedule", tenant=tenant, scheduleId="free")
        gate = Gate(life := Process(lambda: None), Counter())
        database = FaultyDatabase(store, gate, exclusive=store.exclusive)
        service_broker = FaultyBroker(broker, gate, BrokerObserver())
        victim = StartingSchedules(database, broker, clock, service_broker=service_broker)
        gate.arm(crash(point, nth))
        try:
            await victim.consume()
            clock.advance(minutes=3)
            await run_everything(victim)
        except Crash:
            clock.advance(milliseconds=HOLD_MS)
            clock.set(max(clock.now(), start + 3 * 60_000))
            await run_everything(user)
        names = await user.workflows(tenant)
        slots = [iso(start + minutes * 60_000) for minutes in (1, 2, 3)]
        triggers = [name for name in names if name.startswith("free/") and "T" not in name]
        assert len(triggers) == 1
        assert sorted(names) == sorted([*triggers, *(f"{each}/{slot}" for each in ("free", "busy") for slot in slots)])
        assert Counter(names.values()) == {"waiting": 5, "cancelled": 2}, point
        events = [json.loads(message.body) for message in broker.events]
        mine = [each for each in events if each["tenantId"] == tenant and each["type"] == "ScheduleSkipped"]
        skipped = {each["id"] for each in mine}
        assert len(skipped) == 2
        if not life.ended:
            return nth - 1
        clock.advance(minutes=1)
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in Point if "reply" not in point])
async def test_kill_while_workflows_are_started(sqlite: SqliteDatabase, point: Point) -> None:
    """However a process dies, each slot and each trigger starts one workflow, or is skipped with one event."""
    assert await crash_while_starting(sqlite, point) > 0


async def crash_while_backfilling(store: Database, point: Point) -> int:
    """Crash at the first call of a kind, at the second, until a run has no further call. Return how many it has."""
    broker, clock = MemoryBroker(features=FORGETFUL), ManualClock()
    for nth in itertools.count(1):
        start, tenant = clock.now(), f"tenant-{nth}"
        user = Schedules(store, broker, clock)
        span: dict[str, Any] = {"from_": iso(start - 3 * 60_000), "to": iso(start)}
        put: dict[str, Any] = {"every": "PT1M", "startAt": span["from_"], "endAt": span["to"]}
        user.send("PutSchedule", tenant=tenant, scheduleId="daily", **put)
        user.send("BackfillSchedule", tenant=tenant, scheduleId="daily", **span)
        gate = Gate(life := Process(lambda: None), Counter())
        victim = mortal(store, broker, clock, gate)
        gate.arm(crash(point, nth))
        try:
            await victim.consume()
            await victim.fire_backfills()
        except Crash:
            clock.advance(milliseconds=HOLD_MS)
            await user.consume()
            await user.fire_backfills()
        ids, slots = await slots_by_id(user, tenant)
        assert set(ids) == {f"backfill {iso(start - number * 60_000)}" for number in range(1, 4)}, point
        assert all(len(each) == 1 for each in (*ids.values(), *slots.values())), point
        ends = await user.events_of("ScheduleBackfilled", tenant=tenant)
        assert {(each["id"], each["payload"]["count"]) for each in ends} == {(ends[0]["id"], 3)}
        assert (await user.rows("schedule_backfills"), await user.rows("outbox")) == ([], [])
        if not life.ended:
            return nth - 1
        clock.advance(minutes=1)
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in Point if "reply" not in point])
async def test_kill_in_a_backfill(sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, point: Point) -> None:
    """However a process dies, a backfill fires each slot under one id, and ends with one event and the right count."""
    monkeypatch.setattr(room, "MOST_SLOTS", 2)
    assert await crash_while_backfilling(sqlite, point) > 0
