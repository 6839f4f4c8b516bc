"""Commands on runs, in the consumer's transaction: load, apply, save, and the events that follow."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

from timer_service.core.consumer import CommandResult
from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.runs import events, loader, run, store
from timer_service.runs.draft import RunState
from timer_service.runs.messages import RunPayload
from timer_service.runs.queries import run_view
from timer_service.runs.rules import Outcome, Run, RunKey

_AT_ONCE = 200


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, evaluating: bool
) -> Sequence[CommandResult]:
    """Apply commands, those on one run in their order; read and write each table once for all of them.

    With `evaluating`, jobs become ready and are skipped as the jobs they need end. Without, the sweep does that later.
    """
    of_run = defaultdict[RunKey, list[int]](list)
    for index, command in enumerate(commands):
        of_run[_key(command)].append(index)
    grouped = {key: [commands[index] for index in indexes] for key, indexes in of_run.items()}
    before = await loader.load(tx, grouped, now, evaluating=evaluating)
    after, outcomes = await _apply(before, grouped, now, evaluating=evaluating)
    await store.save(tx, before, after)
    added = await events.add(tx, before, after, now)
    results: dict[int, CommandResult] = {}
    for key, indexes in of_run.items():
        state = after[key].run
        wake_at = now if added else state.sweep_at
        for index, outcome in zip(indexes, outcomes[key], strict=True):
            results[index] = CommandResult(outcome, wake_at, _view(commands[index], state))
    return [results[index] for index in range(len(commands))]


async def _apply(
    before: Mapping[RunKey, RunState], commands: Mapping[RunKey, Sequence[Command]], now: int, *, evaluating: bool
) -> tuple[dict[RunKey, RunState], dict[RunKey, list[Outcome]]]:
    """Apply the commands on each run; other tasks get their turn after every `_AT_ONCE` commands."""
    after = dict(before)
    outcomes = defaultdict[RunKey, list[Outcome]](list)
    applied = 0
    for key, several in commands.items():
        for start in range(0, len(several), _AT_ONCE):
            part = several[start : start + _AT_ONCE]
            after[key], ended = run.apply(after[key], part, now, evaluating=evaluating)
            outcomes[key] += ended
            applied += len(part)
            if applied >= _AT_ONCE:
                applied = 0
                await asyncio.sleep(0)
    return after, outcomes


def _key(command: Command) -> RunKey:
    payload = command.payload
    assert isinstance(payload, RunPayload)  # noqa: S101 - all commands of this slice are
    return RunKey(payload.tenant_id, payload.run_id)


def _view(command: Command, after: Run) -> dict[str, object] | None:
    return None if command.reply_to is None or not after.started else {"run": run_view(after)}
