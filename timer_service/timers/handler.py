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
    applied = await _apply(tx, [commands[number] for number in rest], now, admission) if rest else []
    results |= zip(rest, applied, strict=False)
    end = rest[len(applied)] if len(applied) < len(rest) else len(commands)  # the first command that was not applied
    if len(results) > end:  # a timer was added for a command behind it
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
    first = _first_schedules(commands)
    for key, number in first.items():
        command = commands[number]
        requested = rules.requested(key, command, now)
        due_at, *_ = requested
        rows[number] = store.new_row(key, command, requested, now)
        view = None if command.reply_to is None else partial(_view_of_new, Key(*key), command, now)
        results[number] = CommandResult(Outcome.SCHEDULED, due_at, view)
    growth = store.growth_by_rows(rows.values(), now) if admission else {}
    if not rows or (admission and not await admission.may_write(growth)):
        return {}
    added = await store.insert_new(tx, rows.values())
    if len(added) < len(rows):  # the other timers exist: their commands must see them
        numbers = [first[values[0], values[1]] for values in added]
        rows = {number: rows[number] for number in numbers}
        results = {number: results[number] for number in numbers}
        growth = store.growth_by_rows(rows.values(), now) if admission else {}
    if admission:
        admission.wrote(growth)
    return results


def _first_schedules(commands: Sequence[Command]) -> Mapping[tuple[str, str], int]:
    """Return the number of the first ScheduleTimer on each timer, unless another command on the timer comes before it.

    The keys are plain tuples, which take less time than `Key`.
    """
    first: dict[tuple[str, str], int] = {}
    others: set[tuple[str, str]] = set()
    for number, command in enumerate(commands):
        payload = command.payload
        if isinstance(payload, PlainTimer):  # most are
            key = payload[:2]
        elif isinstance(payload, ScheduleTimer):
            key = rules.key_of(command)
        elif isinstance(payload, CancelTimers):  # it names no timer
            continue
        else:
            others.add(rules.key_of(command))
            continue
        if key not in others:
            first.setdefault(key, number)
    return first


async def _apply(
    tx: Transaction, commands: Sequence[Command], now: int, admission: Admission | None
) -> list[CommandResult]:
    """Apply the first commands on any timers. Return their results."""
    keys = [None if isinstance(each.payload, CancelTimers) else rules.key_of(each) for each in commands]
    before, left = await load_in_portions(
        (key for key in keys if key is not None), partial(store.load, tx), store.characters
    )
    batch = _Batch(before, now)
    results = await apply_in_order(
        commands[: count_before(keys, left)], admission, lambda number: batch.change_of(commands[number], keys[number])
    )
    await store.save(tx, before, batch.timers)
    await cancellations.add(tx, batch.cancellations)
    return results


class _Batch:
    """The timers, and the new cancellations, while the commands of a batch are applied in order. Writes nothing."""

    def __init__(self, timers: Mapping[Key, Timer], now: int) -> None:
        self.timers = dict(timers)
        self.cancellations: list[Cancellation] = []
        self._now = now

    def change_of(self, command: Command, key: Key | None) -> Change:
        """Return the change that a command asks for. `key`: its timer; None for a CancelTimers."""
        if key is None:
            return Change(partial(self._cancel_many, command))
        before = self.timers.get(key)
        applied = rules.apply(before, key, command, self._now)
        return Change(partial(self._keep, before, applied, command), store.growth(before, applied.timer, self._now))

    def _cancel_many(self, command: Command) -> CommandResult:
        """Add the cancellation of a CancelTimers, for which its worker wakes now."""
        self.cancellations.append(new_cancellation(command, self._now))
        return CommandResult(Outcome.CANCELLING, wake_at=self._now, loop=LOOP)

    def _keep(self, before: Timer | None, applied: Applied, command: Command) -> CommandResult:
        """Keep the timer as it is after a command. Return the result. Loops wake if the timer has another instant."""
        timer, outcome = applied
        if timer is None:
            return CommandResult(outcome)
        self.timers[timer.key] = timer
        is_new_instant = before is None or before.available_at != timer.available_at
        view = None if command.reply_to is None else partial(_view, timer)
        return CommandResult(outcome, timer.available_at if is_new_instant else None, view)


def _view(timer: Timer) -> Mapping[str, Any]:
    return {"timer": timer_view(timer)}


def _view_of_new(key: Key, command: Command, now: int) -> Mapping[str, Any]:
    return _view(rules.new_timer(key, command, now))
