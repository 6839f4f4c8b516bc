"""Conversations about runs: with the needs slice driven by hand, and with the real service."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tests.harness.clock import ManualClock
from tests.harness.conversation import Conversation
from tests.harness.in_process import InProcess
from tests.harness.live_service import Live
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database
from timer_service.runs import SLICE
from timer_service.runs.sweep import Sweep

Graph = Mapping[str, Sequence[Any]]
"""Job -> what it needs."""


def run_of(needs: str) -> dict[str, str]:
    """Return a need that any end of the job admits."""
    return {"job": needs, "ifFailed": "run"}


def jobs(graph: Graph, **fields: Any) -> list[dict[str, Any]]:
    """Write jobs as on the wire; `fields` are of each."""
    return [{"name": name, "needs": needs, **fields} for name, needs in graph.items()]


class RunConversation(Conversation):
    """About `run-1`, unless a test says otherwise."""

    fields: ClassVar = {"runId": "run-1"}

    async def start(self, graph: Graph, *groups: str, **fields: Any) -> Any:
        """Start a run."""
        return await self.request("StartRun", jobs=jobs(graph), groups=groups, **fields)

    async def resolve(self, group: str, graph: Graph, **fields: Any) -> Any:
        """Name the jobs of a group."""
        return await self.request("ResolveGroup", groupName=group, jobs=jobs(graph), **fields)

    async def report(self, status: str, *names: str, **fields: Any) -> Any:
        """Report the status of jobs, all at once; return what is replied to the last."""
        for name in names:
            self.send("ReportJobStatus", jobName=name, status=status, **fields)
        await self.consume()
        return self.reply(self.sent - 1)

    async def events_of(self, message_type: str, tenant: str | None = None) -> list[Any]:
        """Return the events of a type that a tenant was told, in order of their instants, then of their jobs."""
        events = [json.loads(each.body) for each in await self.stored(tenant)]
        told = [each for each in events if each["type"] == message_type]
        return sorted(told, key=lambda event: (event["timestampMs"], event["payload"].get("jobName", "")))

    async def ready(self, tenant: str | None = None) -> list[str]:
        """Return the jobs that were let go, in order."""
        return [each["payload"]["jobName"] for each in await self.events_of("JobReady", tenant)]

    async def skipped(self) -> dict[str, str]:
        """Return the jobs that were skipped, and why."""
        return {each["payload"]["jobName"]: each["payload"]["reason"] for each in await self.events_of("JobSkipped")}

    async def completed(self) -> list[str]:
        """Return how runs have ended, in order."""
        return [each["payload"]["status"] for each in await self.events_of("RunCompleted")]

    async def statuses(self, run: str = "run-1") -> dict[str, str]:
        """Return where each job of a run stands."""
        return {job["name"]: job["status"] for job in (await self.ask("get-run", runId=run))["jobs"]}


class Runs(RunConversation, InProcess):
    """Consumer, sweep and outbox; each batch comes a millisecond later."""

    def __init__(
        self, database: Database, broker: MemoryBroker, clock: ManualClock, *, evaluating: bool = True
    ) -> None:
        super().__init__(database, broker, clock, SLICE, on=evaluating)
        self.sweep = Sweep(self.parts)

    def _turn(self) -> None:
        self.clock.advance(milliseconds=1)


class LiveRuns(RunConversation, Live):
    """With the real service."""
