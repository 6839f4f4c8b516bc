"""The outcome of each command in each status, also if commands are delivered again or in another order."""

from itertools import permutations, product
from typing import Any, NamedTuple

import pytest

from tests.harness.cases import case
from tests.harness.clock import NOW
from timer_service.core.values.message import Command, Position, Trace
from timer_service.workflows import rules
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
from timer_service.workflows.rules import Facts, Outcome
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
    """A command at a place in the stream. It is stored as many minutes after `NOW`."""

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
    "tombstone": apply(None, Sent(1, "cancel"))[0],
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
        "tombstone": "started",
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
        "tombstone": "kept",
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
        "tombstone": "not_found",
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
        "tombstone": "not_found",
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


@pytest.mark.parametrize("verb", ["start", "cancel", "retry"])
def test_a_newer_command_decided(verb: str) -> None:
    """A command that is older than the start is stale, and so is a start that is older than a remembered cancel."""
    assert apply(STATES["failed"], Sent(5, verb))[1] == Outcome.IGNORED_STALE
    assert apply(apply(None, Sent(20, "cancel"))[0], Sent(10, "start"))[1] == Outcome.IGNORED_STALE


def test_a_cancel_older_than_a_retry_is_stale() -> None:
    """A cancel that is delivered after a newer retry does not undo it. A newer cancel does."""
    retried, _ = apply(STATES["failed"], Sent(30, "retry"))
    assert apply(retried, Sent(20, "cancel"))[1] == Outcome.IGNORED_STALE
    assert apply(retried, Sent(40, "cancel"))[1] == Outcome.CANCELLED


def test_a_cancel_older_than_a_retry_without_effect_counts() -> None:
    """A retry of an open workflow decides nothing, so an older cancel that is delivered later ends the workflow."""
    found, outcome = apply(STATES["running"], Sent(30, "retry"))
    assert outcome == Outcome.UNCHANGED
    assert apply(found, Sent(20, "cancel"))[1] == Outcome.CANCELLED


def test_a_retry_is_applied_once() -> None:
    """A retry that is delivered again, after the workflow failed again, changes nothing."""
    retried, _ = apply(STATES["failed"], Sent(30, "retry"))
    again = retried.fail(FailureCode.WORKFLOW_ERROR, NOW)
    assert apply(again, Sent(30, "retry")) == (again, Outcome.UNCHANGED)
    assert apply(again, Sent(29, "retry"))[1] == Outcome.IGNORED_STALE
    unchanged, _ = apply(STATES["running"], Sent(30, "retry"))
    assert apply(unchanged.fail(FailureCode.CRASHED, NOW), Sent(30, "retry"))[1] == Outcome.UNCHANGED


def test_a_retry_older_than_a_cancel_is_stale() -> None:
    """A cancel of a failed workflow is remembered against an older retry."""
    found, _ = apply(STATES["failed"], Sent(30, "cancel"))
    assert apply(found, Sent(20, "retry"))[1] == Outcome.IGNORED_STALE


def test_busy_key() -> None:
    """A start whose concurrency key is taken is stored as cancelled. A retry leaves the workflow failed."""
    busy = Facts(is_busy=True)
    skipped, outcome = apply(None, Sent(10, "start", {"concurrency_key": "kim"}), busy)
    assert (outcome, skipped.status, skipped.is_open) == (Outcome.SKIPPED_BUSY, WorkflowStatus.CANCELLED, False)
    assert apply(skipped, Sent(10, "start", {"concurrency_key": "kim"}))[1] == Outcome.UNCHANGED
    found, outcome = apply(STATES["failed"], Sent(20, "retry"), busy)
    assert (outcome, found.status) == (Outcome.SKIPPED_BUSY, WorkflowStatus.FAILED)
    assert apply(found, Sent(20, "retry"))[1] == Outcome.UNCHANGED


def test_known_message() -> None:
    """A message that is stored already changes nothing, also after the end."""
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


def test_any_order_of_start_and_cancel() -> None:
    """The newer of a start and a cancel decides whether the workflow is open, in any order of delivery."""
    for order in permutations([Sent(1, "cancel"), Sent(2, "start"), Sent(3, "send"), Sent(4, "retry")]):
        found: Workflow | None = None
        for sent in order:
            found, _ = apply(found, sent)
        assert found is not None
        assert found.is_open, order
    for order in permutations([Sent(1, "start"), Sent(2, "cancel"), Sent(3, "send")]):
        found = None
        for sent in order:
            found, _ = apply(found, sent)
        assert found is not None
        assert not found.is_open, order


def test_a_start_that_is_handled_again_creates_the_same_workflow() -> None:
    """After a restore, a start is handled later. `createdAt` stays, and so do the keys of the steps."""
    applied = rules.apply(None, Sent(10, "start").command, NOTHING, NOW + 60 * MINUTE)
    assert applied.workflow.created_at == started().created_at == NOW + 10 * MINUTE
