"""Handles commands on runs in the consumer's transaction: load, apply, save, add events."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from timer_service.core.intake.route import CommandResult, View
from timer_service.core.limits.quotas import Excess, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.runs import events, loader, store
from timer_service.runs.applier import End, RunApplier
from timer_service.runs.draft import RunState
from timer_service.runs.messages import RunPayload
from timer_service.runs.portion import MOST_ROWS, choose_commands, may_make_many_needs
from timer_service.runs.queries import run_view
from timer_service.runs.rules import Outcome, Run, RunKey


async def handle(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    quotas: Quotas,
    evaluating: bool,
    most_rows: int = MOST_ROWS,
    monotonic: Callable[[], float] = time.monotonic,
) -> Sequence[CommandResult | None]:
    """Apply a batch of commands. Commands on one run are applied in order.

    A command that would exceed a limit of its tenant has no effect.

    Each table is read and written once. Commands that would make the transaction read and write more than about
    `most_rows` are deferred. After 50 ms, the rest is. If `evaluating` is false, the sweep makes jobs ready and skips
    jobs later.
    """
    indexes_of_run = defaultdict[RunKey, list[int]](list)
    for index, command in enumerate(commands):
        indexes_of_run[_key(command)].append(index)
    grouped = {key: [commands[index] for index in indexes] for key, indexes in indexes_of_run.items()}
    locked = await loader.lock_runs(tx, grouped.keys())
    resolving = [key for key, run in locked.items() if may_make_many_needs(run, grouped[key], most_rows)]
    group_needs = await loader.count_group_needs(tx, resolving)
    chosen = choose_commands(locked, grouped, most_rows, group_needs)
    inserted = await loader.insert_runs(tx, chosen.keys() - locked.keys(), now)
    runs = {key: run for key, run in locked.items() if key in chosen} | inserted
    before = await loader.load(tx, runs, chosen, evaluating=evaluating)
    admission, time_left = quotas.admission(tx, now), TransactionTime(monotonic)
    applier = RunApplier(admission, now, time_left, evaluating=evaluating)
    after: dict[RunKey, RunState] = {}
    ends: dict[RunKey, list[End]] = {}
    for key, on_run in chosen.items():
        after[key], ends[key] = await applier.apply(before[key], on_run)
    await store.save(tx, before, after)
    await loader.delete_unused_runs(tx, (key for key in inserted if after[key] == before[key]))
    added = await events.add(tx, before, after, now)
    results: dict[int, CommandResult] = {}
    for key, ends_on_run in ends.items():
        state = after[key].run
        wake_at = now if added else state.sweep_at
        for index, end in zip(indexes_of_run[key], ends_on_run, strict=False):  # the others are deferred
            if isinstance(end, Excess):
                results[index] = CommandResult(Outcome.OVER_QUOTA, view=end.view)
            else:
                results[index] = CommandResult(end, wake_at, _view(commands[index], state))
    return [results.get(index) for index in range(len(commands))]


def _key(command: Command) -> RunKey:
    payload = command.payload
    assert isinstance(payload, RunPayload)  # noqa: S101 - true of all commands of this slice
    return RunKey(payload.tenant_id, payload.run_id)


def _view(command: Command, after: Run) -> View | None:
    return None if command.reply_to is None or not after.started else lambda: {"run": run_view(after)}
