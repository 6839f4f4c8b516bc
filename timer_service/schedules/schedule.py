"""The values of a schedule: its definition and its cursor. Pure."""

from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.core.service.workflow_start import WorkflowSpec
from timer_service.core.values.error_text import error_text
from timer_service.core.values.message import Position
from timer_service.schedules.calendar.recurrence import (
    Recurrence,
    after_wall,
    due_of,
    newest_slots,
    next_slot,
    wall_of,
    zone_rules_of,
)
from timer_service.schedules.messages import EndReason, Policy, Status

CLOCKS_APART_MS = 3_600_000
"""How far the broker's clock may be ahead of the service's. A cursor further ahead shows that a clock was wrong."""
NEVER = Position(0, 0)
"""The position of no command."""


class Key(NamedTuple):
    """The key of a schedule."""

    tenant_id: str
    schedule_id: str


class Definition(NamedTuple):
    """The values of a PutSchedule."""

    recurrence: Recurrence
    max_count: int | None
    jitter_ms: int
    policy: Policy
    late_by_ms: int
    limit: int
    data: str | None
    """JSON: what the events carry, or the input of the workflows."""
    start: WorkflowSpec | None = None
    """The workflow that each slot starts."""
    topic: str | None = None
    """Of the events. Without them, there is none."""


class Schedule(NamedTuple):
    """A schedule, or a tombstone if `definition` is None.

    A tombstone keeps the cursor of a deleted schedule, or the pause of one that may be put later.
    """

    key: Key
    created_at: int
    definition: Definition | None = None
    cause: Cause = Cause()
    created_by: Position = NEVER
    """The Put before which there was no schedule, or a deleted one."""
    defined_by: Position = NEVER
    """The last Put."""
    is_paused: bool = False
    """The pause belongs to the id: it is kept while the schedule has ended, and for a schedule that is put later."""
    after_at: int = 0
    """Every slot up to and including this instant has been fired or skipped, by the rules of the zone then."""
    after_wall_at: int | None = None
    """What the clocks of the zone showed at the last slot that was handled, as if it was UTC. See `last_done`."""
    slot_at: int | None = None
    """The next slot; None unless the schedule is active."""
    zone_rules: str | None = None
    """The rules of the zone from which `slot_at` was computed; None if it depends on no zone."""
    available_at: int | None = None
    """When the next slot is due, or is tried again. If a pass has left slots, the instant of the pass."""
    fired_count: int = 0
    missed_since: int | None = None
    last_slot_at: int | None = None
    last_fired_at: int | None = None
    last_error: str | None = None
    last_skipped_at: int | None = None
    """The last slot that started no workflow."""
    last_skip_reason: str | None = None
    """A `SkipReason`, or the reason of a newer version of the service. So is `end_reason` an `EndReason`."""
    ended_at: int | None = None
    end_reason: str | None = None
    confirmed_at: int | None = None
    """When a Put or a Pause last changed a schedule that has ended or is deleted. Retention counts from then."""

    @property
    def status(self) -> Status:
        """The status, which follows from the other fields."""
        if self.definition is None:
            return Status.DELETED
        if self.ended_at is not None:
            return Status.ENDED
        return Status.PAUSED if self.is_paused else Status.ACTIVE

    @property
    def is_live(self) -> bool:
        """Whether the schedule is active or paused."""
        return self.definition is not None and self.ended_at is None

    def due_of(self, slot: int) -> int:
        """Return the earliest instant at which a slot may fire."""
        assert self.definition is not None  # noqa: S101 - only schedules have slots
        if not self.definition.jitter_ms:
            return slot
        return due_of(self.definition.recurrence, slot, self.definition.jitter_ms, *self.key)


def last_done(schedule: Schedule) -> int:
    """Return the instant after which the next slot is searched: the cursor, by the rules of the zone in force.

    If new rules show a fixed time again that has fired under the old ones, it does not fire again, as in the overlap of
    a clock change. If they jump over one, the instant is before the cursor, so that it fires. Raises `RecurrenceError`
    if this instance does not know the zone.
    """
    definition, wall = schedule.definition, schedule.after_wall_at
    if definition is None or wall is None or schedule.after_at >= definition.recurrence.last:
        return schedule.after_at
    is_slot = schedule.after_at == schedule.last_slot_at  # otherwise a command has moved the cursor
    return after_wall(definition.recurrence, schedule.after_at, wall, is_slot=is_slot)


def move_cursor(schedule: Schedule, slot: int) -> Schedule:
    """Return a schedule whose slots up to and including `slot` have been handled."""
    if schedule.definition is None or slot == schedule.after_at:
        return schedule
    return schedule._replace(after_at=slot, after_wall_at=wall_of(schedule.definition.recurrence, slot))


def has_old_rules(schedule: Schedule) -> bool:
    """Return whether the next slot was computed from other rules of its zone than this instance has.

    Raises `RecurrenceError` if this instance does not know the zone.
    """
    if schedule.definition is None or schedule.slot_at is None or schedule.last_error:
        return False
    return schedule.zone_rules != zone_rules_of(schedule.definition.recurrence)


def begun_slot(schedule: Schedule, at: int) -> int | None:
    """Return the slot of a live schedule that has begun at `at` and is not due yet because of its jitter, or None.

    There is at most one: the jitter ends before the next slot.
    """
    definition = schedule.definition
    if definition is None or not definition.jitter_ms or not schedule.is_live:
        return None
    try:
        slots = newest_slots(definition.recurrence, last_done(schedule), at, 1)
        return slots[0] if slots and schedule.due_of(slots[0]) > at else None
    except Exception:  # noqa: BLE001 - this instance cannot compute slots
        return None


def cursor(schedule: Schedule, now: int) -> int:
    """Return the cursor of a schedule; `now` if it was written while the clock was ahead."""
    return schedule.after_at if schedule.after_at <= now + CLOCKS_APART_MS else now


def tombstone(key: Key, now: int) -> Schedule:
    """Return the tombstone of a schedule of which nothing is known."""
    return Schedule(key, now, ended_at=now)


def start(schedule: Schedule, put_at: int, now: int, begun: int | None) -> Schedule:
    """Return a schedule that a Put has started: the count is 0, and no slot up to its command time is left.

    `begun`: the slot that has begun before, and that the new definition also has. It is left.
    """
    after_at = max(cursor(schedule, now), put_at) if begun is None else begun - 1
    started = schedule._replace(
        after_at=after_at, after_wall_at=None, fired_count=0, missed_since=None, ended_at=None, end_reason=None
    )
    return aim(started, now)


def aim(schedule: Schedule, now: int) -> Schedule:
    """Return a schedule with its next slot, or ended if no slot follows its cursor.

    If this instance cannot compute the slot, for example because it does not know the zone, the schedule is due at
    once: the pass of an instance that knows the zone computes the slot.
    """
    definition = schedule.definition
    if definition is None or schedule.ended_at is not None:
        return _without_slot(schedule)
    try:
        done = last_done(schedule)
        slot = next_slot(definition.recurrence, done)
        rules = None if slot is None else zone_rules_of(definition.recurrence)
        due_at = None if slot is None else schedule.due_of(slot)
    except Exception as error:  # noqa: BLE001 - whatever the parser or the zone data raise
        if schedule.is_paused:
            return _without_slot(schedule)
        earliest = schedule.after_at + 1
        return schedule._replace(
            slot_at=earliest, zone_rules=None, available_at=max(now, earliest), last_error=error_text(error)
        )
    if slot is None or schedule.fired_count == definition.max_count:
        return _end(schedule, now)
    if schedule.is_paused:
        return _without_slot(schedule)
    after_at = min(schedule.after_at, done)
    return schedule._replace(after_at=after_at, slot_at=slot, zone_rules=rules, available_at=due_at, last_error=None)


def _without_slot(schedule: Schedule) -> Schedule:
    return schedule._replace(slot_at=None, zone_rules=None, available_at=None, last_error=None)


def _end(schedule: Schedule, now: int) -> Schedule:
    """Return a schedule that has no further slot."""
    return _without_slot(schedule)._replace(ended_at=now, end_reason=_end_reason(schedule))


def _end_reason(schedule: Schedule) -> EndReason:
    """Return why no slot follows: the count, the end if a slot would follow without it, or the recurrence."""
    definition = schedule.definition
    assert definition is not None  # noqa: S101 - only schedules end
    if definition.max_count is not None and schedule.fired_count >= definition.max_count:
        return EndReason.MAX_COUNT
    if definition.recurrence.end_at is None:
        return EndReason.NO_MORE_SLOTS
    without_end = definition.recurrence._replace(end_at=None)
    try:
        slot = next_slot(without_end, schedule.after_at)
    except Exception:  # noqa: BLE001 - this instance cannot compute slots, but the end has passed
        return EndReason.END_AT
    return EndReason.NO_MORE_SLOTS if slot is None else EndReason.END_AT
