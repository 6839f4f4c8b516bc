"""Applies the commands of one transaction to their runs, as far as the limits of the tenants allow it."""

import asyncio
from collections.abc import Sequence

from timer_service.core.message import Command
from timer_service.core.quotas import Admission, Excess
from timer_service.runs import run
from timer_service.runs.draft import RunState
from timer_service.runs.rules import Outcome
from timer_service.runs.usage import growth

_COMMANDS_PER_TURN = 200
"""The number of commands after which other tasks of the event loop get a turn."""
_MOST_COPIED = 100_000
"""How many jobs and needs a transaction copies to apply commands one by one. It takes 150 ms at most."""

End = Outcome | Excess
"""How a command ended."""


class RunApplier:
    """Applies commands to runs, in one transaction."""

    def __init__(self, admission: Admission | None, now: int, *, evaluating: bool) -> None:
        """If `evaluating` is false, the sweep makes jobs ready and skips jobs later."""
        self._admission = admission
        self._now = now
        self._evaluating = evaluating
        self._applied = 0
        self._copied = 0

    async def apply(self, state: RunState, commands: Sequence[Command]) -> tuple[RunState, list[End]]:
        """Return a run after commands, and how each ended. The last ones may be missing: they are deferred."""
        ends: list[End] = []
        for start in range(0, len(commands), _COMMANDS_PER_TURN):
            part = commands[start : start + _COMMANDS_PER_TURN]
            state, found = await self._apply_part(state, part)
            ends += found
            if len(found) < len(part):
                break
            self._applied += len(part)
            if self._applied >= _COMMANDS_PER_TURN:
                self._applied = 0
                await asyncio.sleep(0)
        return state, ends

    async def _apply_part(self, state: RunState, part: Sequence[Command]) -> tuple[RunState, list[End]]:
        """Apply commands together. If they exceed a limit, apply them one by one."""
        after, outcomes = run.apply(state, part, self._now, evaluating=self._evaluating)
        if (excess := await self._exceed(state, after, part)) is None:
            return after, list(outcomes)
        if len(part) == 1:
            return state, [excess]
        size = len(state.jobs) + len(state.pending) + sum(map(len, state.downstream.values()))
        ends: list[End] = []
        for command in part:
            if ends and self._copied > _MOST_COPIED:
                break
            self._copied += size
            after, (outcome,) = run.apply(state, [command], self._now, evaluating=self._evaluating)
            excess = await self._exceed(state, after, [command])
            ends.append(excess or outcome)
            state = state if excess else after
        return state, ends

    async def _exceed(self, before: RunState, after: RunState, commands: Sequence[Command]) -> Excess | None:
        """Return the limit that commands on a run exceed."""
        if self._admission is None:
            return None
        newest = max(command.position for command in commands)
        return await self._admission.exceeds(before.run.key.tenant_id, growth(before.run, after.run), newest)
