"""Slots around clock changes, compared with an evaluator that looks at each second or minute of the clock."""

from bisect import bisect
from datetime import UTC, datetime
from itertools import chain
from zoneinfo import available_timezones

import pytest

from tests.harness.reference_slots import HOUR, Change, Clock, find_changes
from timer_service.schedules.calendar.recurrence import Recurrence, newest_slots, next_slot, slots_between

ZONES = (
    "Africa/Casablanca",  # four changes a year
    "America/New_York",
    "America/Nuuk",  # changes on the day before that of Berlin
    "America/Santiago",  # changes at midnight
    "Antarctica/Troll",  # changes by two hours
    "Asia/Beirut",  # changes at midnight
    "Australia/Lord_Howe",  # changes by half an hour
    "Europe/Berlin",
    "Europe/Dublin",  # its summer time is the standard time
    "Pacific/Chatham",  # 45 minutes
)
UNUSUAL = (  # zones and years
    ("America/Caracas", 2007),  # half an hour back
    ("America/Sao_Paulo", 2018),  # forward from midnight
    ("Asia/Pyongyang", 2015),
    ("Pacific/Apia", 2011),  # skips a day
    ("Pacific/Kwajalein", 1993),  # skips a day
)
TO_THE_SECOND = (
    ("Africa/Monrovia", 1972),  # forward by 44 minutes and 30 seconds
    ("Australia/Lord_Howe", 2027),
    ("Europe/Berlin", 2027),
)


def start_of(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())


def changes_of(zone: str, first_year: int, years: int) -> list[Change]:
    return [*find_changes(zone, start_of(first_year), start_of(first_year + years))]


def expressions(change: Change) -> list[str]:
    """Return expressions that have slots around a change."""
    earlier, later = sorted(
        datetime.fromtimestamp(change.second + offset, UTC) for offset in (change.before, change.after)
    )
    first, last = earlier.hour, later.hour
    hours = f"{first}-{last}" if first < last else f"{last},{first}"
    return [
        "*/7 * * * *",
        f"*/15 {hours} * * *",
        f"10,40 */{max(first, 2)} * * *",
        f"*/30 {first} {later.day} * *",
        f"0 {hours} * * *",
        f"30 {first} * * *",
        f"29,30,31,59 {hours} {earlier.day},{later.day} {later.month} *",
        "0-59/10 0-23 * * *",
        f"15/15 0-23/{max(last, 1)} * * {earlier:%w},{later:%a}".upper(),
    ]


def check(cron: str, zone: str, clock: Clock) -> None:
    """Compare all slots that a clock shows, searched ahead and back, and the next slot after many instants."""
    expected = [second * 1000 for second in clock.slots(cron)]
    recurrence = Recurrence(cron, None, zone)
    first, last = clock.shown[0][0] * 1000, clock.shown[-1][0] * 1000
    assert [*slots_between(recurrence, first - 1, last)] == expected
    assert newest_slots(recurrence, first - 1, last, len(expected) + 1) == tuple(expected)
    for instant in chain(range(first, last, 37 * 60_000), (slot - 1 for slot in expected[:20])):
        following = expected[bisect(expected, instant) :][:1]
        found = next_slot(recurrence, instant)
        assert found == following[0] if following else found is None or found > last


def check_change(change: Change) -> None:
    overlap = max(0, change.before - change.after)
    clock = Clock(change.zone, change.second - overlap - 2 * HOUR, change.second + overlap + 26 * HOUR, 60)
    for cron in expressions(change):
        check(cron, change.zone, clock)


def check_seconds(change: Change) -> None:
    overlap = max(0, change.before - change.after)
    clock = Clock(change.zone, change.second - overlap - 900, change.second + overlap + 900, 1)
    for cron in ("*/7 * * * * *", "59,0-10/3 14-44/5 0-23 * * *", "0 */15 0-23 * * *", "45 */20 * * * *"):
        check(cron, change.zone, clock)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_slots_of_a_year(zone: str) -> None:
    """Around each clock change of a year, the slots equal those of a clock that is looked at each minute."""
    changes = changes_of(zone, 2025, 1)  # a year that is over, because zones give up their clock changes
    assert changes
    for change in changes:
        check_change(change)


@pytest.mark.parametrize(("zone", "year"), UNUSUAL)
def test_slots_around_unusual_changes(zone: str, year: int) -> None:
    """The slots are right if a zone skips a day, changes at midnight, or changes its standard time."""
    changes = changes_of(zone, year, 1)
    assert changes
    for change in changes:
        check_change(change)


@pytest.mark.parametrize(("zone", "year"), TO_THE_SECOND)
def test_slots_to_the_second(zone: str, year: int) -> None:
    """Around a clock change, slots with seconds equal those of a clock that is looked at each second."""
    changes = changes_of(zone, year, 1)
    assert changes
    for change in changes:
        check_seconds(change)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("year", range(2025, 2035))
def test_slots_of_all_zones(year: int) -> None:
    """Around each clock change of each zone in ten years, the slots equal those of a clock, by minutes and by seconds.

    Changes that look the same on the clocks are checked once.
    """
    changes = {
        change.same_walls: change for zone in sorted(available_timezones()) for change in changes_of(zone, year, 1)
    }
    assert len(changes) > 50
    for change in changes.values():
        check_change(change)
        check_seconds(change)
    print(f"{year}: {len(changes)} different clock changes")
