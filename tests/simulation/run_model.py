"""What runs promise, written plainly: no counters, and every job is asked over and over until nothing changes.

A model takes commands in the order in which they are *delivered*; a command's position is its place in the stream.
Where the two orders agree, this is docs/runs.md. Where they do not:

- A ResolveGroup or a report that is delivered before its StartRun, or before the ResolveGroup that names its job, is
  kept and applied in the order of positions once that is delivered. So only the order among the other commands matters.
- A run that is only a tombstone (a CancelRun came first) keeps commands that are newer than the tombstone: a newer
  StartRun may follow. It forgets older ones, for they could only belong to the run that was cancelled.
- A StartRun that is older than the tombstone is cancelled at once.
- A report of `dispatched`, `running` or `success` for a job that is not ready *when it is delivered* is
  `ignored_not_ready`. An executor reports only what it was told to do, so delivery in another order can't show that.
- Of two ends of one job the first one delivered wins. Of an end and a skip, too.
- Names in `droppedJobs` count whatever becomes of the report's own job; those that are not known are remembered while
  groups are open.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from timer_service.core.message import Position

_NOWHERE = Position(0, 0)
UNFINISHED = {"pending", "dispatched", "running"}
NOT_READY = {"dispatched", "running", "success"}
"""Statuses that only a job that is ready can come to."""


class RunName(NamedTuple):
    """Which run."""

    tenant: str
    run: str


class Need(NamedTuple):
    """What a job needs: a job or, if `group`, all jobs of a group."""

    name: str
    group: bool
    skip: bool
    """Whether the job is skipped when the need ends other than in success."""


class Announced(NamedTuple):
    """An event that has to be published; `detail` is the job, or what the run ended as."""

    type: str
    run: RunName
    detail: str


@dataclass(slots=True)
class JobModel:
    """One job."""

    needs: Sequence[Need]
    group: str | None
    stale_ms: int | None
    status: str = "pending"
    ready: bool = False
    stale_at: int | None = None
    outputs: Any = None
    reported_at: Position = _NOWHERE

    @property
    def ended(self) -> bool:
        return self.status not in UNFINISHED

    @property
    def waits(self) -> bool:
        return self.status == "pending" and not self.ready


@dataclass(slots=True)
class RunModel:
    """One run. Without a graph it is named only or, if its status is `cancelled`, a tombstone."""

    name: RunName
    status: str | None = None
    position: Position = _NOWHERE
    since: Position = _NOWHERE
    """Of the newest CancelRun from before its StartRun."""
    graph: Any = None
    jobs: dict[str, JobModel] = field(default_factory=dict)
    groups: dict[str, list[str] | None] = field(default_factory=dict)
    """The jobs of each group; None until it is resolved."""
    resolved_by: dict[str, Any] = field(default_factory=dict)
    kept: dict[Position, Mapping[str, Any]] = field(default_factory=dict)
    evaluated: bool = True
    """False while the feature was off, until it has caught up."""
    flaw: str | None = None
    told: set[str] = field(default_factory=set)
    """Jobs whose JobReady or JobSkipped was announced."""

    @property
    def going(self) -> bool:
        return self.status == "running" and (self.open_jobs > 0 or self.open_groups > 0)

    @property
    def open_jobs(self) -> int:
        return sum(not job.ended for job in self.jobs.values())

    @property
    def open_groups(self) -> int:
        return 0 if self.status != "running" else sum(members is None for members in self.groups.values())

    # The graph

    def edges(self) -> dict[tuple[str, str], bool]:
        """Return which job needs which, as (job, upstream), and whether it is skipped when that does not succeed."""
        found: dict[tuple[str, str], bool] = {}
        for name, job in self.jobs.items():
            for need in job.needs:
                upstreams = (self.groups.get(need.name) or []) if need.group else [need.name]
                for upstream in upstreams:
                    found[name, upstream] = found.get((name, upstream), False) or need.skip
        return found

    def unresolved(self, job: JobModel) -> set[str]:
        """Return the groups a job needs that are not resolved."""
        return {need.name for need in job.needs if need.group and self.groups.get(need.name) is None}

    def flaw_of(self, jobs: Sequence[Mapping[str, Any]]) -> str | None:
        """Return what is wrong with the names of new jobs."""
        names = Counter(job["name"] for job in jobs)
        if any(count > 1 or name in self.jobs for name, count in names.items()):
            return "DUPLICATE_JOB"
        for job in jobs:
            for need in map(_need, job.get("needs", ())):
                if need.name not in (self.groups if need.group else {**names, **self.jobs}):
                    return "UNKNOWN_UPSTREAM"
        return None

    def has_cycle(self) -> bool:
        """Return whether some job needs itself, by whatever way."""
        edges = self.edges()
        left = set(self.jobs)
        while free := {name for name in left if not any(job == name and up in left for job, up in edges)}:
            left -= free
        return bool(left)

    def add(self, jobs: Sequence[Mapping[str, Any]], group: str | None) -> None:
        for job in jobs:
            stale = job.get("staleAfterSeconds")
            needs = [_need(each) for each in job.get("needs", ())]
            self.jobs[job["name"]] = JobModel(needs, group, None if stale is None else stale * 1000)

    # What follows

    def evaluate(self, now: int) -> None:
        """Skip and make ready whatever has come to that, until nothing changes."""
        edges = self.edges()
        while self._evaluate_once(edges, now):
            pass

    def _evaluate_once(self, edges: Mapping[tuple[str, str], bool], now: int) -> bool:
        for name, job in self.jobs.items():
            if not job.waits:
                continue
            upstreams = {up: skip for (each, up), skip in edges.items() if each == name}
            if any(
                skip and self.jobs[up].ended and self.jobs[up].status != "success" for up, skip in upstreams.items()
            ):
                job.status, job.stale_at = "skipped", None
                return True
            if not self.unresolved(job) and all(self.jobs[up].ended for up in upstreams):
                job.ready, job.stale_at = True, None if job.stale_ms is None else now + job.stale_ms
                return True
        return False

    def end_all(self) -> None:
        for job in self.jobs.values():
            if not job.ended:
                job.status, job.stale_at = "cancelled", None

    def completed_as(self) -> str:
        statuses = {job.status for job in self.jobs.values()}
        return "success" if statuses <= {"success", "skipped"} else "failed"

    def outputs_for(self, name: str) -> dict[str, Any]:
        """Return what the upstreams of a job put out."""
        ups = [up for job, up in self.edges() if job == name]
        return {up: self.jobs[up].outputs for up in ups if self.jobs[up].outputs is not None}


def _need(need: Any) -> Need:
    if isinstance(need, str):
        return Need(need, group=False, skip=True)
    return Need(need.get("group") or need["job"], group="group" in need, skip=need.get("ifFailed", "skip") == "skip")


class RunsModel:
    """All runs; its methods return outcomes and note the events to be published."""

    def __init__(self) -> None:
        self.runs: dict[RunName, RunModel] = {}
        self.announced: Counter[Announced] = Counter()
        self.outputs: dict[Announced, Any] = {}
        """What each JobReady has to give of its upstreams."""
        self.counts: dict[RunName, Mapping[str, int]] = {}
        self.on = True
        self.not_ready = 0
        """How many reports were lost because their job was not ready, those of kept commands included."""

    # Commands

    def command(self, kind: str, payload: Mapping[str, Any], position: Position, now: int) -> str:
        """Apply one command; return its outcome. `announce` comes after the last one of a batch."""
        name = RunName(payload["tenantId"], payload["runId"])
        run = self.runs.setdefault(name, RunModel(name))
        return self._apply(run, kind, payload, position, now)

    def _apply(self, run: RunModel, kind: str, payload: Mapping[str, Any], position: Position, now: int) -> str:
        handlers: dict[str, Callable[..., str]] = {
            "StartRun": self._start,
            "ResolveGroup": self._resolve,
            "ReportJobStatus": self._report,
            "CancelRun": self._cancel,
        }
        return handlers[kind](run, payload, position, now)

    def _start(self, run: RunModel, payload: Mapping[str, Any], position: Position, now: int) -> str:
        graph = _canonical([payload["jobs"], sorted(payload.get("groups", ()))])
        if run.graph == graph:
            run.position = min(position, run.position)
            if not (run.going and position < run.since):
                return "unchanged"
            run.end_all()
            run.status = "cancelled"
            return "cancelled"
        if run.graph is not None:
            return "ignored_stale" if position < run.position else "exists"
        run.status, run.position, run.graph, run.evaluated = "running", position, graph, True
        groups = dict.fromkeys(payload.get("groups", ()))
        if flaw := RunModel(run.name, groups=dict(groups)).flaw_of(payload["jobs"]):
            return self._reject(run, flaw)
        trial = RunModel(run.name, groups=dict(groups))
        trial.add(payload["jobs"], None)
        if trial.has_cycle():
            return self._reject(run, "CYCLE")
        run.groups = dict(groups)
        run.add(payload["jobs"], None)
        self._follow(run, now)
        if position < run.since:
            run.end_all()
            run.status = "cancelled"
            return "cancelled"
        self._apply_kept(run, now)
        return "started"

    def _resolve(self, run: RunModel, payload: Mapping[str, Any], position: Position, now: int) -> str:
        if self._is_early(run, position):
            return self._keep(run, "ResolveGroup", payload, position)
        if position < run.since:
            return "ignored_stale"
        group, jobs = payload["groupName"], payload["jobs"]
        if group not in run.groups:
            return "unknown_group" if run.going else "already_ended"
        if group in run.resolved_by:
            return "unchanged" if run.resolved_by[group] == _canonical(jobs) else "exists"
        if not run.going:
            return "already_ended"
        run.resolved_by[group] = _canonical(jobs)
        if flaw := run.flaw_of(jobs):
            return self._reject(run, flaw)
        before = dict(run.jobs)
        run.groups[group] = [job["name"] for job in jobs]
        run.add(jobs, group)
        if run.has_cycle():
            run.jobs, run.groups[group] = before, []
            return self._reject(run, "CYCLE")
        self._follow(run, now)
        self._apply_kept(run, now)
        return "resolved"

    def _report(self, run: RunModel, payload: Mapping[str, Any], position: Position, now: int) -> str:
        if self._is_early(run, position):
            return self._keep(run, "ReportJobStatus", payload, position)
        if position < run.since:
            return "ignored_stale"
        may_come = run.going and run.open_groups > 0
        job, status = run.jobs.get(payload["jobName"]), payload["status"]
        dropped = payload.get("droppedJobs") or []
        if job is None:
            outcome = self._keep(run, "ReportJobStatus", payload, position) if may_come else "unknown_job"
        else:
            outcome = _report_outcome(job, status, position)
            self.not_ready += outcome == "ignored_not_ready"
            if outcome == "recorded":
                _record(job, payload, position, now)
            if may_come and (unknown := [name for name in dropped if name not in run.jobs]):
                only = {"jobName": unknown[0], "status": "drift_dropped", "droppedJobs": unknown[1:]}
                self._keep(run, "ReportJobStatus", {"tenantId": "", "runId": "", **only}, position)
        for name in dropped:
            if name in run.jobs and not run.jobs[name].ended:
                run.jobs[name].status, run.jobs[name].stale_at = "drift_dropped", None
        self._follow(run, now)
        return outcome

    def _cancel(self, run: RunModel, _payload: Mapping[str, Any], position: Position, _now: int) -> str:
        if run.graph is None:
            known = run.status is not None
            run.status, run.since = "cancelled", max(position, run.since)
            run.kept = {at: kept for at, kept in run.kept.items() if at > run.since}
            return "unchanged" if known else "not_found"
        if position < run.position:
            run.since = max(position, run.since)
            return "ignored_stale"
        if not run.going:
            return "unchanged" if run.status == "cancelled" else "already_ended"
        run.end_all()
        run.status = "cancelled"
        return "cancelled"

    def _is_early(self, run: RunModel, position: Position) -> bool:
        return run.graph is None and position > run.since

    def _keep(self, run: RunModel, kind: str, payload: Mapping[str, Any], position: Position) -> str:
        run.kept.setdefault(position, {"kind": kind, "payload": payload})
        return "kept"

    def _apply_kept(self, run: RunModel, now: int) -> None:
        kept, run.kept = run.kept, {}
        for position in sorted(kept):
            self._apply(run, kept[position]["kind"], kept[position]["payload"], position, now)

    def _reject(self, run: RunModel, flaw: str) -> str:
        run.end_all()
        run.status, run.flaw = "rejected", flaw
        return "run_rejected"

    def _follow(self, run: RunModel, now: int) -> None:
        if self.on and run.evaluated:
            run.evaluate(now)
        else:
            run.evaluated = False

    # What is announced, and the sweep

    def commit(self) -> None:
        """End runs of which nothing is open, and note the events of what is so at the end of a transaction."""
        for run in self.runs.values():
            self._announce(run)

    def _announce(self, run: RunModel) -> None:
        for name, job in run.jobs.items():
            if name in run.told:
                continue
            if job.ready and not job.ended:
                self._note(run, "JobReady", name)
                self.outputs[Announced("JobReady", run.name, name)] = run.outputs_for(name)
            elif job.status == "skipped" and not job.ready and job.reported_at == _NOWHERE:
                self._note(run, "JobSkipped", name)
            if job.ready or job.ended:
                run.told.add(name)
        if run.status == "running" and run.evaluated and not run.going:
            run.status = run.completed_as()
        if run.status == "rejected" and "" not in run.told:
            self._note(run, "RunRejected", run.flaw or "")
            run.told.add("")
        if run.graph is not None and run.status in {"success", "failed", "cancelled"} and "" not in run.told:
            self._note(run, "RunCompleted", run.status)
            run.told.add("")
            self.counts[run.name] = Counter(job.status for job in run.jobs.values())

    def _note(self, run: RunModel, kind: str, detail: str) -> None:
        self.announced[Announced(kind, run.name, detail)] += 1

    def overdue(self, now: int) -> list[tuple[RunModel, str]]:
        """Return the jobs that nothing was heard of for too long."""
        return [
            (run, name)
            for run in self.runs.values()
            for name, job in run.jobs.items()
            if job.stale_at is not None and job.stale_at <= now
        ]

    def swept(self, caught_up: Iterable[RunName], stale: Iterable[tuple[RunName, str]], now: int) -> None:
        """Follow a sweep that caught up with runs and ended stale jobs."""
        for name in caught_up:
            self.runs[name].evaluated = True
        overdue = {(run.name, name) for run, name in self.overdue(now)}
        for name, job in stale:
            assert (name, job) in overdue, f"{job} of {name} was timed out too early"
            self.runs[name].jobs[job].status, self.runs[name].jobs[job].stale_at = "timed_out_stale", None
        for run in self.runs.values():
            if run.evaluated and run.status == "running":
                run.evaluate(now)
        self.commit()


def _report_outcome(job: JobModel, status: str, position: Position) -> str:
    if job.ended:
        return "unchanged" if job.status == status else "already_ended"
    if status in UNFINISHED and position <= job.reported_at:
        return "unchanged" if position == job.reported_at else "ignored_stale"
    if job.waits and status in NOT_READY:
        return "ignored_not_ready"
    return "recorded"


def _record(job: JobModel, payload: Mapping[str, Any], position: Position, now: int) -> None:
    job.status, job.reported_at = payload["status"], max(position, job.reported_at)
    if payload.get("outputs") is not None:
        job.outputs = payload["outputs"]
    if job.ended:
        job.stale_at = None
    elif job.stale_ms is not None:
        job.stale_at = now + job.stale_ms


def _canonical(jobs: Any) -> str:
    return json.dumps(jobs, sort_keys=True)


def waiting_jobs(run: RunModel) -> Iterator[tuple[str, JobModel]]:
    """Give the jobs that wait for others."""
    return ((name, job) for name, job in run.jobs.items() if job.waits)
