"""Recurrences and their slots. Pure functions: no clock, no I/O but the time zone data.

Instants are milliseconds since 1970 UTC, as everywhere. docs/schedules.md has the rules for clock changes.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from timer_service.core.values.duration import DAY, SECOND
from timer_service.core.values.instant import LATEST
from timer_service.schedules.calendar import interval
from timer_service.schedules.calendar.cron import first_match, is_fixed, last_match, parse_cron
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.interval import CalendarInterval
from timer_service.schedules.calendar.zones import LAST_SECOND, Stretch, check_zone, load_zone, stretch_at

_HORIZON = 50 * 366 * DAY // SECOND
"""How far a search goes, in seconds. Every date with every weekday comes again within 40 years."""
_LARGEST_CHANGE = DAY // SECOND
"""No clock changes by more, in seconds."""
_LARGEST_OFFSET = 2 * DAY // SECOND
"""No zone has a larger offset, in seconds."""
_MOST_JUMPED = 50


class Recurrence(NamedTuple):
    """The definition of slots: `cron` or `calendar` in a zone, or `every_ms` from `start_at` (or 1970) on.

    Slots are in [`start_at`, `end_at`).
    """

    cron: str | None
    every_ms: int | None
    zone: str = "UTC"
    start_at: int | None = None
    end_at: int | None = None
    calendar: CalendarInterval | None = None

    @property
    def first(self) -> int:
        """An instant before which no slot is."""
        start_at = self.start_at or 0
        if self.calendar is None:
            return start_at
        return max(start_at, (interval.anchor_second(self.calendar) - _LARGEST_OFFSET) * SECOND)

    @property
    def last(self) -> int:
        """The last instant at which a slot may be."""
        return LATEST if self.end_at is None else min(self.end_at - 1, LATEST)


def parse_recurrence(
    *,
    cron: str | None,
    every: int | None,
    calendar: CalendarInterval | None = None,
    zone: str | None = None,
    start_at: int | None = None,
    end_at: int | None = None,
) -> Recurrence:
    """Return the recurrence of a command or a query.

    Raises `RecurrenceError` with the code INVALID_CRON, UNKNOWN_ZONE, NEVER_FIRES or INVALID_PAYLOAD.
    """
    if [cron, every, calendar].count(None) != 2:  # noqa: PLR2004 - two of three
        raise RecurrenceError("INVALID_PAYLOAD", "cron", "write one of `cron`, `every` and `calendar`")
    if every is not None and zone is not None:
        text = "`every` is elapsed time and has no zone; leave out `zone`, or write `calendar` or `cron`"
        raise RecurrenceError("INVALID_PAYLOAD", "zone", text)
    if zone is not None:
        check_zone(zone)
    recurrence = Recurrence(
        cron=None if cron is None else parse_cron(cron),
        every_ms=every,
        zone=zone or "UTC",
        start_at=start_at,
        end_at=end_at,
        calendar=calendar,
    )
    _check_fires(recurrence)
    return recurrence


def _check_fires(recurrence: Recurrence) -> None:
    """Raise `RecurrenceError` (NEVER_FIRES) if no slot is in [`start_at`, `end_at`), whatever the time."""
    if recurrence.first > recurrence.last:
        starts = ("`startAt`", recurrence.start_at), ("the anchor", recurrence.calendar)
        start = next((name for name, value in starts if value is not None), "1970-01-01T00:00:00Z")
        raise RecurrenceError("NEVER_FIRES", "endAt", f"`endAt` must be later than {start}")
    if next_slot(recurrence, recurrence.first - 1) is None:
        end = "" if recurrence.end_at is None else " and before `endAt`"
        text = f"no slot is at or after `startAt`{end}; write an earlier `startAt`{end and ' or a later `endAt`'}"
        raise RecurrenceError("NEVER_FIRES", "startAt", text)


@lru_cache(maxsize=1024)
def next_slot(recurrence: Recurrence, after: int) -> int | None:
    """Return the first slot later than `after`; None if there is none within 50 years, or before the year 10000.

    Raises `RecurrenceError` if this instance does not know the zone or cannot read the expression.
    """
    first = max(after + 1, recurrence.first)
    if first > recurrence.last:
        return None
    slot = _first_slot(recurrence, first)
    return slot if slot is not None and slot <= recurrence.last else None


def zone_rules_of(recurrence: Recurrence) -> str | None:
    """Return the hash of the rules on which the slots depend; None if they depend on no zone.

    Raises `RecurrenceError` if this instance does not know the zone.
    """
    return load_zone(recurrence.zone).rules if recurrence.every_ms is None else None


def wall_of(recurrence: Recurrence, slot: int) -> int | None:
    """Return what the clocks show at a slot of fixed times, as if it was UTC; None for other recurrences.

    Times of a wildcard, and of `every`, may come again: each is a slot.
    """
    if recurrence.every_ms is not None or not _is_fixed(recurrence):
        return None
    return slot + stretch_at(recurrence.zone, slot // SECOND).offset * SECOND


def after_wall(recurrence: Recurrence, after: int, wall: int, *, is_slot: bool) -> int:
    """Return the instant up to which fixed times are handled: to `after`, and to what the clocks showed then, `wall`.

    If new rules of the zone show a later time at `after`, the times that they have jumped over are left, at most 50.
    Nothing is left before one that was a slot by the old rules too. `is_slot`: whether the slot at `after` has fired.
    """
    same_wall = wall - stretch_at(recurrence.zone, after // SECOND).offset * SECOND
    if same_wall >= after or not is_slot:
        return max(same_wall, after)
    jumped = newest_slots(recurrence, same_wall, after, _MOST_JUMPED)
    handled = (slot for slot in jumped if slot == after or _was_handled(recurrence, slot, wall, wall - after))
    return max(handled, default=jumped[0] - 1 if jumped else after)


def _was_handled(recurrence: Recurrence, slot: int, wall: int, offset_before: int) -> bool:
    """Return whether a slot was one with the offset before, in ms, or all times that became it are up to `wall`."""
    wall_before = (slot + offset_before) // SECOND
    shown = slot // SECOND + stretch_at(recurrence.zone, slot // SECOND).offset
    last = _last_match(recurrence, shown)
    return _last_match(recurrence, wall_before) == wall_before or last is None or last * SECOND <= wall


def slots_between(recurrence: Recurrence, after: int, until: int) -> Iterator[int]:
    """Yield the slots later than `after` and not later than `until`, in order, and compute each on demand."""
    while (slot := next_slot(recurrence, after)) is not None and slot <= until:
        yield slot
        after = slot


def newest_slots(recurrence: Recurrence, after: int, until: int, limit: int) -> tuple[int, ...]:
    """Return the newest `limit` slots later than `after` and not later than `until`, in order.

    No other slot is computed. Call it again with `until` before the oldest slot that it returned for more.
    """
    first = max(after + 1, recurrence.first)
    last = min(until, recurrence.last)
    newest_first: list[int] = []
    while last >= first and len(newest_first) < limit:
        slot = _last_slot(recurrence, last)
        if slot is None or slot < first:
            break
        newest_first.append(slot)
        last = slot - 1
    return tuple(reversed(newest_first))


def due_of(recurrence: Recurrence, slot: int, jitter_ms: int, tenant_id: str, schedule_id: str) -> int:
    """Return the earliest instant at which a slot may fire: less than `jitter_ms` later, and before the next slot.

    It depends on nothing but the arguments, so it is the same after a restart.
    """
    following = next_slot(recurrence._replace(end_at=None), slot)  # so an end that is put meanwhile moves no slot
    distance = (LATEST + 1 if following is None else following) - slot
    span = min(jitter_ms, distance)
    if span <= 1:
        return slot
    name = "\0".join((tenant_id, schedule_id, str(slot)))
    return slot + int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % span


def _first_slot(recurrence: Recurrence, first: int) -> int | None:
    """Return the first slot from `first` on, without regard to the end."""
    if recurrence.every_ms is not None:
        return first + (recurrence.first - first) % recurrence.every_ms  # Python's remainder is not negative
    first_second = -(-first // SECOND)  # rounded up
    return _first_wall_slot(recurrence, first_second)


def _last_slot(recurrence: Recurrence, last: int) -> int | None:
    """Return the last slot up to `last`, without regard to the start."""
    if recurrence.every_ms is not None:
        return last - (last - recurrence.first) % recurrence.every_ms
    return _last_wall_slot(recurrence, last // SECOND)


def _first_match(recurrence: Recurrence, wall: int) -> int | None:
    """Return the first wall second from `wall` on that matches `calendar` or `cron`."""
    if recurrence.calendar is not None:
        return interval.first_match(recurrence.calendar, wall)
    return first_match(recurrence.cron or "", wall)


def _last_match(recurrence: Recurrence, wall: int) -> int | None:
    """Return the last wall second up to `wall` that matches `calendar` or `cron`."""
    if recurrence.calendar is not None:
        return interval.last_match(recurrence.calendar, wall)
    return last_match(recurrence.cron or "", wall)


def _is_fixed(recurrence: Recurrence) -> bool:
    """Return whether the wall seconds are fixed times, which are moved out of a gap, and come once in an overlap."""
    return recurrence.calendar is not None or is_fixed(recurrence.cron or "")


def _first_wall_slot(recurrence: Recurrence, second: int) -> int | None:
    """Return the first slot from a second on, or None. Each stretch of the zone is searched until a match is in it."""
    fixed = _is_fixed(recurrence)
    horizon = min(second + _HORIZON, LAST_SECOND)
    searched, match = 0, None  # `match` is the first match from the wall second `searched` on
    while second <= horizon:
        stretch = stretch_at(recurrence.zone, second)
        wall = _first_wall(stretch, fixed=fixed)
        if second > stretch.start:
            wall = max(wall, second + stretch.offset)
        if match is None or not searched <= wall <= match:
            searched, match = wall, _first_match(recurrence, wall)
        if match is None:
            return None
        if match < stretch.end + stretch.offset:
            return max(stretch.start, match - stretch.offset) * SECOND
        # After a change of the clock, wall seconds before `searched` may come again: do not pass over a near one.
        is_change_near = stretch.end - second <= _LARGEST_CHANGE
        second = stretch.end if is_change_near else max(stretch.end, match - _LARGEST_OFFSET)
    return None


def _last_wall_slot(recurrence: Recurrence, second: int) -> int | None:
    """Return the last slot up to a second, or None, in the same way as `_first_wall_slot`."""
    fixed = _is_fixed(recurrence)
    horizon = max(second - _HORIZON, 0)
    searched, match = 0, None  # `match` is the last match up to the wall second `searched`
    while second >= horizon:
        stretch = stretch_at(recurrence.zone, second)
        wall = second + stretch.offset
        if match is None or not match <= wall <= searched:
            searched, match = wall, _last_match(recurrence, wall)
        if match is None:
            return None
        if match >= _first_wall(stretch, fixed=fixed):
            return max(stretch.start, match - stretch.offset) * SECOND
        is_change_near = second - stretch.start <= _LARGEST_CHANGE
        second = stretch.start - 1 if is_change_near else min(stretch.start - 1, match + _LARGEST_OFFSET)
    return None


def _first_wall(stretch: Stretch, *, fixed: bool) -> int:
    """Return the first wall second that becomes a slot in a stretch.

    A fixed time in the gap before the stretch becomes its first instant. A fixed time in an overlap was in the stretch
    before. A wildcard matches each second as the clocks show it.
    """
    return stretch.start + (stretch.offset_before if fixed else stretch.offset)
