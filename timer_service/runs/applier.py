"""Applies the commands of one transaction to their runs, as far as the limits of the tenants allow it."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import islice

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
Numbered = Mapping[int, tuple[RunKey, Command]]
"""Commands and their runs, by number."""


class RunApplier:
    """Applies commands to runs, in one transaction."""

    def __init__(
        self,
        before: Mapping[RunKey, RunState],
        admission: Admission | None,
        now: int,
        transaction_time: TransactionTime,
        *,
        evaluating: bool,
    ) -> None:
        """If `evaluating` is false, the sweep makes jobs ready and skips jobs later."""
        self.states = dict(before)
        """The runs after the commands that were applied."""
        self.ends: dict[int, End] = {}
        """How each of these commands ended, by its number."""
        self._admission = admission
        self._now = now
        self._evaluating = evaluating
        self._time = transaction_time
        self._has_refused = False

    async def apply(self, commands: Numbered) -> None:
        """Apply the commands for which there is time, in order."""
        numbers = iter(commands)
        while part := list(islice(numbers, _COMMANDS_AT_ONCE)):
            of_tenant = defaultdict[str, dict[int, tuple[RunKey, Command]]](dict)
            for number in part:
                of_tenant[commands[number][0].tenant_id][number] = commands[number]
            for tenant, some in of_tenant.items():
                if not await self._time.is_left() or not await self._apply_some(tenant, some):
                    return

    async def _apply_some(self, tenant: str, commands: Numbered) -> bool:
        """Apply commands of a tenant. If they exceed a limit together, apply only those that do not, one by one.

        Return False if there was no time for all of them.
        """
        if (excess := await self._apply_together(tenant, commands)) is None:
            return True
        if len(commands) == 1:
            self.ends |= dict.fromkeys(commands, excess)
            return True
        if not self._has_refused:  # so that many are tried before all are applied together again
            self._has_refused = True
            self._time.restart()
        await asyncio.sleep(0)  # applying all of them may have taken long
        for number, each in commands.items():
            if not await self._time.is_left():
                return False
            await self._apply_some(tenant, {number: each})
        return True

    async def _apply_together(self, tenant: str, commands: Numbered) -> Excess | None:
        """Apply commands of a tenant, or return the limit that they exceed together."""
        of_run = defaultdict[RunKey, list[int]](list)
        for number, (key, _) in commands.items():
            of_run[key].append(number)
        after: dict[RunKey, RunState] = {}
        outcomes: dict[int, Outcome] = {}
        for key, numbers in of_run.items():
            on_run = [commands[number][1] for number in numbers]
            after[key], found = run.apply(self.states[key], on_run, self._now, evaluating=self._evaluating)
            outcomes |= zip(numbers, found, strict=True)
        if self._admission is not None:
            more = Counter[Usage]()
            for key, state in after.items():
                more.update(growth(self.states[key].run, state.run))
            if excess := await self._admission.exceeds(tenant, more):
                return excess
        self.states |= after
        self.ends |= outcomes
        return None


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
