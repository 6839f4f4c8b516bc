"""A simple model of runs. It has no counters: it evaluates every job again until nothing changes.

The model takes commands in the order of the log. docs/runs.md describes the result:

- A ResolveGroup or a report can come before its StartRun or before the ResolveGroup that names its job. It is stored.
  The stored commands are applied in their order when the missing command comes.
- A CancelRun of a run that is not started removes what was stored before.
- A report of `dispatched`, `running` or `success` is `ignored_not_ready` if its job is not ready. An executor reports
  only jobs that are ready, so it never causes this outcome.
- If a job has two ends, or an end and a skip, the first one wins.
- `droppedJobs` are applied whatever the outcome of the report's own job. A report that names unknown jobs is stored
  while a group is not resolved.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from timer_service.core.values.message import Position

_NOWHERE = Position(0, 0)
UNFINISHED = {"pending", "dispatched", "running"}
NOT_READY = {"dispatched", "running", "success"}
"""The statuses that are ignored for a job that is not ready."""


class RunName(NamedTuple):
    """The key of a run."""

    tenant: str
    run: str


class Need(NamedTuple):
    """A need of a job or, if `group` is true, of a group."""

    name: str
    group: bool
    skip: bool
    """Whether the job is skipped if the needed job does not succeed."""


class ExpectedEvent(NamedTuple):
    """An event that must be published. `detail` is the job, the final status of the run, or the flaw code."""

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
    is_skipped: bool = False
    """Whether the service has skipped it. A report can have this status, too."""

    @property
    def ended(self) -> bool:
        return self.status not in UNFINISHED

    @property
    def is_waiting(self) -> bool:
        return self.status == "pending" and not self.ready


@dataclass(slots=True)
class RunModel:
    """One run. Without a graph, it only holds pending commands."""

    name: RunName
    status: str | None = None
    position: Position = _NOWHERE
    """The position of its StartRun."""
    graph: Any = None
    jobs: dict[str, JobModel] = field(default_factory=dict)
    groups: dict[str, list[str] | None] = field(default_factory=dict)
    """The jobs of each group; None until it is resolved."""
    resolved_by: dict[str, Any] = field(default_factory=dict)
    pending: dict[Position, Mapping[str, Any]] = field(default_factory=dict)
    evaluated: bool = True
    """False while an evaluation is deferred to the sweep, because the feature was disabled."""
    flaw: str | None = None
    noted: set[str] = field(default_factory=set)
    """The jobs that are ready or ended in `expected_events`. The empty string stands for the end of the run."""

    @property
    def is_open(self) -> bool:
        return self.status == "running" and (self.open_jobs > 0 or self.open_groups > 0)

    @property
    def open_jobs(self) -> int:
        return sum(not job.ended for job in self.jobs.values())

    @property
    def open_groups(self) -> int:
        return 0 if self.status != "running" else sum(members is None for members in self.groups.values())

    # The graph

    def edges(self) -> dict[tuple[str, str], bool]:
        """Return the edges as (job, upstream), and for each edge whether a failure of the upstream skips the job."""
        found: dict[tuple[str, str], bool] = {}
        for name, job in self.jobs.items():
            for need in job.needs:
                upstreams = (self.groups.get(need.name) or []) if need.group else [need.name]
                for upstream in upstreams:
                    found[name, upstream] = found.get((name, upstream), False) or need.skip
        return found

    def unresolved(self, job: JobModel) -> set[str]:
        """Return the unresolved groups that a job needs."""
        return {need.name for need in job.needs if need.group and self.groups.get(need.name) is None}

    def flaw_of(self, jobs: Sequence[Mapping[str, Any]]) -> str | None:
        """Return the flaw code of the names of new jobs, or None."""
        names = Counter(job["name"] for job in jobs)
        if any(count > 1 or name in self.jobs for name, count in names.items()):
            return "DUPLICATE_JOB"
        for job in jobs:
            for need in map(_need, job.get("needs", ())):
                if need.name not in (self.groups if need.group else {**names, **self.jobs}):
                    return "UNKNOWN_UPSTREAM"
        return None

    def has_cycle(self) -> bool:
        """Return whether a job needs itself, directly or not."""
        edges = self.edges()
        left = set(self.jobs)
        while sorted_jobs := {name for name in left if not any(job == name and up in left for job, up in edges)}:
            left -= sorted_jobs
        return bool(left)

    def add(self, jobs: Sequence[Mapping[str, Any]], group: str | None) -> None:
        for job in jobs:
            stale = job.get("staleAfterSeconds")
            needs = [_need(each) for each in job.get("needs", ())]
            self.jobs[job["name"]] = JobModel(needs, group, None if stale is None else stale * 1000)

    # Evaluation

    def evaluate(self, now: int) -> None:
        """Skip jobs and make jobs ready until nothing changes."""
        edges = self.edges()
        while self._evaluate_once(edges, now):
            pass

    def _evaluate_once(self, edges: Mapping[tuple[str, str], bool], now: int) -> bool:
        for name, job in self.jobs.items():
            if not job.is_waiting:
                continue
            upstreams = {up: skip for (each, up), skip in edges.items() if each == name}
            if any(
                skip and self.jobs[up].ended and self.jobs[up].status != "success" for up, skip in upstreams.items()
            ):
                job.status, job.stale_at, job.is_skipped = "skipped", None, True
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
        """Return the outputs of the upstream jobs of a job."""
        ups = [up for job, up in self.edges() if job == name]
        return {up: self.jobs[up].outputs for up in ups if self.jobs[up].outputs is not None}


def _need(need: Any) -> Need:
    if isinstance(need, str):
        return Need(need, group=False, skip=True)
    return Need(need.get("group") or need["job"], group="group" in need, skip=need.get("ifFailed", "skip") == "skip")


class RunsModel:
    """All runs. Its methods return outcomes and collect the expected events."""

    def __init__(self) -> None:
        self.runs: dict[RunName, RunModel] = {}
        self.expected_events: Counter[ExpectedEvent] = Counter()
        self.outputs: dict[ExpectedEvent, Any] = {}
        """The upstream outputs that each JobReady must have."""
        self.counts: dict[RunName, Mapping[str, int]] = {}
        self.on = True
        self.not_ready = 0
        """How many reports, pending ones included, were ignored because their job was not ready."""

    # Commands

    def command(self, kind: str, payload: Mapping[str, Any], position: Position, now: int) -> str:
        """Apply one command and return its outcome. Call `commit` after the last command of a batch."""
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
        graph = (_described(payload["jobs"]), sorted(payload.get("groups", ())))
        if run.graph is not None:
            return "unchanged" if run.graph == graph else "exists"
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
        self._evaluate(run, now)
        self._apply_pending(run, now)
        return "started"

    def _resolve(self, run: RunModel, payload: Mapping[str, Any], position: Position, now: int) -> str:
        if run.graph is None:
            return self._keep(run, "ResolveGroup", payload, position)
        group, jobs = payload["groupName"], payload["jobs"]
        if group not in run.groups:
            return "unknown_group" if run.is_open else "already_ended"
        if group in run.resolved_by:
            return "unchanged" if run.resolved_by[group] == _described(jobs) else "exists"
        if not run.is_open:
            return "already_ended"
        run.resolved_by[group] = _described(jobs)
        if flaw := run.flaw_of(jobs):
            return self._reject(run, flaw)
        before = dict(run.jobs)
        run.groups[group] = [job["name"] for job in jobs]
        run.add(jobs, group)
        if run.has_cycle():
            run.jobs, run.groups[group] = before, []
            return self._reject(run, "CYCLE")
        self._evaluate(run, now)
        self._apply_pending(run, now)
        return "resolved"

    def _report(self, run: RunModel, payload: Mapping[str, Any], position: Position, now: int) -> str:
        if run.graph is None:
            return self._keep(run, "ReportJobStatus", payload, position)
        may_become_known = run.is_open and run.open_groups > 0
        job, status = run.jobs.get(payload["jobName"]), payload["status"]
        dropped = payload.get("droppedJobs") or []
        if job is None:
            outcome = self._keep(run, "ReportJobStatus", payload, position) if may_become_known else "unknown_job"
        else:
            outcome = _report_outcome(job, status)
            self.not_ready += outcome == "ignored_not_ready"
            if outcome == "recorded":
                _record(job, payload, now)
            if may_become_known and (unknown := [name for name in dropped if name not in run.jobs]):
                only = {"jobName": unknown[0], "status": "drift_dropped", "droppedJobs": unknown[1:]}
                self._keep(run, "ReportJobStatus", {"tenantId": "", "runId": "", **only}, position)
        for name in dropped:
            if name in run.jobs and not run.jobs[name].ended:
                run.jobs[name].status, run.jobs[name].stale_at = "drift_dropped", None
        self._evaluate(run, now)
        return outcome

    def _cancel(self, run: RunModel, _payload: Mapping[str, Any], _position: Position, _now: int) -> str:
        if run.graph is None:
            run.pending = {}
            return "not_found"
        if not run.is_open:
            return "unchanged" if run.status == "cancelled" else "already_ended"
        run.end_all()
        run.status = "cancelled"
        return "cancelled"

    def _keep(self, run: RunModel, kind: str, payload: Mapping[str, Any], position: Position) -> str:
        run.pending[position] = {"kind": kind, "payload": payload}
        return "kept"

    def _apply_pending(self, run: RunModel, now: int) -> None:
        pending, run.pending = run.pending, {}
        for position in sorted(pending):
            self._apply(run, pending[position]["kind"], pending[position]["payload"], position, now)

    def _reject(self, run: RunModel, flaw: str) -> str:
        run.end_all()
        run.status, run.flaw = "rejected", flaw
        return "run_rejected"

    def _evaluate(self, run: RunModel, now: int) -> None:
        if self.on and run.evaluated:
            run.evaluate(now)
        else:
            run.evaluated = False

    # Events and the sweep

    def commit(self) -> None:
        """End a transaction: complete runs without open jobs and groups, and collect the events."""
        for run in self.runs.values():
            self._collect_events(run)

    def _collect_events(self, run: RunModel) -> None:
        for name, job in run.jobs.items():
            if name in run.noted:
                continue
            if job.ready and not job.ended:
                self._note(run, "JobReady", name)
                self.outputs[ExpectedEvent("JobReady", run.name, name)] = run.outputs_for(name)
            elif job.is_skipped:
                self._note(run, "JobSkipped", name)
            if job.ready or job.ended:
                run.noted.add(name)
        if run.status == "running" and run.evaluated and not run.is_open:
            run.status = run.completed_as()
        if run.status == "rejected" and "" not in run.noted:
            self._note(run, "RunRejected", run.flaw or "")
            run.noted.add("")
        if run.graph is not None and run.status in {"success", "failed", "cancelled"} and "" not in run.noted:
            self._note(run, "RunCompleted", run.status)
            run.noted.add("")
            self.counts[run.name] = Counter(job.status for job in run.jobs.values())

    def _note(self, run: RunModel, kind: str, detail: str) -> None:
        self.expected_events[ExpectedEvent(kind, run.name, detail)] += 1

    def overdue(self, now: int) -> list[tuple[RunModel, str]]:
        """Return the jobs whose `stale_at` has passed."""
        return [
            (run, name)
            for run in self.runs.values()
            for name, job in run.jobs.items()
            if job.stale_at is not None and job.stale_at <= now
        ]

    def apply_sweep(self, evaluated: Iterable[RunName], stale: Iterable[tuple[RunName, str]], now: int) -> None:
        """Apply a sweep that did the deferred evaluation of some runs and ended some stale jobs."""
        for name in evaluated:
            self.runs[name].evaluated = True
        overdue = {(run.name, name) for run, name in self.overdue(now)}
        for name, job in stale:
            assert (name, job) in overdue, f"{job} of {name} ended as stale too early"
            self.runs[name].jobs[job].status, self.runs[name].jobs[job].stale_at = "timed_out_stale", None
        for run in self.runs.values():
            if run.evaluated and run.status == "running":
                run.evaluate(now)
        self.commit()


def _report_outcome(job: JobModel, status: str) -> str:
    if job.ended:
        return "unchanged" if job.status == status else "already_ended"
    if job.is_waiting and status in NOT_READY:
        return "ignored_not_ready"
    return "recorded"


def _record(job: JobModel, payload: Mapping[str, Any], now: int) -> None:
    job.status = payload["status"]
    if payload.get("outputs") is not None:
        job.outputs = payload["outputs"]
    if job.ended:
        job.stale_at = None
    elif job.stale_ms is not None:
        job.stale_at = now + job.stale_ms


def _described(jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a value that is equal for the same jobs and needs in any order."""
    return sorted(
        (job["name"], sorted(map(_need, job.get("needs", ()))), job.get("staleAfterSeconds") or 0) for job in jobs
    )
