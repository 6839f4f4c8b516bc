"""Applies the commands of one transaction to their runs, as far as the limits of the tenants allow it."""

import asyncio
from collections.abc import Sequence

from timer_service.core.limits.quotas import Admission, Excess
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.runs import run
from timer_service.runs.draft import Draft, RunState
from timer_service.runs.rules import Outcome, Run
from timer_service.runs.usage import growth

_COMMANDS_AT_ONCE = 200
"""How many commands on a run are applied before the time is read and other tasks may run."""

End = Outcome | Excess
"""How a command ended."""


class RunApplier:
    """Applies commands to runs, in one transaction."""

    def __init__(
        self, admission: Admission | None, now: int, transaction_time: TransactionTime, *, evaluating: bool
    ) -> None:
        """If `evaluating` is false, the sweep makes jobs ready and skips jobs later."""
        self._admission = admission
        self._now = now
        self._evaluating = evaluating
        self._time = transaction_time
        self._has_refused = False

    async def apply(self, state: RunState, commands: Sequence[Command]) -> tuple[RunState, list[End]]:
        """Return a run after the commands for which there is time, and how each of these ended."""
        ends: list[End] = []
        for start in range(0, len(commands), _COMMANDS_AT_ONCE):
            if not await self._time.is_left():
                break
            part = commands[start : start + _COMMANDS_AT_ONCE]
            state, found = await self._apply_part(state, part)
            ends += found
            if len(found) < len(part):
                break
        return state, ends

    async def _apply_part(self, state: RunState, part: Sequence[Command]) -> tuple[RunState, Sequence[End]]:
        """Apply commands together. If they exceed a limit, apply only those that do not, as far as there is time."""
        after, outcomes = run.apply(state, part, self._now, evaluating=self._evaluating)
        if (excess := await self._exceed(state.run, after.run)) is None:
            return after, outcomes
        if len(part) == 1:
            return state, [excess]
        refused, tried = await self._refuse(state, part)
        admitted = [command for number, command in enumerate(part[:tried]) if number not in refused]
        after, outcomes = run.apply(state, admitted, self._now, evaluating=self._evaluating)
        left = iter(outcomes)
        return after, [refused.get(number) or next(left) for number in range(tried)]

    async def _refuse(self, state: RunState, part: Sequence[Command]) -> tuple[dict[int, Excess], int]:
        """Return the commands that exceed a limit if the others are applied one by one, by their numbers.

        Return also how many commands there was time for: trying one can take as long as all of them together.
        """
        if not self._has_refused:  # so that many are tried before all are applied together again
            self._has_refused = True
            self._time.restart()
        draft, before = Draft(state, self._now, evaluating=self._evaluating), state.run
        refused: dict[int, Excess] = {}
        for number, command in enumerate(part):
            await asyncio.sleep(0)
            if not await self._time.is_left() and number > 0:
                return refused, number
            tried = draft.copy()
            run.apply_to(tried, command)
            after = tried.finish().run
            if excess := await self._exceed(before, after):
                refused[number] = excess
            else:
                draft, before = tried, after
        await asyncio.sleep(0)
        return refused, len(part)

    async def _exceed(self, before: Run, after: Run) -> Excess | None:
        """Return the limit that a run exceeds after commands."""
        if self._admission is None:
            return None
        return await self._admission.exceeds(before.key.tenant_id, growth(before, after))
