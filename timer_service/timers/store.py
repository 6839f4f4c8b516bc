"""Timers in the database: rows <-> rules."""

from collections.abc import Collection, Mapping
from typing import Any

from timer_service.core.database import Row, Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.lease import LeasedTable
from timer_service.core.message import Position, Trace
from timer_service.core.sql import load_sql
from timer_service.timers.rules import Key, Schedule, State, Timer

_SQL = load_sql("timer_service.timers", "store.sql")

TIMERS = LeasedTable(
    name="timer_schedules",
    key=("tenant_id", "service_call_id"),
    claimed=(
        "tenant_id",
        "service_call_id",
        "due_at",
        "data",
        "correlation_id",
        "causation_id",
        "traceparent",
        "tracestate",
        "event_id",
    ),
    oldest_first="due_at",
    state="state",
    waiting=State.SCHEDULED,
    held=State.SCHEDULED,
    done=State.REACHED,
    buried=State.FAILED,
    done_at="reached_at",
)


async def find(tx: Transaction, keys: Collection[Key]) -> dict[Key, Timer]:
    """Read the timers that exist among `keys`."""
    rows = await tx.fetch_each(_SQL["find"], [key._asdict() for key in keys])
    return {timer.schedule.key: timer for timer in map(_timer, rows)}


async def put(tx: Transaction, timers: Collection[Timer]) -> None:
    """Write timers as newly scheduled; ends any claim on them. Raises `ConflictError` if one has moved on since."""
    written = await tx.executemany(_SQL["put"], [_parameters(timer) for timer in timers])
    if written != len(timers):
        raise ConflictError(f"{len(timers) - written} of {len(timers)} timers were changed by another instance")


async def advance(tx: Transaction, timers: Collection[Timer]) -> None:
    """Note that newer commands have confirmed timers; a claim on them goes on."""
    await tx.executemany(
        _SQL["advance"],
        [{**timer.schedule.key._asdict(), **_position(timer.position)} for timer in timers],
    )


def _timer(row: Row) -> Timer:
    position = Position(row["position_epoch"], row["position_sequence"])
    return Timer(
        schedule=Schedule(
            key=Key(row["tenant_id"], row["service_call_id"]),
            due_at=row["due_at"],
            position=position,
            data=row["data"],
            correlation_id=row["correlation_id"],
            causation_id=row["causation_id"],
            trace=Trace(row["traceparent"], row["tracestate"]),
        ),
        state=State(row["state"]),
        position=position,
        registered_at=row["registered_at"],
        event_id=row["event_id"],
    )


def _parameters(timer: Timer) -> Mapping[str, Any]:
    schedule = timer.schedule
    return {
        "tenant_id": schedule.key.tenant_id,
        "service_call_id": schedule.key.service_call_id,
        "state": timer.state,
        "due_at": schedule.due_at,
        "data": schedule.data,
        "correlation_id": schedule.correlation_id,
        "causation_id": schedule.causation_id,
        "traceparent": schedule.trace.traceparent,
        "tracestate": schedule.trace.tracestate,
        "event_id": timer.event_id,
        "registered_at": timer.registered_at,
        "available_at": schedule.due_at,
        **_position(timer.position),
    }


def _position(position: Position) -> Mapping[str, Any]:
    return {"position_epoch": position.epoch, "position_sequence": position.sequence}
