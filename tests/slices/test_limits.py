"""The limits of tenants: what exceeds one ends as `over_quota` and has no effect, and other tenants notice nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.in_process import InProcess
from tests.harness.memory_broker import MemoryBroker
from timer_service import events, runs, signals, timers, workflows
from timer_service.app.slices import SCHEDULES, queries
from timer_service.app.usage import GetUsage, usage_query
from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.core.service.slice import Slice
from timer_service.runs.graph import read_needs

LATER = iso(after(hours=1))


def conversation(store: Database, slice_: Slice, broker: MemoryBroker | None = None, **limits: int) -> InProcess:
    """Return a slice in which `acme` has the limits. The other tenants have the default limits."""
    tenants = TenantLimits(tenants={"acme": Limits(**limits)})
    return InProcess(store, broker or MemoryBroker(), ManualClock(), slice_, limits=tenants)


async def usage(talk: InProcess) -> Any:
    """Return the reply of the query `get-usage`."""
    query = usage_query(DEFAULT_LIMITS, [each for slice_ in (timers.SLICE, runs.SLICE) for each in slice_.usages])
    return await query.answer(talk.database.reader, talk.tenant, GetUsage(), talk.clock.now())


async def outcome(talk: InProcess, message_type: str, **fields: Any) -> Any:
    """Send a command. Return its outcome, or the limit that it would exceed."""
    reply = await talk.request(message_type, **fields)
    return dict(reply["limit"]) if reply["outcome"] == "over_quota" else str(reply["outcome"])


def jobs(count: int, prefix: str = "j", **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"{prefix}{number}", **fields} for number in range(count)]


def start(run: str, count: int, *groups: str, **fields: Any) -> dict[str, Any]:
    return {"message_type": "StartRun", "runId": run, "jobs": jobs(count, **fields), "groups": list(groups)}


GROUPS = [f"g{number}" for number in range(5)]
COMMANDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "timer": lambda name: {"message_type": "ScheduleTimer", "serviceCallId": name, "dueAt": LATER},
    "move": lambda name: {"message_type": "ScheduleTimer", "serviceCallId": name, "dueAt": iso(after(hours=2))},
    "other": lambda name: {"message_type": "ScheduleTimer", "tenant": "globex", "serviceCallId": name, "dueAt": LATER},
    "small": lambda name: {"message_type": "ScheduleTimer", "serviceCallId": name, "dueAt": LATER, "data": "x" * 900},
    "large": lambda name: {"message_type": "ScheduleTimer", "serviceCallId": name, "dueAt": LATER, "data": "x" * 2000},
    "cancel": lambda name: {"message_type": "CancelTimer", "serviceCallId": name},
    "signal": lambda name: {
        "message_type": "CreateWorkSignal",
        "signalId": name,
        "triggerKind": "time",
        "triggerSpec": {"kind": "time.at", "at": LATER},
    },
    "pause": lambda name: {"message_type": "PauseWorkSignal", "signalId": name},
    "end": lambda name: {"message_type": "CancelWorkSignal", "signalId": name},
    "hourly": lambda name: {"message_type": "PutSchedule", "scheduleId": name, "every": "PT1H"},
    "daily": lambda name: {"message_type": "PutSchedule", "scheduleId": name, "every": "P1D"},
    "foreign": lambda name: {"message_type": "PutSchedule", "tenant": "globex", "scheduleId": name, "every": "PT1H"},
    "rest": lambda name: {"message_type": "PauseSchedule", "scheduleId": name},
    "trigger": lambda name: {"message_type": "TriggerSchedule", "scheduleId": name},
    "delete": lambda name: {"message_type": "DeleteSchedule", "scheduleId": name},
    "park": lambda name: {
        "message_type": "ParkEvent",
        "consumer": "orders",
        "event": {"id": name, "type": "JobReady", "payload": {}},
        "reason": "no",
        "attempts": 1,
    },
    "resubmit": lambda name: {"message_type": "ResubmitEvent", "consumer": "orders", "eventId": name},
    "drop": lambda name: {"message_type": "DropEvent", "consumer": "orders", "eventId": name},
    "run": lambda name: start(name, 5, "g"),
    "needing": lambda name: start(name, 5, "g", needs=[{"group": "g"}]),
    "tenth": lambda name: start(name, 10),
    "eleventh": lambda name: start(name, 11),
    "group": lambda name: start(name, 0, "g"),
    "groups": lambda name: start(name, 0, *GROUPS),
    "stop": lambda name: {"message_type": "CancelRun", "runId": name},
    "report": lambda name: {"message_type": "ReportJobStatus", "runId": name, "jobName": "j0", "status": "success"},
    "member": lambda name: {"message_type": "ReportJobStatus", "runId": name, "jobName": "g0", "status": "success"},
    **{
        f"resolve{count}": lambda name, count=count: {  # type: ignore[misc]
            "message_type": "ResolveGroup",
            "runId": name,
            "groupName": "g",
            "jobs": jobs(count, "g"),
        }
        for count in (1, 3, 4, 5, 10)
    },
}
STORIES: dict[str, tuple[Slice, str, int, str]] = {
    "a timer that ends makes room, one that changes needs none": (
        *(timers.SLICE, "pending_timers", 2),
        (
            "timer 1 scheduled, timer 2 scheduled, timer 3 over, move 1 rescheduled, cancel 3 not_found, "
            "cancel 1 cancelled, timer 4 scheduled, timer 1 over, other 5 scheduled"
        ),
    ),
    "large data counts while its timer is stored, settled or not": (
        *(timers.SLICE, "stored_data", 5000),
        (
            "large 0 scheduled, large 1 scheduled, small 2 scheduled, large 3 over, small 4 scheduled, "
            "cancel 0 cancelled, large 9 over, small 1 updated, large 9 scheduled, large 1 over"
        ),
    ),
    "a signal that ends makes room, and a repeated one is unchanged": (
        *(signals.SLICE, "open_signals", 2),
        (
            "signal 1 created, signal 2 created, signal 3 over, signal 1 unchanged, pause 1 paused, end 1 cancelled, "
            "signal 4 created, signal 5 over"
        ),
    ),
    "a schedule that goes makes room": (
        *(SCHEDULES, "schedules", 1),
        (
            "foreign 1 created, hourly 1 created, hourly 2 over, daily 1 updated, trigger 1 triggered, rest 1 paused, "
            "hourly 2 over, delete 1 deleted, hourly 2 created"
        ),
    ),
    "a parked event that is resubmitted or dropped makes room, and a repeated one is unchanged": (
        *(events.SLICE, "parked_events", 2),
        (
            "park 1 parked, park 2 parked, park 3 over, park 1 unchanged, resubmit 1 resubmitted, park 3 parked, "
            "park 4 over, drop 2 dropped, park 4 parked, drop 5 not_found, park 5 over"
        ),
    ),
    "a run that ends makes room": (
        *(runs.SLICE, "open_runs", 1),
        "run 1 started, run 2 over, run 1 unchanged, stop 1 cancelled, run 2 started",
    ),
    "jobs, needs and groups of running runs count": (
        *(runs.SLICE, "run_rows", 10),
        (
            "run 1 started, run 2 over, groups 2 over, resolve5 1 over, resolve4 1 resolved, resolve4 1 unchanged, "
            "run 1 unchanged, stop 1 cancelled, tenth 2 started"
        ),
    ),
    "each job of a group is one more need for each job that needs the group": (
        *(runs.SLICE, "run_rows", 30),
        "needing 1 started, resolve4 1 over, resolve3 1 resolved",
    ),
    "jobs of a group that was resolved early count when the run is started": (
        *(runs.SLICE, "run_rows", 10),
        "resolve10 1 kept, group 1 over, eleventh 2 over, stop 1 not_found",
    ),
    "commands that wait for their runs, or for a group, count until these begin": (
        *(runs.SLICE, "early_commands", 7000),
        (
            "report 1 kept, report 2 kept, report 3 kept, report 4 over, run 1 started, member 1 kept, report 4 over, "
            "resolve1 1 resolved, report 4 kept"
        ),
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_limit(store: Database, story: tuple[Slice, str, int, str]) -> None:
    """A command that would exceed a limit has no effect, and its reply names the limit. Others go on."""
    slice_, limit, most, steps = story
    talk = conversation(store, slice_, None, **{limit: most})
    for step in steps.split(", "):
        command, name, expected = step.split()
        reply = await talk.request(**COMMANDS[command](name))
        assert reply["outcome"] == ("over_quota" if expected == "over" else expected), step
        assert reply.get("limit") == ({"name": limit, "most": most} if expected == "over" else None), step
    assert await talk.dead_letters() == []
    if limit == "run_rows" and most > 10:
        await has_as_many_rows_as_counted(talk)


async def test_audit_lines(store: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the tenant, id and type of each command over quota, without its data, and that of an operator."""
    caplog.set_level("INFO")
    talk = conversation(store, SCHEDULES, schedules=1, open_backfills=0)
    for name in ("s1", "s2"):
        await talk.request("PutSchedule", scheduleId=name, every="PT1H", data="secret")
    await talk.request("BackfillSchedule", scheduleId="s1", from_=iso(after(hours=-1)), to=LATER)
    lines = [vars(record) for record in caplog.records if vars(record).get("outcome") == "over_quota"]
    assert [(line["message"], line["type"]) for line in lines] == [
        ("command over quota", "PutSchedule"),
        ("command over quota", "BackfillSchedule"),
        ("operator action", "BackfillSchedule"),
    ]
    assert all({"tenant", "command_id", "sequence"} <= line.keys() for line in lines)
    assert "secret" not in str(lines)


async def test_pending_timers_in_one_batch(store: Database) -> None:
    """The limit holds within a batch too. A timer that the batch cancels makes room for the commands behind it."""
    talk = conversation(store, timers.SLICE, pending_timers=3)
    for number in range(5):
        talk.send("ScheduleTimer", serviceCallId=f"call-{number}", dueAt=LATER)
    talk.send("CancelTimer", serviceCallId="call-0")
    talk.send("ScheduleTimer", serviceCallId="call-5", dueAt=LATER)
    talk.send("ScheduleTimer", serviceCallId="call-6", dueAt=LATER)
    talk.send("ScheduleTimer", tenant="globex", serviceCallId="call-0", dueAt=LATER)
    await talk.consume()
    assert [talk.reply(n)["outcome"] for n in range(9)] == [
        *["scheduled"] * 3,
        *["over_quota"] * 2,
        *("cancelled", "scheduled", "over_quota", "scheduled"),
    ]


async def test_timers_that_are_due(store: Database) -> None:
    """Timers that are due count no more. So a tenant that was below its limit is not refused after an outage."""
    talk = conversation(store, timers.SLICE, pending_timers=2)
    over = {"name": "pending_timers", "most": 2}
    await outcome(talk, "ScheduleTimer", serviceCallId="old", dueAt=iso(after(seconds=1)))
    talk.clock.advance(seconds=60)
    for number in range(20):  # one after the other, each until it fires: the tenant never had more than two
        due = iso(after(seconds=60 - number))
        talk.send("ScheduleTimer", serviceCallId=f"call-{number}", dueAt=due)
    talk.send("ScheduleTimer", serviceCallId="old", dueAt=LATER)
    await talk.consume()
    assert {talk.reply(n)["outcome"] for n in range(1, 22)} == {"scheduled", "rescheduled"}
    assert [await outcome(talk, "ScheduleTimer", serviceCallId=f"new-{n}", dueAt=LATER) for n in (1, 2)] == [
        "scheduled",
        over,
    ]
    now = iso(talk.clock.now())
    assert await outcome(talk, "ScheduleTimer", serviceCallId="call-1", dueAt=now) == "rescheduled"
    (used, *_) = (await usage(talk))["usage"]
    assert (used["limit"], used["used"]) == ("pending_timers", 2)
    await outcome(talk, "CancelTimer", serviceCallId="new-1")
    assert (await usage(talk))["usage"][0]["used"] == 1


async def has_as_many_rows_as_counted(talk: InProcess) -> None:
    tables = ("run_jobs", "run_groups", "run_group_needs")
    stored = sum([len(await talk.rows(table)) for table in tables])
    stored += sum([len(read_needs(row["needs"] or "{}")) for row in await talk.rows("run_edges")])
    shown = {each["limit"]: each["used"] for each in (await usage(talk))["usage"]}
    assert shown["run_rows"] == stored


async def test_batch_on_one_run(store: Database) -> None:
    """Of a batch on one run, only the commands that exceed the limit are refused. They leave no trace in the run."""
    talk = conversation(store, runs.SLICE, run_rows=12)
    groups = [f"g{number}" for number in range(4)]
    talk.send("StartRun", runId="r1", jobs=jobs(3), groups=groups)
    for group in groups:
        talk.send("ResolveGroup", runId="r1", groupName=group, jobs=jobs(3, group))
    talk.send("ReportJobStatus", runId="r1", jobName="j1", status="success")
    talk.send("ResolveGroup", runId="r1", groupName="g2", jobs=jobs(1, "g2", needs=[{"group": "g3"}]))
    await talk.consume()
    assert [talk.reply(n)["outcome"] for n in range(7)] == [
        *("started", "resolved", "over_quota", "over_quota", "over_quota"),
        *("recorded", "resolved"),
    ]
    await has_as_many_rows_as_counted(talk)
    found = {row["job_name"] for row in await talk.rows("run_jobs")}
    assert found == {"j0", "j1", "j2", "g00", "g01", "g02", "g20"}


async def test_run_that_ends_in_the_batch(store: Database) -> None:
    """A run that a batch cancels makes room for the next run of the batch."""
    talk = conversation(store, runs.SLICE, run_rows=6, open_runs=1)
    await talk.request(**COMMANDS["run"]("r1"))
    talk.send("CancelRun", runId="r1")
    talk.send("StartRun", runId="r2", jobs=jobs(5), groups=["g"])
    await talk.consume()
    assert [talk.reply(number)["outcome"] for number in (1, 2)] == ["cancelled", "started"]


async def fill(store: Database) -> InProcess:
    """Store three things of each kind that can be limited. Return the last slice."""
    broker = MemoryBroker()
    spec = {"kind": "time.at", "at": LATER}
    commands: list[tuple[Slice, str, dict[str, Any]]] = [
        (timers.SLICE, "ScheduleTimer", {"serviceCallId": "{}", "dueAt": LATER, "data": "x" * 2000}),
        (signals.SLICE, "CreateWorkSignal", {"signalId": "{}", "triggerKind": "time", "triggerSpec": spec}),
        (SCHEDULES, "PutSchedule", {"scheduleId": "{}", "every": "PT1H"}),
        (SCHEDULES, "BackfillSchedule", {"scheduleId": "{}", "from": iso(after(hours=-1)), "to": LATER}),
        (workflows.SLICE, "StartWorkflow", {"workflowId": "{}", "type": "order", "input": "x" * 2000}),
        (runs.SLICE, "StartRun", {"runId": "{}", "jobs": [{"name": "a"}]}),
        (runs.SLICE, "StartRun", {"runId": "ended-{}", "jobs": []}),
        (runs.SLICE, "ReportJobStatus", {"runId": "early-{}", "jobName": "a", "status": "success"}),
    ]
    talk = conversation(store, runs.SLICE, broker)
    for slice_, message, fields in commands:
        talk = conversation(store, slice_, broker)
        for number in range(3):
            about: dict[str, Any] = {
                key: value.format(number) if isinstance(value, str) else value for key, value in fields.items()
            }
            talk.send(message, **about)
        await talk.consume()
    return talk


async def usage_of_each(talk: InProcess, most: int | None) -> dict[str, int]:
    """Return what a tenant uses of each limit, if each of its limits is `most`."""
    limits = TenantLimits(default=Limits(**dict.fromkeys(Limits.model_fields, most)))
    talk.queries = talk.parts.queries(queries(limits))
    found = (await talk.ask("get-usage"))["usage"]
    assert {each.get("most") for each in found} == {most}
    return {each["limit"]: each["used"] for each in found}


async def test_usage(store: Database) -> None:
    """The usage of each limit tells a tenant that is over it from one that is at it. It counts one row more."""
    talk = await fill(store)
    whole = await usage_of_each(talk, None)
    assert whole.keys() == Limits.model_fields.keys()
    assert [whole[name] for name in ("pending_timers", "open_signals", "schedules", "open_runs", "run_rows")] == [3] * 5
    assert (whole["open_workflows"], whole["open_backfills"]) == (3, 3)
    assert min(whole["stored_data"], whole["early_commands"], whole["workflow_data"]) > 100
    for most, counted in ((4, 3), (3, 3), (2, 3), (1, 2), (0, 1)):
        assert await usage_of_each(talk, most) == {name: used // 3 * counted for name, used in whole.items()}, most
