"""Slots fire when they are due, each once, and follow their policy after an outage."""

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import next_at
from tests.harness.memory_broker import MemoryBroker, never
from tests.harness.schedules import Schedules
from tests.harness.timers import always
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.requests.computing import Steps
from timer_service.schedules.room import Room
from timer_service.schedules.slot_worker import FiringGate

RECHECK_MS = 250


def restarted(schedules: Schedules) -> Schedules:
    return Schedules(schedules.database, schedules.broker, schedules.clock)


async def test_put_and_fire(schedules: Schedules) -> None:
    """Each slot fires when it is due, with the data and the cause of the PutSchedule. Then the worker sleeps."""
    reply = await schedules.request(
        "PutSchedule", every="PT1M", data={"report": 7}, envelope={"id": "put-1", "correlationId": "corr"}
    )
    assert (reply["outcome"], reply["schedule"]["nextSlotAt"]) == ("created", iso(after(minutes=1)))
    assert schedules.command_wakes == [after(minutes=1)]
    await schedules.advance(milliseconds=59_999)
    assert await schedules.fired() == []
    assert await next_at(schedules.worker, schedules.clock.now()) == after(minutes=1)
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
    assert (second["payload"]["slotAt"], first["id"] == second["id"]) == (iso(after(minutes=2)), False)
    assert (await schedules.view())["firedCount"] == 2
    assert schedules.worker_wakes == [("outbox", after(minutes=1)), ("outbox", after(minutes=2))]


@pytest.mark.parametrize("recurrence", [{"every": "PT1M"}, {"cron": "* * * * *"}], ids=["every", "cron"])
@pytest.mark.parametrize(("missed", "fires"), [(0, 1), (5, 6), (10_000, 100)])
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
        assert await next_at(schedules.worker, schedules.clock.now()) == schedules.clock.now() + RECHECK_MS
    assert await schedules.rows("outbox") == []
    schedules.broker.health = HEALTHY
    await schedules.advance(seconds=30)
    assert await schedules.fired() == [iso(after(minutes=number)) for number in slots]
    view = await schedules.view()
    last = iso(schedules.clock.now()) if slots else None
    assert (view.get("lastFiredAt"), "missedSince" in view) == (last, not slots)


async def test_disabled_slice(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While schedules are disabled commands are stored, and triggers fire. Then each schedule follows its policy."""
    off = Schedules(store, memory_broker, clock, enabled=False)
    assert [await off.put(), await off.about("Trigger")] == ["created", "triggered"]
    assert await off.backfill(after(minutes=-3), NOW) == "backfilling"
    clock.advance(minutes=10)
    assert len(await off.events_of("ScheduleFired")) == 1
    on = Schedules(store, memory_broker, clock)
    await on.fire()
    await on.fire_backfills()
    assert await on.fired() == [iso(after(minutes=9)), iso(after(minutes=10))]
    assert len(await on.backfilled()) == 3


async def test_jitter(schedules: Schedules) -> None:
    """Schedules with one slot fire at different instants, each at the same one after a restart, never early."""
    for number in range(20):
        await schedules.put(f"s-{number}", every="PT1H", jitter="PT10M")
    due = {row["schedule_id"]: row["available_at"] for row in await schedules.all_rows()}
    assert len(set(due.values())) > 10
    assert all(after(hours=1) <= at < after(hours=1, minutes=10) for at in due.values())
    events: list[Any] = []
    for at in sorted(due.values()):
        schedules.clock.set(at)
        new = restarted(schedules)
        await new.fire()
        assert set(new.metrics.lateness) == {0.0}, "lateness counts from the due instant"
        events = [json.loads(each.body) for each in await new.stored()]
        assert {each["payload"]["scheduleId"] for each in events} == {name for name, when in due.items() if when <= at}
    assert {each["payload"]["slotAt"] for each in events} == {iso(after(hours=1))}


async def test_bounds_of_a_pass(schedules: Schedules) -> None:
    """A pass fires at most 100 slots of a schedule and 1,000 in all. The rest stays due, in order."""
    for number in range(12):
        await schedules.put(f"s-{number}", catchUp={"policy": "all", "limit": 150})
    schedules.clock.advance(minutes=150)
    counts = [0]
    while (await schedules.worker.tick(schedules.clock.now())).done:
        counts.append(len(await schedules.rows("outbox")))
    assert max(later - before for before, later in pairwise(counts)) <= 1000
    for number in range(12):
        assert await schedules.fired(f"s-{number}") == [iso(after(minutes=minute)) for minute in range(1, 151)]


@pytest.mark.parametrize("policy", ["all", "skip"])
async def test_data_of_a_pass(schedules: Schedules, policy: str) -> None:
    """One pass writes at most 2 MiB: other transactions wait for it. A row is also written if no slot fires."""
    for number in range(40):
        fields: dict[str, Any] = {"every": "PT1H", "data": "x" * 60_000, "catchUp": {"policy": policy}}
        schedules.send("PutSchedule", scheduleId=f"s{number}", **fields)
    await schedules.consume()
    schedules.clock.advance(minutes=90)
    handled = [(await schedules.worker.tick(schedules.clock.now())).done for _ in range(3)]
    assert (sum(handled), max(handled) <= 35) == (40, True)
    assert len(await schedules.rows("outbox")) == (40 if policy == "all" else 0)


# Commands that were stored before


@pytest.mark.parametrize("outage", ["start", "broker"])
async def test_pause_that_was_sent_meanwhile(schedules: Schedules, outage: str) -> None:
    """After a start and after an outage of the broker, nothing fires before the commands from before are handled."""
    await schedules.put()
    await schedules.fire()
    new = restarted(schedules) if outage == "start" else schedules
    if outage == "broker":
        new.broker.health = Health.down("away")
    new.send("PauseSchedule")
    new.broker.health = HEALTHY
    new.clock.advance(minutes=5)
    assert await next_at(new.worker, new.clock.now()) == new.clock.now() + RECHECK_MS
    await new.consume()
    await new.fire()
    assert (await new.status(), await new.fired()) == ("paused", [])


async def test_stuck_command_beside_due_slots(schedules: Schedules) -> None:
    """A command that is never handled delays the slots by a minute at most. Later ones do not delay them."""
    await schedules.put(catchUp={"policy": "all"})
    schedules.send("PauseSchedule", scheduleId="other")
    new = restarted(schedules)
    await new.fire()
    await new.advance(seconds=59, milliseconds=999)
    assert await new.fired() == []
    await new.advance(milliseconds=1)
    assert await new.fired() == [iso(after(minutes=1))]
    new.send("PauseSchedule", scheduleId="other")
    await new.advance(minutes=1)
    assert len(await new.fired()) == 2


async def test_full_event_stream(schedules: Schedules) -> None:
    """While events cannot be published, no slot fires, so the outbox does not grow. Then the policy decides."""
    await schedules.put()
    schedules.broker.has_no_room_for = always
    for _ in range(10):
        await schedules.advance(minutes=1)
    room = iter([False])
    schedules.broker.has_no_room_for = lambda _message: next(room, True)  # for one event
    await schedules.advance(seconds=1)
    assert len(await schedules.rows("outbox")) <= 1
    schedules.broker.has_no_room_for = never
    await schedules.advance(seconds=10)
    await schedules.advance(seconds=10)
    assert await schedules.fired() == [iso(after(minutes=1)), iso(after(minutes=10))]


async def test_clock_that_is_set_back_after_a_refused_event(schedules: Schedules) -> None:
    """Slots wait until events can be published, and ten seconds more, by a clock that was set back in between too."""
    gate = FiringGate(schedules.parts)
    schedules.parts.publishing.record("no room")
    assert [await gate.is_open(at) for at in (after(hours=1), after(hours=1, seconds=11))] == [False, False]
    schedules.parts.publishing.record("no room")
    schedules.parts.publishing.clear()
    times = (after(hours=1), after(hours=1, seconds=9), NOW, after(seconds=10))
    assert [await gate.is_open(at) for at in times] == [False, False, False, True]


async def test_other_tasks_run_while_slots_are_computed() -> None:
    """Long computing lets other tasks run every few milliseconds."""
    ran: list[int] = []

    def compute() -> Steps[int]:
        for number in range(5):
            asyncio.get_running_loop().call_soon(ran.append, number)
            until = time.perf_counter() + 0.006
            while time.perf_counter() < until:
                pass
            yield
        return len(ran)

    assert await Room(["acme"]).compute("acme", compute()) == 5
