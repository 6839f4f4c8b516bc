"""Mutants that the history simulation must find. Most of them repeat a defect that the service once had."""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.simulation.draws import Scenario
from tests.simulation.intake_mutants import (
    INTAKE_MUTANTS,
    Mutate,
    commands_behind_a_left_one_applied_directly,
    given_up_after_one_death,
)
from tests.simulation.scenarios import (
    many_signals_in_batches,
    odd_orders_with_repeats,
    one_reader_that_crashes,
    one_reader_with_faults,
    parked_events_in_batches,
    runs_in_batches,
    runs_in_guaranteed_order,
    runs_one_by_one,
    runs_read_late,
    signals_created_again,
    signals_in_batches,
    signals_one_by_one,
    two_readers_with_faults,
)
from tests.simulation.schedule_mutants import SCHEDULE_MUTANTS
from tests.simulation.service import running_service
from tests.simulation.workflow_mutants import WORKFLOW_MUTANTS
from timer_service.core.intake.backlog import Backlog
from timer_service.events import batch as event_batch
from timer_service.events import handler as event_handler
from timer_service.events.batch import Resubmission
from timer_service.runs import announcements, rules, sweep
from timer_service.runs import events as run_events
from timer_service.runs import handler as run_handler
from timer_service.runs import store as run_store
from timer_service.runs.announcements import Announcement
from timer_service.runs.draft import Draft
from timer_service.runs.messages import ReportJobStatus, RunStatus
from timer_service.signals import batch, firings

_REPEATED = 100
_FIND = settings(
    max_examples=3000,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def r1_count_of_a_group_not_written(patch: pytest.MonkeyPatch) -> None:
    """A job keeps waiting for a group after the group is resolved."""
    add_jobs = Draft.add_jobs
    patch.setattr(Draft, "add_jobs", lambda *jobs, **how: add_jobs(*jobs, **{**how, "resolved": ()}))


def r2_limit_checked_after_filtering(patch: pytest.MonkeyPatch) -> None:
    """The limit of inline evaluation does not count signals that this batch deactivated."""

    def waiting_for(self: batch.Batch, item: Any) -> list[Any] | None:
        known = {each.key: each.signal for each in self.loaded.waiting.get(item, ())} | self.signals
        waiting = [each for each in known.values() if each is not None and each.is_active and each.item == item]
        return waiting if len(waiting) <= batch.MAX_INLINE_SIGNALS else None

    patch.setattr(batch.Batch, "waiting_for", waiting_for)


def r3_stale_before_the_backlog(patch: pytest.MonkeyPatch) -> None:
    """Jobs are timed out while their reports were not read."""

    async def is_read(_self: Backlog) -> bool:
        return True

    patch.setattr(Backlog, "is_read", is_read)


def stale_before_waiting_reports(patch: pytest.MonkeyPatch) -> None:
    """Jobs are timed out while their reports wait in the database."""

    async def find_none(_reader: Any, _tenants: Any) -> set[str]:
        return set()

    patch.setattr(sweep, "find_tenants", find_none)


def r8_unknown_dropped_jobs_not_kept(patch: pytest.MonkeyPatch) -> None:
    """Unknown jobs in `droppedJobs` are not kept if the report's own job is known."""
    keep = Draft.keep_pending

    def keep_of_unknown(self: Draft, command: Any) -> bool:
        report = command.payload
        return (isinstance(report, ReportJobStatus) and report.job_name in self.jobs) or keep(self, command)

    patch.setattr(Draft, "keep_pending", keep_of_unknown)


def r10_firing_id_without_creation_of_signal(patch: pytest.MonkeyPatch) -> None:
    """A signal that is created again gets the firing ids of the earlier signal."""
    named = property(lambda self: "-".join((*self.signal, self.dedupe_key.partition("/")[0])))
    patch.setattr(firings.Firing, "firing_id", named)


def r13_ready_after_end(patch: pytest.MonkeyPatch) -> None:
    """JobReady is published for jobs that ended in the same batch."""
    find = announcements.find

    def find_ended_too(before: Any, after: Any) -> list[Announcement]:
        jobs = [
            (state.run, job, before[key].jobs.get(job.name))
            for key, state in after.items()
            for job in state.jobs.values()
        ]
        ended = [(run, job) for run, job, old in jobs if job.ended and job.ready_at and not (old and old.ready_at)]
        return [*(Announcement(*each) for each in ended), *find(before, after)]

    patch.setattr(announcements, "find", find_ended_too)
    patch.setattr(Announcement, "is_ready", property(lambda each: each.job.ready_at is not None))


def pending_commands_unsorted(patch: pytest.MonkeyPatch) -> None:
    """Pending commands are applied newest first."""
    take = Draft.take_pending
    patch.setattr(Draft, "take_pending", lambda draft: take(draft)[::-1])


def cancelled_upstream_does_not_skip(patch: pytest.MonkeyPatch) -> None:
    """Only `failed` skips dependent jobs; other failures do not."""
    patch.setattr(rules, "causes_skip", lambda if_failed, upstream: upstream.status == "failed" and if_failed == "skip")


def events_of_all_attempts_have_one_id(patch: pytest.MonkeyPatch) -> None:
    """The events of a later attempt have the ids of the first one, so the broker drops them."""
    write = run_events.run_event

    def write_as_first(kind: str, run: Any, *arguments: Any, **how: Any) -> Any:
        first = write(kind, run._replace(attempt=1), *arguments, **{**how, "attempt": 1})
        return write(kind, run, *arguments, **how)._replace(id=first.id)

    patch.setattr(run_events, "run_event", write_as_first)


def end_lost_by_a_retry(patch: pytest.MonkeyPatch) -> None:
    """A run that ends and runs again in one transaction has no RunCompleted of the end."""
    patch.setattr(run_handler, "count_before_retry", len)


def skipped_jobs_not_retried(patch: pytest.MonkeyPatch) -> None:
    """A RetryRun runs only the failed jobs again."""
    begin = rules.begin_again
    patch.setattr(rules, "begin_again", lambda job, attempt: job if job.is_skipped else begin(job, attempt))


def outputs_of_an_earlier_attempt(patch: pytest.MonkeyPatch) -> None:
    """A job that runs again keeps its outputs."""
    save = run_store.save

    async def save_in_one_attempt(tx: Any, before: Any, after: Any) -> None:
        same = {
            key: state._replace(
                jobs={name: job._replace(attempt=after[key].jobs[name].attempt) for name, job in state.jobs.items()}
            )
            for key, state in before.items()
        }
        await save(tx, same, after)

    patch.setattr(run_store, "save", save_in_one_attempt)


def late_reports_change_a_later_attempt(patch: pytest.MonkeyPatch) -> None:
    """A report of an earlier attempt is recorded for the job that runs again."""
    patch.setattr(ReportJobStatus, "attempt", property(lambda _: None), raising=False)


def always_jobs_cancelled(patch: pytest.MonkeyPatch) -> None:
    """A CancelRun ends `always` jobs, too."""
    cancel = Draft.cancel

    def cancel_all(draft: Draft, caused_by: str) -> None:
        draft.jobs = {name: job._replace(always=False) for name, job in draft.jobs.items()}
        cancel(draft, caused_by)

    patch.setattr(Draft, "cancel", cancel_all)


def always_jobs_wait_for_groups(patch: pytest.MonkeyPatch) -> None:
    """After a CancelRun, an `always` job still waits for the groups that are not resolved."""
    patch.setattr(Draft, "repair", _repair_as_if_running(Draft.repair))


def _repair_as_if_running(repair: Any) -> Any:
    def repair_as_if_running(draft: Draft, caused_by: str | None = None) -> Any:
        status = draft.run.status
        draft.run = draft.run._replace(status=RunStatus.RUNNING)
        released = repair(draft, caused_by)
        draft.run = draft.run._replace(
            status=status, open_groups=0 if status == "cancelling" else draft.run.open_groups
        )
        return released

    return repair_as_if_running


def resubmitted_event_not_sent(patch: pytest.MonkeyPatch) -> None:
    """A resubmit deletes the parked event and publishes nothing."""

    async def send_nothing(_tx: Any, _batch: Any) -> list[Any]:
        return []

    patch.setattr(event_handler, "_messages", send_nothing)


def resubmitted_under_the_same_id(patch: pytest.MonkeyPatch) -> None:
    """Each resubmit of an event has the same message id, so the broker drops the second one."""
    patch.setattr(event_batch, "Resubmission", lambda _, key, body: Resubmission("-".join(key), key, body))


# The defects R5 (bytes of names in JobReady), R6 (many ResolveGroup in one batch), R7 (bytes of pending commands) and
# R12 (needs of unresolved groups count) have no mutant here. They need large sizes, and histories are small.
_FAULTS = [one_reader_with_faults, two_readers_with_faults]
_RUNS = [runs_one_by_one, runs_in_batches, odd_orders_with_repeats, runs_in_guaranteed_order, *_FAULTS]
_SIGNALS = [signals_one_by_one, signals_in_batches, many_signals_in_batches, odd_orders_with_repeats]
MUTANTS: Mapping[Mutate, Sequence[Scenario]] = {
    r1_count_of_a_group_not_written: _RUNS,
    r2_limit_checked_after_filtering: _SIGNALS,
    r3_stale_before_the_backlog: [runs_read_late],
    stale_before_waiting_reports: [runs_read_late],
    r8_unknown_dropped_jobs_not_kept: _RUNS,
    r10_firing_id_without_creation_of_signal: [signals_created_again],
    r13_ready_after_end: _RUNS,
    pending_commands_unsorted: [odd_orders_with_repeats, runs_in_guaranteed_order],
    cancelled_upstream_does_not_skip: _RUNS,
    events_of_all_attempts_have_one_id: [runs_one_by_one, runs_in_batches],
    end_lost_by_a_retry: [runs_in_batches],
    skipped_jobs_not_retried: [runs_one_by_one, runs_in_batches],
    outputs_of_an_earlier_attempt: [runs_one_by_one, runs_in_batches],
    late_reports_change_a_later_attempt: [runs_one_by_one, runs_in_batches],
    always_jobs_cancelled: [runs_one_by_one, runs_in_batches],
    always_jobs_wait_for_groups: [runs_one_by_one, runs_in_batches],
    resubmitted_event_not_sent: [parked_events_in_batches, *_FAULTS],
    resubmitted_under_the_same_id: [parked_events_in_batches],
    **dict.fromkeys(INTAKE_MUTANTS, _FAULTS),
    commands_behind_a_left_one_applied_directly: [one_reader_with_faults],
    given_up_after_one_death: [one_reader_that_crashes],
    **SCHEDULE_MUTANTS,
    **WORKFLOW_MUTANTS,
}


@pytest.mark.full
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_mutant_is_found(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history simulation finds the mutant, and finds nothing in the same histories without it."""
    mutate(monkeypatch)
    started, played = time.monotonic(), 0

    def play(data: st.DataObject) -> None:
        nonlocal played
        played += 1
        data.draw(st.sampled_from(MUTANTS[mutate]))(service, data.draw)

    with running_service() as service, pytest.raises((AssertionError, sqlite3.IntegrityError)) as caught:
        seed(1)(_FIND(given(st.data())(play)))()
    found_in = played
    monkeypatch.undo()
    with running_service() as service:  # without the mutant, the same histories pass
        seed(1)(settings(_FIND, max_examples=min(played, _REPEATED))(given(st.data())(play)))()
    print(f"{mutate.__name__}: history {found_in}, {time.monotonic() - started:.1f} s: {str(caught.value)[:200]}")
