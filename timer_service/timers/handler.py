"""The handler of timer commands: it loads, applies and saves in the transaction that reads the log."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.intake.batch import Change, apply_in_order, count_before, load_in_portions
from timer_service.core.intake.route import CommandResult, TooManyCommandsError
from timer_service.core.limits.quotas import Admission, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import Command
from timer_service.timers import cancellations, rules, store
from timer_service.timers.cancellations import LOOP, Cancellation, new_cancellation
from timer_service.timers.messages import CancelTimers, PlainTimer, ScheduleTimer
from timer_service.timers.queries import timer_view
from timer_service.timers.rules import Applied, Key, Outcome, Timer
from timer_service.timers.store import NewRow


async def handle(tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas) -> Sequence[CommandResult]:
    """Apply the first commands in order. See `Handle`.

    New timers are added without reading them first. The rest takes at most two writes, and one read for each 250
    timers.
    """
    admission = quotas.admission(tx, now)
    results = await _add_new(tx, commands, now, admission)
    rest = [number for number in range(len(commands)) if number not in results]
    if not rest:
        return [results[number] for number in range(len(commands))]
    found = await _apply(tx, [commands[number] for number in rest], now, admission)
    results |= zip(rest, found, strict=False)
    end = rest[len(found)] if len(found) < len(rest) else len(commands)
    if any(number >= end for number in results):
        raise TooManyCommandsError(end)
    return [results[number] for number in range(end)]


async def _add_new(
    tx: Transaction, commands: Sequence[Command], now: int, admission: Admission | None
) -> dict[int, CommandResult]:
    """Add the timers that do not exist yet and whose first command schedules them. See docs/decisions/0071.

    Return the results of the commands that have added one, by number: none if the tenants may lack room for all.
    """
    rows: dict[int, NewRow] = {}
    results: dict[int, CommandResult] = {}
    for number in _first_schedules(commands):
        rows[number], results[number] = _new_timer(commands[number], now)
    growth = store.growth_by_rows(rows.values(), now) if admission else {}
    if not rows or (admission and not await admission.may_write(growth)):
        return {}
    inserted = await store.insert_new(tx, rows.values())
    if len(inserted) < len(rows):
        keys = {tuple(values[:2]) for values in inserted}
        for number in [number for number, (values, _, _) in rows.items() if values[:2] not in keys]:
            del rows[number], results[number]
        growth = store.growth_by_rows(rows.values(), now) if admission else {}
    if admission:
        admission.wrote(growth)
    return results


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


async def _apply(
    tx: Transaction, commands: Sequence[Command], now: int, admission: Admission | None
) -> list[CommandResult]:
    """Apply the first commands on any timers. Return their results."""
    keys = [None if isinstance(each.payload, CancelTimers) else rules.key_of(each) for each in commands]
    wanted = [key for key in keys if key is not None]
    before, left = await load_in_portions(wanted, partial(store.load, tx), _characters)
    after = dict(before)
    new: list[Cancellation] = []

    def decide(number: int) -> Change:
        command, key = commands[number], keys[number]
        if isinstance(command.payload, CancelTimers):
            return Change(partial(_cancel_many, new, new_cancellation(command, command.payload, now), now))
        assert key is not None  # noqa: S101 - every other command has a key
        found = after.get(key)
        applied = rules.apply(found, key, command, now)
        return Change(partial(_keep, after, key, applied, command), store.growth(found, applied.timer, now))

    results = await apply_in_order(commands[: count_before(keys, left)], admission, decide)
    await store.save(tx, before, after)
    await cancellations.add(tx, new)
    return results


def _cancel_many(new: list[Cancellation], cancellation: Cancellation, now: int) -> CommandResult:
    new.append(cancellation)
    return CommandResult(Outcome.CANCELLING, wake_at=now, loop=LOOP)


def _keep(after: dict[Key, Timer], key: Key, applied: Applied, command: Command) -> CommandResult:
    found = after.get(key)
    if applied.timer is not None:
        after[key] = applied.timer
    return _result(found, applied, command)


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
