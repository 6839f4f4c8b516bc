"""The handler of timer commands: it loads, applies and saves in the consumer's transaction."""

from collections.abc import Collection, Sequence

from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.core.quotas import Quotas
from timer_service.core.route import CommandResult
from timer_service.timers import rules, store
from timer_service.timers.cancelling import Cancelling
from timer_service.timers.messages import CancelTimers
from timer_service.timers.queries import timer_view
from timer_service.timers.rules import Applied, Key, Outcome, Timer
from timer_service.timers.usage import growth

_READ_AT_ONCE = 250
_MOST_DATA = 4 * 1024 * 1024
"""No more timers are read for the commands of one transaction when the data of these has so many characters."""


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas
) -> Sequence[CommandResult | None]:
    """Apply commands in order. Each command sees the effects of the earlier ones.

    A command that would exceed a limit of its tenant has no effect.

    The batch takes at most two writes, and one read for each 250 timers. If the timers have much data, or very many
    prefixes of their ids may be cancelled, the commands on some of them are deferred.
    """
    keys = [None if isinstance(command.payload, CancelTimers) else rules.key_of(command) for command in commands]
    before, deferred = await _load(tx, {key for key in keys if key is not None})
    cancelling = await Cancelling.load(tx, commands)
    admission = quotas.admission(tx, now)
    after = dict(before)
    results: list[CommandResult | None] = []
    for key, command in zip(keys, commands, strict=True):
        if key is None:
            results.append(cancelling.apply(command, now))
            continue
        if key in deferred or key in cancelling.deferred:
            results.append(None)
            continue
        found = after.get(key)
        if cancelling.concerns(key, command, found):
            stale = Applied(found, Outcome.IGNORED_STALE)
            results.append(_result(found, stale, wants_view=command.reply_to is not None))
            continue
        applied = rules.apply(found, key, command, now)
        if admission:
            added = growth(found, applied.timer, now)
            if excess := await admission.exceeds(key.tenant_id, added, command.position):
                results.append(CommandResult(Outcome.OVER_QUOTA, view=excess.view))
                continue
        if applied.timer is not None:
            after[key] = applied.timer
        results.append(_result(found, applied, wants_view=command.reply_to is not None))
    await store.save(tx, before, after)
    await cancelling.save(tx)
    return results


async def _load(tx: Transaction, keys: Collection[Key]) -> tuple[dict[Key, Timer], frozenset[Key]]:
    """Lock timers in the order of their keys. Return those that exist, and the keys that were not looked for."""
    found: dict[Key, Timer] = {}
    in_order = sorted(keys)
    room = _MOST_DATA
    for start in range(0, len(in_order), _READ_AT_ONCE):
        if room <= 0:
            return found, frozenset(in_order[start:])
        timers = await store.load(tx, in_order[start : start + _READ_AT_ONCE])
        room -= sum(len(timer.schedule.data or "") for timer in timers.values() if timer.schedule)
        found |= timers
    return found, frozenset()


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
