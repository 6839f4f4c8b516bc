"""Commands on runs, in the consumer's transaction: load, apply, save, and the events that follow."""

from collections import defaultdict
from collections.abc import Sequence

from timer_service.core.consumer import CommandResult
from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.runs import events, loader, run, store
from timer_service.runs.messages import RunPayload
from timer_service.runs.queries import run_view
from timer_service.runs.rules import Run, RunKey


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
    applied = {key: run.apply(before[key], several, now, evaluating=evaluating) for key, several in grouped.items()}
    after = {key: state for key, (state, _) in applied.items()}
    await store.save(tx, before, after)
    added = await events.add(tx, before, after, now)
    results: dict[int, CommandResult] = {}
    for key, (state, outcomes) in applied.items():
        wake_at = now if added else state.run.sweep_at
        for index, outcome in zip(of_run[key], outcomes, strict=True):
            results[index] = CommandResult(outcome, wake_at, _view(commands[index], state.run))
    return [results[index] for index in range(len(commands))]


def _key(command: Command) -> RunKey:
    payload = command.payload
    assert isinstance(payload, RunPayload)  # noqa: S101 - all commands of this slice are
    return RunKey(payload.tenant_id, payload.run_id)


def _view(command: Command, after: Run) -> dict[str, object] | None:
    return None if command.reply_to is None or not after.started else {"run": run_view(after)}
