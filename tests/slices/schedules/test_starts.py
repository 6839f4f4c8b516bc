"""Schedules whose slots and triggers start workflows: what is started, what is skipped, and how that shows."""

from collections import Counter
from collections.abc import Coroutine, Mapping
from math import inf
from typing import Any

import pytest

from tests.harness.cases import case
from tests.harness.clock import ManualClock, after, iso
from tests.harness.schedules import StartingSchedules
from tests.simulation.faults import FaultyDatabase, Gate, Point, Process
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.schedules import room

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


async def test_a_transaction_starts_few_workflows(starting: StartingSchedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction starts 250 workflows, so that others need not wait long. The rest follows at once."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", inf)
    for number in range(301):
        starting.send("PutSchedule", scheduleId=f"s-{number:03}", every="PT1M", start={"type": "order"})
    await starting.consume()
    starting.clock.advance(minutes=1)
    counts = []
    for _ in range(2):
        await starting.worker.tick(starting.clock.now())
        counts.append(len(await starting.rows("workflows")))
    assert counts == [250, 301]


async def test_the_view_shows_the_start(starting: StartingSchedules) -> None:
    """The reply to get-schedule and the page have the fields of `start`, with the defaults."""
    await starting.put_start(start={"input": [1], "deadlineIn": 60_000, "retry": {"maxAttempts": 2}, **KEY})
    view = await starting.view()
    retry = {"maxAttempts": 2, "first": "PT1S", "factor": 2.0, "cap": "PT5M"}
    wanted = {"type": "order", "queue": "default", "input": [1], "deadlineIn": "PT1M", "retry": retry, **KEY}
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


async def test_a_late_schedule_follows_its_policy(starting: StartingSchedules) -> None:
    """After an outage, the policy decides which slots start workflows."""
    await starting.put_start("all", catchUp=ALL)
    await starting.put_start("last")
    await starting.advance(minutes=10, seconds=30)
    found = await starting.workflows()
    assert [sum(name.startswith(schedule) for name in found) for schedule in ("all", "last")] == [10, 1]
    assert starting.metrics.missed == 9


async def test_a_late_slot_creates_the_same_workflow(starting: StartingSchedules) -> None:
    """A slot can fire again after a restore. `createdAt` is the slot, so the keys of the steps stay."""
    await starting.put_start(maxCount=1)
    await starting.advance(minutes=1, seconds=20)
    (row,) = await starting.rows("workflows")
    assert row["created_at"] == after(minutes=1)


async def test_max_count_and_the_end(starting: StartingSchedules) -> None:
    """The schedule ends after `maxCount` workflows."""
    await starting.put_start(maxCount=2, catchUp=ALL)
    await starting.advance(minutes=5)
    assert list(await starting.workflows()) == ids(1, 2)
    assert (await starting.view())["endReason"] == "max_count"


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


async def test_pause_resume_and_delete(starting: StartingSchedules) -> None:
    """No workflow is started for the slots of a pause, nor after a delete."""
    await starting.put_start()
    await starting.about("Pause")
    await starting.advance(minutes=2)
    await starting.about("Resume")
    await starting.advance(minutes=1)
    await starting.about("Delete")
    await starting.advance(minutes=5)
    assert list(await starting.workflows()) == ids(3)


async def test_a_clock_that_was_ahead(starting: StartingSchedules) -> None:
    """If a slot comes again after the clock was set back, its workflow stays as it is, and the slot fires."""
    await starting.put_start(catchUp=ALL)
    await starting.advance(minutes=2)
    before = await starting.workflow_rows()
    await starting.sql(
        f"UPDATE schedules SET after_at = {after()}, slot_at = {after(minutes=1)}, available_at = {after(minutes=1)}"
    )
    await starting.advance(minutes=1)
    assert (await starting.workflow_rows())[:2] == before
    assert (list(await starting.workflows()), await starting.skipped()) == (ids(1, 2, 3), [])


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
    assert "missedSince" not in await starting.view()


async def test_an_event_of_a_skipped_slot(starting: StartingSchedules) -> None:
    """The event names the slot, the workflow and the reason."""
    await starting.put_start(start=KEY)
    await starting.start("mine", **KEY)
    await starting.advance(minutes=1)
    (event,) = await starting.events_of("ScheduleSkipped")
    about = {"tenantId": "acme", "scheduleId": "daily", "slotAt": slot(1), "skippedAt": slot(1)}
    assert event["payload"] == {**about, "cause": "slot", "reason": "busy", "workflowId": ids(1)[0]}
    assert event["causationId"] == (await starting.row())["causation_id"]


async def test_several_slots_with_one_key(starting: StartingSchedules) -> None:
    """Of the slots and schedules that are due together with one key, the first one starts its workflow."""
    await starting.put_start(start=KEY, catchUp=ALL)
    await starting.put_start("other", start=KEY)
    await starting.advance(minutes=3)
    assert list((await starting.workflows()).values()).count("waiting") == 1
    assert starting.metrics.not_started == {"busy": 4}


async def test_messages_before_slots_with_one_key(
    starting: StartingSchedules, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two slots with one key for which messages are kept, one starts its workflow. No pass fails."""
    for name in ("a", "b"):
        await starting.put_start(name, start=KEY)
        await starting.request("SendToWorkflow", workflowId=f"{name}/{slot(1)}", name="approval")
    await starting.advance(minutes=1)
    assert sorted((await starting.workflows()).values()) == ["cancelled", "waiting"]
    assert "pass failed" not in caplog.text


async def test_skipped_slots_do_not_count(starting: StartingSchedules) -> None:
    """`maxCount` counts workflows. A schedule whose last slot is skipped goes on."""
    await starting.put_start(start=KEY, catchUp=ALL, maxCount=2)
    await starting.advance(minutes=2)
    assert (await starting.view())["status"] == "active"
    await starting.about_workflow("Cancel", *ids(1))
    await starting.advance(minutes=1)
    assert (await starting.view())["endReason"] == "max_count"
    assert len(await starting.events_of("ScheduleEnded")) == 1


@pytest.mark.parametrize("when", ["before the Put", "after the Put"])
async def test_a_workflow_of_the_user_with_the_id(starting: StartingSchedules, when: str) -> None:
    """The workflow of the user stays untouched. The slot is skipped visibly, and the schedule goes on."""
    if when == "after the Put":
        await starting.put_start()
    await starting.start(*ids(1), input="mine")
    before = await starting.workflow_rows()
    await starting.put_start()
    await starting.advance(minutes=1)
    assert await starting.workflow_rows() == before
    assert (await starting.skipped(), starting.metrics.not_started) == ([(slot(1), "exists")], {"exists": 1})
    await starting.advance(minutes=1)
    assert list(await starting.workflows()) == ids(1, 2)


async def test_a_cancel_before_the_slot(starting: StartingSchedules) -> None:
    """A CancelWorkflow that is newer than the definition wins. After another Put, the slot is started."""
    await starting.put_start()
    await starting.about_workflow("Cancel", *ids(1))
    await starting.about_workflow("Cancel", *ids(2))
    await starting.advance(minutes=1)
    assert (await starting.skipped(), await starting.workflows()) == (
        [(slot(1), "cancelled")],
        dict.fromkeys(ids(1, 2), "cancelled"),
    )
    await starting.put_start(start={"queue": "other"})
    await starting.advance(minutes=1)
    assert (await starting.workflows())[ids(2)[0]] == "waiting"


async def test_a_message_before_the_slot(starting: StartingSchedules) -> None:
    """A message that was sent to the id before is kept for the workflow."""
    await starting.put_start()
    reply = await starting.request("SendToWorkflow", workflowId=ids(1)[0], name="approval", data=1)
    assert reply["outcome"] == "kept"
    await starting.advance(minutes=1)
    row = next(row for row in await starting.rows("workflows") if row["workflow_id"] == ids(1)[0])
    assert (row["status"], row["messages"]) == ("waiting", 1)


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


async def test_a_limit_of_data(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """The inputs of slots count, too."""
    starting = limited(store, memory_broker, clock, workflow_data=3000)
    await starting.put_start(start={"input": "x" * 2000})
    await starting.advance(minutes=1)
    await starting.advance(minutes=1)
    assert await starting.skipped() == [(slot(2), "over_quota")]


# Triggers


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


class CountingGate(Gate):
    """Counts the statements."""

    def __init__(self) -> None:
        super().__init__(Process(lambda: None), Counter())
        self.statements = 0

    async def reach(self, point: Point) -> None:
        self.statements += point is Point.BEFORE_STATEMENT


@pytest.mark.parametrize("enabled", [True, False], ids=["workflows on", "workflows off"])
async def test_schedules_without_start_pay_nothing(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, enabled: bool
) -> None:
    """A pass has as many statements as before there were starts, and a trigger too."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", inf)  # however slow this machine is
    gate = CountingGate()
    database = FaultyDatabase(store, gate, exclusive=True)
    starting = StartingSchedules(database, memory_broker, clock, enabled=enabled)
    for number in range(50):
        starting.send("PutSchedule", scheduleId=f"s-{number}", every="PT1M")
    await starting.consume()

    async def count(work: Coroutine[Any, Any, Any]) -> int:
        gate.statements = 0
        await work
        return gate.statements

    clock.advance(minutes=1)
    passed = await count(starting.worker.tick(clock.now()))
    starting.send("TriggerSchedule", scheduleId="s-0")
    await starting.reader.begin()
    triggered = await count(starting.reader.turn())
    await starting.put_start("with-start")
    clock.advance(minutes=1)
    assert (passed, triggered) == (6, 5)
    assert await count(starting.worker.tick(clock.now())) > passed
