"""The limits of tenants: what exceeds one ends as `over_quota` and has no effect, and other tenants notice nothing."""

from typing import Any

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.in_process import InProcess
from timer_service import events, runs, signals, timers, workflows
from timer_service.adapters.memory import MemoryBroker
from timer_service.app.slices import SCHEDULES, queries
from timer_service.app.usage import GetUsage, usage_query
from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.core.service.slice import Slice
from timer_service.runs.graph import read_needs

SLICES = (timers.SLICE, signals.SLICE, SCHEDULES, workflows.SLICE, runs.SLICE, events.SLICE)
LATER = iso(after(hours=1))


def conversation(store: Database, slice_: Slice, broker: MemoryBroker | None = None, **limits: Any) -> InProcess:
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


async def test_pending_timers(store: Database) -> None:
    """A tenant with as many timers as it may have can change and cancel them. Each that ends makes room for one."""
    talk = conversation(store, timers.SLICE, pending_timers=2)
    over = {"name": "pending_timers", "most": 2}
    found = [await outcome(talk, "ScheduleTimer", serviceCallId=f"call-{n}", dueAt=LATER) for n in (1, 2, 3)]
    assert found == ["scheduled", "scheduled", over]
    changed = iso(after(hours=2))
    assert [
        await outcome(talk, "ScheduleTimer", serviceCallId="call-1", dueAt=changed),
        await outcome(talk, "CancelTimer", serviceCallId="call-3"),
        await outcome(talk, "CancelTimer", serviceCallId="call-1"),
        await outcome(talk, "ScheduleTimer", serviceCallId="call-4", dueAt=LATER),
        await outcome(talk, "ScheduleTimer", serviceCallId="call-1", dueAt=LATER),
        await outcome(talk, "ScheduleTimer", tenant="globex", serviceCallId="call-5", dueAt=LATER),
    ] == ["rescheduled", "not_found", "cancelled", "scheduled", over, "scheduled"]
    assert talk.metrics.commands["ScheduleTimer", "over_quota"] == 2
    assert (await talk.ask("count-timers"))["counts"]["Scheduled"] == 2
    assert await talk.dead_letters() == []


async def test_audit_lines(store: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the tenant, id and type of each command over quota, without its data."""
    caplog.set_level("INFO")
    talk = conversation(store, timers.SLICE, pending_timers=1)
    for number in (1, 2):
        await outcome(talk, "ScheduleTimer", serviceCallId=f"call-{number}", dueAt=LATER, data="secret")
    (line,) = [vars(record) for record in caplog.records if record.message == "command over quota"]
    assert {"tenant": "acme", "type": "ScheduleTimer", "outcome": "over_quota"}.items() <= line.items()
    assert {"command_id", "sequence"} <= line.keys()
    assert "secret" not in str(line)


async def test_audit_lines_of_an_operator(store: Database, caplog: pytest.LogCaptureFixture) -> None:
    """An action of an operator that exceeds a limit is found among the others, too."""
    caplog.set_level("INFO")
    talk = conversation(store, SCHEDULES, open_backfills=0)
    await talk.request("PutSchedule", scheduleId="s", every="PT1H")
    over = {"name": "open_backfills", "most": 0}
    backfill = {"from_": iso(after(hours=-1)), "to": LATER}
    assert await outcome(talk, "BackfillSchedule", scheduleId="s", **backfill) == over
    lines = [vars(record) for record in caplog.records if vars(record).get("type") == "BackfillSchedule"]
    assert [line["message"] for line in lines] == ["command over quota", "operator action"]
    assert {line["outcome"] for line in lines} == {"over_quota"}


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
        due = iso(after(seconds=number))
        talk.send("ScheduleTimer", serviceCallId=f"call-{number}", dueAt=due)
    talk.send("ScheduleTimer", serviceCallId="old", dueAt=LATER)
    await talk.consume()
    assert {talk.reply(n)["outcome"] for n in range(1, 22)} == {"scheduled", "rescheduled"}
    assert [await outcome(talk, "ScheduleTimer", serviceCallId=f"new-{n}", dueAt=LATER) for n in (1, 2)] == [
        "scheduled",
        over,
    ]
    (used, *_) = (await usage(talk))["usage"]
    assert (used["limit"], used["used"]) == ("pending_timers", 2)


async def test_stored_data(store: Database) -> None:
    """Large data counts while its timer is stored, settled or not. Small data does not count."""
    talk = conversation(store, timers.SLICE, stored_data=5000)
    over = {"name": "stored_data", "most": 5000}
    found = [
        await outcome(talk, "ScheduleTimer", serviceCallId=f"call-{n}", dueAt=LATER, data="x" * size)
        for n, size in enumerate((2000, 2000, 900, 2000, 900))
    ]
    assert found == ["scheduled", "scheduled", "scheduled", over, "scheduled"]
    assert [
        await outcome(talk, "CancelTimer", serviceCallId="call-0"),
        await outcome(talk, "ScheduleTimer", serviceCallId="call-9", dueAt=LATER, data="x" * 2000),
        await outcome(talk, "ScheduleTimer", serviceCallId="call-1", dueAt=LATER, data="small"),
        await outcome(talk, "ScheduleTimer", serviceCallId="call-9", dueAt=LATER, data="x" * 2000),
        await outcome(talk, "ScheduleTimer", serviceCallId="call-1", dueAt=LATER, data="x" * 2000),
    ] == ["cancelled", over, "updated", "scheduled", over]


async def test_open_signals(store: Database) -> None:
    """A tenant with as many open signals as it may have can change them. One that ends makes room."""
    talk = conversation(store, signals.SLICE, open_signals=2)
    fields: dict[str, Any] = {"triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": LATER}}
    over = {"name": "open_signals", "most": 2}
    found = [await outcome(talk, "CreateWorkSignal", signalId=f"s{n}", **fields) for n in (1, 2, 3)]
    assert [each if isinstance(each, dict) else each.partition("_")[0] for each in found] == [
        "created",
        "created",
        over,
    ]
    assert [
        await outcome(talk, "PauseWorkSignal", signalId="s1"),
        await outcome(talk, "ActivateWorkSignal", signalId="s1"),
        await outcome(talk, "CancelWorkSignal", signalId="s1"),
    ] == ["paused", "activated", "cancelled"]
    assert await outcome(talk, "CreateWorkSignal", signalId="s4", **fields) == found[0]
    assert await outcome(talk, "CreateWorkSignal", signalId="s5", **fields) == over


async def test_schedules(store: Database) -> None:
    """A tenant with as many schedules as it may have can change, pause and trigger them. One that goes makes room."""
    talk = conversation(store, SCHEDULES, schedules=1)
    over = {"name": "schedules", "most": 1}
    assert [
        await outcome(talk, "PutSchedule", scheduleId="s1", every="PT1H"),
        await outcome(talk, "PutSchedule", scheduleId="s2", every="PT1H"),
        await outcome(talk, "PutSchedule", scheduleId="s1", every="PT2H"),
        await outcome(talk, "PauseSchedule", scheduleId="s1"),
        await outcome(talk, "PutSchedule", scheduleId="s2", every="PT1H"),
        await outcome(talk, "PauseSchedule", scheduleId="s2"),
        await outcome(talk, "TriggerSchedule", scheduleId="s1"),
        await outcome(talk, "DeleteSchedule", scheduleId="s1"),
        await outcome(talk, "PutSchedule", scheduleId="s2", every="PT1H"),
    ] == ["created", over, "updated", "paused", over, "not_found", "triggered", "deleted", "created"]


async def test_open_runs(store: Database) -> None:
    """A tenant with as many running runs as it may have can report and cancel. A run that ends makes room."""
    talk = conversation(store, runs.SLICE, open_runs=1)
    over = {"name": "open_runs", "most": 1}
    jobs = [{"name": "a"}, {"name": "b", "needs": [{"job": "a"}]}]
    assert [
        await outcome(talk, "StartRun", runId="r1", jobs=jobs),
        await outcome(talk, "StartRun", runId="r2", jobs=jobs),
        await outcome(talk, "StartRun", runId="r1", jobs=jobs),
        await outcome(talk, "ReportJobStatus", runId="r1", jobName="a", status="success"),
        await outcome(talk, "CancelRun", runId="r1"),
        await outcome(talk, "StartRun", runId="r2", jobs=jobs),
    ] == ["started", over, "unchanged", "recorded", "cancelled", "started"]


def jobs(count: int, prefix: str = "j", **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"{prefix}{number}", **fields} for number in range(count)]


async def test_run_rows(store: Database) -> None:
    """Jobs, needs and groups of running runs count. What a command does not change does not count again."""
    talk = conversation(store, runs.SLICE, run_rows=10)
    over = {"name": "run_rows", "most": 10}
    assert [
        await outcome(talk, "StartRun", runId="r1", jobs=jobs(5), groups=["g"]),
        await outcome(talk, "StartRun", runId="r2", jobs=jobs(5)),
        await outcome(talk, "StartRun", runId="r2", jobs=[], groups=[f"g{n}" for n in range(5)]),
        await outcome(talk, "ResolveGroup", runId="r1", groupName="g", jobs=jobs(5, "g")),
        await outcome(talk, "ResolveGroup", runId="r1", groupName="g", jobs=jobs(4, "g")),
        await outcome(talk, "ResolveGroup", runId="r1", groupName="g", jobs=jobs(4, "g")),
        await outcome(talk, "StartRun", runId="r1", jobs=jobs(5), groups=["g"]),
        await outcome(talk, "CancelRun", runId="r1"),
        await outcome(talk, "StartRun", runId="r2", jobs=jobs(10)),
    ] == ["started", over, over, over, "resolved", "unchanged", "unchanged", "cancelled", "started"]


async def test_needs_that_a_group_makes(store: Database) -> None:
    """If jobs need a group, each job of the group is one more need for each of them."""
    talk = conversation(store, runs.SLICE, run_rows=30)
    needing = jobs(5, needs=[{"group": "g"}])
    assert [
        await outcome(talk, "StartRun", runId="r1", jobs=needing, groups=["g"]),
        await outcome(talk, "ResolveGroup", runId="r1", groupName="g", jobs=jobs(4, "g")),
        await outcome(talk, "ResolveGroup", runId="r1", groupName="g", jobs=jobs(3, "g")),
    ] == ["started", {"name": "run_rows", "most": 30}, "resolved"]
    await has_as_many_rows_as_counted(talk)


async def test_early_commands_that_a_run_applies(store: Database) -> None:
    """The jobs of a group that was resolved early count when the run is started. A refused StartRun changes nothing."""
    talk = conversation(store, runs.SLICE, run_rows=10)
    over = {"name": "run_rows", "most": 10}
    assert [
        await outcome(talk, "ResolveGroup", runId="r1", groupName="g", jobs=jobs(10, "g")),
        await outcome(talk, "StartRun", runId="r1", jobs=[], groups=["g"]),
        await outcome(talk, "StartRun", runId="r2", jobs=jobs(11)),
    ] == ["kept", over, over]
    (row,) = await talk.rows("runs")
    assert (row["run_id"], row["status"]) == ("r1", None)
    assert len(await talk.rows("run_pending_commands")) == 1
    assert await outcome(talk, "StartRun", runId="r1", jobs=[], groups=["g", "h"]) == over
    assert await outcome(talk, "CancelRun", runId="r1") == "not_found"


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


async def test_run_that_starts_and_ends_in_one_batch(store: Database) -> None:
    """Commands of a batch that do not exceed the limit together are accepted."""
    talk = conversation(store, runs.SLICE, open_runs=0)
    talk.send("StartRun", runId="r1", jobs=jobs(1))
    talk.send("CancelRun", runId="r1")
    await talk.consume()
    assert [talk.reply(n)["outcome"] for n in range(2)] == ["started", "cancelled"]


async def test_early_commands(store: Database) -> None:
    """Commands that wait for their runs count until the runs begin."""
    talk = conversation(store, runs.SLICE, early_commands=7_000)
    over = {"name": "early_commands", "most": 7000}
    report = {"jobName": "a", "status": "success"}
    found = [await outcome(talk, "ReportJobStatus", runId=f"r{n}", **report) for n in range(4)]
    assert found == ["kept", "kept", "kept", over]
    assert [
        await outcome(talk, "StartRun", runId="r1", jobs=[{"name": "a"}]),
        await outcome(talk, "ReportJobStatus", runId="r4", **report),
    ] == ["started", "kept"]


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


async def test_commands_that_wait_for_a_group(store: Database) -> None:
    """Commands that wait for a group of a running run count in the same way."""
    talk = conversation(store, runs.SLICE, early_commands=7_000)
    over = {"name": "early_commands", "most": 7000}
    await outcome(talk, "StartRun", runId="r1", jobs=[], groups=["g"])
    found = [await outcome(talk, "ReportJobStatus", runId="r1", jobName=f"g{n}", status="dispatched") for n in range(4)]
    assert found == ["kept", "kept", "kept", over]
    assert [
        await outcome(talk, "ResolveGroup", runId="r1", groupName="g", jobs=jobs(3, "g")),
        await outcome(talk, "ReportJobStatus", runId="r2", jobName="a", status="dispatched"),
    ] == ["resolved", "kept"]


async def test_repeated_signals(store: Database) -> None:
    """At the limit, a command that changes nothing ends as it does below the limit."""
    talk = conversation(store, signals.SLICE, open_signals=1)
    fields: dict[str, Any] = {"triggerKind": "time", "triggerSpec": {"kind": "time.at", "at": LATER}}
    found = [await outcome(talk, "CreateWorkSignal", signalId=name, **fields) for name in ("s1", "s1", "s2")]
    assert found == ["created", "unchanged", {"name": "open_signals", "most": 1}]


@pytest.mark.parametrize("slice_", SLICES, ids=lambda each: each.name)
def test_every_limit_is_counted(slice_: Slice) -> None:
    """Each usage has a limit of that name, and all limits of rows belong to a slice."""
    assert {usage.limit for usage in slice_.usages} <= set(Limits.model_fields)
    counted = {usage.limit for each in SLICES for usage in each.usages}
    assert counted == set(Limits.model_fields)
