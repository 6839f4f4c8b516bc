"""The handler of schedule commands: it loads, applies and saves in the transaction of the intake."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.events import outbox
from timer_service.core.events.cause import cause_of
from timer_service.core.intake.batch import MOST_DATA, Change, apply_in_order, count_before, load_in_portions
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Amounts, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.service.workflow_start import StartResult, StartWorkflows
from timer_service.core.values.data import dump_data
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Command, Event
from timer_service.schedules import rules, store
from timer_service.schedules.backfill import store as backfill_store
from timer_service.schedules.backfills import LOOP, Backfill, new_backfill
from timer_service.schedules.events import ended_event
from timer_service.schedules.firings import Fired, Firing, fire
from timer_service.schedules.messages import FiringCause, TriggerSchedule
from timer_service.schedules.queries import schedule_view
from timer_service.schedules.rules import Outcome
from timer_service.schedules.schedule import Schedule, tombstone


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas, start: StartWorkflows
) -> Sequence[CommandResult]:
    """Apply the first commands in order. See `Handle`. The next slot of a rare cron expression takes 4 ms to compute.

    A trigger fires here: this transaction adds its event, or starts its workflow. A backfill is stored for its worker.
    """
    keys = [rules.key_of(command) for command in commands]
    before, left = await load_in_portions(keys, partial(store.load, tx), _characters)
    after = dict(before)
    events: list[Event] = []
    triggers: dict[int, Firing] = {}
    backfills: list[Backfill] = []
    room = _Room()

    def decide(number: int) -> Change | None:
        """Return what the command with a number changes; None if the transaction has no room for its data."""
        key, command = keys[number], commands[number]
        found = after.get(key) or tombstone(key, now)
        applied = rules.apply(found, command, now)
        data = _data_of(command, applied)
        if not room.take(data):
            return None

        def keep() -> CommandResult:
            """Record the change, its events and its firing or backfill. They are written after all commands."""
            if applied.schedule != found:
                after[key] = applied.schedule
            if applied.ends(found):
                events.append(ended_event(applied.schedule, now))
            if applied.outcome is Outcome.BACKFILLING:
                backfills.append(new_backfill(applied.schedule, command, now))
            elif applied.outcome is Outcome.TRIGGERED:
                triggers[number] = _trigger(applied.schedule, command, data)
            return _result(applied, now, wants_view=command.reply_to is not None)

        return Change(keep, _growth(found, applied))

    results = await apply_in_order(commands[: count_before(keys, left)], quotas.admission(tx, now), decide)
    await store.save(tx, before, after)
    if backfills:
        await backfill_store.add(tx, backfills)
    fired = await fire(tx, list(triggers.values()), partial(start, quotas=quotas), now)
    for number, each in zip(triggers, fired, strict=True):
        results[number] = _start_result(results[number], each)
        events += each.events
    await outbox.add(tx, events, now)
    return results


def _growth(before: Schedule, applied: rules.Applied) -> Amounts:
    """Return how much more a tenant has after a command on one of its schedules than before."""
    return {
        store.LIVE: applied.schedule.is_live - before.is_live,
        backfill_store.OPEN: int(applied.outcome is Outcome.BACKFILLING),
    }


class _Room:
    """How much data the triggers and the backfills of a transaction may have. Those of the first one always fit."""

    def __init__(self) -> None:
        self._left = MOST_DATA

    def take(self, data: str | None) -> bool:
        """Take room for data. Return whether there was enough."""
        self._left -= len(data or "")
        return self._left >= 0


def _trigger(schedule: Schedule, command: Command, data: str | None) -> Firing:
    """Return the firing of a TriggerSchedule. Its slot is its command time."""
    assert schedule.definition is not None  # noqa: S101 - no tombstone fires
    return Firing(
        schedule=schedule.key,
        slots=(command.stored_at,),
        cause=FiringCause.TRIGGER,
        position=command.position,
        origin=cause_of(command),
        start=schedule.definition.start,
        topic=schedule.definition.topic,
        data=data,
    )


_OUTCOMES = {
    StartResult.QUEUED: Outcome.QUEUED,
    StartResult.BUSY: Outcome.SKIPPED_BUSY,
    StartResult.EXISTS: Outcome.EXISTS,
    StartResult.OVER_QUOTA: Outcome.OVER_QUOTA,
}


def _start_result(result: CommandResult, fired: Fired) -> CommandResult:
    """Return the result of a trigger after it fired. One that would exceed a limit has no effect."""
    if not fired.started:  # it published an event
        return result
    (started,) = fired.started
    outcome = _OUTCOMES.get(started.result, Outcome.TRIGGERED)
    if outcome is Outcome.OVER_QUOTA:
        return CommandResult(outcome, view=started.excess and started.excess.view)
    return result._replace(name=outcome, lane=started.lane, loop=started.loop)


def _characters(schedule: Schedule) -> int:
    """Return how much data a schedule has."""
    return 0 if schedule.definition is None else len(schedule.definition.data or "")


def _data_of(command: Command, applied: rules.Applied) -> str | None:
    """Return the data that a trigger or a backfill publishes: its own, or the schedule's; None for other commands."""
    payload, definition = command.payload, applied.schedule.definition
    if applied.outcome not in {Outcome.TRIGGERED, Outcome.BACKFILLING} or definition is None:
        return None
    if isinstance(payload, TriggerSchedule) and "data" in payload.model_fields_set:
        return dump_data(payload.data)
    return definition.data


def _result(applied: rules.Applied, now: int, *, wants_view: bool) -> CommandResult:
    """Return the result of a command. The loops wake for its event, its backfill or the next slot."""
    schedule = applied.schedule
    view = partial(_view, schedule) if wants_view and schedule.definition is not None else None
    if applied.outcome is Outcome.BACKFILLING:
        return CommandResult(applied.outcome, now, view, loop=LOOP)
    adds_event = applied.outcome is Outcome.TRIGGERED or schedule.ended_at == now
    return CommandResult(applied.outcome, now if adds_event else schedule.available_at, view)


def _view(schedule: Schedule) -> Mapping[str, Any]:
    """Return the fields of a reply. Of the upcoming slots it has the one that is computed already."""
    slot = None if schedule.last_error else schedule.slot_at
    known = [] if slot is None else [format_instant(slot)]
    is_known = slot is not None or schedule.ended_at is not None
    return {"schedule": schedule_view(schedule, upcoming=known if is_known else None)}
