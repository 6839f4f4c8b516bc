"""The outcome of each command in each status."""

import random
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from tests.harness.cases import case
from tests.harness.clock import NOW, iso
from timer_service.core.events.cause import Cause
from timer_service.core.service.workflow_start import Concurrency, RetryPolicy, WorkflowSpec, WorkflowStart
from timer_service.core.values.message import Command, Position, Trace
from timer_service.workflows.commands import rules
from timer_service.workflows.commands.rules import Facts, Outcome
from timer_service.workflows.commands.slot_start import decide
from timer_service.workflows.effect import Effect, EffectKey, retry_delay
from timer_service.workflows.keys import UNUSED, KeyUse
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

ENDED = ("completed", "failed", "cancelled")
UNKNOWN, OPEN = ("none", "cancelled before", "mail"), ("waiting", "running", "parked")
OUTCOMES: dict[str, dict[str, str]] = {
    "start": dict.fromkeys(UNKNOWN, "started") | dict.fromkeys((*OPEN, *ENDED), "unchanged"),
    "send": dict.fromkeys(UNKNOWN, "kept") | dict.fromkeys(OPEN, "sent") | dict.fromkeys(ENDED, "already_ended"),
    "cancel": dict.fromkeys(UNKNOWN, "not_found")
    | dict.fromkeys(OPEN, "cancelled")
    | {"completed": "already_ended", "failed": "already_ended", "cancelled": "unchanged"},
    "retry": dict.fromkeys(UNKNOWN, "not_found")
    | dict.fromkeys(OPEN, "unchanged")
    | {"completed": "already_ended", "failed": "retried", "cancelled": "already_ended"},
}


def test_outcome() -> None:
    """Each command on each status has the outcome of the table."""
    for verb, wanted in OUTCOMES.items():
        assert {state: apply(STATES[state], Sent(20, verb))[1] for state in wanted} == wanted, verb


def test_another_start_exists() -> None:
    """A StartWorkflow with another type, queue or input finds that the id exists, whatever its status is."""
    others: list[dict[str, Any]] = [{"type": "other"}, {"queue": "other"}, {"input": 1}]
    for state, fields in product((*OPEN, *ENDED), others):
        with case(state, fields):
            assert apply(STATES[state], Sent(20, "start", fields))[1] == Outcome.EXISTS


def test_busy_key() -> None:
    """A start that is skipped is stored as cancelled. A retry leaves the workflow failed."""
    busy = Facts(KeyUse(started=1))
    skipped, outcome = apply(None, Sent(10, "start", {"concurrency_key": "kim"}), busy)
    assert (outcome, skipped.status, skipped.is_open) == (Outcome.SKIPPED_BUSY, WorkflowStatus.CANCELLED, False)
    assert apply(skipped, Sent(11, "start", {"concurrency_key": "kim"}))[1] == Outcome.UNCHANGED
    failed = apply(None, Sent(10, "start", {"concurrency_key": "kim"}))[0].fail(FailureCode.STEP_FAILED, NOW)
    found, outcome = apply(failed, Sent(20, "retry"), busy)
    assert (outcome, found.status) == (Outcome.SKIPPED_BUSY, WorkflowStatus.FAILED)
    assert apply(found, Sent(21, "retry"))[1] == Outcome.RETRIED


def test_commands_without_effect_change_nothing() -> None:
    """A command on a workflow that was started, and that has no effect, leaves the row as it is."""
    for verb, state in (("start", "failed"), ("cancel", "completed"), ("cancel", "cancelled"), ("retry", "running")):
        assert apply(STATES[state], Sent(20, verb))[0] == STATES[state], (verb, state)


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
    blocked = running()._replace(seen=3, blocks=3).fail(FailureCode.DEADLINE, NOW)
    applied = rules.apply(blocked, Sent(20, "retry").command, Facts(last=last), NOW)
    assert (applied.workflow.seen, applied.effect, applied.workflow.is_blocked) == (3, None, False)


def test_message_continues_an_idle_workflow() -> None:
    """A message that is awaited ends a park and a sleep, but not the delay of a workflow that does not match."""
    asleep = started().wait_until(NOW + 60 * MINUTE, counted_from=NOW)
    for found, minutes in ((started().park(), 20), (asleep, 20), (asleep._replace(blocks=1), 60)):
        assert apply(found, Sent(20, "send"), Facts(is_awaited=True))[0].due_at == NOW + minutes * MINUTE
        assert apply(found, Sent(20, "send"))[0].due_at == found.due_at


def test_delays_of_a_step() -> None:
    """The longest delay grows with each failure, from `first` up to `cap`."""
    policy = RetryPolicy(max_attempts=9, first=1000, factor=3, cap=20_000)
    rng = Mock(spec=random.Random, **{"random.return_value": 1.0})
    delays = [retry_delay(policy, failures, rng) for failures in (1, 2, 3, 4, 1000)]
    assert delays == [1000, 3000, 9000, 20_000, 20_000]


def start_of(slot: int, **fields: Any) -> WorkflowStart:
    """Return the start by a slot of a schedule whose command has this place in the log."""
    spec = WorkflowSpec("order", "default", concurrency=Concurrency("kim"))
    return WorkflowStart(*KEY, spec, None, Position(1, slot), Cause(), 0, retries_skipped=True)._replace(**fields)


def test_start_of_a_skipped_workflow() -> None:
    """A slot starts a skipped workflow, unless a newer cancel or retention ends that. It is created at its slot."""
    skipped = apply(None, Sent(10, "start", {"concurrency_key": "kim"}), Facts(KeyUse(started=1)))[0]
    cancelled = apply(skipped, Sent(12, "cancel"))[0]
    cases = ((skipped, 11, "started"), (cancelled, 13, "started"), (cancelled, 11, "cancelled"))
    for found, slot, result in (*cases, (skipped._replace(is_deleting=True), 11, "busy")):
        assert decide(found, start_of(slot), NOW, UNUSED).result == result
    created = [decide(None, start_of(11, created_at=at), NOW, UNUSED).workflow.created_at for at in (5, 0)]
    assert created == [5, NOW]


def test_a_start_that_is_applied_again_creates_the_same_workflow() -> None:
    """After a restore, a start is applied later. `createdAt` stays, and it is not due before its command was stored."""
    applied = rules.apply(None, Sent(10, "start", {"start_at": iso(NOW)}).command, NOTHING, NOW + 60 * MINUTE)
    assert applied.workflow.created_at == started().created_at == applied.workflow.due_at == NOW + 10 * MINUTE
