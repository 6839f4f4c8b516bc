"""Generated histories would notice: each of these is a plausible slip, most of them such as there was once."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.simulation.faults import FaultyBroker
from tests.simulation.service import running_service
from tests.simulation.ways import (
    Way,
    any_order,
    anything,
    plain_runs,
    plain_signals,
    promised_order_of_runs,
    promised_order_of_signals,
    split_crowd,
    split_runs,
    split_signals,
)
from timer_service.core.message import Position
from timer_service.runs import events, rules, run
from timer_service.runs.draft import Draft
from timer_service.signals import batch, firing_worker, firings, signal
from timer_service.signals.messages import Outcome

Mutate = Callable[[pytest.MonkeyPatch], None]

_NEWEST = Position(2**40, 0)
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
    """A job that waited for a group goes on to wait for it once it is resolved."""
    count = Draft._change_counts

    def count_no_less(self: Draft, needs: Counter[str], groups: Counter[str], command: Any) -> None:
        count(self, needs, +groups, command)

    patch.setattr(Draft, "_change_counts", count_no_less)


def r2_too_many_judged_after_filtering(patch: pytest.MonkeyPatch) -> None:
    """Of many signals those that this batch has changed are left out before they are counted."""

    def waiting_for(self: batch.Batch, item: Any) -> list[Any] | None:
        mine = [self.signals[key] for key in self.signals_of.get(item, ())]
        waiting = [each for each in self.loaded.waiting.get(item, ()) if each.key not in self.signals]
        waiting += [each for each in mine if each.state.is_active and each.item == item]
        return waiting if len(waiting) <= batch.MAX_INLINE_SIGNALS else None

    patch.setattr(batch.Batch, "waiting_for", waiting_for)


def r3_stale_before_the_backlog(patch: pytest.MonkeyPatch) -> None:
    """Jobs are timed out while reports of them wait."""

    async def caught_up(_self: FaultyBroker, *, restart: bool = False) -> bool:
        return True

    patch.setattr(FaultyBroker, "caught_up", caught_up)


def r4_late_commands_ignored(patch: pytest.MonkeyPatch) -> None:
    """A refused command is newer than one that was not handled yet, and undoes it."""
    apply = signal.apply_command

    def apply_newest(signal: Any, command: Any, now: int) -> Any:
        if signal is not None and signal.history.steps and command.step.position < signal.history.steps[-1].position:
            return signal, Outcome.IGNORED_STALE
        return apply(signal, command, now)

    patch.setattr(batch, "apply_command", apply_newest)


def r8_unknown_dropped_jobs_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Names of dropped jobs count only where the jobs are known."""
    still_early = run._CommandApplier._part_to_keep

    def still_early_itself(self: Any, report: Any, command: Any) -> Any:
        return None if report.job_name in self.draft.jobs else still_early(self, report, command)

    patch.setattr(run._CommandApplier, "_part_to_keep", still_early_itself)


def r9_tombstone_keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    """Commands on a run that was cancelled before it was started are refused."""
    patch.setattr(run._CommandApplier, "_is_early", lambda self, _: self.draft.run.status is None)


def r10_firing_named_without_its_signal_s_creation(patch: pytest.MonkeyPatch) -> None:
    """A signal that is created again has the firings of the one before it."""
    named = property(lambda self: "-".join((*self.signal, self.dedupe_key.partition("/")[0])))
    patch.setattr(firings.Firing, "firing_id", named)


def r11_fired_by_what_came_before(patch: pytest.MonkeyPatch) -> None:
    """A firing does not look whether its signal was activated after its cause."""
    refusal = firings.refusal
    patch.setattr(firing_worker, "refusal", lambda signal, defined, _cause: refusal(signal, defined, _NEWEST))


def r13_ready_though_ended(patch: pytest.MonkeyPatch) -> None:
    """JobReady is published of jobs that have ended in the same batch."""

    def ready_jobs(before: Any, after: Any) -> Any:
        old = before.jobs
        return [job for name, job in after.jobs.items() if job.ready_at and not (name in old and old[name].ready_at)]

    patch.setattr(events, "_ready_jobs", ready_jobs)


def pending_commands_unsorted(patch: pytest.MonkeyPatch) -> None:
    """Commands that were kept are applied in the order in which they were delivered."""

    def apply_pending(self: Any, positions: Any) -> None:
        pending = {at: each.command for at, each in self.draft.pending.items() if at in positions}
        self.draft.remove_pending(list(pending))
        for command in pending.values():
            self.apply(command)

    patch.setattr(run._CommandApplier, "_apply_pending", apply_pending)


def tombstone_goes_back(patch: pytest.MonkeyPatch) -> None:
    """A tombstone stands where the last CancelRun delivered stands, and not the newest."""
    cancel = run._CommandApplier._cancel_unstarted

    def cancel_unknown(self: Any, position: Position) -> Any:
        self.draft.run = self.draft.run._replace(since=min(position, self.draft.run.since))
        return cancel(self, position)

    patch.setattr(run._CommandApplier, "_cancel_unstarted", cancel_unknown)


def cancelled_is_as_good_as_success(patch: pytest.MonkeyPatch) -> None:
    """Only `failed` skips what needs it."""
    patch.setattr(rules, "causes_skip", lambda if_failed, upstream: upstream.status == "failed" and if_failed == "skip")


def signals_never_looked_back(patch: pytest.MonkeyPatch) -> None:
    """Transitions of the same batch that are newer than a signal, and yet came before it, do not fire it."""
    patch.setattr(batch, "_reevaluate_newer_transitions", lambda current, _signal, _now: current)


# Not here: R5 (bytes of names in JobReady), R6 (many ResolveGroup in one batch), R7 (bytes of pending commands)
# and R12 (needs of unresolved groups count). They are about sizes, and histories are small.
_RUNS = [plain_runs, split_runs, any_order, promised_order_of_runs, anything]
_SIGNALS = [plain_signals, split_signals, split_crowd, any_order, promised_order_of_signals]
MUTANTS: Mapping[Mutate, Sequence[Way]] = {
    r1_count_of_a_group_not_written: _RUNS,
    r2_too_many_judged_after_filtering: _SIGNALS,
    r3_stale_before_the_backlog: [anything],
    r4_late_commands_ignored: _SIGNALS,
    r8_unknown_dropped_jobs_forgotten: _RUNS,
    r9_tombstone_keeps_nothing: _RUNS,
    r10_firing_named_without_its_signal_s_creation: [plain_signals],
    r11_fired_by_what_came_before: [split_signals],
    r13_ready_though_ended: _RUNS,
    pending_commands_unsorted: [any_order, promised_order_of_runs],
    tombstone_goes_back: [any_order],
    cancelled_is_as_good_as_success: _RUNS,
    signals_never_looked_back: [any_order, promised_order_of_signals],
}


@pytest.mark.full
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_is_found(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service broken in this way is caught."""
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
    with running_service() as service:  # the same histories, unbroken: it was the slip that was found
        seed(1)(settings(_FIND, max_examples=min(played, _REPEATED))(given(st.data())(play)))()
    print(f"{mutate.__name__}: history {found_in}, {time.monotonic() - started:.1f} s: {str(caught.value)[:200]}")
