"""How many commands of a batch one transaction applies. Pure."""

from collections.abc import Mapping, Sequence

from timer_service.core.message import Command
from timer_service.runs.messages import ReportJobStatus, ResolveGroup, StartRun
from timer_service.runs.rules import UNFINISHED, Run, RunKey

MOST_ROWS = 5000
"""How many rows a transaction reads and writes, about. They take 100 to 200 ms. A single command may have more."""
_ROWS_PER_END = 1 / 4
"""The share of its run's rows that a report of an end counts for. In the worst case it reads all of them."""
_PENDING_BYTES_PER_ROW = 100


def choose_commands(
    runs: Mapping[RunKey, Run], commands: Mapping[RunKey, Sequence[Command]], most: int
) -> dict[RunKey, Sequence[Command]]:
    """Return the commands that fit into a transaction of `most` rows, and at least the first one.

    `runs` are the runs that exist. The commands on one run are taken in their order. A run that does not fit does not
    hold up the runs behind it. For the first run, only the rows that its commands name count: it must be read anyway.
    """
    chosen: dict[RunKey, Sequence[Command]] = {}
    room = most
    for key, on_run in commands.items():
        count, rows = _count_fitting(runs.get(key), on_run, room, is_first=not chosen)
        if count:
            chosen[key] = on_run[:count]
            room -= rows
    return chosen


def _count_fitting(run: Run | None, commands: Sequence[Command], room: int, *, is_first: bool) -> tuple[int, int]:
    """Return how many of the first commands on a run fit, and how many rows count for them."""
    loaded = own = 0
    for count, command in enumerate(commands):
        more_loaded = 0 if is_first else max(loaded, _loaded_rows(run, command))
        more_own = own + _own_rows(command)
        if more_loaded + more_own > room and not (is_first and count == 0):
            return count, loaded + own
        loaded, own = more_loaded, more_own
    return len(commands), loaded + own


def _loaded_rows(run: Run | None, command: Command) -> int:
    """Return about how many rows of its run a command reads. `run` is None if it does not exist."""
    if run is None:
        return 0
    if isinstance(command.payload, ReportJobStatus):
        return 0 if command.payload.status in UNFINISHED else int(run.row_count * _ROWS_PER_END)
    return run.pending_bytes // _PENDING_BYTES_PER_ROW + (run.row_count if run.is_open else 0)


def _own_rows(command: Command) -> int:
    """Return how many rows a command names."""
    payload = command.payload
    if isinstance(payload, StartRun | ResolveGroup):
        return 1 + len(payload.jobs) + sum(len(job.needs) for job in payload.jobs)
    return 1 + len(payload.dropped_jobs or ()) if isinstance(payload, ReportJobStatus) else 1
