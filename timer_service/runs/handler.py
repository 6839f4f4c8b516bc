"""Handles commands on runs in the consumer's transaction: load, apply, save, add events."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.core.quotas import Quotas
from timer_service.core.route import CommandResult
from timer_service.runs import events, loader, run, store
from timer_service.runs.draft import RunState
from timer_service.runs.messages import RunPayload
from timer_service.runs.portion import MOST_ROWS, choose_commands, may_make_many_needs
from timer_service.runs.queries import run_view
from timer_service.runs.rules import Outcome, Run, RunKey
from timer_service.runs.usage import admit

_COMMANDS_PER_TURN = 200
"""The number of commands after which other tasks of the event loop get a turn."""


async def handle(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    quotas: Quotas,
    evaluating: bool,
    most_rows: int = MOST_ROWS,
) -> Sequence[CommandResult | None]:
    """Apply a batch of commands. Commands on one run are applied in order.

    A command that would exceed a limit of its tenant has no effect.

    Each table is read and written once. Commands that would make the transaction read and write more than about
    `most_rows` are deferred. If `evaluating` is false, the sweep makes jobs ready and skips jobs later.
    """
    indexes_of_run = defaultdict[RunKey, list[int]](list)
    for index, command in enumerate(commands):
        indexes_of_run[_key(command)].append(index)
    grouped = {key: [commands[index] for index in indexes] for key, indexes in indexes_of_run.items()}
    locked = await loader.lock_runs(tx, grouped.keys())
    resolving = [key for key, run in locked.items() if may_make_many_needs(run, grouped[key], most_rows)]
    group_needs = await loader.count_group_needs(tx, resolving)
    chosen = choose_commands(locked, grouped, most_rows, group_needs)
    admitted, refused = await admit(quotas.admission(tx), locked, chosen, group_needs)
    runs = {key: run for key, run in locked.items() if key in admitted}
    runs |= await loader.insert_runs(tx, admitted.keys() - locked.keys(), now)
    before = await loader.load(tx, runs, admitted, evaluating=evaluating)
    after, outcomes = await _apply(before, admitted, now, evaluating=evaluating)
    await store.save(tx, before, after)
    added = await events.add(tx, before, after, now)
    results: dict[int, CommandResult] = {}
    for key, on_run in chosen.items():
        left = iter(outcomes.get(key, ()))
        for number, index in enumerate(indexes_of_run[key][: len(on_run)]):  # the others are deferred
            if excess := refused.get(key, {}).get(number):
                results[index] = CommandResult(Outcome.OVER_QUOTA, view=excess.view)
            else:
                state = after[key].run
                wake_at = now if added else state.sweep_at
                results[index] = CommandResult(next(left), wake_at, _view(commands[index], state))
    return [results.get(index) for index in range(len(commands))]


async def _apply(
    before: Mapping[RunKey, RunState], commands: Mapping[RunKey, Sequence[Command]], now: int, *, evaluating: bool
) -> tuple[dict[RunKey, RunState], dict[RunKey, list[Outcome]]]:
    """Apply the commands on each run. Return the states and outcomes by run."""
    after = dict(before)
    outcomes = defaultdict[RunKey, list[Outcome]](list)
    applied = 0
    for key, on_run in commands.items():
        for start in range(0, len(on_run), _COMMANDS_PER_TURN):
            part = on_run[start : start + _COMMANDS_PER_TURN]
            after[key], found = run.apply(after[key], part, now, evaluating=evaluating)
            outcomes[key] += found
            applied += len(part)
            if applied >= _COMMANDS_PER_TURN:
                applied = 0
                await asyncio.sleep(0)
    return after, outcomes


def _key(command: Command) -> RunKey:
    payload = command.payload
    assert isinstance(payload, RunPayload)  # noqa: S101 - true of all commands of this slice
    return RunKey(payload.tenant_id, payload.run_id)


def _view(command: Command, after: Run) -> dict[str, object] | None:
    return None if command.reply_to is None or not after.started else {"run": run_view(after)}
