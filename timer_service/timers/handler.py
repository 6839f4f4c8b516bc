"""Commands on timers -> rules -> store, in the consumer's transaction."""

from collections.abc import Sequence

from timer_service.core.consumer import CommandResult
from timer_service.core.data import dump_data
from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.timers import rules, store
from timer_service.timers.messages import CancelTimer, RetryTimer, ScheduleTimer
from timer_service.timers.queries import timer_view
from timer_service.timers.rules import Decision, Key, Schedule, Timer, Write

PAYLOADS = (ScheduleTimer, CancelTimer, RetryTimer)


async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
    """Apply commands in order, each seeing what those before it did; one read and at most two writes in all."""
    keys = [_key(command) for command in commands]
    timers = await store.find_locked(tx, set(keys))
    writes: dict[Key, Write] = {}
    outcomes: list[CommandResult] = []
    for key, command in zip(keys, commands, strict=True):
        decision = _decide(timers.get(key), key, command, now)
        outcomes.append(_outcome(decision, command))
        if decision.timer is not None and decision.write is not Write.NOTHING:
            timers[key] = decision.timer
            writes[key] = Write.ALL if Write.ALL in {decision.write, writes.get(key)} else Write.POSITION
    await store.put(tx, [timers[key] for key, write in writes.items() if write is Write.ALL])
    await store.advance(tx, [timers[key] for key, write in writes.items() if write is Write.POSITION])
    return outcomes


def _key(command: Command) -> Key:
    payload = command.payload
    assert isinstance(payload, PAYLOADS)  # noqa: S101 - the route says so
    return Key(payload.tenant_id, payload.service_call_id)


def _decide(timer: Timer | None, key: Key, command: Command, now: int) -> Decision:
    match command.payload:
        case ScheduleTimer() as payload:
            wanted = Schedule(
                due_at=payload.due_at,
                event_id=rules.event_id(key, payload.due_at, command.position),
                data=dump_data(payload.data) if "data" in payload.model_fields_set else None,
                correlation_id=command.correlation_id,
                causation_id=command.id,
                trace=command.trace,
            )
            return rules.schedule(timer, key, wanted, command.position, now)
        case CancelTimer():
            return rules.cancel(timer, key, command.position, now)
        case _:
            return rules.retry(timer, command.position, now)


def _outcome(decision: Decision, command: Command) -> CommandResult:
    timer = decision.timer
    wake_at = timer.available_at if timer and decision.write is Write.ALL else None
    wants_view = command.reply_to is not None and timer is not None and timer.schedule is not None
    return CommandResult(decision.verdict, wake_at, {"timer": timer_view(timer)} if timer and wants_view else None)
