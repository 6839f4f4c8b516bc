"""The slots of recurrences, found by looking at each minute of a clock. It shares no code with the service."""

import hashlib
import zoneinfo
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from functools import cache, partial
from itertools import count, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tests.harness.reference_slots import DAY, HOUR, Clock, PlainCron

_DAY_MS = DAY * 1000
_NOON_MS = 12 * HOUR * 1000
_MINUTE = 60


class Recurrence(NamedTuple):
    """A cron expression of five fields that matches each day, a distance, or days from an anchor on.

    Instants and the distance are in ms.
    """

    cron: str | None
    every: int | None
    days: tuple[int, str] | None
    """How many days are between slots, and the anchor: a wall-clock time to the minute."""
    zone: str
    start: int | None
    end: int | None


def slots_after(recurrence: Recurrence, after: int) -> Iterator[int]:
    """Yield the slots later than an instant, in order."""
    first = max(after + 1, recurrence.start or 0)
    return takewhile(lambda slot: recurrence.end is None or slot < recurrence.end, _slots_from(recurrence, first))


def next_slot(recurrence: Recurrence, after: int) -> int | None:
    """Return the first slot later than an instant, or None."""
    return next(slots_after(recurrence, after), None)


def is_fixed(recurrence: Recurrence) -> bool:
    """Return whether the slots are fixed times, each of which fires once although clocks change."""
    return recurrence.days is not None or (recurrence.cron is not None and PlainCron(recurrence.cron).fixed)


def reading(zone: str, at: int) -> int:
    """Return what the clocks of a zone show at an instant, as if it was UTC."""
    there = datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
    return int(there.replace(tzinfo=UTC).timestamp() * 1000)


def time_of(recurrence: Recurrence, slot: int) -> int:
    """Return the time of the clock of which a fixed slot is: a time in a gap has its slot after the gap."""
    expression = PlainCron(_cron_of(recurrence))
    shown = reading(recurrence.zone, slot)
    while not expression.matches(datetime.fromtimestamp(shown / 1000, UTC)):
        shown -= _MINUTE * 1000
    return shown


def _cron_of(recurrence: Recurrence) -> str:
    return recurrence.cron or "" if recurrence.days is None else _time_of(recurrence.days[1])


def due_of(tenant: str, schedule: str, recurrence: Recurrence, jitter: int, slot: int) -> int:
    """Return the earliest instant at which a slot may fire: in [slot, slot + jitter), and before the next slot."""
    following = next_slot(recurrence, slot)
    span = jitter if following is None else min(jitter, following - slot)
    digest = hashlib.blake2b(f"{tenant}\0{schedule}\0{slot}".encode(), digest_size=8).digest()
    return slot + (int.from_bytes(digest, "big") % span if span else 0)


def _slots_from(recurrence: Recurrence, first: int) -> Iterator[int]:
    if recurrence.every is not None:
        return count(first + ((recurrence.start or 0) - first) % recurrence.every, recurrence.every)
    is_of = _every_day if recurrence.days is None else partial(_is_of, *recurrence.days)
    return _cron_slots_from(_cron_of(recurrence), recurrence.zone, first, is_of)


def _cron_slots_from(cron: str, zone: str, first: int, is_of: Callable[[int], bool]) -> Iterator[int]:
    """Yield the slots of an expression from an instant on, of the days for which `is_of` is true."""
    today = (first - _NOON_MS) // _DAY_MS
    for day in count(today):
        slots = _slots_of_day(cron, zone, day, zoneinfo.TZPATH) if is_of(day) else []
        yield from slots[bisect_left(slots, first) :]


def _every_day(_day: int) -> bool:
    return True


def _is_of(every: int, anchor: str, noon: int) -> bool:
    """Return whether the night after a noon (UTC) is a multiple of days later than that of the anchor."""
    first = (date.fromisoformat(anchor[:10]) - date(1970, 1, 1)).days - 1  # the anchor is early in the morning
    return noon >= first and (noon - first) % every == 0


def _time_of(anchor: str) -> str:
    """Return the expression that matches the time of an anchor each day."""
    at = datetime.fromisoformat(anchor)
    return f"{at.minute} {at.hour} * * *"


@cache
def _slots_of_day(cron: str, zone: str, day: int, data: Sequence[str]) -> Sequence[int]:
    """Return the slots from one noon (UTC) to the next, by the zone data in use. No clock changes near noon."""
    return [second * 1000 for second in _clock(zone, day, data).slots(cron)]


@cache
def _clock(zone: str, day: int, _data: Sequence[str]) -> Clock:
    noon = day * DAY + 12 * HOUR
    return Clock(zone, noon, noon + DAY, _MINUTE)
