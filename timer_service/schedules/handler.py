"""The handler of schedule commands: it loads, applies and saves in the consumer's transaction."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from timer_service.core import outbox
from timer_service.core.data import dump_data
from timer_service.core.database import Transaction
from timer_service.core.message import Command, Event
from timer_service.core.portions import MOST_DATA, load_in_portions
from timer_service.core.quotas import Quotas
from timer_service.core.route import CommandResult
from timer_service.core.turns import TransactionTime
from timer_service.schedules import rules, store, trigger_store
from timer_service.schedules.events import ended_events, trigger_event
from timer_service.schedules.messages import DeleteSchedule, TriggerSchedule
from timer_service.schedules.queries import schedule_view
from timer_service.schedules.rules import Outcome
from timer_service.schedules.schedule import Schedule
from timer_service.schedules.usage import growth


async def handle(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    quotas: Quotas,
    monotonic: Callable[[], float] = time.monotonic,
) -> Sequence[CommandResult | None]:
    """Apply commands in order. Each command sees the effects of the earlier ones.

    A trigger fires here: its event is added in this transaction. If it is delivered again, it does nothing. A command
    that would exceed a limit of its tenant has no effect. If the schedules or the triggers have much data, the commands
    on some schedules are deferred. After 50 ms the rest is deferred: computing the next slot of a rare cron expression
    takes 4 ms.
    """
    keys = [rules.key_of(command) for command in commands]
    before, not_read = await load_in_portions(set(keys), partial(store.load, tx), _characters)
    deferred = set(not_read)
    triggers = {command.position for command in commands if isinstance(command.payload, TriggerSchedule)}
    handled = await trigger_store.find_handled(tx, triggers)
    admission = quotas.admission(tx, now)
    after = dict(before)
    triggered: list[Event] = []
    room = MOST_DATA
    results: list[CommandResult | None] = []
    transaction_time = TransactionTime(monotonic)
    for key, command in zip(keys, commands, strict=True):
        if key in deferred or not await transaction_time.is_left():
            results.append(None)
            continue
        applied = rules.apply(after.get(key), key, command, now)
        if command.position in handled:
            applied = applied._replace(outcome=Outcome.UNCHANGED)
        if admission:
            added = growth(after.get(key), applied.schedule)
            excess = await admission.exceeds(key.tenant_id, added, command.position)
            if excess and not isinstance(command.payload, DeleteSchedule):  # a late one may start the next definition
                results.append(CommandResult(Outcome.OVER_QUOTA, view=excess.view))
                continue
        if applied.outcome is Outcome.TRIGGERED:
            data = _data_of(command, applied.schedule)
            if triggered and len(data or "") > room:
                deferred.add(key)
                results.append(None)
                continue
            room -= len(data or "")
            triggered.append(trigger_event(applied.schedule, command, data, now))
        elif not isinstance(command.payload, TriggerSchedule):
            after[key] = applied.schedule
        results.append(_result(applied, now, wants_view=command.reply_to is not None))
    await store.save(tx, before, after)
    decided = {command.position for command, result in zip(commands, results, strict=True) if result is not None}
    await trigger_store.add_handled(tx, triggers & decided - handled, now)
    ended = [event for key, schedule in after.items() for event in ended_events(before.get(key), schedule, now)]
    await outbox.add(tx, [*triggered, *ended], now)
    return results


def _characters(schedule: Schedule) -> int:
    return len((schedule.definition and schedule.definition.data) or "")


def _data_of(command: Command, schedule: Schedule) -> str | None:
    """Return the data that a trigger publishes: its own, or the schedule's."""
    payload = command.payload
    assert isinstance(payload, TriggerSchedule)  # noqa: S101 - only triggers are triggered
    assert schedule.definition is not None  # noqa: S101 - no tombstone is triggered
    return dump_data(payload.data) if "data" in payload.model_fields_set else schedule.definition.data


def _result(applied: rules.Applied, now: int, *, wants_view: bool) -> CommandResult:
    schedule = applied.schedule
    adds_event = applied.outcome is Outcome.TRIGGERED or schedule.ended_at == now
    view = {"schedule": schedule_view(schedule)} if wants_view and schedule.definition is not None else None
    return CommandResult(applied.outcome, now if adds_event else schedule.available_at, view)
