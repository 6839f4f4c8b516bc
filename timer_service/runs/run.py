"""Applies commands to one run, as pure functions without I/O."""

from collections.abc import Iterable, Sequence
from itertools import chain

from timer_service.core.events.cause import cause_of
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command
from timer_service.runs import rules
from timer_service.runs.draft import Draft, RunState
from timer_service.runs.graph import Flaw, build_edges, by_upstream, check_names, find_cycle
from timer_service.runs.messages import (
    CancelRun,
    JobStatus,
    NewJob,
    ReportJobStatus,
    ResolveGroup,
    RetryRun,
    RunStatus,
    StartRun,
)
from timer_service.runs.rules import MAX_ATTEMPTS, RETRIABLE, UNFINISHED, Group, Job, Outcome, Run
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
                return self._cancel(command)
            case RetryRun():
                return self._retry(command)
            case payload:
                raise TypeError(f"no command of a run: {type(payload).__name__}")

    def _start(self, payload: StartRun, command: Command) -> Outcome:
        """Start the run, or reject it if its graph has a flaw. A rejected run has neither jobs nor groups."""
        draft, run = self.draft, self.draft.run
        if run.started:
            return Outcome.UNCHANGED if run.digest == payload.digest else Outcome.EXISTS
        draft.run = Run(
            key=run.key,
            status=RunStatus.RUNNING,
            position=command.position,
            created_at=draft.now,
            digest=payload.digest,
            open_groups=len(payload.groups),
            row_count=len(payload.groups),
            stored_bytes=bytes_of_groups(run.key.run_id, payload.groups),
            cause=cause_of(command),
            sweep_at=draft.now + SWEEP_MS,
        )
        draft.groups = {name: Group(name) for name in payload.groups}
        flaw = self._add_jobs(payload.jobs, None, command)
        if flaw is not None:
            draft.groups = {}
            draft.reject(flaw, command.id)
            return Outcome.RUN_REJECTED
        self._apply_pending()
        return Outcome.STARTED

    def _resolve(self, payload: ResolveGroup, command: Command) -> Outcome:
        """Name the jobs of a group. If they make the graph invalid, the run is rejected, and the group is resolved."""
        draft = self.draft
        if not draft.run.started:
            return self._keep(command)
        group = draft.groups.get(payload.group_name)
        if group is None:
            return Outcome.UNKNOWN_GROUP if draft.run.takes_jobs else Outcome.ALREADY_ENDED
        if group.resolved_at is not None:
            return Outcome.UNCHANGED if group.digest == payload.digest else Outcome.EXISTS
        if not draft.run.takes_jobs:
            return Outcome.ALREADY_ENDED
        names = [job.name for job in payload.jobs]
        draft.resolve(group._replace(digest=payload.digest, resolved_at=draft.now), names)
        flaw = self._add_jobs(payload.jobs, group.name, command)
        if flaw is not None:
            draft.reject(flaw, command.id)
            return Outcome.RUN_REJECTED
        for report, jobs in draft.take_reports(names):
            self._apply_part(report, jobs)
        if not draft.run.open_groups:  # no job can become known any more
            draft.take_pending()
        return Outcome.RESOLVED

    def _add_jobs(self, jobs: Sequence[NewJob], group: str | None, command: Command) -> Flaw | None:
        """Add the jobs of a group, or the first jobs of a run if `group` is None.

        If the graph would have a flaw, add nothing and return the flaw.
        """
        draft = self.draft
        flaw = check_names(jobs, draft.jobs, draft.groups)
        if flaw is not None:
            return flaw
        to_this_group = () if group is None else draft.downstream_of_groups.get(group, ())
        counted = count_jobs(
            draft.run, jobs, draft.members, to_this_group, group, jobs=len(draft.jobs), needs=draft.need_count
        )
        if isinstance(counted, Flaw):
            return counted
        to_jobs, to_open_groups = build_edges(jobs, draft.members)
        names = [job.name for job in jobs]
        to_members = (edge._replace(upstream=name) for edge in to_this_group for name in names)
        added = by_upstream(chain(to_jobs, to_members))
        cycle = find_cycle(names, draft.downstream, added)
        if cycle is not None:
            return cycle
        draft.run = counted
        draft.add_jobs(jobs, group, added, by_upstream(to_open_groups), command.id, resolved=to_this_group)
        return None

    def _report(self, payload: ReportJobStatus, command: Command) -> Outcome:
        """Apply a report to the known jobs that it names. If others may become known later, keep it for these.

        The outcome is about the job of the report, also if jobs are dropped.
        """
        draft = self.draft
        if not draft.run.started:
            return self._keep(command)
        if payload.attempt not in (None, draft.run.attempt):  # all jobs of an earlier attempt have ended
            return Outcome.ALREADY_ENDED
        is_kept = self._may_name_later_jobs(payload)
        if is_kept and not draft.keep_pending(command):
            return Outcome.NOT_KEPT
        job = draft.jobs.get(payload.job_name)
        outcome = Outcome.KEPT if is_kept else Outcome.UNKNOWN_JOB
        if job is not None:
            outcome = self._record(job, payload)
        is_end = outcome is Outcome.RECORDED and payload.status not in UNFINISHED
        dropped = self._drop_jobs(payload.dropped_jobs or ())
        ended = [payload.job_name, *dropped] if is_end else dropped
        if ended:
            draft.evaluate(ended, caused_by=command.id)
        return outcome

    def _may_name_later_jobs(self, report: ReportJobStatus) -> bool:
        """Return whether a report names unknown jobs. They can become known only while a group is open."""
        run = self.draft.run
        return run.is_open and run.open_groups > 0 and any(name not in self.draft.jobs for name in report.named_jobs)

    def _apply_part(self, command: Command, jobs: Sequence[str]) -> None:
        """Apply a pending report to `jobs`: those that it names and that have become known now."""
        report = command.payload
        assert isinstance(report, ReportJobStatus)  # noqa: S101 - after the start of a run, only reports are pending
        if report.job_name in jobs:
            dropped = frozenset(report.dropped_jobs or ())
            part = {"dropped_jobs": [name for name in jobs if name in dropped]}
            self._report(report.model_copy(update=part), command)
        else:
            self.draft.evaluate(self._drop_jobs(jobs), caused_by=command.id)

    def _record(self, job: Job, report: ReportJobStatus) -> Outcome:
        """Apply a report to its own job. Outputs of an earlier report stay if this one has none."""
        outcome, after = rules.apply_report(job, report.status, self.draft.now)
        if outcome is Outcome.RECORDED and report.outputs is not None:
            after = after._replace(outputs=dump_data(report.outputs))
            self.draft.run = self.draft.run._replace(has_outputs=True)
        if outcome is Outcome.RECORDED:
            self.draft.set_job(after)
        return outcome

    def _drop_jobs(self, names: Iterable[str]) -> list[str]:
        """End those of the named jobs that are known and have not ended, as `drift_dropped`. Return their names."""
        jobs = self.draft.jobs
        dropped = [name for name in dict.fromkeys(names) if name in jobs and not jobs[name].ended]
        for name in dropped:
            self.draft.set_job(rules.end(jobs[name], JobStatus.DRIFT_DROPPED, self.draft.now))
        return dropped

    def _cancel(self, command: Command) -> Outcome:
        """Cancel the run. If it is not started, only drop the commands that are kept for it."""
        run = self.draft.run
        if not run.started:
            self.draft.take_pending()
            return Outcome.NOT_FOUND
        if not run.takes_jobs:
            is_cancelled = run.status in {RunStatus.CANCELLING, RunStatus.CANCELLED} and run.flaw_code is None
            return Outcome.UNCHANGED if is_cancelled else Outcome.ALREADY_ENDED
        self.draft.cancel(command.id)
        return Outcome.CANCELLED

    def _retry(self, command: Command) -> Outcome:
        """Run the failed jobs of the run again. A run that retention is deleting counts as deleted."""
        draft, run = self.draft, self.draft.run
        if not run.started:
            return Outcome.NOT_FOUND
        if not run.ended:
            return Outcome.UNCHANGED
        if run.status not in RETRIABLE or run.attempt >= MAX_ATTEMPTS:
            return Outcome.ALREADY_ENDED
        if not draft.is_complete:
            return Outcome.NOT_FOUND
        return Outcome.RETRIED if draft.retry(draft.now + SWEEP_MS, command.id) else Outcome.ALREADY_ENDED

    def _keep(self, command: Command) -> Outcome:
        """Keep a command until the run is started."""
        return Outcome.KEPT if self.draft.keep_pending(command) else Outcome.NOT_KEPT

    def _apply_pending(self) -> None:
        """Apply the commands that come before the StartRun, in the order of the log. Unknown jobs are kept again."""
        for each in self.draft.take_pending():
            self.apply(each.read())
