"""The handler of schedule commands: it loads, applies and saves in the consumer's transaction."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from timer_service.core.due.portions import MOST_DATA, load_in_portions
from timer_service.core.events import outbox
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Admission, Excess, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.service.workflow_start import Started, StartResult, StartWorkflows, WorkflowStart
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Event
from timer_service.schedules import backfill_store, rules, store, trigger_store
from timer_service.schedules.backfills import LOOP, Backfill, new_backfill
from timer_service.schedules.events import Skipped, ended_events, skipped_event, trigger_event
from timer_service.schedules.messages import BackfillSchedule, DeleteSchedule, FiringCause, SkipReason, TriggerSchedule
from timer_service.schedules.queries import schedule_view
from timer_service.schedules.rules import Outcome
from timer_service.schedules.schedule import Schedule
from timer_service.schedules.starts import has_start, reason_of, trigger_start
from timer_service.schedules.usage import growth

_FIRE = BackfillSchedule | TriggerSchedule
"""The commands that fire slots or events, and change nothing of the schedule."""
_FIRING = {Outcome.TRIGGERED, Outcome.BACKFILLING}
"""Their outcomes with an effect."""


async def handle(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    quotas: Quotas,
    start: StartWorkflows,
    monotonic: Callable[[], float] = time.monotonic,
) -> Sequence[CommandResult | None]:
    """Apply commands in order. Each command sees the effects of the earlier ones.

    A trigger fires here: this transaction adds its event, or starts its workflow. A backfill is stored for its worker.
    If one of both is delivered again, it does nothing. A command that would exceed a limit of its tenant has no effect.
    If the schedules, the triggers or the backfills have much data, the commands on some schedules are deferred. After
    50 ms the rest is deferred: computing the next slot of a rare cron expression takes 4 ms.
    """
    keys = [rules.key_of(command) for command in commands]
    before, not_read = await load_in_portions(set(keys), partial(store.load, tx), _characters)
    deferred = set(not_read)
    fires = {command.position for command in commands if isinstance(command.payload, _FIRE)}
    handled = await trigger_store.find_handled(tx, fires)
    admission = quotas.admission(tx, now)
    after = dict(before)
    firing = _Firing()
    results: list[CommandResult | None] = []
    transaction_time = TransactionTime(monotonic)
    for key, command in zip(keys, commands, strict=True):
        if key in deferred or not await transaction_time.is_left():
            results.append(None)
            continue
        applied = rules.apply(after.get(key), key, command, now)
        if command.position in handled:
            applied = applied._replace(outcome=Outcome.UNCHANGED)
        if not firing.has_room(applied, command):
            deferred.add(key)
            results.append(None)
            continue
        if admission and (excess := await _exceeded(admission, after.get(key), applied, command)):
            results.append(CommandResult(Outcome.OVER_QUOTA, view=excess.view))
            continue
        if not isinstance(command.payload, _FIRE):
            after[key] = applied.schedule
        elif applied.outcome in _FIRING:
            firing.add(len(results), applied, command, now)
        results.append(_result(applied, now, wants_view=command.reply_to is not None))
    await store.save(tx, before, after)
    decided = {command.position for command, result in zip(commands, results, strict=True) if result is not None}
    await trigger_store.add_handled(tx, fires & decided - handled, now)
    if firing.backfills:
        await backfill_store.add(tx, firing.backfills)
    starting = firing.starting
    started = await start(tx, [each.wanted for each in starting.values()], now, quotas=quotas) if starting else []
    for (number, each), result in zip(starting.items(), started, strict=True):
        results[number] = _start_result(each, result, now)
        firing.events += _skipped_events(each, result, now)
    ended = [event for key, schedule in after.items() for event in ended_events(before.get(key), schedule, now)]
    await outbox.add(tx, [*firing.events, *ended], now)
    return results


async def _exceeded(
    admission: Admission, before: Schedule | None, applied: rules.Applied, command: Command
) -> Excess | None:
    """Return the limit that a command exceeds. A Delete exceeds none, also if a late one starts the next definition."""
    added = growth(before, applied)
    excess = await admission.exceeds(applied.schedule.key.tenant_id, added)
    return None if isinstance(command.payload, DeleteSchedule) else excess


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
        """Return whether the data of a trigger or a backfill fit in this transaction. The first one always fits."""
        is_first = not (self.events or self.starting or self.backfills)
        return (
            applied.outcome not in _FIRING or is_first or len(_data_of(command, applied.schedule) or "") <= self._room
        )

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
    StartResult.CANCELLED: Outcome.IGNORED_STALE,
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
