"""Handles commands on runs in a transaction of the intake: load, apply, save, add events."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from timer_service.core.intake.route import CommandResult, View
from timer_service.core.limits.quotas import Excess, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import Command
from timer_service.runs import events, loader, store
from timer_service.runs.applier import End, RunApplier
from timer_service.runs.messages import RunPayload
from timer_service.runs.portion import MOST_ROWS, count_fitting, may_make_many_needs
from timer_service.runs.queries import run_view
from timer_service.runs.rules import NO_POSITION, Outcome, Run, RunKey


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas, evaluating: bool
) -> Sequence[CommandResult]:
    """Apply the first commands in order: those that read and write about `MOST_ROWS`. See `Handle`.

    Each table is read and written once. If `evaluating` is false, the sweep makes jobs ready and skips jobs later.
    """
    keyed = [(_key(command), command) for command in commands]
    of_run = _by_run(keyed)
    locked = await loader.lock_runs(tx, of_run.keys())
    resolving = [key for key, run in locked.items() if may_make_many_needs(run, of_run[key], MOST_ROWS)]
    group_needs = await loader.count_group_needs(tx, resolving)
    keyed = keyed[: count_fitting(locked, keyed, MOST_ROWS, group_needs)]
    of_run = _by_run(keyed)
    runs = {key: locked.get(key) or Run(key, None, NO_POSITION, now, settled_at=now) for key in of_run}
    before = await loader.load(tx, runs, of_run, evaluating=evaluating)
    applier = RunApplier(before, quotas.admission(tx, now), now, evaluating=evaluating)
    ends = await applier.apply(keyed)
    await store.save(tx, before, applier.states)
    wake_at = now if await events.add(tx, before, applier.states, now) else None
    return [
        _result(end, command, applier.states[key].run, wake_at)
        for end, (key, command) in zip(ends, keyed, strict=False)
    ]


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
