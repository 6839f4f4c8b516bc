import random
from typing import Any

import pytest

from tests.support.clock import ManualClock
from tests.support.plain_gate import Edges, plain
from tests.support.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database
from timer_service.needs.messages import IfFailed, JobStatus
from timer_service.needs.rules import Edge

STATIC, MEMBERS = [f"job-{number}" for number in range(5)], [f"member-{number}" for number in range(4)]
NAMES = {*STATIC, *MEMBERS, "last"}
ENDS = [JobStatus.SUCCESS, JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.TIMED_OUT_STALE]


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the needs slice over every store in turn."""
    return Runs(store, memory_broker, clock)


class Drawn:
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

    def send(self, runs: Runs) -> None:
        last = {"name": "last", "needs": [{"group": "g", "ifFailed": self.last}]}
        runs.send("StartRun", runId=self.name, jobs=[*map(self._job, STATIC), last], groups=["g"])
        runs.send("ResolveGroup", runId=self.name, groupName="g", jobs=[*map(self._job, MEMBERS)])

    def verdicts(self) -> tuple[set[str], set[str]]:
        """Return who has to be ready and who skipped."""
        return plain(NAMES, [*self.edges, *(Edge(name, "last", self.last) for name in MEMBERS)], self.ends)

    def _job(self, name: str) -> dict[str, Any]:
        needs = [{"job": edge.upstream, "ifFailed": edge.if_failed} for edge in self.edges if edge.job == name]
        return {"name": name, "needs": needs}


async def seen(runs: Runs, run: str) -> tuple[set[str], set[str]]:
    """Return who is ready and who is skipped."""
    jobs = (await runs.ask("get-run", runId=run))["jobs"]
    ready = {job["name"] for job in jobs if "readyAt" in job and "settledAt" not in job}
    return ready, {job["name"] for job in jobs if job["status"] == "skipped"}


@pytest.mark.parametrize("seed", range(3))
async def test_agrees_with_a_plain_gate(runs: Runs, seed: int) -> None:
    """Of random runs, in whatever order and batches their commands come, those go that a plain gate lets go, once."""
    rng = random.Random(seed)
    drawn = {f"run-{number}": Drawn(rng, f"run-{number}") for number in range(12)}
    for each in drawn.values():
        each.send(runs)
    while runs.broker.waiting:
        runs.broker.shuffle(rng)
        await runs.consume(batch_size=rng.choice([1, 4, 100]))
        found = {name: await seen(runs, name) for name in drawn}
        assert found == {name: each.verdicts() for name, each in drawn.items()}
        left = [(name, job) for name, (ready, _) in found.items() for job in sorted(ready)]
        for name, job in rng.sample(left, rng.randint(min(1, len(left)), len(left))):
            drawn[name].ends[job] = rng.choice(ENDS)
            runs.send("ReportJobStatus", runId=name, jobName=job, status=drawn[name].ends[job])
    assert len(await runs.completed()) == len(drawn)
    assert len(await runs.ready()) == sum(len(each.ends) for each in drawn.values())
    assert await runs.told("RunStuck") == []
