"""How many commands of a batch one transaction applies. Pure."""

from collections.abc import Mapping, Sequence

from timer_service.core.values.message import Command
from timer_service.runs.messages import ReportJobStatus, ResolveGroup, StartRun
from timer_service.runs.rules import UNFINISHED, Run, RunKey

MOST_ROWS = 5000
"""How many rows a transaction reads and writes, about. They take 100 to 200 ms. A single command may have more."""
_ROWS_PER_END = 1 / 4
"""The share of its run's rows that a report of an end counts for. In the worst case it reads all of them."""
_PENDING_BYTES_PER_ROW = 100


def count_fitting(runs: Mapping[RunKey, Run], commands: Sequence[tuple[RunKey, Command]], most: int) -> int:
    """Return how many of the first commands fit into a transaction of `most` rows, at least 1.

    `runs` are the runs that exist. For the first run, only the rows that its commands name count: it must be read
    anyway.
    """
    loaded: dict[RunKey, int] = {}
    room = most
    for number, (key, command) in enumerate(commands):
        before = loaded.get(key, 0)
        loaded[key] = 0 if key == commands[0][0] else max(before, _loaded_rows(runs.get(key), command))
        room -= loaded[key] - before + _named_rows(command)
        if room < 0 and number:
            return number
    return len(commands)


def _loaded_rows(run: Run | None, command: Command) -> int:
    """Return about how many rows of its run a command reads. `run` is None if it does not exist."""
    if run is None:
        return 0
    if isinstance(command.payload, ReportJobStatus):
        return 0 if command.payload.status in UNFINISHED else int(run.row_count * _ROWS_PER_END)
    return run.pending_bytes // _PENDING_BYTES_PER_ROW + (run.row_count if run.is_open else 0)


def _named_rows(command: Command) -> int:
    payload = command.payload
    if isinstance(payload, StartRun | ResolveGroup):
        return 1 + len(payload.jobs) + sum(len(job.needs) for job in payload.jobs)
    return 1 + len(payload.dropped_jobs or ()) if isinstance(payload, ReportJobStatus) else 1
