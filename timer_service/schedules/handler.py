"""The handler of schedule commands: it loads, applies and saves in the transaction of the intake."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from timer_service.core.events import outbox
from timer_service.core.intake.batch import MOST_DATA, Change, apply_in_order, count_before, load_in_portions
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Amounts, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.service.workflow_start import Started, StartResult, StartWorkflows, WorkflowStart
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Event
from timer_service.schedules import rules, store
from timer_service.schedules.backfill import store as backfill_store
from timer_service.schedules.backfills import LOOP, Backfill, new_backfill
from timer_service.schedules.events import Skipped, ended_event, skipped_event, trigger_event
from timer_service.schedules.messages import FiringCause, SkipReason, TriggerSchedule
from timer_service.schedules.queries import schedule_view
from timer_service.schedules.rules import Outcome
from timer_service.schedules.schedule import Schedule, tombstone
from timer_service.schedules.starts import has_start, reason_of, trigger_start

_FIRING = {Outcome.TRIGGERED, Outcome.BACKFILLING}
"""The outcomes of the commands that fire slots or events, and change nothing of the schedule."""


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas, start: StartWorkflows
) -> Sequence[CommandResult]:
    """Apply the first commands in order. See `Handle`. The next slot of a rare cron expression takes 4 ms to compute.

    A trigger fires here: this transaction adds its event, or starts its workflow. A backfill is stored for its worker.
    """
    keys = [rules.key_of(command) for command in commands]
    before, left = await load_in_portions(keys, partial(store.load, tx), _characters)
    after = dict(before)
    firing = _Firing()

    def decide(number: int) -> Change | None:
        key, command = keys[number], commands[number]
        found = after.get(key) or tombstone(key, now)
        applied = rules.apply(found, command, now)
        if not firing.has_room(applied, command):
            return None

        def keep() -> CommandResult:
            if applied.schedule != found:
                after[key] = applied.schedule
            if applied.ends(found):
                firing.events.append(ended_event(applied.schedule, now))
            if applied.outcome in _FIRING:
                firing.add(number, applied, command, now)
            return _result(applied, now, wants_view=command.reply_to is not None)

        return Change(keep, _growth(found, applied))

    results = await apply_in_order(commands[: count_before(keys, left)], quotas.admission(tx, now), decide)
    await store.save(tx, before, after)
    if firing.backfills:
        await backfill_store.add(tx, firing.backfills)
    starting = firing.starting
    started = await start(tx, [each.wanted for each in starting.values()], now, quotas=quotas) if starting else []
    for (number, each), result in zip(starting.items(), started, strict=True):
        results[number] = _start_result(each, result, now)
        firing.events += _skipped_events(each, result, now)
    await outbox.add(tx, firing.events, now)
    return results


def _growth(before: Schedule, applied: rules.Applied) -> Amounts:
    """Return how much more a tenant has after a command on one of its schedules than before."""
    return {
        store.LIVE: applied.schedule.is_live - before.is_live,
        backfill_store.OPEN: int(applied.outcome is Outcome.BACKFILLING),
    }


class _Starting(NamedTuple):
    """A trigger that starts a workflow."""

    applied: rules.Applied
    command: Command
    wanted: WorkflowStart


class _Firing:
    """What the triggers and the backfills of a transaction add."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.starting: dict[int, _Starting] = {}
        """The triggers that start workflows, by their numbers in the batch."""
        self.backfills: list[Backfill] = []
        self._room = MOST_DATA

    def has_room(self, applied: rules.Applied, command: Command) -> bool:
        """Return whether the data of a trigger or a backfill fit in this transaction. Those of the first one do."""
        return applied.outcome not in _FIRING or len(_data_of(command, applied.schedule) or "") <= self._room

    def add(self, number: int, applied: rules.Applied, command: Command, now: int) -> None:
        """Add a trigger or a backfill."""
        schedule = applied.schedule
        data = _data_of(command, schedule)
        self._room -= len(data or "")
        if applied.outcome is Outcome.BACKFILLING:
            self.backfills.append(new_backfill(schedule, command, now))
        elif has_start(schedule):
            self.starting[number] = _Starting(applied, command, trigger_start(schedule, command, data))
        else:
            self.events.append(trigger_event(schedule, command, data, now))


_OUTCOMES = {
    StartResult.BUSY: Outcome.SKIPPED_BUSY,
    StartResult.EXISTS: Outcome.EXISTS,
    StartResult.OVER_QUOTA: Outcome.OVER_QUOTA,
}


def _start_result(starting: _Starting, started: Started, now: int) -> CommandResult:
    outcome = _OUTCOMES.get(started.result, Outcome.TRIGGERED)
    if outcome is Outcome.OVER_QUOTA:
        return CommandResult(outcome, view=started.excess and started.excess.view)
    result = _result(starting.applied, now, wants_view=starting.command.reply_to is not None)
    return result._replace(name=outcome, lane=started.lane, loop=started.loop)


def _skipped_events(starting: _Starting, started: Started, now: int) -> list[Event]:
    """Return the event of a trigger that started no workflow. A trigger that exceeds a limit has no effect."""
    reason = reason_of(started)
    if reason is None or reason is SkipReason.OVER_QUOTA:
        return []
    skipped = Skipped(starting.command.stored_at, FiringCause.TRIGGER, reason)
    return [skipped_event(starting.applied.schedule.key, skipped, starting.wanted, now)]


def _characters(schedule: Schedule) -> int:
    return len((schedule.definition and schedule.definition.data) or "")


def _data_of(command: Command, schedule: Schedule) -> str | None:
    """Return the data that a trigger or a backfill publishes: its own, or the schedule's."""
    payload = command.payload
    assert schedule.definition is not None  # noqa: S101 - no tombstone fires
    if isinstance(payload, TriggerSchedule) and "data" in payload.model_fields_set:
        return dump_data(payload.data)
    return schedule.definition.data


def _result(applied: rules.Applied, now: int, *, wants_view: bool) -> CommandResult:
    schedule = applied.schedule
    adds_event = applied.outcome is Outcome.TRIGGERED or schedule.ended_at == now
    view = partial(_view, schedule) if wants_view and schedule.definition is not None else None
    if applied.outcome is Outcome.BACKFILLING:
        return CommandResult(applied.outcome, now, view, loop=LOOP)
    return CommandResult(applied.outcome, now if adds_event else schedule.available_at, view)


def _view(schedule: Schedule) -> Mapping[str, Any]:
    return {"schedule": schedule_view(schedule)}
