"""The handler of event commands: it loads, applies and saves in the consumer's transaction."""

from collections.abc import Sequence
from enum import StrEnum

from timer_service.core.events import outbox
from timer_service.core.events.outbox import OUTBOX, WAITING, EventKey
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import Command
from timer_service.events.messages import RetryEvent


class Outcome(StrEnum):
    """The outcome of a command on an event."""

    RETRIED = "retried"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"


async def handle(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    quotas: Quotas,  # noqa: ARG001 - the commands add no rows
) -> Sequence[CommandResult]:
    """Apply commands in order, with one write."""
    keys = [_key(command) for command in commands]
    before = await outbox.lock_states(tx, set(keys))
    after = dict(before)
    results: list[CommandResult] = []
    for key in keys:
        outcome = _apply(after.get(key))
        if outcome is Outcome.RETRIED:
            after[key] = WAITING
        results.append(CommandResult(outcome, now if outcome is Outcome.RETRIED else None))
    await outbox.requeue(tx, [key for key, state in after.items() if state != before[key]], now)
    return results


def _apply(state: str | None) -> Outcome:
    """Return the outcome for an event in a state; None if it does not exist."""
    if state is None:
        return Outcome.NOT_FOUND
    return Outcome.RETRIED if state == OUTBOX.buried else Outcome.UNCHANGED


def _key(command: Command) -> EventKey:
    payload = command.payload
    assert isinstance(payload, RetryEvent)  # noqa: S101 - the route admits no other payload
    return EventKey(payload.tenant_id, payload.event_id)
