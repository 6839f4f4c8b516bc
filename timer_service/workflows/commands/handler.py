"""The handler of workflow commands: it loads, applies and saves in the transaction of the intake."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.events import outbox
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import Command
from timer_service.workflows.commands import rules
from timer_service.workflows.commands.batch import Batch
from timer_service.workflows.commands.rules import Applied, Outcome
from timer_service.workflows.events import events_of
from timer_service.workflows.queries import workflow_view
from timer_service.workflows.store import growth
from timer_service.workflows.workflow import Workflow

LOOP = "workflow-deadlines"
"""The loop of the worker that ends workflows at their deadline."""
_COMMANDS_PER_TURN = 50
"""The number of commands after which other tasks of the event loop get a turn. A command takes about 0.1 ms."""


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas
) -> Sequence[CommandResult | None]:
    """Apply commands in order. A command that would exceed a limit of its tenant has no effect."""
    batch = await Batch.load(tx, commands)
    admission = quotas.admission(tx, now)
    results: list[CommandResult | None] = []
    for number, command in enumerate(commands, 1):
        if number % _COMMANDS_PER_TURN == 0:
            await asyncio.sleep(0)
        key = rules.key_of(command)
        if key in batch.not_read:
            results.append(None)
            continue
        applied = rules.apply(batch.after.get(key), command, batch.facts(key, command), now)
        if admission:
            added = growth(batch.after.get(key), applied.workflow)
            if excess := await admission.exceeds(key.tenant_id, added):
                results.append(CommandResult(Outcome.OVER_QUOTA, view=excess.view))
                continue
        batch.take(key, command, applied, now)
        results.append(_result(applied, now, wants_view=command.reply_to is not None))
    await batch.save(tx, now)
    await outbox.add(tx, events_of(batch.before, batch.after, now), now)
    return results


def _result(applied: Applied, now: int, *, wants_view: bool) -> CommandResult:
    workflow = applied.workflow
    view = partial(_view, workflow) if wants_view and workflow.definition is not None else None
    match applied.outcome:
        case Outcome.CANCELLED:
            return CommandResult(applied.outcome, now, view, loop="outbox")
        case Outcome.SENT:
            return CommandResult(applied.outcome, workflow.available_at, view, lane=workflow.lane)
        case Outcome.STARTED | Outcome.RETRIED:
            deadline_at = None if workflow.definition is None else workflow.definition.deadline_at
            instants = [each for each in (workflow.available_at, deadline_at) if each is not None]
            loop = None if deadline_at is None else LOOP
            return CommandResult(applied.outcome, min(instants), view, loop=loop, lane=workflow.lane)
        case _:
            return CommandResult(applied.outcome, view=view)


def _view(workflow: Workflow) -> Mapping[str, Any]:
    return {"workflow": workflow_view(workflow)}
