"""Firings: each slot, and each trigger, publishes an event or starts a workflow.

Passes, backfills and triggers use them alike. The id of an event or a workflow follows from its slot or its command, so
a repeated one has the same id.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.core.ports.database import Transaction
from timer_service.core.service.workflow_start import Started, StartResult, WorkflowSpec, WorkflowStart
from timer_service.core.values.instant import format_instant, format_optional
from timer_service.core.values.message import Event, Position
from timer_service.core.values.stored_json import check_stored, omit_none, read_stored, write_object
from timer_service.schedules.events import event_of, names
from timer_service.schedules.messages import FiringCause, ScheduleFired, ScheduleSkipped, SkipReason
from timer_service.schedules.schedule import Key

Start = Callable[[Transaction, Sequence[WorkflowStart], int], Awaitable[Sequence[Started]]]
"""Starts workflows in a transaction."""

_REASONS = {
    StartResult.BUSY: SkipReason.BUSY,
    StartResult.EXISTS: SkipReason.EXISTS,
    StartResult.CANCELLED: SkipReason.CANCELLED,
    StartResult.OVER_QUOTA: SkipReason.OVER_QUOTA,
}


class Firing(NamedTuple):
    """Slots of a schedule that fire for one cause. The slot of a trigger is its command time."""

    schedule: Key
    slots: Sequence[int]
    cause: FiringCause
    position: Position
    """The position of the command that wants it. A workflow that was cancelled by an older one is started."""
    origin: Cause
    start: WorkflowSpec | None
    """The workflow that each slot starts."""
    topic: str | None
    """Of the events."""
    data: str | None
    """JSON: what the events carry, or the input of the workflows."""
    missed_since: int | None = None
    """The first slot that was skipped before; only the first event names it."""


class Fired(NamedTuple):
    """How the slots of a firing ended."""

    fired: int
    """How many slots published an event or started a workflow, now or when the same slot fired before."""
    events: Sequence[Event]
    started: Sequence[Started] = ()
    """The results of the starts."""
    not_started: Mapping[int, SkipReason] = {}
    """The slots that started no workflow."""


async def fire(tx: Transaction, firings: Sequence[Firing], start: Start, now: int) -> list[Fired]:
    """Start the workflows of firings, and return how each ended. The caller adds the events to the outbox.

    Raises `DamagedDataError` if stored data is damaged, and `DatabaseBlockedError` if a workflow is locked.
    """
    starts = [each for firing in firings if firing.start is not None for each in _starts(firing, firing.start)]
    results = zip(starts, await start(tx, starts, now), strict=True) if starts else iter(())
    return [
        Fired(len(each.slots), _fired_events(each, now))
        if each.start is None
        else _started(each, list(islice(results, len(each.slots))), now)  # its own results: all are in order
        for each in firings
    ]


def _fired_events(firing: Firing, now: int) -> list[Event]:
    """Return the ScheduleFired of each slot. The first one names the slots that were missed before it."""
    data = read_stored(firing.data)
    fields = {"firedAt": format_instant(now), "cause": firing.cause}
    events = []
    for number, slot in enumerate(firing.slots):
        is_first = number == 0
        more = omit_none(missedSince=format_optional(firing.missed_since if is_first else None))
        payload = {**names(firing.schedule), "slotAt": format_instant(slot), **fields, **more}
        # A slot that a backfill fires has the id that it always has.
        about = ("trigger", *firing.position) if firing.cause is FiringCause.TRIGGER else ("slot", slot)
        written = write_object(payload, {"data": data})
        events.append(
            event_of(
                *(ScheduleFired.type, firing.schedule, about, written),
                origin=firing.origin,
                at=now,
                topic=firing.topic,
            )
        )
    return events


def _starts(firing: Firing, spec: WorkflowSpec) -> Iterator[WorkflowStart]:
    """Yield the workflows of slots, in order.

    A backfill also starts a workflow that was skipped before because its key was taken. No input and null are the same.
    """
    text = None if firing.data in {None, "null"} else check_stored(firing.data or "")
    for slot in firing.slots:
        is_trigger = firing.cause is FiringCause.TRIGGER
        name = f"{firing.position.epoch}-{firing.position.sequence}" if is_trigger else format_instant(slot)
        yield WorkflowStart(
            tenant_id=firing.schedule.tenant_id,
            workflow_id=f"{firing.schedule.schedule_id}/{name}",
            spec=spec,
            input=text,
            position=firing.position,
            cause=firing.origin,
            created_at=slot,
            retries_skipped=firing.cause is FiringCause.BACKFILL,
        )


def _started(firing: Firing, results: Sequence[tuple[WorkflowStart, Started]], now: int) -> Fired:
    """Return how the slots of a firing that starts workflows have ended, with an event for each that started none."""
    not_started: dict[int, SkipReason] = {}
    events: list[Event] = []
    for start, started in results:
        reason = _REASONS.get(started.result)
        if reason is None:
            continue
        not_started[start.created_at] = reason
        has_no_effect = firing.cause is FiringCause.TRIGGER and reason is SkipReason.OVER_QUOTA
        if not has_no_effect:
            events.append(_skipped_event(firing, start, reason, now))
    return Fired(len(results) - len(not_started), events, [started for _, started in results], not_started)


def _skipped_event(firing: Firing, start: WorkflowStart, reason: SkipReason, now: int) -> Event:
    """Return the event of a slot that started no workflow. A slot has another event each time that it is backfilled."""
    workflow_id = start.workflow_id
    fields = {
        "slotAt": format_instant(start.created_at),
        "skippedAt": format_instant(now),
        "cause": firing.cause,
        "reason": reason,
        "workflowId": workflow_id,
    }
    payload = write_object({**names(firing.schedule), **fields}, {})
    about = ("skipped", workflow_id, *(firing.position if firing.cause is FiringCause.BACKFILL else ()))
    return event_of(ScheduleSkipped.type, firing.schedule, about, payload, origin=firing.origin, at=now)
