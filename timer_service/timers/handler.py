"""The handler of timer commands: it loads, applies and saves in the consumer's transaction."""

from collections.abc import Sequence

from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.core.route import CommandResult
from timer_service.timers import rules, store
from timer_service.timers.queries import timer_view
from timer_service.timers.rules import Applied, Timer


async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
    """Apply commands in order. Each command sees the effects of the earlier ones.

    The whole batch takes one read and at most two writes.
    """
    keys = [rules.key_of(command) for command in commands]
    before = await store.load(tx, set(keys))
    after = dict(before)
    results: list[CommandResult] = []
    for key, command in zip(keys, commands, strict=True):
        found = after.get(key)
        applied = rules.apply(found, key, command, now)
        if applied.timer is not None:
            after[key] = applied.timer
        results.append(_result(found, applied, wants_view=command.reply_to is not None))
    await store.save(tx, before, after)
    return results


def _result(found: Timer | None, applied: Applied, *, wants_view: bool) -> CommandResult:
    timer = applied.timer
    if timer is None:
        return CommandResult(applied.outcome)
    is_new_instant = found is None or found.available_at != timer.available_at
    view = timer_view(timer) if wants_view and timer.schedule is not None else None
    return CommandResult(
        applied.outcome,
        wake_at=timer.available_at if is_new_instant else None,
        view=None if view is None else {"timer": view},
    )
