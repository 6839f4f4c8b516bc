"""Schedules whose slots and triggers start workflows: what is started, what is skipped, and how that shows."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.harness.cases import case
from tests.harness.clock import ManualClock, after, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import StartingSchedules
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.schedules import room
from timer_service.schedules.store import SCHEDULES

ALL = {"policy": "all"}
KEY = {"concurrencyKey": "only-one"}


def slot(minutes: int) -> str:
    return iso(after(minutes=minutes))


def ids(*minutes: int) -> list[str]:
    return [f"daily/{slot(each)}" for each in minutes]


def limited(store: Database, broker: MemoryBroker, clock: ManualClock, **limits: int) -> StartingSchedules:
    return StartingSchedules(store, broker, clock, limits=TenantLimits(default=Limits(**limits)))


# Slots


async def test_each_slot_starts_a_workflow(starting: StartingSchedules) -> None:
    """The workflow has the id of the slot and the fields of `start`. There is no ScheduleFired."""
    start = {"queue": "big", "input": {"n": 1}, "deadlineIn": "PT1H", "retry": {"maxAttempts": 2}, **KEY}
    assert await starting.put_start(start=start) == "created"
    await starting.advance(minutes=1)
    (row,) = await starting.rows("workflows")
    (data,) = await starting.rows("workflow_data")
    names = ("workflow_id", "type", "queue", "status", "available_at", "deadline_at", "concurrency_key")
    values = ("daily/" + slot(1), "order", "big", "waiting", after(minutes=1), after(minutes=61), "only-one")
    assert tuple(row[name] for name in names) == values
    assert (row["started_sequence"], row["causation_id"]) == (1, (await starting.row())["causation_id"])
    assert ('"maxAttempts":2' in row["retry"], data["input"]) == (True, '{"n":1}')
    assert await starting.events_of("ScheduleFired") == []
    assert (await starting.view())["firedCount"] == 1


async def test_the_view_shows_the_start(starting: StartingSchedules) -> None:
    """The reply to get-schedule and the page have the fields of `start`, with the defaults."""
    await starting.put_start(start={"input": [1], "deadlineIn": 60_000, "retry": {"maxAttempts": 2}, **KEY})
    view = await starting.view()
    retry = {"maxAttempts": 2, "first": "PT1S", "factor": 2.0, "cap": "PT5M"}
    concurrency = {**KEY, "concurrencyLimit": 1, "whenBusy": "skip"}
    wanted = {"type": "order", "queue": "default", "input": [1], "deadlineIn": "PT1M", "retry": retry, **concurrency}
    assert (view["start"], "data" in view) == (wanted, False)
    assert (await starting.ask("list-schedules"))["schedules"][0]["start"] == wanted


async def test_a_started_workflow_is_offered_to_workers(starting: StartingSchedules) -> None:
    """After the commit, the lane is offered, and the loop of deadlines is woken if there is one."""
    await starting.put_start()
    await starting.put_start("with-deadline", start={"deadlineIn": "PT1H"})
    await starting.advance(minutes=1)
    assert starting.offers == [(("acme", "default", "order"), after(minutes=1))] * 2
    assert starting.worker_wakes.count(("workflow-deadlines", after(minutes=1))) == 1


async def test_the_same_start_as_a_command(starting: StartingSchedules) -> None:
    """A StartWorkflow with the same fields as a slot's workflow is `unchanged`: both have one digest."""
    await starting.put_start(start={"input": {"a": [1, "é"]}})
    await starting.advance(minutes=1)
    assert await starting.start(*ids(1), input={"a": [1, "é"]}) == "unchanged"
    assert await starting.start(*ids(1), input={"a": [2]}) == "exists"


async def test_a_put_changes_the_start(starting: StartingSchedules) -> None:
    """A Put with another `start` is `updated`. It keeps the slots that are due, which start the new workflow."""
    await starting.put_start(catchUp=ALL)
    await starting.advance(minutes=1)
    starting.clock.advance(minutes=1)
    assert await starting.put_start(catchUp=ALL) == "unchanged"
    assert await starting.put_start(catchUp=ALL, start={"queue": "other"}) == "updated"
    await starting.fire()
    assert [row["queue"] for row in await starting.rows("workflows")] == ["default", "other"]
    assert await starting.put(catchUp=ALL) == "updated"
    await starting.advance(minutes=1)
    assert (await starting.fired(), list(await starting.workflows())) == ([slot(3)], ids(1, 2))


async def test_disabled_workflows_are_stored(starting: StartingSchedules) -> None:
    """While workflows are off, slots start workflows all the same, like commands."""
    off = StartingSchedules(starting.database, starting.broker, starting.clock, enabled=False)
    await off.put_start()
    await off.advance(minutes=1)
    assert await off.workflows() == {ids(1)[0]: "waiting"}


# Slots that start nothing


async def test_a_busy_key(starting: StartingSchedules) -> None:
    """A slot that finds its key held is skipped visibly, and the schedule goes on. The key is free after the end."""
    await starting.put_start(start=KEY)
    await starting.advance(minutes=1)
    await starting.advance(minutes=1)
    await starting.advance(minutes=1)
    view = await starting.view()
    fields = ("firedCount", "lastSlotAt", "lastSkippedAt", "lastSkipReason", "missedSince", "status")
    assert tuple(view[name] for name in fields) == (1, slot(1), slot(3), "busy", slot(2), "active")
    assert await starting.skipped() == [(slot(2), "busy"), (slot(3), "busy")]
    assert starting.metrics.not_started == {"busy": 2}
    await starting.about_workflow("Cancel", *ids(1))
    await starting.advance(minutes=1)
    assert list((await starting.workflows()).values()) == ["cancelled"] * 3 + ["waiting"]
    assert starting.metrics.late_rows[SCHEDULES.name] == 2, "only what fires is late"
    assert "missedSince" not in await starting.view()


async def test_a_skipped_slot_before_a_fired_one(starting: StartingSchedules) -> None:
    """Of three slots of one pass, the second one has a workflow of the user. The third one ends `missedSince`."""
    await starting.put_start(catchUp=ALL)
    await starting.start(*ids(2), input="mine")
    await starting.advance(minutes=3)
    view = await starting.view()
    fields = ("firedCount", "lastSlotAt", "lastSkippedAt", "missedSince")
    assert tuple(view.get(name) for name in fields) == (2, slot(3), slot(2), None)


async def test_skipped_slots_do_not_count(starting: StartingSchedules) -> None:
    """`maxCount` counts workflows. A schedule whose last slot is skipped goes on."""
    await starting.put_start(start=KEY, catchUp=ALL, maxCount=2)
    await starting.advance(minutes=2)
    assert (await starting.view())["status"] == "active"
    await starting.about_workflow("Cancel", *ids(1))
    await starting.advance(minutes=1)
    assert (await starting.view())["endReason"] == "max_count"
    assert len(await starting.events_of("ScheduleEnded")) == 1


async def test_a_limit(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A slot that would exceed a limit of its tenant is skipped visibly. When there is room, the next one starts."""
    starting = limited(store, memory_broker, clock, open_workflows=1)
    await starting.put_start()
    await starting.advance(minutes=1)
    await starting.advance(minutes=1)
    assert (list(await starting.workflows()), await starting.skipped()) == (ids(1), [(slot(2), "over_quota")])
    assert starting.metrics.not_started == {"over_quota": 1}
    await starting.about_workflow("Cancel", *ids(1))
    await starting.advance(minutes=1)
    assert (await starting.workflows())[ids(3)[0]] == "waiting"


# Triggers


async def test_workflows_of_a_pass(starting: StartingSchedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass starts at most 250 workflows: each costs as much as four events. The rest stays due."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", 1000)
    for number in range(4):
        await starting.put_start(f"s-{number}", catchUp=ALL)
    starting.clock.advance(minutes=100)
    await starting.worker.tick(starting.clock.now())
    assert len(await starting.workflows()) == 250


async def test_a_trigger_starts_a_workflow(starting: StartingSchedules) -> None:
    """Its id has the position of the command."""
    await starting.put_start(start={"input": 1, "deadlineIn": "PT1H"})
    await starting.about("Trigger")
    position = starting.positions[-1]
    assert starting.outcomes() == ["created", "triggered"]
    (row,) = await starting.rows("workflows")
    assert row["workflow_id"] == f"daily/{position.epoch}-{position.sequence}"
    assert (row["started_epoch"], row["started_sequence"]) == position
    assert starting.offers[0] == (("acme", "default", "order"), after())
    assert (await starting.view())["firedCount"] == 0
    assert await starting.events_of("ScheduleFired") == []


@pytest.mark.parametrize(("fields", "stored"), [({}, "1"), ({"data": [2]}, "[2]"), ({"data": None}, None)])
async def test_the_data_of_a_trigger_is_the_input(
    starting: StartingSchedules, fields: Mapping[str, Any], stored: str | None
) -> None:
    """Without data, the input is that of the schedule."""
    await starting.put_start(start={"input": 1})
    await starting.about("Trigger", **fields)
    rows = await starting.rows("workflow_data")
    assert [row["input"] for row in rows] == ([] if stored is None else [stored])


async def test_a_busy_trigger(starting: StartingSchedules) -> None:
    """It says so. Its workflow is stored as cancelled."""
    await starting.put_start(start=KEY)
    await starting.start("mine", **KEY)
    assert await starting.about("Trigger") == "skipped_busy"
    events = await starting.events_of("ScheduleSkipped")
    assert {(each["id"], each["payload"]["cause"], each["payload"]["reason"]) for each in events} == {
        (events[0]["id"], "trigger", "busy")
    }
    assert sorted((await starting.workflows()).values()) == ["cancelled", "waiting"]


async def test_a_trigger_over_a_limit(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A trigger that would exceed a limit has no effect, and its reply names the limit."""
    starting = limited(store, memory_broker, clock, open_workflows=0)
    await starting.put_start()
    reply = await starting.request("TriggerSchedule", scheduleId="daily")
    assert (reply["outcome"], reply["limit"]) == ("over_quota", {"name": "open_workflows", "most": 0})
    assert (await starting.workflows(), await starting.skipped()) == ({}, [])


# Refused


INVALID: list[tuple[Mapping[str, Any], str, str]] = [
    ({"start": {"type": "order"}, "data": None}, "data", "INVALID_PAYLOAD"),
    ({"start": {"type": "order"}, "scheduleId": "x" * 151}, "scheduleId", "INVALID_PAYLOAD"),
    ({"start": {}}, "start.type", "INVALID_PAYLOAD"),
    ({"start": {"type": "a:b"}}, "start.type", "INVALID_PAYLOAD"),
    ({"start": {"type": "order", "ifBusy": "wait"}}, "start.ifBusy", "INVALID_PAYLOAD"),
    ({"start": {"type": "order", "input": "x" * 70_000}}, "start.input", "TOO_LARGE"),
]


async def test_invalid_starts(starting: StartingSchedules) -> None:
    """Each error names the field."""
    for fields, path, code in INVALID:
        with case(path, code):
            reply = await starting.request("PutSchedule", **{"scheduleId": "daily", "every": "PT1M", **fields})
            paths = [each["path"] for each in reply["error"]["errors"]]
            assert (reply["error"]["code"], paths) == (code, [f"payload.{path}"])


async def test_the_longest_id(starting: StartingSchedules) -> None:
    """The ids of workflows of slots and triggers fit for the longest id of a schedule with `start`."""
    assert await starting.put_start("x" * 150) == "created"
    await starting.about("Trigger", "x" * 150)
    await starting.advance(minutes=1)
    assert len(await starting.workflows()) == 2


# Cost
