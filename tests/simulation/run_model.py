"""A simple model of runs. It has no counters: it evaluates every job again until nothing changes.

The model takes commands in the order of the log. docs/runs.md describes the result:

- A ResolveGroup or a report can come before its StartRun or before the ResolveGroup that names its job. It is stored.
  The stored commands are applied in their order when the missing command comes.
- A CancelRun of a run that is not started removes what was stored before.
- A report of `dispatched`, `running` or `success` is `ignored_not_ready` if its job is not ready. An executor reports
  only jobs that are ready, so it never causes this outcome.
- If a job has two ends, or an end and a skip, the first one wins.
- A report that names another attempt than that of the run is `already_ended`.
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
_OPEN = {"running", "cancelling"}
"""The statuses of runs that have not ended."""
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
    attempt: int = 1


@dataclass(slots=True)
class JobModel:
    """One job."""

    needs: Sequence[Need]
    group: str | None
    stale_ms: int | None
    always: bool = False
    attempt: int = 1
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
    attempt: int = 1
    noted: set[tuple[int, str]] = field(default_factory=set)
    """The attempts and jobs that are ready or ended in `expected_events`. The empty string stands for the run."""

    @property
    def is_open(self) -> bool:
        return self.status in _OPEN and (self.open_jobs > 0 or self.open_groups > 0)

    @property
    def takes_jobs(self) -> bool:
        return self.status == "running" and self.is_open

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
                    found[name, upstream] = found.get((name, upstream), False) or (need.skip and not job.always)
        return found

    def unresolved(self, job: JobModel) -> set[str]:
        """Return the open groups that a job needs."""
        if self.status != "running":
            return set()
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
            stale_ms = None if stale is None else stale * 1000
            self.jobs[job["name"]] = JobModel(needs, group, stale_ms, job.get("always", False), self.attempt)

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
        """Cancel all jobs that have not ended, except `always` jobs."""
        for job in self.jobs.values():
            if not job.ended and not job.always:
                job.status, job.stale_at = "cancelled", None

    def jobs_to_retry(self) -> set[str]:
        """Return the jobs that a RetryRun runs again, if the run has ended."""
        again = {name for name, job in self.jobs.items() if job.status in {"failed", "cancelled", "timed_out_stale"}}
        again |= {
            name
            for name, job in self.jobs.items()
            if job.always and any(need.group and self.groups.get(need.name) is None for need in job.needs)
        }
        edges = self.edges()
        while (
            more := {
                name
                for (name, upstream), skip in edges.items()
                if upstream in again and (self.jobs[name].always or (skip and self.jobs[name].is_skipped))
            }
            - again
        ):
            again |= more
        return again

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
        self.counts: dict[ExpectedEvent, Mapping[str, int]] = {}
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
            "RetryRun": self._retry,
        }
        return handlers[kind](run, payload, position, now)

    def _start(self, run: RunModel, payload: Mapping[str, Any], position: Position, now: int) -> str:
        graph = (_described(payload["jobs"]), sorted(payload.get("groups", ())))
        if run.graph is not None:
            return "unchanged" if run.graph == graph else "exists"
        run.status, run.position, run.graph, run.evaluated = "running", position, graph, True
        groups = dict.fromkeys(payload.get("groups", ()))
        if flaw := RunModel(run.name, groups=dict(groups)).flaw_of(payload["jobs"]):
            return self._reject(run, flaw, now)
        trial = RunModel(run.name, groups=dict(groups))
        trial.add(payload["jobs"], None)
        if trial.has_cycle():
            return self._reject(run, "CYCLE", now)
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
            return "unknown_group" if run.takes_jobs else "already_ended"
        if group in run.resolved_by:
            return "unchanged" if run.resolved_by[group] == _described(jobs) else "exists"
        if not run.takes_jobs:
            return "already_ended"
        run.resolved_by[group] = _described(jobs)
        if flaw := run.flaw_of(jobs):
            return self._reject(run, flaw, now)
        before = dict(run.jobs)
        run.groups[group] = [job["name"] for job in jobs]
        run.add(jobs, group)
        if run.has_cycle():
            run.jobs, run.groups[group] = before, []
            return self._reject(run, "CYCLE", now)
        self._evaluate(run, now)
        self._apply_pending(run, now)
        return "resolved"

    def _report(self, run: RunModel, payload: Mapping[str, Any], position: Position, now: int) -> str:
        if run.graph is None:
            return self._keep(run, "ReportJobStatus", payload, position)
        if payload.get("attempt") not in (None, run.attempt):
            return "already_ended"
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

    def _cancel(self, run: RunModel, _payload: Mapping[str, Any], _position: Position, now: int) -> str:
        if run.graph is None:
            run.pending = {}
            return "not_found"
        if not run.takes_jobs:
            is_cancelled = run.status in {"cancelling", "cancelled"} and run.flaw is None
            return "unchanged" if is_cancelled else "already_ended"
        self._stop(run, now)
        return "cancelled"

    def _stop(self, run: RunModel, now: int) -> None:
        """Cancel all jobs but the `always` jobs, which now wait for no group."""
        run.end_all()
        run.status, run.pending = "cancelling", {}
        if run.open_jobs:
            run.evaluated = True
            self._evaluate(run, now)

    def _retry(self, run: RunModel, _payload: Mapping[str, Any], _position: Position, now: int) -> str:
        if run.graph is None:
            return "not_found"
        if run.status in _OPEN:
            return "unchanged"
        again = run.jobs_to_retry()
        is_open_again = any(members is None for members in run.groups.values())
        if run.status not in {"failed", "cancelled"} or not (again or is_open_again):
            return "already_ended"
        run.attempt += 1
        run.status, run.evaluated = "running", True
        for name in again:
            job = run.jobs[name]
            run.jobs[name] = JobModel(job.needs, job.group, job.stale_ms, job.always, run.attempt)
        self._evaluate(run, now)
        return "retried"

    def _keep(self, run: RunModel, kind: str, payload: Mapping[str, Any], position: Position) -> str:
        run.pending[position] = {"kind": kind, "payload": payload}
        return "kept"

    def _apply_pending(self, run: RunModel, now: int) -> None:
        pending, run.pending = run.pending, {}
        for position in sorted(pending):
            self._apply(run, pending[position]["kind"], pending[position]["payload"], position, now)

    def _reject(self, run: RunModel, flaw: str, now: int) -> str:
        run.flaw = flaw
        self._stop(run, now)
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
            if (job.attempt, name) in run.noted:
                continue
            if job.ready and not job.ended:
                event = self._note(run, "JobReady", name, job.attempt)
                self.outputs[event] = run.outputs_for(name)
            elif job.is_skipped:
                self._note(run, "JobSkipped", name, job.attempt)
            if job.ready or job.ended:
                run.noted.add((job.attempt, name))
        if not run.is_open and run.status == "running" and run.evaluated:
            run.status = run.completed_as()
        elif not run.is_open and run.status == "cancelling":
            run.status = "cancelled" if run.flaw is None else "rejected"
        if run.graph is not None and run.status not in _OPEN:
            self._collect_end(run)

    def _collect_end(self, run: RunModel) -> None:
        if (run.attempt, "") not in run.noted:
            run.noted.add((run.attempt, ""))
            if run.status == "rejected":
                self._note(run, "RunRejected", run.flaw or "", run.attempt)
            else:
                event = self._note(run, "RunCompleted", run.status or "", run.attempt)
                self.counts[event] = Counter(job.status for job in run.jobs.values())

    def _note(self, run: RunModel, kind: str, detail: str, attempt: int) -> ExpectedEvent:
        event = ExpectedEvent(kind, run.name, detail, attempt)
        self.expected_events[event] += 1
        return event

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
            if run.evaluated and run.status in _OPEN:
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
        (
            job["name"],
            sorted(map(_need, job.get("needs", ()))),
            job.get("staleAfterSeconds") or 0,
            job.get("always", False),
        )
        for job in jobs
    )
