"""Handles commands on runs in a transaction of the intake: load, apply, save, add events."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from timer_service.core.intake.route import CommandResult, View
from timer_service.core.limits.quotas import Excess, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.runs import events, loader, store
from timer_service.runs.applier import End, RunApplier
from timer_service.runs.messages import RunPayload
from timer_service.runs.portion import MOST_ROWS, choose_commands, may_make_many_needs
from timer_service.runs.queries import run_view
from timer_service.runs.rules import NO_POSITION, Outcome, Run, RunKey


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
    """Apply a batch of commands in order.

    A command that would exceed a limit of its tenant has no effect.

    Each table is read and written once. Commands that would make the transaction read and write more than about
    `most_rows` are deferred. After 50 ms, the rest is. If `evaluating` is false, the sweep makes jobs ready and skips
    jobs later.
    """
    keyed = [(_key(command), command) for command in commands]
    of_run = _by_run(keyed)
    locked = await loader.lock_runs(tx, of_run.keys())
    resolving = [key for key, run in locked.items() if may_make_many_needs(run, of_run[key], most_rows)]
    group_needs = await loader.count_group_needs(tx, resolving)
    chosen = choose_commands(locked, keyed, most_rows, group_needs)
    of_run = _by_run([keyed[number] for number in chosen])
    runs = {key: locked.get(key) or Run(key, None, NO_POSITION, now, settled_at=now) for key in of_run}
    before = await loader.load(tx, runs, of_run, evaluating=evaluating)
    applier = RunApplier(before, quotas.admission(tx, now), now, TransactionTime(monotonic), evaluating=evaluating)
    await applier.apply({number: keyed[number] for number in chosen})
    await store.save(tx, before, applier.states)
    added = await events.add(tx, before, applier.states, now)
    results: dict[int, CommandResult] = {}
    for number, end in applier.ends.items():
        key, command = keyed[number]
        results[number] = _result(end, command, applier.states[key].run, now if added else None)
    return [results.get(number) for number in range(len(commands))]


def _by_run(keyed: Sequence[tuple[RunKey, Command]]) -> Mapping[RunKey, Sequence[Command]]:
    of_run = defaultdict[RunKey, list[Command]](list)
    for key, command in keyed:
        of_run[key].append(command)
    return of_run


def _key(command: Command) -> RunKey:
    payload = command.payload
    assert isinstance(payload, RunPayload)  # noqa: S101 - true of all commands of this slice
    return RunKey(payload.tenant_id, payload.run_id)


def _result(end: End, command: Command, after: Run, wake_at: int | None) -> CommandResult:
    if isinstance(end, Excess):
        return CommandResult(Outcome.OVER_QUOTA, view=end.view)
    view: View | None = None if command.reply_to is None or not after.started else lambda: {"run": run_view(after)}
    return CommandResult(end, after.sweep_at if wake_at is None else wake_at, view)
