"""The slots of recurrences, found by looking at each minute of a clock. It shares no code with the service."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, takewhile
from typing import NamedTuple

from tests.harness.reference_slots import DAY, HOUR, Clock

_DAY_MS = DAY * 1000
_NOON_MS = 12 * HOUR * 1000
_MINUTE = 60


class Recurrence(NamedTuple):
    """A cron expression of five fields that matches each day, or a distance. Instants and the distance are in ms."""

    cron: str | None
    every: int | None
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


def due_of(tenant: str, schedule: str, recurrence: Recurrence, jitter: int, slot: int) -> int:
    """Return the earliest instant at which a slot may fire: in [slot, slot + jitter), and before the next slot."""
    following = next_slot(recurrence, slot)
    span = jitter if following is None else min(jitter, following - slot)
    digest = hashlib.blake2b(f"{tenant}\0{schedule}\0{slot}".encode(), digest_size=8).digest()
    return slot + (int.from_bytes(digest, "big") % span if span else 0)


def _slots_from(recurrence: Recurrence, first: int) -> Iterator[int]:
    if recurrence.every is not None:
        return count(first + ((recurrence.start or 0) - first) % recurrence.every, recurrence.every)
    return _cron_slots_from(recurrence.cron or "", recurrence.zone, first)


def _cron_slots_from(cron: str, zone: str, first: int) -> Iterator[int]:
    today = (first - _NOON_MS) // _DAY_MS
    slots = _slots_of_day(cron, zone, today)
    yield from slots[bisect_left(slots, first) :]
    for day in count(today + 1):
        yield from _slots_of_day(cron, zone, day)


@cache
def _slots_of_day(cron: str, zone: str, day: int) -> Sequence[int]:
    """Return the slots from one noon (UTC) to the next. No clock changes near noon."""
    return [second * 1000 for second in _clock(zone, day).slots(cron)]


@cache
def _clock(zone: str, day: int) -> Clock:
    noon = day * DAY + 12 * HOUR
    return Clock(zone, noon, noon + DAY, _MINUTE)
