"""Applies commands to one run, as pure functions without I/O."""

from collections.abc import Sequence
from itertools import chain

from timer_service.core.events.cause import cause_of
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command
from timer_service.runs import rules
from timer_service.runs.draft import Draft, RunState
from timer_service.runs.graph import Edge, Flaw, build_edges, by_upstream, check_names, find_cycle
from timer_service.runs.messages import CancelRun, JobStatus, NewJob, ReportJobStatus, ResolveGroup, RunStatus, StartRun
from timer_service.runs.rules import Group, Job, Outcome, Run
from timer_service.runs.size import bytes_of_groups, count_jobs

SWEEP_MS = 10 * 60 * 1000
"""The delay from the start of a run to its first sweep."""


def apply(
    before: RunState, commands: Sequence[Command], now: int, *, evaluating: bool
) -> tuple[RunState, list[Outcome]]:
    """Apply commands in order. Return the run after the commands, and the outcome of each command.

    If `evaluating` is false, the evaluation is deferred to the sweep.
    """
    applier = _CommandApplier(Draft(before, now, evaluating=evaluating))
    outcomes = [applier.apply(command) for command in commands]
    return applier.draft.finish(), outcomes


class _CommandApplier:
    """Applies commands to the draft of their run."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def apply(self, command: Command) -> Outcome:
        """Apply one command and return its outcome."""
        match command.payload:
            case StartRun() as payload:
                return self._start(payload, command)
            case ResolveGroup() as payload:
                return self._resolve(payload, command)
            case ReportJobStatus() as payload:
                return self._report(payload, command)
            case CancelRun():
                return self._cancel()
            case payload:
                raise TypeError(f"no command of a run: {type(payload).__name__}")

    def _start(self, payload: StartRun, command: Command) -> Outcome:
        run, digest = self.draft.run, payload.digest
        if run.started:
            return Outcome.UNCHANGED if run.digest == digest else Outcome.EXISTS
        self.draft.run = Run(
            key=run.key,
            status=RunStatus.RUNNING,
            position=command.position,
            created_at=self.draft.now,
            digest=digest,
            open_groups=len(payload.groups),
            row_count=len(payload.groups),
            stored_bytes=bytes_of_groups(run.key.run_id, payload.groups),
            pending_bytes=run.pending_bytes,
            cause=cause_of(command),
            sweep_at=self.draft.now + SWEEP_MS,
        )
        self.draft.groups = {name: Group(name) for name in payload.groups}
        if not self._add_jobs(payload.jobs, None, (), command):
            self.draft.groups = {}
            return Outcome.RUN_REJECTED
        self._apply_pending()
        return Outcome.STARTED

    def _resolve(self, payload: ResolveGroup, command: Command) -> Outcome:
        if not self.draft.run.started:
            return self._keep(command)
        digest = payload.digest
        if (group := self.draft.groups.get(payload.group_name)) is None:
            return Outcome.UNKNOWN_GROUP if self.draft.run.is_open else Outcome.ALREADY_ENDED
        if group.resolved_at is not None:
            return Outcome.UNCHANGED if group.digest == digest else Outcome.EXISTS
        if not self.draft.run.is_open:
            return Outcome.ALREADY_ENDED
        self.draft.groups[group.name] = group._replace(digest=digest, resolved_at=self.draft.now)
        self.draft.run = self.draft.run._replace(open_groups=self.draft.run.open_groups - 1)
        downstream = self.draft.downstream_of_groups.get(group.name, ())
        names = self.draft.members[group.name] = [job.name for job in payload.jobs]
        if not self._add_jobs(payload.jobs, group.name, downstream, command):
            return Outcome.RUN_REJECTED
        for report, jobs in self.draft.take_reports(names):
            self._apply_part(report, jobs)
        if not self.draft.run.open_groups:
            self.draft.take_pending()
        return Outcome.RESOLVED

    def _add_jobs(
        self, jobs: Sequence[NewJob], group: str | None, downstream: Sequence[Edge], command: Command
    ) -> bool:
        """Add the first jobs of a run, or those of a group. If the graph has a flaw, reject the run and return False.

        `downstream` are the edges to the jobs that need the group.
        """
        draft, members = self.draft, self.draft.members
        counted = check_names(jobs, draft.jobs, draft.groups) or count_jobs(
            draft.run, jobs, members, downstream, group, jobs=len(draft.jobs), needs=draft.need_count
        )
        if isinstance(counted, Flaw):
            draft.reject(counted)
            return False
        to_jobs, to_groups = build_edges(jobs, members)
        names = [job.name for job in jobs]
        to_members = (edge._replace(upstream=name) for edge in downstream for name in names)
        added = by_upstream(chain(to_jobs, to_members))
        if (cycle := find_cycle(names, draft.downstream, added)) is not None:
            draft.reject(cycle)
            return False
        draft.run = counted
        draft.add_jobs(jobs, group, added, by_upstream(to_groups), command=command, resolved=downstream)
        return True

    def _report(self, payload: ReportJobStatus, command: Command) -> Outcome:
        if not self.draft.run.started:
            return self._keep(command)
        is_kept = self._may_name_later_jobs(payload)  # for these; it is applied to the known ones now
        if is_kept and not self.draft.keep_pending(command):
            return Outcome.NOT_KEPT
        before = self.draft.jobs.get(payload.job_name)
        if before is not None:
            outcome, job = rules.apply_report(before, payload.status, self.draft.now)
            self._record(outcome, job, payload, command)
            ended = [job.name] if job.ended and not before.ended else []
        else:
            outcome, ended = Outcome.KEPT if is_kept else Outcome.UNKNOWN_JOB, []
        ended += self._drop_jobs(payload.dropped_jobs or (), command)
        if ended:
            self.draft.evaluate(ended)
        return outcome

    def _may_name_later_jobs(self, report: ReportJobStatus) -> bool:
        """Return whether a report names unknown jobs. They can become known only while a group is open."""
        run = self.draft.run
        return run.is_open and run.open_groups > 0 and any(name not in self.draft.jobs for name in report.named_jobs)

    def _apply_part(self, command: Command, jobs: Sequence[str]) -> None:
        """Apply a pending report to some of the jobs that it names."""
        report = command.payload
        assert isinstance(report, ReportJobStatus)  # noqa: S101 - after the start of a run, only reports are pending
        if report.job_name in jobs:
            dropped = frozenset(report.dropped_jobs or ())
            part: dict[str, object] = {"dropped_jobs": [name for name in jobs if name in dropped]}
        else:
            first, *others = jobs
            part = {"job_name": first, "status": JobStatus.DRIFT_DROPPED, "dropped_jobs": others, "outputs": None}
        self._report(report.model_copy(update=part), command)

    def _record(self, outcome: Outcome, job: Job, report: ReportJobStatus, command: Command) -> None:
        """Write a job after a report. A repeated report of an ended job asks for a sweep: something may be stuck."""
        if outcome is Outcome.RECORDED:
            outputs = job.outputs if report.outputs is None else dump_data(report.outputs)
            self.draft.set_job(job._replace(outputs=outputs, changed_by=command.id))
            if report.outputs is not None:
                self.draft.run = self.draft.run._replace(has_outputs=True)

    def _drop_jobs(self, names: Sequence[str], command: Command) -> list[str]:
        """End dropped jobs as `drift_dropped`. Return the names of the jobs that had not ended before."""
        dropped = [
            self.draft.jobs[name]
            for name in dict.fromkeys(names)
            if name in self.draft.jobs and not self.draft.jobs[name].ended
        ]
        for job in dropped:
            self.draft.set_job(rules.end(job, JobStatus.DRIFT_DROPPED, self.draft.now)._replace(changed_by=command.id))
        return [job.name for job in dropped]

    def _cancel(self) -> Outcome:
        run = self.draft.run
        if not run.started:
            self.draft.take_pending()
            return Outcome.NOT_FOUND
        if not run.is_open:
            return Outcome.UNCHANGED if run.status is RunStatus.CANCELLED else Outcome.ALREADY_ENDED
        self.draft.cancel()
        return Outcome.CANCELLED

    def _keep(self, command: Command) -> Outcome:
        return Outcome.KEPT if self.draft.keep_pending(command) else Outcome.NOT_KEPT

    def _apply_pending(self) -> None:
        """Apply the commands that come before the StartRun, in the order of the log. Unknown jobs are kept again."""
        for each in self.draft.take_pending():
            if self.draft.run.is_open:
                self.apply(each.read())
