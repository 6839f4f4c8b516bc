"""A transaction applies a bounded number of commands on runs. The others follow in further transactions."""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.harness.builders import command_address
from tests.harness.clock import ManualClock
from tests.harness.runs import Runs, jobs
from tests.harness.transactions import recording_route
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports import turns
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.values.message import Command, Position, Trace, kebab
from timer_service.runs import SLICE, handler
from timer_service.runs.edges import read_needs
from timer_service.runs.messages import (
    CancelRun,
    JobStatus,
    NewJob,
    ReportJobStatus,
    ResolveGroup,
    RunPayload,
    RunStatus,
    StartRun,
)
from timer_service.runs.portion import MOST_ROWS, count_fitting, may_make_many_needs
from timer_service.runs.rules import NO_POSITION, Run, RunKey

LARGE = {f"job-{number}": [] if number == 0 else ["job-0"] for number in range(3000)}
"""A graph with 3,000 jobs and 2,999 needs."""


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return the runs slice on each store in turn. Only rows bound a transaction, however slow the machine is."""
    monkeypatch.setattr(turns, "TRANSACTION_SECONDS", math.inf)
    return Runs(store, memory_broker, clock)


def record_transactions(runs: Runs) -> Callable[[], list[list[str]]]:
    """Return a function that returns the runs that each transaction from now on has applied."""
    route, applied = recording_route(SLICE, runs._woken)
    runs.reader = runs.parts.reader([route], runs._wake_outbox)
    return lambda: [[each.run_id for each in payloads if isinstance(each, RunPayload)] for payloads in applied]


async def start_large(runs: Runs, count: int) -> None:
    for number in range(count):
        await runs.request("StartRun", runId=f"large-{number}", jobs=jobs(LARGE))


def send_as(runs: Runs, tenant: str, kind: str, **fields: Any) -> None:
    body = {"id": f"{tenant}-{kind}", "type": kind, "tenantId": tenant, "payload": fields}
    runs.broker.send(command_address(tenant, kebab(kind)), json.dumps(body).encode())


@pytest.mark.slow
async def test_many_cancels_of_large_runs(runs: Runs) -> None:
    """Small commands on large runs of one batch are applied in several transactions, and all of them end."""
    await start_large(runs, 4)
    transactions = record_transactions(runs)
    for number in range(4):
        runs.send("CancelRun", runId=f"large-{number}")
    await runs.consume()
    assert transactions() == [[f"large-{number}"] for number in range(4)]
    assert runs.outcomes() == ["cancelled"] * 4 + ["started"] * 4
    assert {row["status"] for row in await runs.rows("run_jobs")} == {"cancelled"}


async def test_a_small_run_of_another_tenant(runs: Runs) -> None:
    """A small run behind large runs of another tenant has its turn after one of them."""
    await start_large(runs, 2)
    transactions = record_transactions(runs)
    for number in range(2):
        runs.send("CancelRun", runId=f"large-{number}")
    send_as(runs, "other", "StartRun", runId="small", jobs=jobs({"a": []}))
    await runs.consume()
    assert transactions() == [["large-0"], ["large-1", "small"]] or transactions()[1] == ["small"]


async def test_a_small_run_behind_a_large_command(runs: Runs) -> None:
    """A small run is handled before the large command of another tenant, which gets its turn in each batch."""
    handle = partial(SLICE.handle, quotas=Quotas())

    async def handle_slowly(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        runs.clock.advance(milliseconds=200)
        if len(applied) < 3:
            send_as(runs, "other", "StartRun", runId=f"later-{len(applied)}", jobs=jobs({"a": []}))
        return await handle(tx, commands, now)

    route, applied = recording_route(SLICE, runs._woken, handle=handle_slowly)
    runs.reader = runs.parts.reader([route], runs._wake_outbox)
    runs.send("StartRun", runId="large", jobs=jobs(LARGE))
    send_as(runs, "other", "StartRun", runId="small", jobs=jobs({"a": []}))
    await runs.consume()
    assert [[each.run_id for each in payloads if isinstance(each, RunPayload)] for payloads in applied[:2]] == [
        ["small"],
        ["large"],
    ]


@pytest.mark.slow
async def test_a_large_run_of_another_tenant(runs: Runs) -> None:
    """A large run of another tenant is handled when it is its turn, not after all runs before it."""
    await start_large(runs, 3)
    send_as(runs, "other", "StartRun", runId="large", jobs=jobs(LARGE))
    await runs.consume()
    transactions = record_transactions(runs)
    for number in range(3):
        runs.send("CancelRun", runId=f"large-{number}")
    send_as(runs, "other", "CancelRun", runId="large")
    await runs.consume()
    assert transactions() == [["large-0"], ["large-1"], ["large"], ["large-2"]]


async def test_commands_on_a_deferred_run_keep_their_order(runs: Runs) -> None:
    """Commands on a run that is deferred are applied later in their order."""
    await start_large(runs, 2)
    runs.send("CancelRun", runId="large-0")
    runs.send("ReportJobStatus", runId="large-1", jobName="job-0", status="success")
    runs.send("CancelRun", runId="large-1")
    runs.send("ReportJobStatus", runId="large-1", jobName="job-1", status="success")
    transactions = record_transactions(runs)
    await runs.consume()
    outcomes = [runs.reply(number)["outcome"] for number in range(2, 6)]
    assert outcomes == ["cancelled", "recorded", "cancelled", "already_ended"]
    assert transactions() == [["large-0", "large-1"], ["large-1"] * 2]


async def test_no_trace_of_a_deferred_command(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that defers a command writes nothing for it, not even the row of an unknown run."""
    monkeypatch.setattr(handler, "MOST_ROWS", 0)
    payloads = [StartRun(tenant_id="acme", run_id=name, jobs=[NewJob(name="a")]) for name in ("first", "second")]
    async with runs.database.transaction() as tx:
        results = await SLICE.handle(tx, [command(each) for each in payloads], 0, quotas=Quotas())
    assert [result.name for result in results] == ["started"]
    assert [row["run_id"] for row in await runs.rows("runs")] == ["first"]


async def test_time_ends_in_the_order_of_the_commands(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time of a transaction is over, the last commands are left, on whichever runs they are."""
    monkeypatch.setattr(turns, "TRANSACTION_SECONDS", -1)
    commands = [cancel(f"run-{number % 2}") for number in range(300)]
    async with runs.database.transaction() as tx:
        results = await SLICE.handle(tx, commands, 0, quotas=Quotas())
    assert 0 < len(results) < len(commands)


async def test_ended_runs_are_not_read(runs: Runs) -> None:
    """A CancelRun of an ended run costs as little as any small command, however many jobs the run has."""
    await start_large(runs, 2)
    for number in range(2):
        await runs.request("CancelRun", runId=f"large-{number}")
    transactions = record_transactions(runs)
    for number in range(2):
        runs.send("CancelRun", runId=f"large-{number}")
    await runs.consume()
    assert transactions() == [["large-0", "large-1"]]
    assert runs.outcomes().count("unchanged") == 2


async def test_row_count(runs: Runs) -> None:
    """A run knows how many jobs, needs and groups it has."""
    await runs.start({"a": [], "b": ["a"], "c": [{"group": "g"}, {"group": "h"}]}, "g", "h")
    await runs.resolve("g", {"d": [], "e": ["a", {"group": "h"}]})
    tables = ["run_jobs", "run_groups", "run_group_needs"]
    rows = {table: len(await runs.rows(table)) for table in tables}
    needs = sum([len(read_needs(row["needs"] or "{}")) for row in await runs.rows("run_edges")])
    assert (rows, needs) == ({"run_jobs": 5, "run_groups": 2, "run_group_needs": 3}, 4)
    assert (await runs.rows("runs"))[0]["row_count"] == sum(rows.values()) + needs


# What fits into a transaction


def command(payload: Any) -> Command:
    return Command("id", payload, Position(1, 1), None, Trace(), None)


def cancel(name: str) -> Command:
    return command(CancelRun(tenant_id="acme", run_id=name))


def report(name: str, status: JobStatus = JobStatus.SUCCESS) -> Command:
    return command(ReportJobStatus(tenant_id="acme", run_id=name, job_name="a", status=status))


def open_run(name: str, row_count: int) -> Run:
    key = RunKey("acme", name)
    return Run(key, RunStatus.RUNNING, NO_POSITION, 0, digest="", open_jobs=1, row_count=row_count)


def keyed(*commands: Command) -> list[tuple[RunKey, Command]]:
    """Return commands with the keys of their runs."""
    return [(RunKey(each.tenant, each.payload.run_id), each) for each in commands]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sizes", "one", "fitting"),
    [
        ([20_000, 10, 20_000, 10], cancel, 2),
        ([10, 20_000, 10], cancel, 1),
        ([2000, 2000, 2000], cancel, 3),  # the first one is read anyway
        ([400] * 40, report, 40),
        ([20_000] * 3, report, 1),
        ([20_000] * 3, lambda name: report(name, JobStatus.RUNNING), 3),
    ],
    ids=["large first", "small first", "medium", "reports", "reports on large runs", "unfinished jobs"],
)
def test_runs_that_fit(sizes: list[int], one: Any, fitting: int) -> None:
    """A transaction takes the first command, and the next ones of its tenant as far as their runs fit."""
    runs = {RunKey("acme", str(number)): open_run(str(number), size) for number, size in enumerate(sizes)}
    assert count_fitting(runs, keyed(*(one(key.run_id) for key in runs)), MOST_ROWS) == fitting


def test_commands_are_chosen_in_their_order() -> None:
    """A command that does not fit holds up the later ones, also those on other runs."""
    runs = {RunKey("acme", name): open_run(name, 20_000) for name in ("a", "b")}
    commands = keyed(report("a"), cancel("b"), report("a"))
    other = [(RunKey("globex", "c"), cancel("c"))]
    assert count_fitting(runs, [*commands, *other], MOST_ROWS) == 1


def test_many_commands_on_one_run() -> None:
    """Many commands on one run are divided by the rows that they name."""
    drops = [f"job-{number}" for number in range(999)]
    large = command(
        ReportJobStatus(tenant_id="acme", run_id="run", job_name="a", status=JobStatus.FAILED, dropped_jobs=drops)
    )
    runs = {RunKey("acme", "run"): open_run("run", 20_000)}
    assert count_fitting(runs, keyed(*[large] * 12), MOST_ROWS) == 5


def resolve(name: str) -> Command:
    members = [NewJob(name=f"member-{number}") for number in range(299)]
    return command(ResolveGroup(tenant_id="acme", run_id=name, group_name="x", jobs=members))


@pytest.mark.parametrize(("needed_by", "fitting"), [(330, 1), (1, 2)])
def test_needs_that_a_command_makes_count(needed_by: int, fitting: int) -> None:
    """A small ResolveGroup makes a need of each job that needs the group on each member. It may fill a transaction."""
    keys = [RunKey("acme", str(number)) for number in range(2)]
    runs = {key: open_run(key.run_id, 330) for key in keys}
    commands = keyed(*(resolve(key.run_id) for key in keys))
    assert all(may_make_many_needs(runs[key], [each], MOST_ROWS) for key, each in commands)
    assert count_fitting(runs, commands, MOST_ROWS, {key: {"x": needed_by} for key in keys}) == fitting


async def test_groups_with_many_members(runs: Runs) -> None:
    """Commands that make very many needs are applied one per transaction."""
    for number in range(3):
        graph = [{"name": f"job-{each}", "needs": [{"group": "x"}]} for each in range(100)]
        await runs.request("StartRun", runId=f"run-{number}", jobs=graph, groups=["x"])
    transactions = record_transactions(runs)
    for number in range(3):
        runs.send("ResolveGroup", runId=f"run-{number}", groupName="x", jobs=[{"name": f"m-{i}"} for i in range(99)])
    await runs.consume()
    assert transactions() == [["run-0"], ["run-1"], ["run-2"]]


def test_pending_commands_count() -> None:
    """A run with many pending commands is applied alone."""
    keys = [RunKey("acme", name) for name in ("a", "b")]
    runs = {key: Run(key, None, NO_POSITION, 0, pending_bytes=4 * 1024 * 1024) for key in keys}
    starts = keyed(*(command(StartRun(tenant_id="acme", run_id=key.run_id, jobs=[])) for key in keys))
    assert count_fitting(runs, starts, MOST_ROWS) == 1
