"""Commands on timers -> rules -> store, in the consumer's transaction."""

from collections.abc import Sequence

from timer_service.core.consumer import Outcome
from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.timers import rules, store
from timer_service.timers.messages import ScheduleTimer, dump_data
from timer_service.timers.rules import Decision, Key, Schedule, Timer, Verdict

PAYLOADS = (ScheduleTimer,)


async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[Outcome]:
    """Apply commands in order, seeing what earlier ones of the batch did; one read and at most two writes in all."""
    wanted = [_schedule(command) for command in commands]
    timers = await store.find(tx, {each.key for each in wanted})
    put: dict[Key, Timer] = {}
    advance: dict[Key, Timer] = {}
    outcomes: list[Outcome] = []
    for each in wanted:
        decision = rules.schedule(timers.get(each.key), each, now)
        outcomes.append(_outcome(decision))
        if decision.timer is None:
            continue
        timers[each.key] = decision.timer
        confirmed_only = decision.verdict is Verdict.UNCHANGED and each.key not in put
        (advance if confirmed_only else put)[each.key] = decision.timer
    await store.put(tx, put.values())
    await store.advance(tx, [timer for key, timer in advance.items() if key not in put])
    return outcomes


def _schedule(command: Command) -> Schedule:
    payload = command.payload
    assert isinstance(payload, ScheduleTimer)  # noqa: S101 - PAYLOADS says so
    return Schedule(
        key=Key(payload.tenant_id, payload.service_call_id),
        due_at=payload.due_at,
        position=command.position,
        data=dump_data(payload.data) if "data" in payload.model_fields_set else None,
        correlation_id=command.correlation_id,
        causation_id=command.id,
        trace=command.trace,
    )


def _outcome(decision: Decision) -> Outcome:
    scheduled = decision.verdict in {Verdict.SCHEDULED, Verdict.RESCHEDULED}
    due_at = decision.timer.schedule.due_at if decision.timer and scheduled else None
    return Outcome(decision.verdict, wake_at=due_at)
