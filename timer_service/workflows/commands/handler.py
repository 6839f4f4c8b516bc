"""The handler of workflow commands: it loads, applies and saves in the transaction of the intake."""

from collections.abc import Sequence

from timer_service.core.events import outbox
from timer_service.core.intake.batch import Change, apply_in_order
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import Command
from timer_service.workflows.commands import rules
from timer_service.workflows.commands.batch import Batch
from timer_service.workflows.commands.rules import Applied, Outcome
from timer_service.workflows.events import events_of
from timer_service.workflows.keys import KEY_LOOP
from timer_service.workflows.queries import workflow_view
from timer_service.workflows.store import growth
from timer_service.workflows.workflow import Workflow

LOOP = "workflow-deadlines"
"""The loop of the worker that ends workflows at their deadline."""


async def handle(tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas) -> Sequence[CommandResult]:
    """Apply the first commands in order. See `Handle`."""
    batch = await Batch.load(tx, commands)

    def decide(number: int) -> Change:
        """Return what a command changes. Nothing is kept yet: the tenant may exceed a limit by it."""
        command = batch.commands[number]
        key = rules.key_of(command)
        before = batch.after.get(key)
        applied = rules.apply(before, command, batch.facts(key, command), now)

        def keep() -> CommandResult:
            batch.take(key, command, applied, now)
            return _result(applied, now, wants_view=command.reply_to is not None)

        return Change(keep, growth(before, applied.workflow))

    results = await apply_in_order(batch.commands, quotas.admission(tx, now), decide)
    await batch.save(tx, now)
    await outbox.add(tx, events_of(batch.before, batch.after, now), now)
    return results


def _result(applied: Applied, now: int, *, wants_view: bool) -> CommandResult:
    """Return the result of a command: its outcome, and when which loop or lane has work because of it."""
    workflow = applied.workflow
    is_shown = wants_view and workflow.definition is not None
    view = (lambda: {"workflow": workflow_view(workflow)}) if is_shown else None
    match applied.outcome:
        case Outcome.CANCELLED:  # one with a key wakes the worker of keys, too
            return CommandResult(applied.outcome, now, view, loop=None if workflow.key_due_at else "outbox")
        case Outcome.QUEUED:
            if workflow.key_due_at is not None:
                return CommandResult(applied.outcome, now, view, loop=KEY_LOOP)
            return CommandResult(applied.outcome, _deadline_of(workflow), view, loop=LOOP)
        case Outcome.SENT:
            return CommandResult(applied.outcome, workflow.available_at, view, lane=workflow.lane)
        case Outcome.STARTED | Outcome.RETRIED:
            deadline_at = _deadline_of(workflow)
            instants = [each for each in (workflow.available_at, deadline_at) if each is not None]
            loop = None if deadline_at is None else LOOP
            return CommandResult(applied.outcome, min(instants), view, loop=loop, lane=workflow.lane)
        case _:
            return CommandResult(applied.outcome, view=view)


def _deadline_of(workflow: Workflow) -> int | None:
    return None if workflow.definition is None else workflow.definition.deadline_at
