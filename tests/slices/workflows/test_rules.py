"""The outcome of each command in each status."""

from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.harness.cases import case
from tests.harness.clock import NOW
from timer_service.core.values.message import Command, Position, Trace
from timer_service.workflows.commands import rules
from timer_service.workflows.commands.rules import Facts, Outcome
from timer_service.workflows.effect import Effect, EffectKey
from timer_service.workflows.messages import (
    CancelWorkflow,
    FailureCode,
    RetryWorkflow,
    SendToWorkflow,
    StartWorkflow,
    WorkflowPayload,
    WorkflowStatus,
)
from timer_service.workflows.protocol import EffectKind, EffectStatus
from timer_service.workflows.workflow import Hold, Key, Workflow

KEY = Key("acme", "order-1")
PAYLOADS: dict[str, type[WorkflowPayload]] = {
    "start": StartWorkflow,
    "send": SendToWorkflow,
    "cancel": CancelWorkflow,
    "retry": RetryWorkflow,
}
DEFAULTS: dict[str, dict[str, Any]] = {"start": {"type": "order"}, "send": {"name": "approval"}}
MINUTE = 60_000


class Sent(NamedTuple):
    """A command at a place in the log. It is stored as many minutes after `NOW`."""

    place: int
    verb: str
    fields: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def command(self) -> Command:
        fields = {**KEY._asdict(), **DEFAULTS.get(self.verb, {}), **self.fields}
        payload = PAYLOADS[self.verb].model_validate(fields)
        stored_at = NOW + self.place * MINUTE
        return Command(f"command-{self.place}", payload, Position(1, self.place), None, Trace(), None, stored_at)


NOTHING = Facts()


def apply(found: Workflow | None, sent: Sent, facts: Facts = NOTHING) -> tuple[Workflow, Outcome]:
    applied = rules.apply(found, sent.command, facts, NOW + sent.place * MINUTE)
    return applied.workflow, applied.outcome


def started() -> Workflow:
    return apply(None, Sent(10, "start"))[0]


def running() -> Workflow:
    held = started()._replace(status=WorkflowStatus.RUNNING, hold=Hold("0" * 16, "worker-1", NOW, 30_000), attempt=1)
    return held._replace(available_at=NOW + 30_000)


STATES: dict[str, Workflow | None] = {
    "none": None,
    "cancelled before": apply(None, Sent(1, "cancel"))[0],
    "mail": apply(None, Sent(1, "send"))[0],
    "waiting": started(),
    "running": running(),
    "parked": started().park(),
    "completed": running().end(WorkflowStatus.COMPLETED, NOW),
    "failed": running().fail(FailureCode.WORKFLOW_ERROR, NOW),
    "cancelled": apply(running(), Sent(11, "cancel"))[0],
}

OUTCOMES = {
    "start": {
        "none": "started",
        "cancelled before": "started",
        "mail": "started",
        "waiting": "unchanged",
        "running": "unchanged",
        "parked": "unchanged",
        "completed": "unchanged",
        "failed": "unchanged",
        "cancelled": "unchanged",
    },
    "send": {
        "none": "kept",
        "cancelled before": "kept",
        "mail": "kept",
        "waiting": "sent",
        "running": "sent",
        "parked": "sent",
        "completed": "already_ended",
        "failed": "already_ended",
        "cancelled": "already_ended",
    },
    "cancel": {
        "none": "not_found",
        "cancelled before": "not_found",
        "mail": "not_found",
        "waiting": "cancelled",
        "running": "cancelled",
        "parked": "cancelled",
        "completed": "already_ended",
        "failed": "already_ended",
        "cancelled": "unchanged",
    },
    "retry": {
        "none": "not_found",
        "cancelled before": "not_found",
        "mail": "not_found",
        "waiting": "unchanged",
        "running": "unchanged",
        "parked": "unchanged",
        "completed": "already_ended",
        "failed": "retried",
        "cancelled": "already_ended",
    },
}


def test_outcome() -> None:
    """Each command on each status has the outcome of the table."""
    for verb, wanted in OUTCOMES.items():
        assert {state: apply(STATES[state], Sent(20, verb))[1] for state in wanted} == wanted, verb


def test_another_start_exists() -> None:
    """A StartWorkflow with another type, queue or input finds that the id exists, whatever its status is."""
    others: list[dict[str, Any]] = [{"type": "other"}, {"queue": "other"}, {"input": 1}]
    states = ["waiting", "running", "parked", "completed", "failed", "cancelled"]
    for state, fields in product(states, others):
        with case(state, fields):
            assert apply(STATES[state], Sent(20, "start", fields))[1] == Outcome.EXISTS


def test_busy_key() -> None:
    """A start whose concurrency key is taken is stored as cancelled. A retry leaves the workflow failed."""
    busy = Facts(is_busy=True)
    skipped, outcome = apply(None, Sent(10, "start", {"concurrency_key": "kim"}), busy)
    assert (outcome, skipped.status, skipped.is_open) == (Outcome.SKIPPED_BUSY, WorkflowStatus.CANCELLED, False)
    assert apply(skipped, Sent(11, "start", {"concurrency_key": "kim"}))[1] == Outcome.UNCHANGED
    found, outcome = apply(STATES["failed"], Sent(20, "retry"), busy)
    assert (outcome, found.status) == (Outcome.SKIPPED_BUSY, WorkflowStatus.FAILED)
    assert apply(found, Sent(21, "retry"))[1] == Outcome.RETRIED


def test_commands_without_effect_change_nothing() -> None:
    """A command on a workflow that was started, and that has no effect, leaves the row as it is."""
    for verb, state in (("start", "failed"), ("cancel", "completed"), ("cancel", "cancelled"), ("retry", "running")):
        assert apply(STATES[state], Sent(20, verb))[0] == STATES[state], (verb, state)


def test_what_is_not_started_is_kept_from_its_newest_command_on() -> None:
    """Retention counts from the newest message or cancel, so a message is kept for the whole time."""
    for state in ("cancelled before", "mail"):
        for verb in ("send", "cancel"):
            assert apply(STATES[state], Sent(20, verb))[0].ended_at == NOW + 20 * MINUTE, (state, verb)


def test_known_message() -> None:
    """A message whose id is known changes nothing, also after the end."""
    for state in ("waiting", "completed", "mail"):
        found = STATES[state]
        assert apply(found, Sent(20, "send"), Facts(is_known=True)) == (found, Outcome.UNCHANGED)


@pytest.mark.parametrize(("state", "most"), [("waiting", 1000), ("mail", 100)])
def test_full_mailbox(state: str, most: int) -> None:
    """1,000 messages may wait, and 100 without a workflow. Both may have 4 MiB of data."""
    found = STATES[state]
    assert found is not None
    assert apply(found._replace(messages=most - 1), Sent(20, "send"))[1] in {Outcome.SENT, Outcome.KEPT}
    assert apply(found._replace(messages=most), Sent(20, "send"))[1] == Outcome.MAILBOX_FULL
    data = {"data": "x" * 1022}
    fits = found._replace(message_bytes=4 * 2**20 - 1024)
    assert apply(fits, Sent(20, "send", data))[1] in {Outcome.SENT, Outcome.KEPT}
    assert apply(fits._replace(message_bytes=fits.message_bytes + 1), Sent(20, "send", data))[1] == "mailbox_full"


def test_awaited_message_makes_available() -> None:
    """A message makes a workflow available that waits for it, unless it is available, claimed or blocked."""
    awaited = Facts(is_awaited=True)
    now = NOW + 20 * MINUTE
    parked, later = STATES["parked"], started().wait_until(now + 1, counted_from=None)
    assert parked is not None
    assert apply(parked, Sent(20, "send"), awaited)[0].available_at == now
    assert apply(later, Sent(20, "send"), awaited)[0].available_at == now
    assert apply(later._replace(blocks=1), Sent(20, "send"), awaited)[0].available_at == now + 1
    assert apply(later, Sent(20, "send"))[0].available_at == now + 1
    assert apply(running(), Sent(20, "send"), awaited)[0].status == WorkflowStatus.RUNNING


def test_times_of_a_start() -> None:
    """Durations count from the command time. A start in the past is now."""
    fields = {"start_in": "PT5M", "deadline_in": "PT1H"}
    found, _ = apply(None, Sent(1, "start", fields))
    assert found.definition is not None
    assert (found.available_at, found.definition.deadline_at) == (NOW + 6 * MINUTE, NOW + 61 * MINUTE)
    found, _ = apply(None, Sent(1, "start", {"start_at": "2020-01-01T00:00:00Z"}))
    assert found.available_at == NOW + MINUTE


def test_retry_runs_the_last_failed_step_again() -> None:
    """The last result runs again if it is a failed step. A result of another kind stays."""
    failed = running()._replace(seen=3, effects=3, effect_bytes=50).fail(FailureCode.STEP_FAILED, NOW, step="pay")
    last = Effect(EffectKey("pay", 0), EffectKind.STEP, EffectStatus.FAILED, seq=3, failures=5, size=40, error="{}")
    applied = rules.apply(failed, Sent(20, "retry").command, Facts(last=last), NOW)
    assert (applied.workflow.seen, applied.workflow.effect_bytes) == (2, 10)
    assert applied.effect == Effect(EffectKey("pay", 0), EffectKind.STEP, due_at=NOW)
    for kept in (last._replace(status=EffectStatus.DONE), last._replace(kind=EffectKind.MESSAGE)):
        applied = rules.apply(failed, Sent(20, "retry").command, Facts(last=kept), NOW)
        assert (applied.workflow.seen, applied.effect) == (3, None)


@pytest.mark.parametrize("code", FailureCode)
def test_which_failures_run_the_last_failed_step_again(code: FailureCode) -> None:
    """Only a function that raised an error asked for nothing after its last result, so only then it may run again."""
    failed = running()._replace(seen=1, effects=1).fail(code, NOW)
    last = Effect(EffectKey("pay", 0), EffectKind.STEP, EffectStatus.FAILED, seq=1, failures=5)
    applied = rules.apply(failed, Sent(20, "retry").command, Facts(last=last), NOW)
    assert (applied.effect is not None) == (code in {FailureCode.STEP_FAILED, FailureCode.WORKFLOW_ERROR})


def test_a_start_that_is_applied_again_creates_the_same_workflow() -> None:
    """After a restore, a start is applied later. `createdAt` stays, and so do the keys of the steps."""
    applied = rules.apply(None, Sent(10, "start").command, NOTHING, NOW + 60 * MINUTE)
    assert applied.workflow.created_at == started().created_at == NOW + 10 * MINUTE
