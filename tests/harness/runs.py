"""Conversations about runs: with the runs slice in this process, and with the real service."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from tests.harness.clock import ManualClock
from tests.harness.conversation import Conversation
from tests.harness.in_process import InProcess, Options, exhaust
from tests.harness.live_service import Live
from tests.harness.memory_broker import MemoryBroker
from timer_service.core.ports.database import Database
from timer_service.runs import SLICE
from timer_service.runs.announcer import Announcer
from timer_service.runs.sweep import Sweep

Graph = Mapping[str, Sequence[Any]]
"""The needs of each job, by job name."""


def run_after(job: str) -> dict[str, str]:
    """Return a need that is met when the job ends, whatever its status."""
    return {"job": job, "ifFailed": "run"}


def jobs(graph: Graph, always: Collection[str] = (), **fields: Any) -> list[dict[str, Any]]:
    """Return jobs in their wire form. Every job gets the `fields`. Those named in `always` run whatever happens."""
    of_each = {name: {**fields, "always": True} if name in always else fields for name in graph}
    return [{"name": name, "needs": needs, **of_each[name]} for name, needs in graph.items()]


class RunConversation(Conversation):
    """A conversation about `run-1`, unless a test names another run."""

    fields: ClassVar = {"runId": "run-1"}

    async def start(self, graph: Graph, *groups: str, always: Collection[str] = (), **fields: Any) -> Any:
        """Start a run."""
        return await self.request("StartRun", jobs=jobs(graph, always), groups=groups, **fields)

    async def resolve(self, group: str, graph: Graph, **fields: Any) -> Any:
        """Name the jobs of a group."""
        return await self.request("ResolveGroup", groupName=group, jobs=jobs(graph), **fields)

    async def report(self, status: str, *names: str, **fields: Any) -> Any:
        """Report the status of jobs in one batch. Return the reply to the last report."""
        for name in names:
            self.send("ReportJobStatus", jobName=name, status=status, **fields)
        await self.consume()
        return self.reply(self.sent - 1)

    async def events_of(self, message_type: str, tenant: str | None = None) -> list[Any]:
        """Return the published events of a type, ordered by time and job name."""
        bodies = [json.loads(each.body) for each in await self.stored(tenant)]
        events = [each for each in bodies if each["type"] == message_type]
        return sorted(events, key=lambda event: (event["timestampMs"], event["payload"].get("jobName", "")))

    async def ready(self, tenant: str | None = None) -> list[str]:
        """Return the jobs that have a JobReady, ordered by time and name."""
        return [each["payload"]["jobName"] for each in await self.events_of("JobReady", tenant)]

    async def skipped(self) -> dict[str, str]:
        """Return the reasons of the skipped jobs, by job name."""
        return {each["payload"]["jobName"]: each["payload"]["reason"] for each in await self.events_of("JobSkipped")}

    async def completed(self) -> list[str]:
        """Return the final statuses of the completed runs, ordered by time."""
        return [each["payload"]["status"] for each in await self.events_of("RunCompleted")]

    async def statuses(self, run: str = "run-1") -> dict[str, str]:
        """Return the status of each job of a run, by job name."""
        return {job["name"]: job["status"] for job in (await self.ask("get-run", runId=run))["jobs"]}


class Runs(RunConversation, InProcess):
    """The runs slice in this process. The clock advances by a millisecond for each batch."""

    def __init__(
        self, database: Database, broker: MemoryBroker, clock: ManualClock, **options: Unpack[Options]
    ) -> None:
        super().__init__(database, broker, clock, SLICE, **options)
        self.sweep = Sweep(self.parts)
        self.announcer = Announcer(self.parts)

    async def publish(self) -> None:
        await exhaust(self.announcer, self.clock.now())
        await super().publish()

    def _before_batch(self) -> None:
        self.clock.advance(milliseconds=1)


class LiveRuns(RunConversation, Live):
    """The real service."""
