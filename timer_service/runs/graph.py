"""The evaluation of a run's graph. Pure: statuses in, who is let go and who is skipped out.

A graph may be a part of its run: the jobs that were reported and those that could follow from that. Each job counts how
many of its upstreams have not ended, so that the part is enough.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from timer_service.runs import rules
from timer_service.runs.messages import JobStatus
from timer_service.runs.rules import Edge, Group, Job, Run


def _edges() -> defaultdict[str, list[Edge]]:
    return defaultdict(list)


@dataclass(slots=True)
class Graph:
    """Jobs and who needs whom, and what has come of them since they were read."""

    run: Run
    jobs: dict[str, Job] = field(default_factory=dict)
    downstream: defaultdict[str, list[Edge]] = field(default_factory=_edges)
    groups: dict[str, Group] = field(default_factory=dict)
    waiting: defaultdict[str, list[Edge]] = field(default_factory=_edges)
    """By group: who needs it."""
    changed: set[str] = field(default_factory=set)
    ready: dict[str, str | None] = field(default_factory=dict)
    """Jobs that were let go, and the id of the command that did it."""
    skipped: dict[str, str | None] = field(default_factory=dict)

    def put(self, job: Job) -> None:
        """Set a job, counting what is left of the run."""
        before = self.jobs[job.name]
        if job.ended and not before.ended:
            self.run = self.run._replace(open_jobs=self.run.open_jobs - 1)
        self.jobs[job.name] = job
        self.changed.add(job.name)

    def evaluate(self, ended: Iterable[str], now: int, cause: str | None) -> None:
        """Draw the consequences of jobs that have ended, breadth first: skip what is refused, let go what is free."""
        queue = deque(ended)
        while queue:
            upstream = self.jobs[queue.popleft()]
            for edge in self.downstream.get(upstream.name, ()):
                job = self.jobs[edge.job]
                if not job.waits:
                    continue
                if rules.refuses(edge, upstream.status):
                    self.put(rules.end(job, JobStatus.SKIPPED, now, f"upstream_failed: {upstream.name}"))
                    self.skipped[job.name] = cause
                    queue.append(job.name)
                else:
                    self.put(job._replace(open_needs=job.open_needs - 1))
                    self._let_go_if_free(job.name, now, cause)

    def evaluate_all(self, now: int, cause: str | None) -> None:
        """Forget the counts and evaluate the whole run anew; who was let go or has ended stays so."""
        needs = Counter(edge.job for edges in self.downstream.values() for edge in edges)
        unresolved = [name for name, group in self.groups.items() if group.resolved_at is None]
        groups = Counter(edge.job for name in unresolved for edge in self.waiting.get(name, ()))
        self.run = self.run._replace(open_jobs=sum(not job.ended for job in self.jobs.values()))
        before = [job for job in self.jobs.values() if job.waits]
        for job in before:
            self.jobs[job.name] = job._replace(open_needs=needs[job.name], open_groups=groups[job.name])
        self.evaluate(sorted(job.name for job in self.jobs.values() if job.ended), now, cause)
        for job in before:
            self._let_go_if_free(job.name, now, cause)
        self.changed -= {job.name for job in before if self.jobs[job.name] == job}
        self.changed |= {job.name for job in before if self.jobs[job.name] != job}

    def end_all(self, status: JobStatus, now: int) -> None:
        """End every job that has not ended, and wait for no group any more."""
        for job in [job for job in self.jobs.values() if not job.ended]:
            self.put(rules.end(job, status, now))
        self.run = self.run._replace(open_groups=0)

    def _let_go_if_free(self, name: str, now: int, cause: str | None) -> None:
        job = self.jobs[name]
        if job.waits and job.open_needs == 0 and job.open_groups == 0:
            self.put(rules.mark_ready(job, now))
            self.ready[name] = cause
