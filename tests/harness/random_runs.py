"""Random runs, and what a plain gate says of them."""

import random
from typing import Any

from tests.harness.reference_gate import Edges, plain
from tests.harness.runs import RunConversation
from timer_service.runs.graph import Edge
from timer_service.runs.messages import IfFailed, JobStatus

STATIC, MEMBERS = [f"job-{number}" for number in range(5)], [f"member-{number}" for number in range(4)]
NAMES = {*STATIC, *MEMBERS, "last"}
ENDS = [JobStatus.SUCCESS, JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.TIMED_OUT_STALE]

Found = tuple[set[str], set[str]]
"""Who is ready and who is skipped."""


class _Drawn:
    """A random run: static jobs, a group whose jobs need those and each other, and one that needs the group."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.name = name
        self.ends: dict[str, JobStatus] = {}
        names = [*STATIC, *MEMBERS]
        self.edges: Edges = [
            Edge(upstream, job, rng.choice(list(IfFailed)))
            for at, job in enumerate(names)
            for upstream in rng.sample(names[:at], rng.randint(0, min(at, 3)))
        ]
        self.last = rng.choice(list(IfFailed))

    def send(self, runs: RunConversation) -> None:
        last = {"name": "last", "needs": [{"group": "g", "ifFailed": self.last}]}
        runs.send("StartRun", runId=self.name, jobs=[*map(self._job, STATIC), last], groups=["g"])
        runs.send("ResolveGroup", runId=self.name, groupName="g", jobs=[*map(self._job, MEMBERS)])

    def verdicts(self) -> Found:
        """Return who has to be ready and who skipped."""
        return plain(NAMES, [*self.edges, *(Edge(name, "last", self.last) for name in MEMBERS)], self.ends)

    def _job(self, name: str) -> dict[str, Any]:
        needs = [{"job": edge.upstream, "ifFailed": edge.if_failed} for edge in self.edges if edge.job == name]
        return {"name": name, "needs": needs}


class RandomRuns:
    """Some of them, and how their jobs have ended so far."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng = random.Random(seed)
        self._drawn = [_Drawn(self.rng, f"run-{number}") for number in range(count)]

    @property
    def ended(self) -> int:
        """How many of their jobs have been reported to have ended."""
        return sum(len(each.ends) for each in self._drawn)

    def start(self, runs: RunConversation) -> None:
        """Send what makes them known."""
        for each in self._drawn:
            each.send(runs)

    def report(self, runs: RunConversation) -> bool:
        """Send the ends of some of the jobs that are ready, in any order; tell whether there were any."""
        ready = [(each, job) for each in self._drawn for job in sorted(each.verdicts()[0])]
        some = self.rng.sample(ready, self.rng.randint(min(1, len(ready)), len(ready)))
        for each, job in some:
            each.ends[job] = self.rng.choice(ENDS)
            runs.send("ReportJobStatus", runId=each.name, jobName=job, status=each.ends[job])
        return bool(some)

    def verdicts(self) -> dict[str, Found]:
        """Return what has to be."""
        return {each.name: each.verdicts() for each in self._drawn}

    async def seen(self, runs: RunConversation) -> dict[str, Found]:
        """Return what is."""
        return {each.name: await _seen(runs, each.name) for each in self._drawn}


async def _seen(runs: RunConversation, run: str) -> Found:
    jobs = (await runs.ask("get-run", runId=run))["jobs"]
    ready = {job["name"] for job in jobs if "readyAt" in job and "settledAt" not in job}
    return ready, {job["name"] for job in jobs if job["status"] == "skipped"}


async def check_events(runs: RunConversation, drawn: RandomRuns) -> None:
    """Assert that all of them are over, each job that ended was let go once, and none waited in vain."""
    completed = [each["payload"]["runId"] for each in await runs.events_of("RunCompleted")]
    assert sorted(completed) == sorted(drawn.verdicts())
    assert len(await runs.ready()) == drawn.ended
    assert await runs.events_of("RunStuck") == []
