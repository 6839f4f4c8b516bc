"""A transaction that fails uses none of the room that its tenants have, so commands are not refused because of it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.in_process import InProcess
from tests.harness.locks import LockedPostgres
from timer_service import runs, signals, timers, workflows
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SCHEDULES
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.service.slice import Slice
from timer_service.core.values.message import Command

LATER = iso(after(hours=1))
MOST = 5


class Case(NamedTuple):
    """A command that adds something, which has a limit."""

    slice_: Slice
    limit: str
    command: str
    id: str
    """The field of the command that names what it adds."""
    fields: dict[str, Any]
    table: str
    """A table to which the command adds one row, after its tenant was found to have room."""
    column: str
    """The column of the name."""


AT = {"kind": "time.at", "at": LATER}
CASES = [
    Case(
        *(timers.SLICE, "pending_timers", "ScheduleTimer", "serviceCallId", {"dueAt": LATER}),
        *("timer_schedules", "service_call_id"),
    ),
    Case(
        *(signals.SLICE, "open_signals", "CreateWorkSignal", "signalId"),
        *({"triggerKind": "time", "triggerSpec": AT}, "work_signals", "signal_id"),
    ),
    Case(SCHEDULES, "schedules", "PutSchedule", "scheduleId", {"every": "PT1H"}, "schedules", "schedule_id"),
    Case(
        *(workflows.SLICE, "open_workflows", "StartWorkflow", "workflowId", {"type": "order"}),
        *("workflows", "workflow_id"),
    ),
    Case(runs.SLICE, "open_runs", "StartRun", "runId", {"jobs": [{"name": "a"}]}, "run_jobs", "run_id"),
]
each_slice = pytest.mark.parametrize("case", CASES, ids=[case.slice_.name for case in CASES])


class Conversation(InProcess):
    """Commands of a tenant that may have five of what they add. Each adds one."""

    def __init__(self, database: Database, case: Case) -> None:
        self.failing_commits = 0
        """How many transactions of commands will fail at their commits. The tables of `break_commits` must exist."""
        limits = TenantLimits(default=Limits(**{case.limit: MOST}))
        super().__init__(database, MemoryBroker(), ManualClock(), case.slice_, limits=limits)
        self.parts.quotas.monotonic = count(0, 0.001).__next__  # rows that were just counted are not counted again
        self._case = case

    def add(self, *names: str) -> None:
        """Send commands that add something with these names."""
        for name in names:
            fields: dict[str, Any] = {self._case.id: name, **self._case.fields}
            self.send(self._case.command, **fields)

    async def try_again(self) -> None:
        """Handle the commands that wait for another try."""
        self.clock.advance(seconds=1)
        await self.consume()

    def refused(self) -> int:
        """Return how many commands ended as `over_quota`."""
        return self.outcomes().count("over_quota")

    def _route(self, slice_: Slice) -> Route:
        route = super()._route(slice_)

        async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
            results = await route.handle(tx, commands, now)
            if self.failing_commits:
                self.failing_commits -= 1
                await tx.execute("INSERT INTO more VALUES (1)")
            return results

        return replace(route, handle=handle)


async def break_commits(database: Database) -> None:
    """Create a table that takes any row. A transaction that has added one cannot be committed."""
    if isinstance(database, SqliteDatabase):
        await database._writer.control("PRAGMA foreign_keys = ON")
    async with database.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
        await tx.execute("CREATE TABLE more (n BIGINT REFERENCES numbers (number) DEFERRABLE INITIALLY DEFERRED)")


@each_slice
async def test_a_locked_row(locks: LockedPostgres, case: Case) -> None:
    """Commands that are handled again because one of them met a lock are accepted up to the limit, and no further."""
    talk = Conversation(locks.database, case)
    talk.add("n-0")
    await talk.consume()
    copy = f"""jsonb_populate_record(stored, '{{"{case.column}": "n-4"}}')"""
    async with locks.locked(f"INSERT INTO {case.table} SELECT ({copy}).* FROM {case.table} AS stored"):
        talk.add("n-1", "n-2", "n-3", "n-4")
        await talk.consume()
        assert (len(talk.outcomes()), talk.refused()) == (4, 0)
    await talk.try_again()
    assert (len(talk.outcomes()), talk.refused()) == (5, 0)
    talk.add("n-5")
    await talk.consume()
    assert (len(talk.outcomes()), talk.refused()) == (6, 1)


@each_slice
async def test_a_commit_that_fails(store: Database, case: Case) -> None:
    """Commands that are handled again because a commit failed are accepted up to the limit, and no further."""
    await break_commits(store)
    talk = Conversation(store, case)
    talk.failing_commits = 2
    talk.add(*(f"n-{number}" for number in range(MOST)))
    await talk.consume()
    assert talk.failing_commits == 0
    assert (len(talk.outcomes()), talk.refused()) == (5, 0)
    talk.add("n-5")
    await talk.consume()
    assert (len(talk.outcomes()), talk.refused()) == (6, 1)
