"""The handler of timer commands: it loads, applies and saves in the consumer's transaction."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from timer_service.core.due.portions import load_in_portions
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Admission, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.timers import rules, store
from timer_service.timers.cancelling import NONE_NEWER, Cancelling
from timer_service.timers.insertion import NONE_ADDED, Added, add_new
from timer_service.timers.messages import CancelTimers
from timer_service.timers.plain_batch import add_plain_batch
from timer_service.timers.queries import timer_view
from timer_service.timers.rules import AnySchedule, Applied, Key, Outcome, Timer
from timer_service.timers.usage import growth


async def handle(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    quotas: Quotas,
    monotonic: Callable[[], float] = time.monotonic,
) -> Sequence[CommandResult | None]:
    """Apply commands in order. Each command sees the effects of the earlier ones.

    A command that would exceed a limit of its tenant has no effect.

    New timers are added without reading them first. The rest of the batch takes at most two writes, and one read for
    each 250 timers. If the timers have much data, or very many prefixes of their ids may be cancelled, the commands on
    some of them are deferred. After 50 ms the rest is deferred.
    """
    admission = quotas.admission(tx, now)
    transaction_time = TransactionTime(monotonic)
    added = await add_plain_batch(tx, commands, now, transaction_time, admission)
    if added is not None and added.is_all:
        return added.results
    keys = [None if isinstance(command.payload, CancelTimers) else rules.key_of(command) for command in commands]
    cancelling = NONE_NEWER
    if added is None:
        known = [(key, command) for key, command in zip(keys, commands, strict=True) if key is not None]
        cancelling = await Cancelling.load(tx, commands, {key for key, _ in known})
        may_add = len(known) == len(keys)  # a CancelTimers decides about the commands behind it
        add = partial(_add, transaction_time=transaction_time, admission=admission)
        added = await add(tx, known, cancelling, now) if may_add else NONE_ADDED
    if added.is_all:
        return added.results
    rest = _Rest(keys, commands, cancelling, added)
    return await _apply_rest(tx, rest, now, transaction_time=transaction_time, admission=admission)


class _Rest(NamedTuple):
    """A batch of which some timers have been added. A CancelTimers has no key."""

    keys: Sequence[Key | None]
    commands: Sequence[Command]
    cancelling: Cancelling
    added: Added


async def _apply_rest(
    tx: Transaction, rest: _Rest, now: int, *, transaction_time: TransactionTime, admission: Admission | None
) -> Sequence[CommandResult | None]:
    """Apply the commands on the timers that were not added. Return the results of all commands."""
    keys, commands, cancelling, added = rest
    if not added.keys:  # at least one command must be applied
        transaction_time.restart()
    is_over = bool(added.keys) and not await transaction_time.is_left()  # then nothing else is applied
    wanted = set() if is_over else {key for key in keys if key is not None and key not in added.keys}
    before, deferred = await load_in_portions(wanted, partial(store.load, tx), _characters)
    after = dict(before)
    results: list[CommandResult | None] = []
    for index, (key, command) in enumerate(zip(keys, commands, strict=True)):
        if key in added.keys:
            results.append(added.results[index] if index < len(added.results) else None)
            continue
        if key in deferred or key in cancelling.deferred or not await transaction_time.is_left():
            results.append(None)
            continue
        if key is None:
            results.append(cancelling.apply(command, now))
            continue
        found = after.get(key)
        applied = _apply(cancelling, found, key, command, now)
        if admission:
            grown = growth(found, applied.timer, now)
            if excess := await admission.exceeds(key.tenant_id, grown):
                results.append(CommandResult(Outcome.OVER_QUOTA, view=excess.view))
                continue
        if applied.timer is not None:
            after[key] = applied.timer
        results.append(_result(found, applied, wants_view=command.reply_to is not None))
    await store.save(tx, before, after)
    await cancelling.save(tx)
    return results


async def _add(
    tx: Transaction,
    commands: Sequence[tuple[Key, Command]],
    cancelling: Cancelling,
    now: int,
    *,
    transaction_time: TransactionTime,
    admission: Admission | None,
) -> Added:
    """Add the timers that do not exist yet.

    A timer is added as it is after its last command in the batch, if the first one schedules it. See
    docs/decisions/0057.
    """
    new: dict[Key, Timer] = {}
    results: list[CommandResult | None] = []
    others = set(cancelling.deferred)
    for key, command in commands:
        before = new.get(key)
        if key in others or (before is None and not _can_add(cancelling, key, command)):
            others.add(key)
            results.append(None)
            continue
        if not await transaction_time.is_left():
            break
        applied = (
            Applied(rules.new_timer(key, command, command.payload, now), Outcome.SCHEDULED)
            if before is None and isinstance(command.payload, AnySchedule)
            else _apply(cancelling, before, key, command, now)
        )
        assert applied.timer is not None  # noqa: S101 - a timer that was scheduled stays
        new[key] = applied.timer
        results.append(_result(before, applied, wants_view=command.reply_to is not None))
    is_whole = len(results) == len(commands) and not others
    rows = [store.new_row(timer) for timer in new.values()]
    return await add_new(tx, rows, results, now, whole=is_whole, admission=admission)


def _can_add(cancelling: Cancelling, key: Key, command: Command) -> bool:
    """Return whether a command adds its timer if there is none."""
    return isinstance(command.payload, AnySchedule) and not cancelling.concerns(key, command, None)


def _apply(cancelling: Cancelling, found: Timer | None, key: Key, command: Command, now: int) -> Applied:
    """Apply a command on a timer, unless a newer CancelTimers has decided about the timer."""
    if cancelling.concerns(key, command, found):
        return Applied(found, Outcome.IGNORED_STALE)
    return rules.apply(found, key, command, now)


def _characters(timer: Timer) -> int:
    return len((timer.schedule and timer.schedule.data) or "")


def _result(found: Timer | None, applied: Applied, *, wants_view: bool) -> CommandResult:
    timer = applied.timer
    if timer is None:
        return CommandResult(applied.outcome)
    is_new_instant = found is None or found.available_at != timer.available_at
    return CommandResult(
        applied.outcome,
        wake_at=timer.available_at if is_new_instant else None,
        view=partial(_view, timer) if wants_view and timer.schedule is not None else None,
    )


def _view(timer: Timer) -> Mapping[str, Any]:
    return {"timer": timer_view(timer)}
