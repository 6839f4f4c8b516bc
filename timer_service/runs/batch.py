"""A batch of commands on runs, applied in memory. Pure: the handler reads and writes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from pydantic_core import to_json

from timer_service.core.data import dump_data
from timer_service.core.message import Command, Position
from timer_service.runs import rules
from timer_service.runs.checking import Flaw, check_names, check_order, check_size
from timer_service.runs.edges import edges_of
from timer_service.runs.graph import Graph
from timer_service.runs.messages import (
    JobStatus,
    NewJob,
    ReportJobStatus,
    ResolveGroup,
    RunPayload,
    RunStatus,
    StartRun,
)
from timer_service.runs.rules import Cause, Edge, Group, Job, Outcome, Run, RunKey

SWEEP_MS = 10 * 60 * 1000
"""How often a run is looked at for jobs that wait in vain."""


@dataclass(slots=True)
class Work:
    """One run while commands are applied to it: its graph, and what is to be written besides what that tells."""

    graph: Graph
    added: dict[str, NewJob] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    group_edges: list[Edge] = field(default_factory=list)
    touched_groups: set[str] = field(default_factory=set)
    outputs: dict[str, str] = field(default_factory=dict)
    kept: dict[Position, Command] = field(default_factory=dict)
    """Commands that came before what they are about."""
    applied: list[Position] = field(default_factory=list)
    """Those of them that need not be kept any more."""
    stuck: list[str] = field(default_factory=list)
    """Jobs that waited in vain."""
    rejected: Flaw | None = None
    cancelled: bool = False


@dataclass(slots=True)
class Batch:
    """What is known of runs, and what commands make of it: each sees what those before it did."""

    now: int
    evaluating: bool
    """Whether consequences are drawn here, or only kept for later."""
    works: dict[RunKey, Work]

    def apply(self, command: Command) -> Outcome:
        """Apply one command; return how it ends."""
        work = self.works[run_key(command)]
        match command.payload:
            case StartRun() as payload:
                return self._start(work, payload, command)
            case ResolveGroup() as payload:
                return self._resolve(work, payload, command)
            case ReportJobStatus() as payload:
                return self._report(work, payload, command)
            case _:
                return self._cancel(work, command)

    def _start(self, work: Work, payload: StartRun, command: Command) -> Outcome:
        run, digest = work.graph.run, _digest(payload.jobs, payload.groups)
        if run.digest == digest:
            return Outcome.UNCHANGED
        if run.status is not None and command.position < run.position:
            return Outcome.IGNORED_STALE
        if run.digest is not None:
            return Outcome.EXISTS
        edges, waiting = edges_of(payload.jobs, {})
        flaw = (
            check_names(payload.jobs, (), payload.groups)
            or check_size(payload.jobs, {}, (), jobs=0, edges=0)
            or check_order(edges, waiting)
        )
        work.graph.run = Run(
            key=run.key,
            status=RunStatus.RUNNING,
            position=command.position,
            created_at=self.now,
            digest=digest,
            cause=Cause(command.id, command.correlation_id, command.trace),
            sweep_at=self.now + SWEEP_MS,
        )
        if flaw is not None:
            self._reject(work, flaw)
            return Outcome.RUN_REJECTED
        work.graph.groups = {name: Group(name) for name in payload.groups}
        work.graph.run = work.graph.run._replace(open_groups=len(work.graph.groups))
        work.touched_groups |= work.graph.groups.keys()
        self._add(work, payload.jobs, None, edges, waiting)
        self._evaluate(work, None, command.id)
        self._catch_up(work)
        return Outcome.STARTED

    def _resolve(self, work: Work, payload: ResolveGroup, command: Command) -> Outcome:
        graph, digest = work.graph, _digest(payload.jobs, ())
        if graph.run.status is None:
            return _keep(work, command)
        if command.position < graph.run.position:
            return Outcome.IGNORED_STALE
        if (group := graph.groups.get(payload.group_name)) is None:
            return Outcome.UNKNOWN_GROUP if graph.run.going else Outcome.ALREADY_ENDED
        if group.resolved_at is not None:
            return Outcome.UNCHANGED if group.digest == digest else Outcome.EXISTS
        if not graph.run.going:
            return Outcome.ALREADY_ENDED
        graph.groups[group.name] = group._replace(digest=digest, resolved_at=self.now)
        work.touched_groups.add(group.name)
        if flaw := self._add_group(work, group.name, payload.jobs):
            self._reject(work, flaw)
            return Outcome.RUN_REJECTED
        graph.run = graph.run._replace(open_groups=graph.run.open_groups - 1)
        self._evaluate(work, None, command.id)
        self._catch_up(work)
        return Outcome.RESOLVED

    def _report(self, work: Work, payload: ReportJobStatus, command: Command) -> Outcome:
        graph = work.graph
        if graph.run.status is None:
            return _keep(work, command)
        if command.position < graph.run.position:
            return Outcome.IGNORED_STALE
        if (before := graph.jobs.get(payload.job_name)) is None:
            return _keep(work, command) if graph.run.going and graph.run.open_groups else Outcome.UNKNOWN_JOB
        verdict, job = rules.report(before, payload.status, command.position, self.now)
        if verdict is Outcome.UNCHANGED and job.ended:
            graph.run = graph.run._replace(sweep_at=self.now)
        if verdict is not Outcome.RECORDED:
            return verdict
        graph.put(job)
        if payload.outputs is not None:
            work.outputs[job.name] = dump_data(payload.outputs)
        ended = [job.name] if job.ended else []
        for name in payload.dropped_jobs or ():
            if (dropped := graph.jobs.get(name)) is not None and not dropped.ended:
                graph.put(rules.end(dropped, JobStatus.DRIFT_DROPPED, self.now))
                ended.append(name)
        if ended:
            self._evaluate(work, ended, command.id)
        return verdict

    def _cancel(self, work: Work, command: Command) -> Outcome:
        graph, position = work.graph, command.position
        if graph.run.digest is None:  # to be remembered, so that an older StartRun does not win
            known = graph.run.status is not None
            graph.run = graph.run._replace(
                status=RunStatus.CANCELLED, position=max(position, graph.run.position), settled_at=self.now
            )
            return Outcome.UNCHANGED if known else Outcome.NOT_FOUND
        if position < graph.run.position:
            return Outcome.IGNORED_STALE
        if not graph.run.going:
            return Outcome.UNCHANGED if graph.run.status is RunStatus.CANCELLED else Outcome.ALREADY_ENDED
        graph.end_all(JobStatus.CANCELLED, self.now)
        graph.run = graph.run._replace(status=RunStatus.CANCELLED)
        work.cancelled = True
        return Outcome.CANCELLED

    def _evaluate(self, work: Work, ended: Sequence[str] | None, cause: str) -> None:
        """Draw the consequences of jobs that have ended, None for the whole graph; or leave that to the sweep."""
        graph = work.graph
        if not self.evaluating or not graph.run.evaluated:
            graph.run = graph.run._replace(evaluated=False, sweep_at=self.now)
        elif ended is None:
            graph.evaluate_all(self.now, cause)
        else:
            graph.evaluate(ended, self.now, cause)

    def _add(
        self, work: Work, jobs: Sequence[NewJob], group: str | None, edges: Sequence[Edge], waiting: Sequence[Edge]
    ) -> None:
        graph = work.graph
        graph.jobs |= {job.name: _new_job(job, group) for job in jobs}
        graph.run = graph.run._replace(open_jobs=graph.run.open_jobs + len(jobs))
        for edge in edges:
            graph.downstream[edge.upstream].append(edge)
        for edge in waiting:
            graph.waiting[edge.upstream].append(edge)
        work.added |= {job.name: job for job in jobs}
        work.edges += edges
        work.group_edges += waiting

    def _add_group(self, work: Work, group: str, jobs: Sequence[NewJob]) -> Flaw | None:
        """Add the jobs of a group, and their edges from and to others; or return why that can't be."""
        graph = work.graph
        if flaw := check_names(jobs, graph.jobs, graph.groups):
            return flaw
        members: dict[str, list[str]] = {name: [] for name, each in graph.groups.items() if each.resolved_at}
        for job in graph.jobs.values():
            if job.group is not None:
                members[job.group].append(job.name)
        members[group] = [job.name for job in jobs]
        known = list(chain.from_iterable(graph.downstream.values()))
        if flaw := check_size(jobs, members, graph.waiting[group], jobs=len(graph.jobs), edges=len(known)):
            return flaw
        edges, waiting = edges_of(jobs, members)
        edges += [each._replace(upstream=name) for each in graph.waiting[group] for name in members[group]]
        if flaw := check_order(chain(known, edges), waiting):
            return flaw
        self._add(work, jobs, group, edges, waiting)
        return None

    def _reject(self, work: Work, flaw: Flaw) -> None:
        work.rejected = flaw
        work.graph.end_all(JobStatus.CANCELLED, self.now)
        work.graph.run = work.graph.run._replace(
            status=RunStatus.REJECTED, flaw_code=flaw.code, flaw_path=dump_data(flaw.path)
        )

    def _catch_up(self, work: Work) -> None:
        """Apply the commands that came too early, in the order they were sent in."""
        early, work.kept = work.kept, {}
        for position in sorted(early):
            self.apply(early[position])
        work.applied += early.keys() - work.kept.keys()


def run_key(command: Command) -> RunKey:
    """Return which run a command is about."""
    payload = command.payload
    assert isinstance(payload, RunPayload)  # noqa: S101 - the route says so
    return RunKey(payload.tenant_id, payload.run_id)


def _keep(work: Work, command: Command) -> Outcome:
    work.kept[command.position] = command
    return Outcome.KEPT


def _new_job(job: NewJob, group: str | None) -> Job:
    stale = job.stale_after_seconds
    return Job(job.name, group=group, stale_after_ms=None if stale is None else stale * 1000)


def _digest(jobs: Sequence[NewJob], groups: Sequence[str]) -> str:
    told = [[job.model_dump(exclude_defaults=True) for job in jobs], sorted(groups)]
    return hashlib.sha256(to_json(told)).hexdigest()
