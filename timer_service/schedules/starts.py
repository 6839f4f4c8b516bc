"""Schedules with `start`: which workflows their slots and triggers start, and how each slot ends. Pure."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from timer_service.core.events.cause import Cause, cause_of
from timer_service.core.ports.database import Transaction
from timer_service.core.service.workflow_start import Started, StartResult, WorkflowSpec, WorkflowStart
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Command, Event, Position
from timer_service.core.values.stored_json import check_stored
from timer_service.schedules.backfills import Backfill
from timer_service.schedules.decision import Decision
from timer_service.schedules.events import Skipped, skipped_event
from timer_service.schedules.messages import FiringCause, SkipReason
from timer_service.schedules.schedule import Key, Schedule, aim

_REASONS = {
    StartResult.BUSY: SkipReason.BUSY,
    StartResult.EXISTS: SkipReason.EXISTS,
    StartResult.CANCELLED: SkipReason.CANCELLED,
    StartResult.OVER_QUOTA: SkipReason.OVER_QUOTA,
}


Start = Callable[[Transaction, Sequence[WorkflowStart], int], Awaitable[Sequence[Started]]]
"""Starts workflows in a transaction."""


class Settled(NamedTuple):
    """How the slots that should start workflows ended."""

    decision: Decision
    """`fired` has only the slots whose workflows were started."""
    events: Sequence[Event]
    reasons: Counter[SkipReason]
    """How many slots started no workflow."""


def has_start(schedule: Schedule) -> bool:
    """Return whether the slots of a schedule start workflows."""
    return schedule.definition is not None and schedule.definition.start is not None


def slot_starts(decision: Decision, data: str | None) -> list[WorkflowStart]:
    """Return the workflows that the slots of a decision start, in order. `data` is the input."""
    schedule = decision.schedule
    start = partial(_start, data=data, spec=_spec(schedule), position=schedule.defined_by, cause=schedule.cause)
    return [start(schedule.key, format_instant(slot), created_at=slot) for slot in decision.fired]


def trigger_start(schedule: Schedule, command: Command, data: str | None) -> WorkflowStart:
    """Return the workflow that a TriggerSchedule starts. `data` is the input."""
    position = command.position
    name = f"{position.epoch}-{position.sequence}"
    return _start(
        *(schedule.key, name, data),
        spec=_spec(schedule),
        position=position,
        cause=cause_of(command),
        created_at=command.stored_at,
    )


def backfill_starts(backfill: Backfill, slots: Sequence[int], data: str | None) -> list[WorkflowStart]:
    """Return the workflows that slots of a backfill start, in order. `data` is the input.

    The position is that of the BackfillSchedule, so a workflow that was cancelled before it is started. A workflow that
    was skipped because its key was taken is started too.
    """
    assert backfill.start is not None  # noqa: S101 - the caller has looked
    start = partial(_start, data=data, spec=backfill.start, position=backfill.key.position, cause=backfill.cause)
    starts = [start(backfill.schedule, format_instant(slot), created_at=slot) for slot in slots]
    return [each._replace(retries_skipped=True) for each in starts]


def _spec(schedule: Schedule) -> WorkflowSpec:
    assert schedule.definition is not None  # noqa: S101 - a tombstone starts nothing
    assert schedule.definition.start is not None  # noqa: S101 - the caller has looked
    return schedule.definition.start


def _start(
    key: Key, name: str, data: str | None, *, spec: WorkflowSpec, position: Position, cause: Cause, created_at: int
) -> WorkflowStart:
    return WorkflowStart(
        tenant_id=key.tenant_id,
        workflow_id=f"{key.schedule_id}/{name}",
        spec=spec,
        input=None if data in {None, "null"} else check_stored(data),
        position=position,
        cause=cause,
        created_at=created_at,
    )


def reason_of(started: Started) -> SkipReason | None:
    """Return why no workflow was started; None if one was, now or when the same slot fired before."""
    return _REASONS.get(started.result)


def settle(
    before: Schedule, decision: Decision, starts: Sequence[WorkflowStart], results: Sequence[Started], now: int
) -> Settled:
    """Return how the slots of a decision ended, from the results of their starts.

    A slot that started no workflow does not count for `maxCount`. So the schedule may go on although the decision ended
    it.
    """
    fired: list[int] = []
    events: list[Event] = []
    reasons: Counter[SkipReason] = Counter()
    missed_since = decision.missed_since
    after = decision.schedule
    for slot, start, started in zip(decision.fired, starts, results, strict=True):
        if (reason := reason_of(started)) is None:
            fired.append(slot)
            missed_since = None
            continue
        missed_since = slot if missed_since is None else missed_since
        reasons[reason] += 1
        events.append(skipped_event(before.key, Skipped(slot, FiringCause.SLOT, reason), start, now))
        after = after._replace(last_skipped_at=slot, last_skip_reason=reason)
    if not reasons:
        return Settled(decision, [], reasons)
    after = after._replace(
        fired_count=before.fired_count + len(fired),
        missed_since=missed_since,
        last_slot_at=fired[-1] if fired else before.last_slot_at,
        last_fired_at=now if fired else before.last_fired_at,
        ended_at=None,
        end_reason=None,
    )
    return Settled(decision._replace(schedule=aim(after, now), fired=tuple(fired)), events, reasons)
