"""The handler of timer commands: it loads, applies and saves in the transaction that reads the log."""

from collections.abc import Mapping, Sequence
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
    for key, number in _first_schedules(commands).items():
        command = commands[number]
        requested = rules.requested(key, command, now)
        rows[number] = store.new_row(key, command, requested, now)
        view = None if command.reply_to is None else partial(_view_of_new, key, command, now)
        results[number] = CommandResult(Outcome.SCHEDULED, requested[0], view)
    if not rows or (admission and not await admission.may_write(store.growth_by_rows(rows.values(), now))):
        return {}
    inserted = await store.insert_new(tx, rows.values())
    if len(inserted) < len(rows):
        keys = {tuple(values[:2]) for values in inserted}
        rows = {number: row for number, row in rows.items() if row[0][:2] in keys}
        results = {number: results[number] for number in rows}
    if admission:
        admission.wrote(store.growth_by_rows(rows.values(), now))
    return results


def _first_schedules(commands: Sequence[Command]) -> Mapping[Key, int]:
    """Return the numbers of the ScheduleTimers on timers that no earlier command of the batch names."""
    first: dict[Key, int] = {}
    others: set[Key] = set()
    for number, command in enumerate(commands):
        payload = command.payload
        if isinstance(payload, PlainTimer) or isinstance(payload, ScheduleTimer):  # noqa: SIM101 - twice as fast
            key = rules.key_of(command)
            if key not in others:
                first.setdefault(key, number)
        elif not isinstance(payload, CancelTimers):
            others.add(rules.key_of(command))
    return first


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
    wake_at = timer.available_at if is_new_instant else None
    return CommandResult(applied.outcome, wake_at, view=None if command.reply_to is None else partial(_view, timer))


def _view(timer: Timer) -> Mapping[str, Any]:
    return {"timer": timer_view(timer)}


def _view_of_new(key: Key, command: Command, now: int) -> Mapping[str, Any]:
    return _view(rules.new_timer(key, command, now))
