"""Applies the commands of one transaction to their runs, as far as the limits of the tenants allow it."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile

from timer_service.core.limits.quotas import Admission, Amounts, Excess, Usage
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.runs import run
from timer_service.runs.draft import RunState
from timer_service.runs.messages import RunStatus
from timer_service.runs.rules import Outcome, Run, RunKey

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


class RunApplier:
    """Applies commands to runs, in one transaction."""

    def __init__(
        self, before: Mapping[RunKey, RunState], admission: Admission | None, now: int, *, evaluating: bool
    ) -> None:
        """If `evaluating` is false, the sweep makes jobs ready and skips jobs later."""
        self.states = dict(before)
        """The runs after the commands that were applied."""
        self._admission = admission
        self._now = now
        self._evaluating = evaluating

    async def apply(self, commands: Sequence[OnRun]) -> list[End]:
        """Apply the first commands in order, for 50 ms. Return how each of them ended.

        Commands of a tenant that follow each other are applied together. If they exceed a limit together, they are
        applied one by one.
        """
        time = TransactionTime()
        at_once = _COMMANDS_AT_ONCE
        ends: list[End] = []
        while len(ends) < len(commands) and (await time.is_left() or not ends):
            part = _of_first_tenant(commands[len(ends) : len(ends) + at_once])
            found = await self._apply_together(part)
            if not isinstance(found, Excess):
                ends += found
            elif len(part) == 1:
                ends.append(found)
            else:
                at_once = 1
                await asyncio.sleep(0)  # applying all of them may have taken long
        return ends

    async def _apply_together(self, commands: Sequence[OnRun]) -> list[End] | Excess:
        """Apply commands of a tenant, or return the limit that they exceed together."""
        of_run = defaultdict[RunKey, list[int]](list)
        for number, (key, _) in enumerate(commands):
            of_run[key].append(number)
        after: dict[RunKey, RunState] = {}
        ends: dict[int, End] = {}
        for key, numbers in of_run.items():
            on_run = [commands[number][1] for number in numbers]
            after[key], found = run.apply(self.states[key], on_run, self._now, evaluating=self._evaluating)
            ends |= zip(numbers, found, strict=True)
        if self._admission is not None:
            more = Counter[Usage]()
            for key, state in after.items():
                more.update(growth(self.states[key].run, state.run))
            if excess := await self._admission.exceeds(commands[0][0].tenant_id, more):
                return excess
        self.states |= after
        return [ends[number] for number in range(len(commands))]


def _of_first_tenant(commands: Sequence[OnRun]) -> Sequence[OnRun]:
    """Return the first commands, up to one of another tenant."""
    return list(takewhile(lambda each: each[0].tenant_id == commands[0][0].tenant_id, commands))


def growth(before: Run, after: Run) -> Amounts:
    """Return how much more a tenant has after commands on one of its runs than before."""
    return {
        OPEN_RUNS: _is_running(after) - _is_running(before),
        RUN_ROWS: _running_rows(after) - _running_rows(before),
        EARLY_COMMANDS: after.pending_bytes - before.pending_bytes,
    }


def _is_running(run: Run) -> bool:
    return run.status is RunStatus.RUNNING


def _running_rows(run: Run) -> int:
    return run.row_count if _is_running(run) else 0
