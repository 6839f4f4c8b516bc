"""BackfillSchedule: past slots fire under their own ids, and nothing of the schedule changes."""

from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.schedules import Schedules, StartingSchedules
from timer_service.adapters.memory import FEATURES, MemoryBroker
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.broker import BrokerFeatures
from timer_service.core.ports.database import Database

FORGETFUL = BrokerFeatures(deduplicates=False, max_message_bytes=FEATURES.max_message_bytes)


def minutes(*numbers: int) -> list[str]:
    """Return instants that are minutes after the beginning."""
    return [iso(after(minutes=each)) for each in numbers]


async def test_slots_before_the_schedule(schedules: Schedules) -> None:
    """Slots fire that were before the PutSchedule, with the data of the schedule and the ids of the command."""
    await schedules.put(data={"to": "team"})
    before = await schedules.row()
    assert await schedules.backfill(after(minutes=-3), NOW) == "backfilling"
    await schedules.fire_backfills()
    events = await schedules.events_of("ScheduleFired")
    names = {"tenantId": "acme", "scheduleId": "daily"}
    fired = {"firedAt": iso(NOW), "cause": "backfill", "data": {"to": "team"}}
    assert [each["payload"] for each in events] == [{**names, **fired, "slotAt": slot} for slot in minutes(-3, -2, -1)]
    (ended,) = await schedules.events_of("ScheduleBackfilled")
    command = ended["payload"].pop("commandId")
    assert ended["payload"] == {
        **names,
        "from": minutes(-3)[0],
        "to": iso(NOW),
        "count": 3,
        "skipped": 0,
        "reason": "done",
    }
    assert {each["causationId"] for each in (*events, ended)} == {command}
    assert await schedules.row() == before
    assert await schedules.rows("schedule_backfills") == []
    assert schedules.metrics.settled_in["schedule_backfills", "fired"] == 3


async def test_ids_of_slots(store: Database, clock: ManualClock) -> None:
    """A slot that has fired before is published under the same id, so the broker or the consumer drops it."""
    schedules = Schedules(store, MemoryBroker(features=FORGETFUL), clock)
    await schedules.put()
    await schedules.advance(minutes=1)
    clock.advance(seconds=1)
    for first in (-1, 0):
        assert await schedules.backfill(after(minutes=first), after(minutes=5)) == "backfilling"
    await schedules.fire_backfills()
    ids = [(each["payload"]["slotAt"], each["id"]) for each in await schedules.events_of("ScheduleFired")]
    assert (len(ids), len(set(ids)), len({each for _, each in ids})) == (6, 3, 3)


async def test_what_does_not_change(schedules: Schedules) -> None:
    """Backfilled slots count for no `maxCount`, move no cursor, and do not say what was missed."""
    await schedules.put(maxCount=2, catchUp={"policy": "skip", "lateBy": "PT1S"})
    await schedules.advance(minutes=3, seconds=30)
    before = await schedules.row()
    assert before["missed_since"] == after(minutes=1)
    assert await schedules.backfill(NOW, after(minutes=9)) == "backfilling"
    await schedules.fire_backfills()
    assert await schedules.backfilled() == minutes(0, 1, 2, 3)
    assert await schedules.row() == before
    await schedules.advance(seconds=30)
    payloads = [each["payload"] for each in await schedules.events_of("ScheduleFired")]
    assert [each["slotAt"] for each in payloads if "missedSince" in each] == minutes(4)
    assert (await schedules.view())["firedCount"] == 1


async def test_bounds_of_the_range(schedules: Schedules) -> None:
    """The range has its first instant and not its last one. It ends at the command time, and at the bounds of slots."""
    await schedules.put(startAt=minutes(-5)[0], endAt=minutes(-1)[0])
    assert await schedules.backfill(after(minutes=-3), after(minutes=-2)) == "backfilling"
    await schedules.fire_backfills()
    assert await schedules.backfilled() == minutes(-3)
    assert await schedules.backfill(after(days=-1), after(days=1)) == "backfilling"
    await schedules.fire_backfills()
    assert [(each["from"], each["to"], each["count"]) for each in await schedules.ends()] == [
        (*minutes(-3, -2), 1),
        (iso(after(days=-1)), iso(NOW), 4),
    ]


async def test_jitter(schedules: Schedules) -> None:
    """A slot that is not due because of its jitter does not fire early. Others fire at once."""
    await schedules.put(every="PT1H", jitter="PT1H")
    schedules.clock.advance(hours=2)
    row = await schedules.row()
    due = row["available_at"] - row["slot_at"]  # of the slot after one hour
    assert await schedules.backfill(NOW, after(hours=5)) == "backfilling"
    await schedules.fire_backfills()
    assert 0 < due < 3_600_000
    assert await schedules.backfilled() == [iso(NOW), iso(after(hours=1))]
    await schedules.put("late", every="PT1H", jitter="PT1H")
    schedules.clock.set((await schedules.row("late"))["available_at"] - 1)
    assert await schedules.backfill(after(hours=2), after(hours=9), "late") == "backfilling"
    await schedules.fire_backfills()
    assert await schedules.backfilled("late") == [iso(after(hours=2))]


async def test_jitter_of_a_paused_schedule(schedules: Schedules) -> None:
    """The slot that is left does not fire by itself if the schedule is paused. The event names it."""
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


async def test_limit(schedules: Schedules) -> None:
    """At most the oldest `limit` slots fire. The event says where to continue, unless none is left."""
    await schedules.put()
    for limit in (2, 5, 4):
        assert await schedules.backfill(after(minutes=-4), NOW, limit=limit) == "backfilling"
    await schedules.fire_backfills()
    ends = await schedules.ends()
    assert [(each["count"], each["reason"], each.get("nextSlotAt")) for each in ends] == [
        (2, "limit", minutes(-2)[0]),
        (4, "done", None),
        (4, "done", None),
    ]


async def test_outcomes(schedules: Schedules) -> None:
    """A schedule that is paused or has ended is backfilled, and one that is deleted is not."""
    span = (after(minutes=-2), NOW)
    assert await schedules.backfill(*span) == "not_found"
    await schedules.put()
    assert await schedules.backfill(NOW, after(minutes=1)) == "nothing_due"
    await schedules.about("Pause")
    assert await schedules.backfill(*span) == "backfilling"
    await schedules.put("over", endAt=minutes(-1)[0])
    assert await schedules.backfill(*span, "over") == "backfilling"
    await schedules.fire_backfills()
    assert (await schedules.backfilled(), await schedules.backfilled("over")) == (minutes(-2, -1), minutes(-2))
    await schedules.about("Delete")
    assert await schedules.backfill(*span) == "not_found"


async def test_put_and_pause_meanwhile(schedules: Schedules) -> None:
    """A backfill keeps the definition with which it was accepted. A Put, a Pause or a Trigger does not change it."""
    await schedules.put(data=1)
    assert await schedules.backfill(after(minutes=-3), NOW) == "backfilling"
    await schedules.put(every="PT1H", data=2)
    await schedules.about("Pause")
    await schedules.fire_backfills()
    assert await schedules.backfilled() == minutes(-3, -2, -1)
    assert {each["payload"]["data"] for each in await schedules.events_of("ScheduleFired")} == {1}


@pytest.mark.parametrize("put_again", [True, False])
async def test_delete_meanwhile(schedules: Schedules, monkeypatch: pytest.MonkeyPatch, *, put_again: bool) -> None:
    """A Delete ends a backfill, also if the schedule is put again before the next portion."""
    monkeypatch.setattr("timer_service.schedules.room.MOST_SLOTS", 2)
    await schedules.put()
    assert await schedules.backfill(after(minutes=-9), NOW) == "backfilling"
    assert await schedules.fire_backfills(most=2) == 2
    await schedules.about("Delete")
    if put_again:
        await schedules.put()
    await schedules.fire_backfills()
    assert await schedules.backfilled() == minutes(-9, -8, -7, -6)
    (end,) = await schedules.ends()
    assert (end["count"], end["reason"]) == (4, "deleted")
    assert await schedules.rows("schedule_backfills") == []


async def test_view(schedules: Schedules) -> None:
    """get-schedule shows the backfills that have not ended."""
    await schedules.put()
    await schedules.put("other")
    assert "backfills" not in await schedules.view()
    reply = await schedules.request("BackfillSchedule", scheduleId="daily", from_=minutes(-9)[0], to=iso(NOW), limit=7)
    assert reply["schedule"]["status"] == "active"
    wanted = {"from": minutes(-9)[0], "to": iso(NOW), "limit": 7, "count": 0, "skipped": 0}
    assert (await schedules.view())["backfills"] == [{"commandId": reply["commandId"], **wanted}]
    assert (await schedules.view(upcoming=1))["backfills"] == [{"commandId": reply["commandId"], **wanted}]
    assert "backfills" not in await schedules.view("other")
    await schedules.fire_backfills()
    assert "backfills" not in await schedules.view()


async def test_limit_of_a_tenant(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A tenant has at most so many open backfills. One that ends makes room."""
    limits = TenantLimits(default=Limits(open_backfills=1))
    schedules = Schedules(store, memory_broker, clock, limits=limits)
    await schedules.put()
    span: dict[str, Any] = {"scheduleId": "daily", "from_": minutes(-3)[0], "to": iso(NOW)}
    assert (await schedules.request("BackfillSchedule", **span))["outcome"] == "backfilling"
    over = await schedules.request("BackfillSchedule", **span)
    assert (over["outcome"], over["limit"]) == ("over_quota", {"name": "open_backfills", "most": 1})
    assert (await schedules.request("BackfillSchedule", scheduleId="none", from_=span["from_"], to=iso(NOW)))[
        "outcome"
    ] == "not_found"
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


async def test_workflows_with_a_key(starting: StartingSchedules) -> None:
    """With a concurrency key, slots are skipped while a workflow with the key is open."""
    await starting.put_start(start={"concurrencyKey": "only-one"})
    assert await starting.backfill(after(minutes=-3), NOW) == "backfilling"
    await starting.fire_backfills()
    assert await starting.skipped() == [(slot, "busy") for slot in minutes(-2, -1)]
    assert await starting.backfill(after(minutes=-2), NOW) == "backfilling"
    await starting.fire_backfills()
    assert await starting.skipped() == [(slot, "busy") for slot in minutes(-2, -2, -1, -1)]
    assert [(each["count"], each["skipped"]) for each in await starting.ends()] == [(1, 2), (0, 2)]


async def test_skipped_workflows_are_started_later(starting: StartingSchedules) -> None:
    """A slot that was skipped because of its key starts its workflow in a later backfill, when the key is free."""
    await starting.put_start(start={"concurrencyKey": "only-one", "input": 1})
    await starting.backfill(after(minutes=-3), NOW)
    await starting.fire_backfills()
    ids = [f"daily/{slot}" for slot in minutes(-3, -2, -1)]
    assert list((await starting.workflows()).values()) == ["waiting", "cancelled", "cancelled"]
    for number, found in enumerate((["waiting", "cancelled"], ["cancelled", "waiting"]), start=1):
        await starting.about_workflow("Cancel", ids[number - 1])
        await starting.backfill(after(minutes=number - 3), NOW)
        await starting.fire_backfills()
        rows = await starting.workflows()
        assert [rows[each] for each in ids[1:]] == found
    assert [(each["count"], each["skipped"]) for each in await starting.ends()] == [(1, 2), (1, 1), (1, 0)]
    (data,) = [row for row in await starting.rows("workflow_data") if row["workflow_id"] == ids[2]]
    assert data["input"] == "1"


async def test_cancelled_workflows(starting: StartingSchedules) -> None:
    """A backfill starts a workflow that was cancelled before the command, and not one that was cancelled after it."""
    await starting.put_start()
    await starting.about_workflow("Cancel", "daily/" + minutes(-2)[0])
    assert await starting.backfill(after(minutes=-2), NOW) == "backfilling"
    await starting.about_workflow("Cancel", "daily/" + minutes(-1)[0])
    await starting.fire_backfills()
    assert await starting.skipped() == [(minutes(-1)[0], "cancelled")]
    assert (await starting.workflows())["daily/" + minutes(-2)[0]] == "waiting"
