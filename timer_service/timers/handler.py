"""The handler of timer commands: it loads, applies and saves in the transaction that reads the log."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.due.portions import load_in_portions
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Admission, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.timers import cancellations, rules, store
from timer_service.timers.cancellations import LOOP, Cancellation, new_cancellation
from timer_service.timers.messages import CancelTimers, PlainTimer, ScheduleTimer
from timer_service.timers.queries import timer_view
from timer_service.timers.rules import Applied, Outcome, Timer
from timer_service.timers.store import NewRow

_Results = list[CommandResult | None]


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
    each 250 timers. If the timers have much data, the commands on some of them are deferred. After 50 ms the rest is
    deferred.
    """
    admission = quotas.admission(tx, now)
    transaction_time = TransactionTime(monotonic)
    results, added = await _add_new(tx, commands, now, transaction_time=transaction_time, admission=admission)
    if added == len(commands):
        return results
    if not added:  # at least one command must be applied
        transaction_time.restart()
    elif not await transaction_time.is_left():
        return results
    await _apply_rest(tx, commands, results, now, transaction_time=transaction_time, admission=admission)
    return results


async def _add_new(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    transaction_time: TransactionTime,
    admission: Admission | None,
) -> tuple[_Results, int]:
    """Add the timers that do not exist yet and whose first command schedules them. See docs/decisions/0057.

    Return the results of the commands that have added timers, None for the others, and how many have added one. It is
    none if the tenants may not have room for all new timers.
    """
    rows: dict[int, NewRow] = {}
    results: _Results = [None] * len(commands)
    for number in _first_schedules(commands):
        if not (transaction_time.is_in_turn() or await transaction_time.is_left()):
            break
        rows[number], results[number] = _new_timer(commands[number], now)
    growth = store.growth_by_rows(rows.values(), now) if admission else {}
    if not rows or (admission and not await admission.may_write(growth)):
        return [None] * len(commands), 0
    inserted = await store.insert_new(tx, rows.values())
    if len(inserted) < len(rows):
        keys = {tuple(values[:2]) for values in inserted}
        for number in [number for number, (values, _, _) in rows.items() if values[:2] not in keys]:
            results[number] = None
            del rows[number]
        growth = store.growth_by_rows(rows.values(), now) if admission else {}
    if admission:
        admission.wrote(growth)
    return results, len(inserted)


def _first_schedules(commands: Sequence[Command]) -> Collection[int]:
    """Return the numbers of the ScheduleTimers on timers that no earlier command of the batch names."""
    first: dict[tuple[str, str], int] = {}
    others: set[tuple[str, str]] = set()
    for number, command in enumerate(commands):
        payload = command.payload
        if isinstance(payload, PlainTimer):
            key = payload[:2]
        elif isinstance(payload, ScheduleTimer):
            key = rules.key_of(command)
        else:
            if not isinstance(payload, CancelTimers):
                others.add(rules.key_of(command))
            continue
        if key not in others:
            first.setdefault(key, number)
    return first.values()


def _new_timer(command: Command, now: int) -> tuple[NewRow, CommandResult]:
    """Return the row of the timer that a ScheduleTimer adds, and the result of the command."""
    payload = command.payload
    # Most commands are such. To make a `Timer` first would take as long again.
    if isinstance(payload, PlainTimer) and command.reply_to is None:
        due_at = rules.due_time(command, payload, now)
        event_id = rules.event_id(payload, due_at, command.position)
        return store.plain_row(command, payload, due_at, event_id, now), CommandResult(Outcome.SCHEDULED, due_at)
    timer = rules.new_timer(rules.key_of(command), command, now)
    return store.new_row(timer), _result(None, Applied(timer, Outcome.SCHEDULED), command)


async def _apply_rest(
    tx: Transaction,
    commands: Sequence[Command],
    results: _Results,
    now: int,
    *,
    transaction_time: TransactionTime,
    admission: Admission | None,
) -> None:
    """Apply the commands that have no result yet, and enter their results. Those that are deferred get none."""
    rest = [number for number, result in enumerate(results) if result is None]
    keys = {each: rules.key_of(commands[each]) for each in rest if not isinstance(commands[each].payload, CancelTimers)}
    before, deferred = await load_in_portions(set(keys.values()), partial(store.load, tx), _characters)
    after = dict(before)
    new: list[Cancellation] = []
    for number in rest:
        command, key = commands[number], keys.get(number)
        if key in deferred or not await transaction_time.is_left():
            continue
        if key is None:
            assert isinstance(command.payload, CancelTimers)  # noqa: S101 - every other command has a key
            new.append(new_cancellation(command, command.payload, now))
            results[number] = CommandResult(Outcome.CANCELLING, wake_at=now, loop=LOOP)
            continue
        found = after.get(key)
        applied = rules.apply(found, key, command, now)
        if admission and (excess := await admission.exceeds(key.tenant_id, store.growth(found, applied.timer, now))):
            results[number] = CommandResult(Outcome.OVER_QUOTA, view=excess.view)
            continue
        if applied.timer is not None:
            after[key] = applied.timer
        results[number] = _result(found, applied, command)
    await store.save(tx, before, after)
    await cancellations.add(tx, new)


def _characters(timer: Timer) -> int:
    return len(timer.schedule.data or "")


def _result(found: Timer | None, applied: Applied, command: Command) -> CommandResult:
    timer = applied.timer
    if timer is None:
        return CommandResult(applied.outcome)
    is_new_instant = found is None or found.available_at != timer.available_at
    return CommandResult(
        applied.outcome,
        wake_at=timer.available_at if is_new_instant else None,
        view=partial(_view, timer) if command.reply_to is not None else None,
    )


def _view(timer: Timer) -> Mapping[str, Any]:
    return {"timer": timer_view(timer)}
