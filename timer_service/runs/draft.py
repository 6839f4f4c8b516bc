"""One run while commands change it. Pure.

A `RunState` is immutable. A `Draft` starts as a copy of one and ends as another; what to write is the difference of the
two. It draws the consequences of each change at once: jobs become ready or are skipped as the jobs they need end. That
costs the edges of the jobs that ended, whatever the size of the run.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from timer_service.core.data import dump_data
from timer_service.core.message import Command, Position
from timer_service.runs import rules
from timer_service.runs.graph import Addition, Edge, Edges, Flaw
from timer_service.runs.messages import JobStatus, NewJob, ReportJobStatus, RunStatus
from timer_service.runs.rules import Group, Job, Run

MOST_PENDING_BYTES = 4 * 1024 * 1024
"""Of the pending commands of one run."""
_PENDING_ROW_BYTES = 200


class Pending(NamedTuple):
    """A command that is kept until its run or its job is known."""

    command: Command
    payload: str
    """Its payload as JSON."""

    @property
    def size(self) -> int:
        """How much of the limit it takes, in bytes."""
        return len(self.payload.encode()) + _PENDING_ROW_BYTES


class RunState(NamedTuple):
    """As much of one run as was read, or as commands may change."""

    run: Run
    jobs: Mapping[str, Job]
    downstream: Mapping[str, Sequence[Edge]]
    """The edges from each job to the jobs that need it."""
    groups: Mapping[str, Group]
    waiting: Mapping[str, Sequence[Edge]]
    """The edges from each group to the jobs that need it, also once it is resolved."""
    pending: Mapping[Position, Pending]


class Draft:
    """A run while commands are applied to it."""

    def __init__(self, before: RunState, now: int, *, evaluating: bool) -> None:
        """Without `evaluating`, consequences are left to the sweep."""
        self.now = now
        self.run = before.run
        self.jobs = dict(before.jobs)
        self.additions: list[Addition] = []
        """The edges that commands added, for the check of the whole graph at the end of the batch."""
        self.groups = dict(before.groups)
        self.pending = dict(before.pending)
        self.waiting = dict(before.waiting)
        self.needs = sum(map(len, before.downstream.values())) + sum(map(len, before.waiting.values()))
        """How many edges there are."""
        self._downstream = dict(before.downstream)
        self._evaluating = evaluating

    def finish(self) -> RunState:
        """Return the run after the commands, completed if nothing of it is open."""
        run = self.run
        if run.status is RunStatus.RUNNING and run.evaluated and not run.going:
            run = run._replace(status=RunStatus.FAILED if run.failed_jobs else RunStatus.SUCCESS)
        if run.status is not RunStatus.RUNNING:
            run = run._replace(settled_at=self.now if run.settled_at is None else run.settled_at, sweep_at=None)
        if run.ended:
            self.forget(list(self.pending))
            run = run._replace(pending_bytes=self.run.pending_bytes)
        return RunState(run, self.jobs, self._downstream, self.groups, self.waiting, self.pending)

    # Pending commands: delivered before their run or their job is known

    def keep(self, command: Command, *, again: bool) -> bool:
        """Keep a command, if there is room for it or if it is kept `again`; return whether it is kept."""
        if command.position in self.pending:
            return True
        pending = Pending(command, command.payload.model_dump_json(exclude_unset=True))
        size = self.run.pending_bytes + pending.size
        if size > MOST_PENDING_BYTES and not again:
            return False
        self.pending[command.position] = pending
        for name in _named_jobs(command):
            self._kept_for[name].add(command.position)
        self.run = self.run._replace(pending_bytes=size)
        if not self.run.started:
            self.run = self.run._replace(settled_at=self.now)
        return True

    def forget(self, positions: Iterable[Position]) -> None:
        """Keep pending commands no longer."""
        for position in positions:
            size = self.pending.pop(position).size
            self.run = self.run._replace(pending_bytes=self.run.pending_bytes - size)

    def kept_for(self, jobs: Iterable[str]) -> set[Position]:
        """Return the positions of the pending commands that name some of these jobs."""
        return {position for name in jobs for position in self._kept_for.get(name, ()) if position in self.pending}

    @cached_property
    def _kept_for(self) -> defaultdict[str, set[Position]]:
        kept_for = defaultdict[str, set[Position]](set)
        for position, pending in self.pending.items():
            for name in _named_jobs(pending.command):
                kept_for[name].add(position)
        return kept_for

    # Jobs, and what follows from their ends

    def put(self, job: Job) -> None:
        """Set a job, counting the open and the failed jobs of the run."""
        before = self.jobs[job.name]
        self.jobs[job.name] = job
        if job.ended and not before.ended:
            open_jobs, failed_jobs = self.run.open_jobs - 1, self.run.failed_jobs + job.failed
            self.run = self.run._replace(open_jobs=open_jobs, failed_jobs=failed_jobs)

    def follow(self, ended: Iterable[str], waited: Iterable[str] = ()) -> None:
        """Draw the consequences of jobs that have ended, and of changes to jobs that `waited`."""
        self._draw((edge for name in ended for edge in self._downstream.get(name, ())), waited)

    def repair(self) -> list[str]:
        """Count again what every job waits for, and draw all consequences; return the jobs that waited wrongly."""
        needs = Counter(edge.job for edges in self._downstream.values() for edge in edges)
        unresolved = [name for name, group in self.groups.items() if group.resolved_at is None]
        groups = Counter(edge.job for name in unresolved for edge in self.waiting.get(name, ()))
        waited = [job for job in self.jobs.values() if job.waits]
        self.jobs |= {
            job.name: job._replace(open_needs=needs[job.name], open_groups=groups[job.name]) for job in waited
        }
        self.run = self.run._replace(
            evaluated=True,
            open_jobs=sum(not job.ended for job in self.jobs.values()),
            failed_jobs=sum(job.failed for job in self.jobs.values()),
            open_groups=len(unresolved),
        )
        self.follow([job.name for job in self.jobs.values() if job.ended], [job.name for job in waited])
        return sorted(job.name for job in waited if not self.jobs[job.name].waits)

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """The jobs of each resolved group."""
        members: dict[str, list[str]] = {name: [] for name, group in self.groups.items() if group.resolved_at}
        for job in self.jobs.values():
            if job.group is not None:
                members[job.group].append(job.name)
        return members

    def add(
        self, jobs: Sequence[NewJob], group: str | None, edges: Edges, command: Command, resolved: Sequence[Edge] = ()
    ) -> None:
        """Add jobs of a group, if any, and edges. `resolved`: the edges of the jobs that waited for the group."""
        self.additions.append(Addition(command.position, edges.to_jobs))
        self.needs += len(edges.to_jobs) + len(edges.to_groups)
        self.jobs |= {job.name: _new_job(job, group, command.id) for job in jobs}
        self.run = self.run._replace(open_jobs=self.run.open_jobs + len(jobs))
        _append(self._downstream, edges.to_jobs)
        _append(self.waiting, edges.to_groups)
        self._count(Counter(edge.job for edge in edges.to_jobs), Counter(edge.job for edge in edges.to_groups), command)
        self._count(Counter(), Counter({edge.job: -1 for edge in resolved}), command)
        ended = (edge for edge in edges.to_jobs if self.jobs[edge.upstream].ended)
        self._draw(ended, [*(job.name for job in jobs), *(edge.job for edge in resolved)], command.id)

    def _count(self, needs: Counter[str], groups: Counter[str], command: Command) -> None:
        """Add to what jobs wait for."""
        for name in needs.keys() | groups.keys():
            job = self.jobs[name]
            if job.waits:
                self.jobs[name] = job._replace(
                    open_needs=job.open_needs + needs[name],
                    open_groups=job.open_groups + groups[name],
                    changed_by=command.id,
                )

    def _draw(self, edges: Iterable[Edge], waited: Iterable[str], command_id: str | None = None) -> None:
        """Draw the consequences of edges whose upstream has ended, or leave them to the sweep.

        Breadth first: the job of an edge is skipped, or waits for one less and may become ready. `command_id`: the
        command that added the edges; None if they were there.
        """
        if not (self._evaluating and self.run.evaluated):
            self.run = self.run._replace(evaluated=False, sweep_at=self.now)
            return
        queue = deque(edges)
        while queue:
            edge = queue.popleft()
            job, upstream = self.jobs[edge.job], self.jobs[edge.upstream]
            if not job.waits:
                continue
            changed_by = command_id or upstream.changed_by or job.changed_by
            if rules.skips(edge.if_failed, upstream):
                skipped = rules.end(job, JobStatus.SKIPPED, self.now, f"upstream_failed: {upstream.name}")
                self.put(skipped._replace(changed_by=changed_by))
                queue.extend(self._downstream.get(job.name, ()))
            else:
                self.jobs[job.name] = self._waits_for_one_less(job, changed_by)
        for job in map(self.jobs.__getitem__, waited):
            if job.waits and job.open_needs == 0 and job.open_groups == 0:
                self.jobs[job.name] = rules.mark_ready(job, self.now, job.changed_by)

    def _waits_for_one_less(self, job: Job, changed_by: str | None) -> Job:
        if job.open_needs == 1 and job.open_groups == 0:
            return rules.mark_ready(job, self.now, changed_by)
        return job._replace(open_needs=job.open_needs - 1, changed_by=changed_by)

    def cancel(self) -> None:
        """End the run because a user says so."""
        self._end_all()
        self.run = self.run._replace(status=RunStatus.CANCELLED)

    def _end_all(self) -> None:
        """End every job that has not ended, and wait for no group any more."""
        for job in [job for job in self.jobs.values() if not job.ended]:
            self.put(rules.end(job, JobStatus.CANCELLED, self.now))
        self.run = self.run._replace(open_groups=0)

    def reject(self, flaw: Flaw) -> None:
        """End the run because its graph can't be run."""
        self._end_all()
        self.run = self.run._replace(
            status=RunStatus.REJECTED, flaw_code=flaw.code, flaw_path=dump_data(list(flaw.path))
        )


def _named_jobs(command: Command) -> list[str]:
    """Return the jobs that a report names."""
    payload = command.payload
    return [payload.job_name, *(payload.dropped_jobs or ())] if isinstance(payload, ReportJobStatus) else []


def _new_job(job: NewJob, group: str | None, command_id: str) -> Job:
    payload = dump_data(job.payload) if "payload" in job.model_fields_set else None
    return Job(
        name=job.name,
        group=group,
        stale_after_ms=None if job.stale_after_seconds is None else job.stale_after_seconds * 1000,
        payload=payload,
        payload_bytes=0 if payload is None else len(payload.encode()),
        changed_by=command_id,
    )


def _append(target: dict[str, Sequence[Edge]], edges: Iterable[Edge]) -> None:
    new = defaultdict[str, list[Edge]](list)
    for edge in edges:
        new[edge.upstream].append(edge)
    for upstream, more in new.items():
        target[upstream] = [*target.get(upstream, ()), *more]
