"""Mutants of workflows and their workers that the simulation of workflows must find."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.draws import Scenario
from tests.simulation.intake_mutants import Mutate, change_statement
from tests.simulation.schedule_mutants import slots_fire_before_the_backlog
from tests.simulation.workflow_scenarios import (
    workflows_one_by_one,
    workflows_that_kill_their_workers,
    workflows_with_busy_keys,
    workflows_with_faults,
    workflows_with_lost_leases,
    workflows_with_lost_requests,
)
from timer_service.user_code import Ended, UserCode
from timer_service.worker import Context
from timer_service.worker import report as worker_report
from timer_service.worker import task as worker_task
from timer_service.worker.replay import Replay
from timer_service.worker.task import RunningTask
from timer_service.workflows import deadline_worker, effect, effect_store, events, key_worker, keys, store, workflow
from timer_service.workflows.commands import handler, rules
from timer_service.workflows.keys import KeyUse
from timer_service.workflows.messages import CancelWorkflow
from timer_service.workflows.protocol import EffectKind, EffectStatus, ReportOutcome
from timer_service.workflows.tasks import build, lanes, report, requests, task_store
from timer_service.workflows.workflow import Workflow

# Leases and claims


def no_fence_on_reports(patch: pytest.MonkeyPatch) -> None:
    """A report or a renewal with an old token counts."""
    patch.setattr(requests, "is_held", lambda found, _token: found is not None and found.hold is not None)


def renewal_adds_to_the_lease(patch: pytest.MonkeyPatch) -> None:
    """A renewal extends the lease instead of starting it again."""
    patch.setattr(
        Workflow, "renew", lambda self, _now: self._replace(available_at=self.available_at + self.hold.lease_ms)
    )


def report_after_the_lease_is_refused(patch: pytest.MonkeyPatch) -> None:
    """A report is lost once the lease has run out, although no other worker has the task."""
    apply = report.apply

    def apply_in_time(task: Any, asked: Any, about: Any) -> Any:
        if task.workflow.available_at <= about.now:
            return report.Decision(task, ReportOutcome.LOST)
        return apply(task, asked, about)

    patch.setattr(report, "apply", apply_in_time)


def token_reused(patch: pytest.MonkeyPatch) -> None:
    """Every claim has the same token."""
    patch.setattr(lanes, "secrets", SimpleNamespace(token_hex=lambda _size: "0123456789abcdef"))


def claimed_early(patch: pytest.MonkeyPatch) -> None:
    """A workflow is claimed a second before it is available."""
    for name in ("claim", "look"):
        change_statement(patch, "workflows/tasks/lanes", name, "available_at <= :now", "available_at <= :now + 1000")


def claims_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """The workflow of a lane that became available last is claimed first."""
    change_statement(patch, "workflows/tasks/lanes", "claim", "ORDER BY available_at", "ORDER BY available_at DESC")


def reports_keep_the_attempt(patch: pytest.MonkeyPatch) -> None:
    """A report does not show that the worker lives: the leases that ran out before still count."""
    apply = report.apply

    def apply_and_keep(task: Any, asked: Any, about: Any) -> Any:
        decision, before = apply(task, asked, about), task.workflow
        if decision.outcome is ReportOutcome.RELEASED:
            return decision
        kept = decision.task.workflow._replace(attempt=before.attempt, renewed=before.renewed)
        return decision._replace(task=decision.task._replace(workflow=kept))

    patch.setattr(report, "apply", apply_and_keep)


def lost_leases_are_failures_of_steps(patch: pytest.MonkeyPatch) -> None:
    """A lease that ran out uses up an attempt of each open step."""

    def settle_and_count(task: Any, about: Any) -> Any:
        settled, more = report.end_waits_over(task, about), task.workflow.attempt > 1
        counted = {
            key: each._replace(failures=each.failures + (more and not each.is_wait))
            for key, each in settled.effects.items()
        }
        return settled._replace(effects=counted)

    patch.setattr(build, "report", SimpleNamespace(end_waits_over=settle_and_count))


def no_delay_after_lost_leases(patch: pytest.MonkeyPatch) -> None:
    """A workflow that kills its workers is sent again at once."""
    for module in (build, workflow):
        patch.setattr(module, "delay_after", lambda _attempt: 0)


def crashes_without_end(patch: pytest.MonkeyPatch) -> None:
    """A workflow that kills its workers never fails."""
    patch.setattr(build, "has_crashed", lambda _workflow, _most: False)


def release_counts_as_attempt(patch: pytest.MonkeyPatch) -> None:
    """A worker that stops in order leaves an attempt behind."""
    wait_until = Workflow.wait_until

    def wait(self: Workflow, at: int, *, counted_from: int | None) -> Workflow:
        held = self if self.hold is None else self._replace(attempt=self.attempt + 1)
        return wait_until(held, at, counted_from=counted_from)

    patch.setattr(Workflow, "wait_until", wait)


# Reports


def report_applied_twice(patch: pytest.MonkeyPatch) -> None:
    """A failed attempt that is reported again counts again."""
    end_attempt = effect.end_attempt

    def end_again(found: Any, step: Any, *rest: Any) -> Any:
        number = 1 if found is None else found.failures + 1
        return end_attempt(found, step.model_copy(update={"attempt": number}) if step.error else step, *rest)

    patch.setattr(report, "end_attempt", end_again)


def late_copies_count(patch: pytest.MonkeyPatch) -> None:
    """A copy of a report that arrives after a later one is applied."""
    patch.setattr(Workflow, "count_report", lambda self, _number: self)


def numbers_of_results_not_stored(patch: pytest.MonkeyPatch) -> None:
    """The order in which the function got its results is forgotten."""
    apply = report.apply
    patch.setattr(report, "apply", lambda task, asked, about: apply(task, asked.model_copy(update={"seen": ()}), about))


def park_forgets_failed_steps(patch: pytest.MonkeyPatch) -> None:
    """A workflow whose failed step may start again later waits for its sleeps and messages only."""
    next_due = effect.next_due
    patch.setattr(report, "next_due", lambda effects: next_due([each for each in effects if each.is_wait]))


def retry_delay_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A failed step may start again at once in the next worker."""
    end_attempt = effect.end_attempt
    patch.setattr(report, "end_attempt", lambda *arguments: end_attempt(*arguments)._replace(due_at=None))


# Sleeps, messages and deadlines


def sleep_ends_on_claim(patch: pytest.MonkeyPatch) -> None:
    """A claim ends the sleeps of the workflow."""

    def settle_and_wake(task: Any, about: Any) -> Any:
        settled = report.end_waits_over(task, about)
        sleeps = [key for key, each in settled.effects.items() if each.kind is EffectKind.SLEEP]
        done = {key: settled.effects[key]._replace(status=EffectStatus.DONE) for key in sleeps}
        return settled._replace(effects={**settled.effects, **done})

    patch.setattr(build, "report", SimpleNamespace(end_waits_over=settle_and_wake))


def sleep_starts_again(patch: pytest.MonkeyPatch) -> None:
    """A sleep that is reported again is counted from the second report."""
    begin_wait = effect.begin_wait
    patch.setattr(report, "begin_wait", lambda _found, wait, now: begin_wait(None, wait, now))


def message_consumed_twice(patch: pytest.MonkeyPatch) -> None:
    """A message that was taken can be taken again."""
    takes, keeps = "data = NULL, taken_at = :now", "size = size + 0 * :now"
    change_statement(patch, "workflows/effect_store", "take_message", takes, keeps)


def newest_message_first(patch: pytest.MonkeyPatch) -> None:
    """A wait takes the message that was sent last."""
    order = "position_epoch, position_sequence"
    newest = "position_epoch DESC, position_sequence DESC"
    change_statement(patch, "workflows/effect_store", "next_messages", f"ORDER BY {order}", f"ORDER BY {newest}")


def message_lost_when_the_waiter_parks(patch: pytest.MonkeyPatch) -> None:
    """A message that came before its wait does not end it."""
    load = task_store.load

    async def load_old(tx: Any, workflows: Any, wanted: Any) -> Any:
        return await load(tx, workflows, {key: each._replace(messages={}) for key, each in wanted.items()})

    patch.setattr(task_store, "load", load_old)


def message_wakes_no_worker(patch: pytest.MonkeyPatch) -> None:
    """A message to a parked workflow is stored, but no worker gets the workflow."""
    apply = rules.apply
    patch.setattr(
        rules, "apply", lambda found, sent, facts, now: apply(found, sent, facts._replace(is_awaited=False), now)
    )


def message_id_not_recognised(patch: pytest.MonkeyPatch) -> None:
    """A second message with a message id is stored too, without the id."""

    async def find_none(_reader: Any, _wanted: Any) -> set[Any]:
        return set()

    patch.setattr(effect_store, "find_message_ids", find_none)
    without_id = "CASE WHEN :message_id = '' THEN '' END,"
    change_statement(patch, "workflows/effect_store", "insert_message", ":message_id,", without_id)


def timeout_before_its_message(patch: pytest.MonkeyPatch) -> None:
    """A wait whose timeout has passed when it is decided times out, although its message was sent in time."""
    end_waits = effect.end_waits

    def end_late(effects: Any, inbox: Any, now: int, **options: Any) -> Any:
        late = {name: tuple(each._replace(sent_at=2**60) for each in inbox[name]) for name in inbox}
        return end_waits(effects, late, now, **options)

    patch.setattr(report, "end_waits", end_late)


def deadline_ignored_while_sleeping(patch: pytest.MonkeyPatch) -> None:
    """A workflow that sleeps does not fail at its deadline."""
    waits = "overdue_at IS NOT NULL AND ended_at IS NULL AND status <> 'waiting'"
    patch.setattr("timer_service.workflows.store.OVERDUE", replace(store.OVERDUE, where=waits))


def timeouts_before_the_backlog(patch: pytest.MonkeyPatch) -> None:
    """After a start or an outage, waits time out before the commands that were stored until then are handled."""
    slots_fire_before_the_backlog(patch)


# Commands and events


def cancel_ignored_while_held(patch: pytest.MonkeyPatch) -> None:
    """A cancel does not end a workflow that a worker executes."""
    apply = rules.apply

    def cancel_idle(found: Any, command: Any, *rest: Any) -> Any:
        applied = apply(found, command, *rest)
        ignored = isinstance(command.payload, CancelWorkflow) and found is not None and found.hold is not None
        return applied._replace(workflow=found) if ignored else applied

    patch.setattr(rules, "apply", cancel_idle)


def retry_keeps_the_failed_step(patch: pytest.MonkeyPatch) -> None:
    """A workflow that is retried gets the failure of its last step again."""
    apply = rules.apply

    def apply_without(found: Any, command: Any, facts: Any, now: int) -> Any:
        return apply(found, command, facts._replace(last=None), now)

    patch.setattr(rules, "apply", apply_without)


def concurrency_key_not_freed(patch: pytest.MonkeyPatch) -> None:
    """A workflow that has ended keeps its concurrency key."""
    change_statement(patch, "workflows/store", "find_use", " AND ended_at IS NULL")


def queue_jumped(patch: pytest.MonkeyPatch) -> None:
    """The workflow that was queued last starts first."""
    change_statement(patch, "workflows/store", "first_queued", "ORDER BY key_place", "ORDER BY key_place DESC")


def end_frees_no_key(patch: pytest.MonkeyPatch) -> None:
    """Nothing looks at the key of a workflow that ends."""
    end = Workflow.end
    patch.setattr(Workflow, "end", lambda *about: end(*about)._replace(key_due_at=None))


def replaces_beside_the_old_one(patch: pytest.MonkeyPatch) -> None:
    """A workflow that replaces another one starts, and the other one goes on."""
    patch.setattr(key_worker, "next_turns", lambda _started, _oldest, *rest: keys.next_turns(0, (), *rest))


def older_replacements_stay(patch: pytest.MonkeyPatch) -> None:
    """Of queued workflows that replace others, each starts."""
    patch.setattr(key_worker, "next_turns", lambda a, b, c, d: keys.next_turns(a, b, c, d[-1:]))


def limit_exceeded(patch: pytest.MonkeyPatch) -> None:
    """A workflow starts although as many with its key are started as its limit says."""
    _change_use(patch, lambda use: use._replace(started=use.started - 1))


def skip_passes_the_queue(patch: pytest.MonkeyPatch) -> None:
    """A workflow that would be skipped starts before those that wait, if there is room."""
    _change_use(patch, lambda use: use._replace(queued=0))


def limit_exceeded_by_a_turn(patch: pytest.MonkeyPatch) -> None:
    """The worker of keys starts one workflow more than the limit says."""
    patch.setattr(key_worker, "next_turns", lambda started, *about: keys.next_turns(started - 1, *about))


def _change_use(patch: pytest.MonkeyPatch, change: Callable[[KeyUse], KeyUse]) -> None:
    """Let starts see another use of their keys."""
    patch.setattr(rules, "turn_of", lambda concurrency, use: keys.turn_of(concurrency, change(use)))


def event_without_outbox_row(patch: pytest.MonkeyPatch) -> None:
    """A workflow that a worker ends has no event."""

    async def add_nothing(*_: Any) -> None:
        pass

    patch.setattr(task_store, "outbox", SimpleNamespace(add=add_nothing))


def event_id_without_retries(patch: pytest.MonkeyPatch) -> None:
    """A workflow that fails again after a retry has an event with the id of the first failure."""

    def events_of(before: Any, after: Any, now: int) -> Any:
        first, second = ({key: each._replace(retries=0) for key, each in some.items()} for some in (before, after))
        return events.events_of(first, second, now)

    for module in (handler, task_store, deadline_worker):
        patch.setattr(module, "events_of", events_of)


# Workers


def results_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """A replay gives the stored results in the order of their keys."""
    begin = Replay.__init__

    def begin_by_key(self: Any, function: Any, identity: Any, data: Any, stored: Any = ()) -> None:
        stored = sorted(stored, key=lambda each: each.key)
        numbers = iter(range(1, len(stored) + 1))
        begin(self, function, identity, data, [each._replace(seq=each.seq and next(numbers)) for each in stored])

    patch.setattr(Replay, "__init__", begin_by_key)


def replay_skips_an_effect(patch: pytest.MonkeyPatch) -> None:
    """A replay does not know the last stored result."""
    begin = Replay.__init__

    def begin_without_last(self: Any, function: Any, identity: Any, data: Any, stored: Any = ()) -> None:
        stored = list(stored)
        last = max((each.seq or 0 for each in stored), default=0)
        begin(self, function, identity, data, [each for each in stored if each.seq is None or each.seq < last])

    patch.setattr(Replay, "__init__", begin_without_last)


def effects_begin_before_results_are_stored(patch: pytest.MonkeyPatch) -> None:
    """A worker starts a step before the results that lead to it are stored."""
    for name in ("advance", "deliver"):
        decide = getattr(Replay, name)

        def decide_at_once(*about: Any, decide: Any = decide) -> Any:
            decision = decide(*about)
            return decision._replace(begin=[each._replace(after=0) for each in decision.begin])

        patch.setattr(Replay, name, decide_at_once)


def step_starts_while_the_task_parks(patch: pytest.MonkeyPatch) -> None:
    """A worker starts a step while a report is under way that may end the task."""
    patch.setattr(
        worker_task,
        "Report",
        lambda text, seq, waits, **_: worker_report.Report(text, seq, waits, may_end_task=False),
    )


def lost_task_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A worker goes on with a task that it has lost."""
    reported = RunningTask.reported

    def reported_as_stored(self: RunningTask, reply: Any, *rest: Any) -> None:
        is_lost = reply["outcome"] == "lost"
        reported(self, {**reply, "outcome": "recorded"} if is_lost else reply, *rest)

    patch.setattr(RunningTask, "reported", reported_as_stored)


def late_results_count(patch: pytest.MonkeyPatch) -> None:
    """An attempt ends when its code ends, although that ignores its timeout."""

    async def wait(_self: Any, name: str, function: Any, *args: Any, seconds: float | None, **_: Any) -> Ended:
        del name
        try:
            async with asyncio.timeout(seconds):
                return Ended(await function(*args))
        except Exception as error:  # noqa: BLE001 - as the code of users
            return Ended(error=error)

    patch.setattr(UserCode, "run", wait)


def log_lines_repeat(patch: pytest.MonkeyPatch) -> None:
    """A replay logs the lines of the function again."""
    patch.setattr(Context, "is_replaying", False)


def log_lines_are_lost(patch: pytest.MonkeyPatch) -> None:
    """A function logs nothing more once it was replayed."""
    advance = Replay.advance

    def advance_and_stay(self: Replay) -> Any:
        decision = advance(self)
        self.is_replaying = bool(decision.begin) or self.seq > 0
        return decision

    patch.setattr(Replay, "advance", advance_and_stay)


_CALM, _LOSSES, _LEASES = workflows_one_by_one, workflows_with_lost_requests, workflows_with_lost_leases
_KEYS, _FAULTS = workflows_with_busy_keys, workflows_with_faults
_ALL = (_CALM, _LOSSES, _LEASES, _FAULTS)
WORKFLOW_MUTANTS: Mapping[Mutate, Sequence[Scenario]] = {
    no_fence_on_reports: [_LEASES],
    renewal_adds_to_the_lease: _ALL,
    report_after_the_lease_is_refused: [_LEASES],
    token_reused: _ALL,
    claimed_early: _ALL,
    claims_out_of_order: [_CALM],
    reports_keep_the_attempt: _ALL,
    lost_leases_are_failures_of_steps: [_LEASES],
    no_delay_after_lost_leases: [_LEASES],
    crashes_without_end: [workflows_that_kill_their_workers],
    release_counts_as_attempt: [_LEASES],
    report_applied_twice: [_LOSSES],
    late_copies_count: [_LOSSES],
    numbers_of_results_not_stored: _ALL,
    park_forgets_failed_steps: _ALL,
    retry_delay_not_stored: _ALL,
    sleep_ends_on_claim: _ALL,
    sleep_starts_again: [_LOSSES],
    message_consumed_twice: _ALL,
    newest_message_first: _ALL,
    message_lost_when_the_waiter_parks: _ALL,
    message_wakes_no_worker: _ALL,
    message_id_not_recognised: _ALL,
    timeout_before_its_message: [_LEASES],
    deadline_ignored_while_sleeping: [_FAULTS],
    cancel_ignored_while_held: [_CALM],
    retry_keeps_the_failed_step: _ALL,
    concurrency_key_not_freed: [_KEYS],
    queue_jumped: [_KEYS],
    end_frees_no_key: [_KEYS],
    replaces_beside_the_old_one: [_KEYS],
    older_replacements_stay: [_KEYS],
    limit_exceeded: [_KEYS],
    skip_passes_the_queue: [_KEYS],
    limit_exceeded_by_a_turn: [_KEYS],
    event_without_outbox_row: _ALL,
    event_id_without_retries: _ALL,
    results_in_another_order: _ALL,
    replay_skips_an_effect: _ALL,
    effects_begin_before_results_are_stored: _ALL,
    step_starts_while_the_task_parks: [_LOSSES],
    lost_task_goes_on: [_LEASES],
    late_results_count: _ALL,
    log_lines_repeat: _ALL,
    log_lines_are_lost: _ALL,
    timeouts_before_the_backlog: [_FAULTS],
}
