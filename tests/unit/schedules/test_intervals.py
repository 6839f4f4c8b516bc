"""Calendar intervals, compared with `dateutil.rrule` and with the time zone data."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import DAILY, MONTHLY, WEEKLY, rrule
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from tests.harness.reference_slots import DAY, Change, find_changes
from timer_service.core.values.instant import LATEST, format_instant, parse_instant
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.interval import CalendarInterval, Unit, parse_wall_time
from timer_service.schedules.calendar.recurrence import (
    Recurrence,
    newest_slots,
    next_slot,
    parse_recurrence,
    slots_between,
)
from timer_service.schedules.messages import PutSchedule

ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "America/Nuuk", "Asia/Beirut"),
    *("Australia/Lord_Howe", "Africa/Casablanca", "Antarctica/Troll", "Pacific/Apia", "Pacific/Chatham"),
)
PERIODS: Mapping[Unit, Literal[3, 2, 1]] = {Unit.DAYS: DAILY, Unit.WEEKS: WEEKLY, Unit.MONTHS: MONTHLY}
CHANGES = {
    zone: [*find_changes(zone, *(int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2009, 2031)))]
    for zone in ZONES
}
WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock has no zone


def calendar(every: int, unit: Unit, anchor: str, zone: str = "Europe/Berlin", **more: Any) -> Recurrence:
    interval = CalendarInterval(every, unit, parse_wall_time(anchor))
    return parse_recurrence(cron=None, every=None, calendar=interval, zone=zone, **more)


def second_of(wall: datetime, zone: str) -> int:
    """Return the second of a wall-clock time: the first of two, or the first one after the gap that it is in."""
    there = ZoneInfo(zone)
    second = int(wall.replace(tzinfo=there, fold=0).timestamp())
    if datetime.fromtimestamp(second, there).replace(tzinfo=None) == wall:
        return second
    shown = (wall - WALL_EPOCH) // timedelta(seconds=1)
    near = find_changes(zone, second - 3 * DAY, second + 3 * DAY)
    return next(each.second for each in near if each.second + each.before <= shown < each.second + each.after)


@st.composite
def cases(draw: st.DrawFn) -> tuple[CalendarInterval, str, int]:
    """Draw an interval with slots around a clock change, its zone, and the second of the change."""
    zone = draw(st.sampled_from(ZONES))
    change = draw(st.sampled_from(CHANGES[zone] or [Change("UTC", 1_772_000_000, 0, 0)]))
    offset = draw(st.sampled_from([change.before, change.after]))
    shift = draw(st.integers(-7200, 7200) | st.integers(-40 * DAY, 40 * DAY))
    wall = WALL_EPOCH + timedelta(seconds=change.second + offset + shift)
    every, unit = draw(st.integers(1, 5) | st.integers(1, 500)), draw(st.sampled_from(Unit))
    back = draw(st.integers(0, 30))
    if unit is Unit.MONTHS:
        back = min(back, 480 // every)
        month = wall.year * 12 + wall.month - 1 - back * every
        day = draw(st.just(wall.day) | st.integers(28, 31))
        first = datetime(month // 12, month % 12 + 1, 1, wall.hour, wall.minute, wall.second)  # noqa: DTZ001
        later = first + timedelta(days=day - 1)
        anchor = later if later.month == first.month else later.replace(day=1) - timedelta(days=1)
    else:
        days = every * (7 if unit is Unit.WEEKS else 1)
        anchor = wall - timedelta(days=days * min(back, 14_000 // days))
    return CalendarInterval(every, unit, anchor.isoformat()), zone, change.second


@settings(deadline=None, max_examples=300)
@given(cases())
def test_intervals_agree_with_rrule(drawn: tuple[CalendarInterval, str, int]) -> None:
    """In every zone, around each clock change, the slots are those of dateutil, searched ahead and back."""
    interval, zone, change = drawn
    anchor = datetime.fromisoformat(interval.anchor)
    days = [*range(28, anchor.day + 1)] if interval.unit == Unit.MONTHS and anchor.day > 28 else []
    last_of: dict[str, Any] = {"bymonthday": days, "bysetpos": -1} if days else {}
    walls = rrule(PERIODS[Unit(interval.unit)], dtstart=anchor, interval=interval.every, **last_of)
    before = WALL_EPOCH + timedelta(seconds=change, days=-100)
    near = [*walls.between(before, before + timedelta(days=1500), inc=True)][:60]
    near = near or [*islice(walls.xafter(before, inc=True), 3)]
    expected = sorted({second_of(wall, zone) * 1000 for wall in near})
    recurrence = Recurrence(None, None, zone, calendar=interval)
    assert [*slots_between(recurrence, expected[0] - 1, expected[-1])] == expected
    assert newest_slots(recurrence, expected[0] - 1, expected[-1], len(expected)) == tuple(expected)
    for slot, following in pairwise(expected):
        assert next_slot(recurrence, slot) == next_slot(recurrence, following - 1) == following
    first = second_of(anchor, zone) * 1000
    assert next_slot(recurrence, -1) == first
    assert newest_slots(recurrence, 0, first - 1, 1) == ()


@pytest.mark.parametrize(
    ("recurrence", "slots"),
    [
        (calendar(2, Unit.WEEKS, "2026-03-20T09:00"), ["2026-03-20T08:00", "2026-04-03T07:00", "2026-04-17T07:00"]),
        (calendar(1, Unit.DAYS, "2027-03-27T02:30"), ["2027-03-27T01:30", "2027-03-28T01:00", "2027-03-29T00:30"]),
        (calendar(1, Unit.DAYS, "2027-10-30T02:30"), ["2027-10-30T00:30", "2027-10-31T00:30", "2027-11-01T01:30"]),
        (calendar(1, Unit.MONTHS, "2028-01-31T12:00", "UTC"), ["2028-01-31T12", "2028-02-29T12", "2028-03-31T12"]),
        (calendar(12, Unit.MONTHS, "2028-02-29T12:00", "UTC"), ["2028-02-29T12", "2029-02-28T12", "2030-02-28T12"]),
        (calendar(1, Unit.DAYS, "2027-01-01T09:00", "UTC", start_at=parse_instant("2027-01-05T09:00:00Z")),
         ["2027-01-05T09", "2027-01-06T09", "2027-01-07T09"]),
    ],
    ids=["every other Friday", "gap", "overlap", "last day of a month", "leap day", "start after the anchor"],
)  # fmt: skip
def test_examples(recurrence: Recurrence, slots: list[str]) -> None:
    """The examples of docs/schedules.md."""
    found = [format_instant(slot) for slot in islice(slots_between(recurrence, 0, LATEST), 3)]
    assert [slot[: len(text)] for slot, text in zip(found, slots, strict=True)] == slots


def test_ends_of_time() -> None:
    """The anchor may be the last second of 9999, and is in every zone. No search fails at the ends."""
    for unit in Unit:
        last = calendar(1, unit, "9999-12-31T23:59:59", "UTC")
        assert next_slot(last, 0) == LATEST - 999
        assert next_slot(last, LATEST - 999) is None
        assert newest_slots(last, 0, 10**18, 5) == (LATEST - 999,)
        east = calendar(1, unit, "1970-01-01T00:00", "Pacific/Kiritimati")  # the anchor is in 1969 (UTC)
        first = next_slot(east, -1)
        assert first is not None
        assert first > 0
        assert newest_slots(east, -1, 10**18, 2)[-1] <= LATEST
        rare = calendar(500, unit, "1970-01-01T00:00", "UTC")
        assert all(
            (next_slot(rare, parse_instant(f"{year}-01-01T00:00:00Z")) or 0) > 0 for year in range(1971, 9900, 97)
        )
        far = calendar(1, unit, "2990-01-01T00:00", "UTC")  # further away than a search goes
        assert next_slot(far, 0) == parse_instant("2990-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2026-01-02", "must be a wall-clock time such as 2026-01-02T09:00"),
        ("2026-01-02T09:00Z", "without an offset: `zone` names the time zone"),
        ("2026-01-02T09:00:00+01:00", "without an offset"),
        ("2026-01-02T09:00:00.5", "must be a wall-clock time"),
        ("2026-02-30T09:00", "is not a valid time: day "),
        ("2026-01-02T24:00", "must be a wall-clock time"),
        ("1969-12-31T23:59", "must not be before 1970-01-01"),
        (1_767_344_400, "must be a wall-clock time"),
    ],
)
def test_refused_anchors(text: object, message: str) -> None:
    """An anchor is a wall-clock time to the second, without an offset."""
    with pytest.raises(PydanticCustomError, match=message):
        parse_wall_time(text)


def test_an_interval_that_never_fires_is_refused() -> None:
    """The end must be later than the anchor."""
    with pytest.raises(RecurrenceError, match="`endAt` must be later than the anchor"):
        calendar(1, Unit.DAYS, "2027-01-05T09:00", end_at=parse_instant("2027-01-01T00:00:00Z"))
    with pytest.raises(RecurrenceError, match="no slot is at or after"):
        calendar(1, Unit.DAYS, "2027-01-05T09:00", end_at=parse_instant("2027-01-05T08:00:00Z"))


@pytest.mark.parametrize("every", ["P1M", "P1Y"])
def test_months_are_a_calendar_interval(every: str) -> None:
    """The error of a distance in months or years names the field `calendar`."""
    with pytest.raises(ValidationError, match="have no fixed length: write `calendar`, with `months` and an `anchor`"):
        PutSchedule.model_validate({"tenantId": "acme", "scheduleId": "rent", "every": every})
