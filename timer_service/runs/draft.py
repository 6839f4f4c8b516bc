"""One run, before and while commands change it. Pure.

A `RunState` is immutable. A `Draft` starts as a copy of a `RunState`, is changed by commands, and returns a new
`RunState`. The store writes the difference of the two states.

A draft evaluates each change immediately. When a job ends, each job that needs it becomes ready, is skipped, or has one
open need less. The cost is the number of edges of the ended jobs. It does not depend on the size of the run.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Position
from timer_service.runs import rules
from timer_service.runs.graph import Edge, Edges, Flaw
from timer_service.runs.messages import IfFailed, JobStatus, NewJob, RunStatus
from timer_service.runs.pending import MAX_PENDING_BYTES, Pending
from timer_service.runs.rules import Group, Job, Run


class RunState(NamedTuple):
    """The part of one run that was loaded: everything the commands can change."""

    run: Run
    jobs: Mapping[str, Job]
    downstream: Edges
    """The edges from each job to the jobs that need it."""
    groups: Mapping[str, Group]
    downstream_of_groups: Edges
    """The edges from each group to the jobs that need it. They stay after the group is resolved."""
    pending: Mapping[Position, Pending]
    """In the order of the log."""


class Draft:
    """A mutable copy of a run, to which commands are applied."""

    def __init__(self, before: RunState, now: int, *, evaluating: bool) -> None:
        """If `evaluating` is false, the evaluation is deferred to the sweep."""
        self.now = now
        self.run = before.run
        self.jobs = dict(before.jobs)
        self.groups = dict(before.groups)
        self.pending = dict(before.pending)
        self.downstream_of_groups = dict(before.downstream_of_groups)
        self.downstream = dict(before.downstream)
        self._evaluating = evaluating

    def finish(self) -> RunState:
        """Return the run after the commands. It is completed if no job and no group is open.

        An ended run is not swept any more. It has no pending commands, because no group is open.
        """
        run = self.run
        if run.status is RunStatus.CANCELLING and not run.is_open:
            run = run._replace(status=RunStatus.CANCELLED if run.flaw_code is None else RunStatus.REJECTED)
        if run.status is RunStatus.RUNNING and run.evaluated and not run.is_open:
            run = run._replace(status=RunStatus.FAILED if run.failed_jobs else RunStatus.SUCCESS)
        if run.ended:
            settled_at = self.now if run.settled_at is None else run.settled_at
            run = run._replace(settled_at=settled_at, sweep_at=None)
        return RunState(run, self.jobs, self.downstream, self.groups, self.downstream_of_groups, self.pending)

    # Pending commands

    def keep_pending(self, command: Command) -> bool:
        """Keep a command as pending. Return False if the limit is reached."""
        pending = Pending.of(command)
        size = self.run.pending_bytes + pending.size
        if size > MAX_PENDING_BYTES:
            return False
        self.pending[command.position] = pending
        self.run = self.run._replace(pending_bytes=size)
        if not self.run.started:  # retention deletes it like an ended run, counted from its newest command
            self.run = self.run._replace(settled_at=self.now)
        return True

    def take_pending(self) -> list[Pending]:
        """Remove all pending commands and return them, in the order of the log."""
        taken = list(self.pending.values())
        self.pending.clear()
        self.run = self.run._replace(pending_bytes=0)
        return taken

    def take_reports(self, new: Collection[str]) -> list[tuple[Command, Sequence[str]]]:
        """Return the pending reports that name `new` jobs, which are known now, each with these jobs.

        The reports are in the order of the log, and the jobs in that of their report. A report is no longer pending
        when all its jobs are known.
        """
        new_names = set(new)
        reports: list[tuple[Command, Sequence[str]]] = []
        for position, pending in list(self.pending.items()):
            named = [name for name in pending.named_jobs if name in new_names]
            if not named or pending.report is None:
                continue
            reports.append((pending.report, named))
            if all(name in self.jobs for name in pending.named_jobs):
                del self.pending[position]
                self.run = self.run._replace(pending_bytes=self.run.pending_bytes - pending.size)
        return reports

    # Jobs and evaluation

    def set_job(self, job: Job) -> None:
        """Replace a job and update the counts of open and failed jobs."""
        before = self.jobs[job.name]
        self.jobs[job.name] = job
        if job.ended and not before.ended:
            open_jobs, failed_jobs = self.run.open_jobs - 1, self.run.failed_jobs + job.failed
            self.run = self.run._replace(open_jobs=open_jobs, failed_jobs=failed_jobs)

    def evaluate(self, ended: Iterable[str], changed: Iterable[str] = (), *, caused_by: str | None) -> None:
        """Evaluate the jobs that need the `ended` jobs, and the `changed` jobs. See `_evaluate_edges`."""
        edges = [edge for name in ended for edge in self.downstream.get(name, ())]
        self._evaluate_edges(edges, changed, caused_by)

    def repair(self, caused_by: str | None = None) -> list[str]:
        """Recount the open needs of every job and evaluate the whole run, which was loaded.

        Return the names of the jobs that were waiting although they should have been ready or skipped. `caused_by` is
        the id of the command, or None for the sweep.
        """
        # All needs count as open first. The evaluation then takes away those of the ended jobs.
        needs = _count_needs(self.downstream)
        unresolved = self.unresolved if self.run.status is RunStatus.RUNNING else []
        groups = Counter(edge.job for name in unresolved for edge in self.downstream_of_groups.get(name, ()))
        waiting = [job for job in self.jobs.values() if job.is_waiting]
        for job in waiting:
            self.jobs[job.name] = job._replace(open_needs=needs[job.name], open_groups=groups[job.name])
        self.run = self.run._replace(
            evaluated=True,
            open_jobs=sum(not job.ended for job in self.jobs.values()),
            failed_jobs=sum(job.failed for job in self.jobs.values()),
            open_groups=len(unresolved),
        )
        ended = [job.name for job in self.jobs.values() if job.ended]
        self.evaluate(ended, [job.name for job in waiting], caused_by=caused_by)
        return sorted(job.name for job in waiting if not self.jobs[job.name].is_waiting)

    @property
    def need_count(self) -> int:
        """How many needs of jobs and groups there are. Only commands that add jobs use it: they have read all jobs."""
        return self.run.row_count - len(self.jobs) - len(self.groups)

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """The jobs of each resolved group."""
        members: dict[str, list[str]] = {name: [] for name, group in self.groups.items() if group.resolved_at}
        for job in self.jobs.values():
            if job.group is not None:
                members[job.group].append(job.name)
        return members

    def resolve(self, group: Group, members: list[str]) -> None:
        """Replace an open group by a resolved one. `members` are its jobs, which `add_jobs` adds."""
        self.members[group.name] = members
        self.groups[group.name] = group
        self.run = self.run._replace(open_groups=self.run.open_groups - 1)

    def add_jobs(
        self,
        jobs: Sequence[NewJob],
        group: str | None,
        to_jobs: Edges,
        to_groups: Edges,
        caused_by: str,
        *,
        resolved: Sequence[Edge],
    ) -> None:
        """Add jobs and edges, and evaluate the edges. `group` is the group of the jobs, or None for the first jobs.

        `resolved` are the edges from the group to the jobs that need it. These jobs need the new jobs instead.
        """
        needs, groups = _count_needs(to_jobs), _count_needs(to_groups)
        self.jobs |= {
            job.name: _new_job(job, group, needs.get(job.name, 0), groups.get(job.name, 0), self.run.attempt)
            for job in jobs
        }
        added = len(jobs) + needs.total() + groups.total()
        self.run = self.run._replace(open_jobs=self.run.open_jobs + len(jobs), row_count=self.run.row_count + added)
        _append(self.downstream, to_jobs)
        _append(self.downstream_of_groups, to_groups)
        for job in [self.jobs[edge.job] for edge in resolved]:
            if job.is_waiting:  # it needs the new jobs in place of the group
                open_needs = job.open_needs + needs.get(job.name, 0)
                self.jobs[job.name] = job._replace(open_needs=open_needs, open_groups=job.open_groups - 1)
        from_ended = (edge for name, edges in to_jobs.items() if self.jobs[name].ended for edge in edges)
        self._evaluate_edges(from_ended, [*(job.name for job in jobs), *(edge.job for edge in resolved)], caused_by)

    def _evaluate_edges(self, edges: Iterable[Edge], changed: Iterable[str], caused_by: str | None) -> None:
        """Evaluate edges whose upstream has ended, or defer that to the sweep.

        The order is breadth first. The job at the end of an edge is skipped, or loses one open need. Without open needs
        it becomes ready, and so does a `changed` job. `caused_by` is the id of the command, or None for the sweep.
        """
        if not self._evaluating or not self.run.evaluated:
            self.run = self.run._replace(evaluated=False, sweep_at=self.now)
            return
        queue = deque(edges)
        while queue:
            edge = queue.popleft()
            job, upstream = self.jobs[edge.job], self.jobs[edge.upstream]
            if not job.is_waiting:
                continue
            if rules.causes_skip(edge.if_failed, upstream):
                skipped = rules.end(job, JobStatus.SKIPPED, self.now, f"upstream_failed: {upstream.name}")
                self.set_job(skipped._replace(caused_by=caused_by))
                queue.extend(self.downstream.get(job.name, ()))
            elif job.open_needs == 1 and job.open_groups == 0:
                self.jobs[job.name] = rules.mark_ready(job, self.now, caused_by)
            else:
                self.jobs[job.name] = job._replace(open_needs=job.open_needs - 1)
        for job in map(self.jobs.__getitem__, changed):
            if job.is_waiting and job.open_needs == 0 and job.open_groups == 0:
                self.jobs[job.name] = rules.mark_ready(job, self.now, caused_by)

    def cancel(self, caused_by: str) -> None:
        """End every open job as cancelled, except the `always` jobs. These do not wait for a group any more.

        No job can become known, so no command is pending. If an `always` job has not ended, the whole run was loaded.
        """
        open_jobs = [job for job in self.jobs.values() if not job.ended]
        for job in open_jobs:
            if not job.always:
                self.set_job(rules.end(job, JobStatus.CANCELLED, self.now))
        self.take_pending()
        self.run = self.run._replace(status=RunStatus.CANCELLING, open_groups=0)
        if any(job.always for job in open_jobs):
            self.repair(caused_by)

    def reject(self, flaw: Flaw, caused_by: str) -> None:
        """Cancel the run because its graph is invalid."""
        self.run = self.run._replace(flaw_code=flaw.code, flaw_path=dump_data(list(flaw.path)))
        self.cancel(caused_by)

    # A RetryRun

    @property
    def unresolved(self) -> list[str]:
        """The groups whose jobs are not named. Only those of a running run are open."""
        return [name for name, group in self.groups.items() if group.resolved_at is None]

    @property
    def is_complete(self) -> bool:
        """Whether all rows of the run were loaded. If not, retention is deleting it."""
        edges = chain(self.downstream.values(), self.downstream_of_groups.values())
        return self.run.row_count == len(self.jobs) + len(self.groups) + sum(map(len, edges))

    def retry(self, sweep_at: int, caused_by: str) -> bool:
        """Run the failed jobs of an ended run again. Return False if nothing can run again. The whole run was loaded.

        The jobs that were skipped because of these run again too, and so do the `always` jobs that need one of all
        these, or a group that is open again. The others stay as they ended.
        """
        unresolved = self.unresolved
        again = deque(name for name, job in self.jobs.items() if rules.runs_again(job))
        if not again and not unresolved:
            return False
        of_groups = (edge.job for name in unresolved for edge in self.downstream_of_groups.get(name, ()))
        again.extend(name for name in of_groups if self.jobs[name].always)
        attempt = self.run.attempt + 1
        while again:
            name = again.popleft()
            job = self.jobs[name]
            if job.attempt == attempt:
                continue
            self.jobs[name] = rules.begin_again(job, attempt)
            for edge in self.downstream.get(name, ()):
                downstream = self.jobs[edge.job]
                if downstream.always or (downstream.is_skipped and edge.if_failed is IfFailed.SKIP):
                    again.append(edge.job)
        self.run = self.run._replace(status=RunStatus.RUNNING, attempt=attempt, settled_at=None, sweep_at=sweep_at)
        self.repair(caused_by)
        return True


def _count_needs(edges: Edges) -> Counter[str]:
    """Return how many needs each job has."""
    return Counter(edge.job for from_one in edges.values() for edge in from_one)


def _append(known: dict[str, Sequence[Edge]], added: Edges) -> None:
    """Add edges at the end of those of the same upstream."""
    for name, edges in added.items():
        known[name] = [*known.get(name, ()), *edges]


def _new_job(job: NewJob, group: str | None, needs: int, groups: int, attempt: int) -> Job:
    """Return a job of a command with all its needs open: `needs` jobs and `groups` groups."""
    payload = job.payload_text
    return Job(
        name=job.name,
        group=group,
        open_needs=needs,
        open_groups=groups,
        stale_after_ms=None if job.stale_after_seconds is None else job.stale_after_seconds * 1000,
        always=job.always,
        attempt=attempt,
        payload=payload,
        payload_bytes=0 if payload is None else len(payload.encode()),
    )
