"""Handles commands on runs in a transaction of the intake: load, apply, save, add events."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile

from timer_service.core.intake.route import CommandResult, View
from timer_service.core.limits.quotas import Admission, Amounts, Excess, Quotas, Usage
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.runs import events, loader, run, store
from timer_service.runs.draft import RunState
from timer_service.runs.messages import ReportJobStatus, ResolveGroup, RetryRun, RunPayload, StartRun
from timer_service.runs.queries import run_view
from timer_service.runs.rules import NO_POSITION, OPEN, UNFINISHED, Outcome, Run, RunKey

MOST_ROWS = 5000
"""How many rows a transaction reads and writes, about. They take 100 to 200 ms. A single command may have more."""
_ROWS_PER_END = 1 / 4
"""The share of its run's rows that a report of an end counts for. In the worst case it reads all of them."""
_PENDING_BYTES_PER_ROW = 100
_COMMANDS_AT_ONCE = 20
"""How many commands are applied before the time is read and other tasks may run."""

_SQL = load_sql("timer_service.runs", "usage.sql")

OPEN_RUNS = Usage("open_runs", _SQL["count_open"])
RUN_ROWS = Usage("run_rows", _SQL["sum_rows"])
EARLY_COMMANDS = Usage("early_commands", _SQL["sum_pending"])
USAGES = (OPEN_RUNS, RUN_ROWS, EARLY_COMMANDS)

End = Outcome | Excess
"""How a command ended."""
OnRun = tuple[RunKey, Command]
"""A command and its run."""


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas, evaluating: bool
) -> Sequence[CommandResult]:
    """Apply the first commands in order, for 50 ms: those that read and write about `MOST_ROWS`. See `Handle`.

    Each table is read and written once. If `evaluating` is false, the sweep makes jobs ready and skips jobs later.
    """
    keyed = [(_key(command), command) for command in commands]
    keyed = keyed[: count_before_retry(keyed)]
    locked = await loader.lock_runs(tx, {key for key, _ in keyed})
    keyed = keyed[: count_fitting(locked, keyed, MOST_ROWS)]
    of_run = defaultdict[RunKey, list[Command]](list)
    for key, command in keyed:
        of_run[key].append(command)
    # A run without a row keeps commands that come before its StartRun.
    runs = {key: locked.get(key) or Run(key, None, NO_POSITION, now, settled_at=now) for key in of_run}
    before = await loader.load(tx, runs, of_run, evaluating=evaluating)
    after, ends = await _apply(before, keyed, quotas.admission(tx, now), now, evaluating=evaluating)
    await store.save(tx, before, after)
    wake_at = now if await events.add(tx, before, after, now) else None
    return [_result(end, command, after[key].run, wake_at) for end, (key, command) in zip(ends, keyed, strict=False)]


def count_before_retry(commands: Sequence[OnRun]) -> int:
    """Return how many of the first commands come before a RetryRun that follows another command on its run.

    The events of a transaction are those of the difference of two states. So a RetryRun is the first command on its run
    in its transaction: the event of the end before is then in an earlier one.
    """
    seen = set[RunKey]()
    for number, (key, command) in enumerate(commands):
        if key in seen and isinstance(command.payload, RetryRun):
            return number
        seen.add(key)
    return len(commands)


def count_fitting(runs: Mapping[RunKey, Run], commands: Sequence[OnRun], most: int) -> int:
    """Return how many of the first commands fit into a transaction of `most` rows, at least 1.

    `runs` are the runs that exist. The rows of a run count once: as many as the costliest of its commands reads. Those
    of the first run do not count, because it must be read anyway. The rows that commands name always count.
    """
    first_key = commands[0][0]
    rows_of_run: dict[RunKey, int] = {}
    room = most
    for number, (key, command) in enumerate(commands):
        room -= _named_rows(command)
        if key != first_key:
            counted = rows_of_run.get(key, 0)
            rows_of_run[key] = max(counted, _loaded_rows(runs.get(key), command))
            room -= rows_of_run[key] - counted
        if room < 0 and number:
            return number
    return len(commands)


def _loaded_rows(run: Run | None, command: Command) -> int:
    """Return about how many rows of its run a command reads besides those that it names.

    `run` is None if it does not exist. A report that ends no job reads none. Other commands read the pending commands
    of the run, and the whole run if it is open, or run again.
    """
    if run is None:
        return 0
    if isinstance(command.payload, ReportJobStatus):
        return 0 if command.payload.status in UNFINISHED else int(run.row_count * _ROWS_PER_END)
    pending_rows = run.pending_bytes // _PENDING_BYTES_PER_ROW
    return pending_rows + run.row_count if run.is_open or isinstance(command.payload, RetryRun) else pending_rows


def _named_rows(command: Command) -> int:
    """Return how many rows a command names: those of its run, its jobs and their needs."""
    payload = command.payload
    if isinstance(payload, StartRun | ResolveGroup):
        return 1 + len(payload.jobs) + sum(len(job.needs) for job in payload.jobs)
    return 1 + len(payload.dropped_jobs or ()) if isinstance(payload, ReportJobStatus) else 1


async def _apply(
    before: Mapping[RunKey, RunState],
    commands: Sequence[OnRun],
    admission: Admission | None,
    now: int,
    *,
    evaluating: bool,
) -> tuple[Mapping[RunKey, RunState], list[End]]:
    """Apply the first commands in order, for 50 ms. Return the runs after them, and how each command ended.

    Commands on one run that follow each other are applied together. If they exceed a limit together, they are applied
    one by one.
    """
    states = dict(before)
    time = TransactionTime()
    at_once = _COMMANDS_AT_ONCE
    ends: list[End] = []
    while len(ends) < len(commands) and (await time.is_left() or not ends):
        key = commands[len(ends)][0]
        next_ones = takewhile(lambda each: each[0] == key, commands[len(ends) : len(ends) + at_once])  # noqa: B023
        on_run = [command for _, command in next_ones]
        after, outcomes = run.apply(states[key], on_run, now, evaluating=evaluating)
        growth = _growth(states[key].run, after.run)
        excess = None if admission is None else await admission.exceeds(key.tenant_id, growth)
        if excess is None:
            states[key] = after
            ends += outcomes
        elif len(on_run) == 1:
            ends.append(excess)
        else:
            at_once = 1
    return states, ends


def _growth(before: Run, after: Run) -> Amounts:
    """Return how much more a tenant has after commands on one of its runs than before."""
    return {
        OPEN_RUNS: (after.status in OPEN) - (before.status in OPEN),
        RUN_ROWS: _open_rows(after) - _open_rows(before),
        EARLY_COMMANDS: after.pending_bytes - before.pending_bytes,
    }


def _open_rows(run: Run) -> int:
    """Return the rows that count towards the limit: a run that has ended counts no more."""
    return run.row_count if run.status in OPEN else 0


def _key(command: Command) -> RunKey:
    payload = command.payload
    assert isinstance(payload, RunPayload)  # noqa: S101 - true of all commands of this slice
    return RunKey(payload.tenant_id, payload.run_id)


def _result(end: End, command: Command, after: Run, wake_at: int | None) -> CommandResult:
    """Return the result of a command. `wake_at` is when events are published; if None, the next work is the sweep."""
    if isinstance(end, Excess):
        return CommandResult(Outcome.OVER_QUOTA, view=end.view)
    view: View | None = None
    if command.reply_to is not None and after.started:
        view = lambda: {"run": run_view(after)}  # noqa: E731 - short
    return CommandResult(end, after.sweep_at if wake_at is None else wake_at, view)
