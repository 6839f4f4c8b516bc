"""A transaction applies a bounded number of commands on runs. The others follow in further transactions."""

import math
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import Runs, jobs
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports import turns
from timer_service.core.ports.database import Database
from timer_service.core.values.message import Command, Position, Trace
from timer_service.runs import SLICE
from timer_service.runs.handler import MOST_ROWS, count_fitting
from timer_service.runs.messages import CancelRun, JobStatus, NewJob, ReportJobStatus, RunStatus, StartRun
from timer_service.runs.rules import NO_POSITION, Run, RunKey


def command(payload: Any) -> Command:
    return Command("id", payload, Position(1, 1), None, Trace(), None)


def start(name: str, *names: str) -> Command:
    return command(StartRun(tenant_id="acme", run_id=name, jobs=[NewJob(name=each) for each in names]))


def cancel(name: str) -> Command:
    return command(CancelRun(tenant_id="acme", run_id=name))


def report(name: str, status: JobStatus = JobStatus.SUCCESS, **fields: Any) -> Command:
    return command(ReportJobStatus(tenant_id="acme", run_id=name, job_name="a", status=status, **fields))


def drop_many(name: str) -> Command:
    return report(name, JobStatus.FAILED, dropped_jobs=[f"job-{number}" for number in range(999)])


def open_run(row_count: int) -> Run:
    return Run(RunKey("acme", "r"), RunStatus.RUNNING, NO_POSITION, 0, digest="", open_jobs=1, row_count=row_count)


def fitting(runs: dict[str, Run], *commands: Command) -> int:
    """Return how many commands fit into a transaction."""
    keyed = [(RunKey(each.tenant, each.payload.run_id), each) for each in commands]  # type: ignore[attr-defined]
    return count_fitting({RunKey("acme", name): run for name, run in runs.items()}, keyed, MOST_ROWS)


@pytest.mark.parametrize(
    ("sizes", "one", "count"),
    [
        ([20_000, 10, 20_000, 10], cancel, 2),
        ([10, 20_000, 10], cancel, 1),
        ([2000, 2000, 2000], cancel, 3),  # the first one is read anyway
        ([400] * 40, report, 40),
        ([20_000] * 3, report, 1),
        ([20_000] * 3, lambda name: report(name, JobStatus.RUNNING), 3),
        ([0] * 12, drop_many, 5),
    ],
    ids=["large first", "small first", "medium", "reports", "reports on large runs", "unfinished jobs", "many names"],
)
def test_runs_that_fit(sizes: list[int], one: Any, count: int) -> None:
    """A transaction takes the first command, and the next ones in order as far as their rows fit."""
    runs = {str(number): open_run(size) for number, size in enumerate(sizes)}
    assert fitting(runs, *map(one, runs)) == count


def test_commands_on_one_run_that_fit() -> None:
    """The rows of a run count once. Many commands on a large run are divided by the rows that they name."""
    assert fitting({"run": open_run(20_000)}, *[report("run")] * 1000) == 1000
    assert fitting({"run": open_run(20_000)}, *[drop_many("run")] * 12) == 5


def test_pending_commands_count() -> None:
    """A run with many pending commands is applied alone."""
    runs = {name: Run(RunKey("acme", name), None, NO_POSITION, 0, pending_bytes=4 * 1024 * 1024) for name in "ab"}
    assert fitting(runs, start("a"), start("b")) == 1


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return the runs slice on each store in turn. Only rows bound a transaction, however slow the machine is."""
    monkeypatch.setattr(turns, "TRANSACTION_SECONDS", math.inf)
    return Runs(store, memory_broker, clock)


async def outcomes(runs: Runs, *commands: Command) -> list[str]:
    """Return the outcomes of the commands that one transaction applies."""
    async with runs.database.transaction() as tx:
        return [each.name for each in await SLICE.handle(tx, commands, 0, quotas=Quotas())]


async def test_no_trace_of_a_deferred_command(runs: Runs) -> None:
    """A transaction that defers a command writes nothing for it, not even the row of an unknown run."""
    large = [f"{number}" for number in range(3000)]
    assert await outcomes(runs, start("first", *large), start("second", *large)) == ["started"]
    assert [row["run_id"] for row in await runs.rows("runs")] == ["first"]


async def test_ended_runs_are_not_read(runs: Runs) -> None:
    """A CancelRun of an ended run costs as little as any small command, however many jobs the run has."""
    for name in "ab":
        await runs.request("StartRun", runId=name, jobs=jobs({f"{number}": [] for number in range(6000)}))
    assert await outcomes(runs, cancel("a"), cancel("b")) == ["cancelled"]
    assert await outcomes(runs, cancel("b")) == ["cancelled"]
    assert await outcomes(runs, cancel("a"), cancel("b")) == ["unchanged"] * 2
