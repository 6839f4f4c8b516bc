"""Random runs, and the jobs that the reference evaluator finds ready and skipped in them."""

import random
from typing import Any

from tests.harness.reference_evaluator import Edges, evaluate_from_scratch
from tests.harness.runs import RunConversation
from timer_service.runs.graph import Edge
from timer_service.runs.messages import IfFailed, JobStatus

STATIC, MEMBERS = [f"job-{number}" for number in range(5)], [f"member-{number}" for number in range(4)]
NAMES = {*STATIC, *MEMBERS, "last"}
ENDS = [JobStatus.SUCCESS, JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.TIMED_OUT_STALE]

Evaluation = tuple[set[str], set[str]]
"""The names of the ready jobs and of the skipped jobs."""


class _RandomRun:
    """A random run: static jobs, a group of jobs that need other jobs, and a last job that needs the group."""

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

    def expected(self) -> Evaluation:
        edges = [*self.edges, *(Edge(name, "last", self.last) for name in MEMBERS)]
        return evaluate_from_scratch(NAMES, edges, self.ends)

    def _job(self, name: str) -> dict[str, Any]:
        needs = [{"job": edge.upstream, "ifFailed": edge.if_failed} for edge in self.edges if edge.job == name]
        return {"name": name, "needs": needs}


class RandomRuns:
    """Several random runs, with the jobs that were reported as ended."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng = random.Random(seed)
        self._runs = [_RandomRun(self.rng, f"run-{number}") for number in range(count)]

    @property
    def ended(self) -> int:
        """The number of jobs that were reported as ended."""
        return sum(len(each.ends) for each in self._runs)

    def start(self, runs: RunConversation) -> None:
        """Send the commands that start the runs and resolve their groups."""
        for each in self._runs:
            each.send(runs)

    def report(self, runs: RunConversation) -> bool:
        """Send ends of some ready jobs, in random order. Return False if no job is ready."""
        ready = [(each, job) for each in self._runs for job in sorted(each.expected()[0])]
        some = self.rng.sample(ready, self.rng.randint(min(1, len(ready)), len(ready)))
        for each, job in some:
            each.ends[job] = self.rng.choice(ENDS)
            runs.send("ReportJobStatus", runId=each.name, jobName=job, status=each.ends[job])
        return bool(some)

    def expected(self) -> dict[str, Evaluation]:
        """Return the ready and skipped jobs of each run by the reference evaluator."""
        return {each.name: each.expected() for each in self._runs}

    async def found(self, runs: RunConversation) -> dict[str, Evaluation]:
        """Ask the service for the ready and skipped jobs of each run."""
        return {each.name: await _found(runs, each.name) for each in self._runs}


async def _found(runs: RunConversation, run: str) -> Evaluation:
    jobs = (await runs.ask("get-run", runId=run))["jobs"]
    ready = {job["name"] for job in jobs if "readyAt" in job and "settledAt" not in job}
    return ready, {job["name"] for job in jobs if job["status"] == "skipped"}


async def check_events(runs: RunConversation, random_runs: RandomRuns) -> None:
    """Assert that every run is completed, that each ended job had one JobReady, and that no job was stuck."""
    completed = [each["payload"]["runId"] for each in await runs.events_of("RunCompleted")]
    assert sorted(completed) == sorted(random_runs.expected())
    assert len(await runs.ready()) == random_runs.ended
    assert await runs.events_of("RunStuck") == []
