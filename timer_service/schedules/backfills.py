"""Backfills: past slots of a schedule that fire again, or for the first time. Pure functions and values.

The command stores one row. `backfill/worker.py` then fires the slots, portion by portion. See docs/decisions/0038.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from timer_service.core.events.cause import Cause, cause_of
from timer_service.core.service.workflow_start import WorkflowSpec
from timer_service.core.values.message import Command, Position
from timer_service.schedules.calendar.recurrence import Recurrence, after_wall, due_of, slots_between, wall_of
from timer_service.schedules.messages import BackfillSchedule
from timer_service.schedules.schedule import Key, Schedule

LOOP = "backfills"
"""The loop of the worker that fires the slots."""


class BackfillKey(NamedTuple):
    """The key of a backfill: the tenant, and the position of the command."""

    tenant_id: str
    position_epoch: int
    position_sequence: int

    @property
    def position(self) -> Position:
        """The position of the command."""
        return Position(self.position_epoch, self.position_sequence)


class Backfill(NamedTuple):
    """One BackfillSchedule, and how far it is. It keeps the definition that the schedule had when it was accepted."""

    key: BackfillKey
    schedule_id: str
    recurrence: Recurrence
    jitter_ms: int
    start: WorkflowSpec | None
    """The workflow that each slot starts."""
    cause: Cause
    from_at: int
    to_at: int
    """Every slot is earlier. It is not later than the command time."""
    slot_limit: int
    """How many slots it handles at most."""
    after_at: int
    """Every slot of the range up to and including this instant has fired or was skipped."""
    available_at: int
    """When the next portion may fire. It stays while portions fire, so the oldest backfill of a tenant remains so."""
    after_wall_at: int | None = None
    """What the clocks of the zone showed at `after_at`, as in a schedule."""
    fired_count: int = 0
    skipped_count: int = 0
    """How many slots started no workflow."""
    last_error: str | None = None
    topic: str | None = None
    """Of the events."""
    data: str | None = None
    """JSON: what the events carry, or the input of the workflows. None also if it was not read."""
    data_size: int = 0
    """The number of characters of the data."""

    @property
    def schedule(self) -> Key:
        """The key of the schedule."""
        return Key(self.key.tenant_id, self.schedule_id)

    @property
    def left(self) -> int:
        """How many more slots it may handle."""
        return self.slot_limit - self.fired_count - self.skipped_count

    def slots(self, now: int) -> Iterator[int]:
        """Yield the slots that are left and due, in order, and compute each on demand."""
        for slot in self._slots_left():
            due = due_of(self.recurrence, slot, self.jitter_ms, *self.schedule) if self.jitter_ms else slot
            if due > now:
                return
            yield slot

    def first_left(self) -> int | None:
        """Return the first slot of the range that was not handled, also if it is not due yet; None if none is left."""
        return next(self._slots_left(), None)

    def _slots_left(self) -> Iterator[int]:
        after, wall = self.after_at, self.after_wall_at
        if wall is not None:
            after = max(after_wall(self.recurrence, after, wall, is_slot=True), self.from_at - 1)
        return slots_between(self.recurrence, after, self.to_at - 1)

    def after(self, slots: Sequence[int], skipped: int) -> "Backfill":
        """Return the backfill after a portion of slots, some of which started no workflow."""
        if not slots:
            return self
        return self._replace(
            after_at=slots[-1],
            after_wall_at=wall_of(self.recurrence, slots[-1]),
            fired_count=self.fired_count + len(slots) - skipped,
            skipped_count=self.skipped_count + skipped,
        )


def new_backfill(schedule: Schedule, command: Command, now: int) -> Backfill:
    """Return the backfill of a BackfillSchedule that was accepted."""
    payload, definition = command.payload, schedule.definition
    assert isinstance(payload, BackfillSchedule)  # noqa: S101 - the handler passes no other command
    assert definition is not None  # noqa: S101 - no tombstone is backfilled
    return Backfill(
        key=BackfillKey(command.tenant, *command.position),
        schedule_id=payload.schedule_id,
        recurrence=definition.recurrence,
        jitter_ms=definition.jitter_ms,
        start=definition.start,
        cause=cause_of(command),
        from_at=payload.from_,
        to_at=min(payload.to, command.stored_at),
        slot_limit=payload.limit,
        after_at=payload.from_ - 1,
        available_at=now,
        topic=definition.topic,
        data=definition.data,
        data_size=len(definition.data or ""),
    )
