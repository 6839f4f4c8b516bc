from bisect import bisect
from itertools import islice, pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.harness.cron_texts import cron_texts
from timer_service.core.values.duration import DAY, HOUR, MINUTE
from timer_service.core.values.instant import LATEST, format_instant, parse_instant
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.recurrence import (
    Recurrence,
    due_of,
    newest_slots,
    next_slot,
    parse_recurrence,
    slots_between,
)

ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo", "Africa/Casablanca")
NEW_YEAR = parse_instant("2027-01-01T00:00:00Z")

zones = st.sampled_from(ZONES)
instants = st.integers(0, parse_instant("2100-01-01T00:00:00Z"))


@st.composite
def recurrences(draw: st.DrawFn) -> Recurrence:
    """Draw a recurrence that fires, with or without a start and an end."""
    start_at = draw(st.none() | instants)
    end_at = draw(st.none() | instants)
    try:
        if draw(st.booleans()):
            every = draw(st.integers(1000, 366 * DAY))
            return parse_recurrence(cron=None, every=every, start_at=start_at, end_at=end_at)
        return parse_recurrence(cron=draw(cron_texts), every=None, zone=draw(zones), start_at=start_at, end_at=end_at)
    except RecurrenceError as error:
        assume(error.code != "NEVER_FIRES")
        raise


def upcoming(recurrence: Recurrence, after: str, count: int) -> list[str]:
    return [
        format_instant(slot)[:-5] for slot in islice(slots_between(recurrence, parse_instant(after), LATEST), count)
    ]


@pytest.mark.parametrize(
    ("cron", "after", "slots"),
    [
        ("30 2 * * *", "2027-03-27T12:00:00Z", ["2027-03-28T01:00:00", "2027-03-29T00:30:00"]),
        ("0,30 2 * * *", "2027-03-27T12:00:00Z", ["2027-03-28T01:00:00", "2027-03-29T00:00:00"]),
        ("*/30 2 * * *", "2027-03-27T12:00:00Z", ["2027-03-29T00:00:00", "2027-03-29T00:30:00"]),
        ("30 2 * * *", "2027-10-30T12:00:00Z", ["2027-10-31T00:30:00", "2027-11-01T01:30:00"]),
        (
            "*/30 2 * * *",
            "2027-10-30T12:00:00Z",
            [
                "2027-10-31T00:00:00",
                "2027-10-31T00:30:00",
                "2027-10-31T01:00:00",
                "2027-10-31T01:30:00",
                "2027-11-01T01:00:00",
            ],
        ),
        ("0 30 2 * * *", "2027-10-30T12:00:00Z", ["2027-10-31T00:30:00", "2027-11-01T01:30:00"]),
        ("*/30 30 2 * * *", "2027-03-27T12:00:00Z", ["2027-03-29T00:30:00", "2027-03-29T00:30:30"]),
    ],
    ids=[
        *("fixed, gap", "two fixed, gap", "wildcard, gap", "fixed, overlap", "wildcard, overlap", "seconds, overlap"),
        "wildcard second, gap",
    ],
)
def test_examples_of_berlin(cron: str, after: str, slots: list[str]) -> None:
    """The examples of docs/schedules.md."""
    assert upcoming(Recurrence(cron, None, "Europe/Berlin"), after, len(slots)) == slots


@settings(deadline=None)
@given(recurrences(), instants, st.floats(0, 1))
def test_slots_do_not_depend_on_where_the_search_begins(recurrence: Recurrence, after: int, part: float) -> None:
    """Every search names the same instants: from between two slots, from a slot, ahead and back."""
    slots = [*islice(slots_between(recurrence, after, LATEST), 10)]
    assert slots == sorted(set(slots))
    for slot, following in pairwise(slots):
        between = slot + int((following - slot - 1) * part)
        assert next_slot(recurrence, between) == following
        assert newest_slots(recurrence, after, between, 1) == (slot,)
        assert newest_slots(recurrence, after, following, 1) == (following,)


@settings(deadline=None)
@given(recurrences(), instants, st.integers(0, 40), st.integers(0, 50), st.integers(-1, 1))
def test_newest_slots(recurrence: Recurrence, after: int, count: int, limit: int, shift: int) -> None:
    """The newest slots of a range are the last of all its slots."""
    until = [after, *islice(slots_between(recurrence, after, LATEST), count)][-1] + shift
    slots = [*slots_between(recurrence, after, until)]
    newest = newest_slots(recurrence, after, until, limit)
    assert newest == tuple(slots[max(0, len(slots) - limit) :])


def test_newest_slots_of_a_long_range() -> None:
    """The slots before the newest are not computed: a billion slots take no longer than a few."""
    seconds = Recurrence("* * * * * *", None)
    start, end = parse_instant("1990-01-01T00:00:00Z"), parse_instant("2030-01-01T00:00:00Z")
    assert newest_slots(seconds, start, end, 3) == (end - 2000, end - 1000, end)
    # Many slots on one day of each year: no window is good for all of the range.
    new_year = Recurrence("* * * 1 1 *", None)
    last = parse_instant("2029-01-01T23:59:59Z")
    assert newest_slots(new_year, start, end - 1, 2) == (last - 1000, last)


def test_start_and_end() -> None:
    """A slot may be at the start, but not at the end."""
    start, end = parse_instant("2027-01-01T00:00:00Z"), parse_instant("2027-01-03T00:00:00Z")
    for cron, every in (("0 0 * * *", None), (None, DAY)):
        recurrence = Recurrence(cron, every, "UTC", start, end)
        assert [*slots_between(recurrence, 0, LATEST)] == [start, start + DAY]
        assert newest_slots(recurrence, 0, LATEST, 5) == (start, start + DAY)
        assert next_slot(recurrence, start + DAY) is None
    later = Recurrence("0 0 * * *", None, "UTC", start + 1, end + 1)
    assert [*slots_between(later, 0, LATEST)] == [start + DAY, end]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin"])
def test_ends_of_time(zone: str) -> None:
    """Slots lie between 1970 and 9999. No search fails at these ends."""
    every_second = Recurrence("* * * * * *", None, zone)
    yearly = Recurrence("59 59 23 31 12 *", None, zone)
    assert next_slot(every_second, -1) == 0
    assert next_slot(every_second, -(10**15)) == 0
    for recurrence in (every_second, yearly, Recurrence(None, 366 * DAY)):
        assert next_slot(recurrence, LATEST) is None
        assert next_slot(recurrence, 10**18) is None
        assert newest_slots(recurrence, -1, -1, 3) == ()
        for hours in range(50):
            slot = next_slot(recurrence, LATEST - hours * HOUR)
            assert slot is None or slot <= LATEST
        (newest,) = newest_slots(recurrence, -1, 10**18, 1)
        assert LATEST - 400 * DAY < newest <= LATEST
        assert next_slot(recurrence, newest) is None
        assert newest <= due_of(recurrence, newest, DAY, "acme", "daily") <= LATEST


def test_search_is_limited() -> None:
    """A search gives up after 50 years: here each match since 2007 is in the gap, and a wildcard has no slots in it."""
    in_the_gap = Recurrence("*/30 2 8 3 */7", None, "America/New_York")
    after, until = parse_instant("2026-01-01T00:00:00Z"), parse_instant("2199-01-01T00:00:00Z")
    started = process_time()
    assert next_slot(in_the_gap, after) is None
    assert process_time() - started < 0.5  # 0.04 s; a search to the year 9999 takes 1 s
    assert newest_slots(in_the_gap, after, until, 1) == ()
    fixed = in_the_gap._replace(cron="0,30 2 8 3 */7")
    assert upcoming(fixed, "2026-01-01T00:00:00Z", 1) == ["2026-03-08T07:00:00"]


@pytest.mark.slow
@given(recurrences(), instants, st.integers(0, DAY), st.text(max_size=5), st.text(max_size=5))
@settings(deadline=None)
def test_jitter(recurrence: Recurrence, after: int, jitter: int, tenant: str, schedule: str) -> None:
    """A slot is due not before itself, at most the jitter later, and before the next slot."""
    slots = [*islice(slots_between(recurrence, after, LATEST), 3)]
    dues = [due_of(recurrence, slot, jitter, tenant, schedule) for slot in slots]
    for slot, due in zip(slots, dues, strict=True):
        assert slot <= due < slot + max(jitter, 1)
        following = next_slot(recurrence, slot)
        assert following is None or due < following


def test_jitter_is_the_same_after_a_restart() -> None:
    """The jitter depends on nothing but tenant, schedule and slot."""
    hourly = Recurrence("0 * * * *", None)
    assert due_of(hourly, NEW_YEAR, 0, "acme", "report") == NEW_YEAR
    assert due_of(hourly, NEW_YEAR, MINUTE, "acme", "report") - NEW_YEAR == 30_783
    assert due_of(hourly, NEW_YEAR, DAY, "acme", "report") - NEW_YEAR == 690_783


def test_jitter_spreads() -> None:
    """The schedules of one slot are due all over the jitter, and so are the slots of one schedule."""
    daily = Recurrence("0 0 * * *", None)
    schedules = [due_of(daily, NEW_YEAR, HOUR, "acme", f"report-{number}") - NEW_YEAR for number in range(1000)]
    slots = [due_of(daily, slot, HOUR, "acme", "report") - slot for slot in range(NEW_YEAR, NEW_YEAR + 1000 * DAY, DAY)]
    tenants = [due_of(daily, NEW_YEAR, HOUR, f"tenant-{number}", "report") - NEW_YEAR for number in range(1000)]
    for spread in (schedules, slots, tenants):
        counts = [bisect(sorted(spread), 6 * MINUTE * part) for part in range(11)]
        assert all(60 < high - low < 140 for low, high in pairwise(counts))


@pytest.mark.parametrize(
    ("recurrence", "code", "field"),
    [
        ({}, "INVALID_PAYLOAD", "cron"),
        ({"cron": "@daily", "every": HOUR}, "INVALID_PAYLOAD", "cron"),
        ({"every": HOUR, "zone": "UTC"}, "INVALID_PAYLOAD", "zone"),
        ({"cron": "61 * * * *"}, "INVALID_CRON", "cron"),
        ({"cron": "@daily", "zone": "Mars/Olympus"}, "UNKNOWN_ZONE", "zone"),
        ({"cron": "@daily", "zone": ""}, "UNKNOWN_ZONE", "zone"),
        ({"cron": "0 0 30 2 *"}, "NEVER_FIRES", "cron"),
        ({"cron": "@daily", "start_at": NEW_YEAR, "end_at": NEW_YEAR}, "NEVER_FIRES", "endAt"),
        ({"cron": "@daily", "start_at": NEW_YEAR, "end_at": NEW_YEAR - 1}, "NEVER_FIRES", "endAt"),
        ({"cron": "@daily", "end_at": 0}, "NEVER_FIRES", "endAt"),
        ({"cron": "@daily", "start_at": NEW_YEAR + 1, "end_at": NEW_YEAR + DAY}, "NEVER_FIRES", "startAt"),
        ({"every": HOUR, "start_at": NEW_YEAR, "end_at": NEW_YEAR}, "NEVER_FIRES", "endAt"),
        ({"cron": "* 2 8-14 3 */7", "zone": "America/New_York", "start_at": NEW_YEAR}, "NEVER_FIRES", "startAt"),
        ({"cron": "@yearly", "start_at": LATEST - DAY}, "NEVER_FIRES", "startAt"),
    ],
    ids=str,
)
def test_refused_recurrences(recurrence: dict[str, Any], code: str, field: str) -> None:
    """Each invalid recurrence has its code, and the field at fault."""
    with pytest.raises(RecurrenceError) as raised:
        parse_recurrence(**{"cron": None, "every": None, **recurrence})
    assert (raised.value.code, raised.value.field) == (code, field)


def test_recurrence_that_cannot_be_computed() -> None:
    """A stored recurrence whose zone or expression this instance cannot read says so, whatever is asked."""
    for broken, code in (
        (Recurrence("0 0 * * *", None, "Mars/Olympus"), "UNKNOWN_ZONE"),
        (Recurrence("61 * * * *", None), "INVALID_CRON"),
    ):
        for compute in (
            lambda each: next_slot(each, NEW_YEAR),
            lambda each: next(slots_between(each, NEW_YEAR, LATEST)),
            lambda each: newest_slots(each, NEW_YEAR, NEW_YEAR + DAY, 5),
            lambda each: due_of(each, NEW_YEAR, DAY, "acme", "report"),
        ):
            with pytest.raises(RecurrenceError) as raised:
                compute(broken)
            assert raised.value.code == code


def test_an_expression_whose_first_matches_are_all_in_gaps() -> None:
    """It fires: until 1986 the clocks of Toronto went forward at 2:00 on these days, and after that they did not."""
    recurrence = parse_recurrence(cron="*/15 2 * 4 0L", every=None, zone="America/Toronto")
    assert upcoming(recurrence, "2026-01-01T00:00:00Z", 2) == ["2026-04-26T06:00:00", "2026-04-26T06:15:00"]
    assert upcoming(recurrence, "1987-01-01T00:00:00Z", 1) == ["1987-04-26T06:00:00"]
    ended = parse_instant("1987-04-26T06:00:00Z")
    with pytest.raises(RecurrenceError, match="no slot is at or after"):
        parse_recurrence(cron="*/15 2 * 4 0L", every=None, zone="America/Toronto", end_at=ended)
