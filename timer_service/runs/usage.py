"""What a tenant may have of runs, and which commands its limits let through."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timer_service.core.message import Command
from timer_service.core.quotas import Admission, Amounts, Excess, Usage
from timer_service.core.sql import load_sql
from timer_service.runs.draft import Pending
from timer_service.runs.messages import CancelRun, ResolveGroup, StartRun
from timer_service.runs.portion import GroupNeeds, own_rows
from timer_service.runs.rules import Run, RunKey

_SQL = load_sql("timer_service.runs", "usage.sql")

OPEN_RUNS = Usage("open_runs", _SQL["count_open"])
RUN_ROWS = Usage("run_rows", _SQL["sum_rows"])
EARLY_COMMANDS = Usage("early_commands", _SQL["sum_pending"])
USAGES = (OPEN_RUNS, RUN_ROWS, EARLY_COMMANDS)


class Admitted(NamedTuple):
    """The commands of one transaction by run, and what became of the others."""

    commands: Mapping[RunKey, Sequence[Command]]
    refused: Mapping[RunKey, Mapping[int, Excess]]
    """By run and by the number of the command in the run: the limit that the command would exceed."""


async def admit(
    admission: Admission | None,
    runs: Mapping[RunKey, Run],
    commands: Mapping[RunKey, Sequence[Command]],
    group_needs: Mapping[RunKey, GroupNeeds],
) -> Admitted:
    """Return the commands that exceed no limit of their tenant. `runs` are the runs that exist."""
    if admission is None:
        return Admitted(commands, {})
    admitted = defaultdict[RunKey, list[Command]](list)
    refused = defaultdict[RunKey, dict[int, Excess]](dict)
    for key, on_run in commands.items():
        run = runs.get(key)
        is_started = run is not None and run.started
        for number, command in enumerate(on_run):
            added = _growth(run, command, group_needs.get(key, {}), is_started=is_started)
            if excess := await admission.exceeds(key.tenant_id, added):
                refused[key][number] = excess
            else:
                admitted[key].append(command)
                is_started = is_started or isinstance(command.payload, StartRun)
    return Admitted(admitted, refused)


def _growth(run: Run | None, command: Command, group_needs: GroupNeeds, *, is_started: bool) -> Amounts:
    """Return what a command adds at most."""
    match command.payload:
        case StartRun():
            return {} if is_started else {OPEN_RUNS: 1, RUN_ROWS: own_rows(command, group_needs)}
        case CancelRun():
            return {}
        case ResolveGroup() if is_started:
            return {RUN_ROWS: own_rows(command, group_needs)} if run is None or run.is_open else {}
        case _:
            return {} if is_started else {EARLY_COMMANDS: Pending.of(command).size}
