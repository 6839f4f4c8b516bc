from bisect import bisect
from datetime import datetime
from itertools import islice, pairwise
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.harness.cron_texts import cron_texts
from timer_service.core.values.duration import DAY, HOUR, MINUTE
from timer_service.core.values.instant import LATEST, format_instant, parse_instant
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.recurrence import (
    Recurrence,
    check_fires,
    due_of,
    newest_slots,
    next_slot,
    parse_every,
    parse_recurrence,
    slots_between,
)
from timer_service.schedules.calendar.zones import _stretches_of_year

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
    ],
    ids=["fixed, gap", "two fixed, gap", "wildcard, gap", "fixed, overlap", "wildcard, overlap", "seconds, overlap"],
)
def test_examples_of_berlin(cron: str, after: str, slots: list[str]) -> None:
    """The examples of docs/schedules.md."""
    assert upcoming(Recurrence(cron, None, "Europe/Berlin"), after, len(slots)) == slots


def test_skipped_day() -> None:
    """A fixed time of a day that the zone skips fires once, at the first instant after the day."""
    noon = Recurrence("0 12 * * *", None, "Pacific/Apia")
    assert upcoming(noon, "2011-12-29T00:00:00Z", 3) == [
        "2011-12-29T22:00:00",
        "2011-12-30T10:00:00",  # 30 December does not exist; 31 December begins
        "2011-12-30T22:00:00",
    ]
    hourly = Recurrence("0 */12 * * *", None, "Pacific/Apia")
    assert upcoming(hourly, "2011-12-29T11:00:00Z", 3) == [
        "2011-12-29T22:00:00",
        "2011-12-30T10:00:00",
        "2011-12-30T22:00:00",
    ]


@settings(deadline=None)
@given(recurrences(), instants)
def test_next_slot_is_later(recurrence: Recurrence, after: int) -> None:
    """The next slot is later than the instant, lies between start and end, and is a whole second for cron."""
    slot = next_slot(recurrence, after)
    assume(slot is not None)
    assert slot is not None
    assert slot > after
    assert recurrence.first <= slot <= recurrence.last
    if recurrence.cron is not None:
        assert slot % 1000 == 0
    else:
        assert (slot - (recurrence.start_at or 0)) % (recurrence.every_ms or 0) == 0


@settings(deadline=None)
@given(recurrences(), instants, st.floats(0, 1))
def test_slots_do_not_depend_on_where_the_search_begins(recurrence: Recurrence, after: int, part: float) -> None:
    """Every search names the same instants: from between two slots, from a slot, ahead and back."""
    slots = [*islice(slots_between(recurrence, after, LATEST), 10)]
    assert slots == sorted(set(slots))
    for slot, following in pairwise(slots):
        between = slot + int((following - slot - 1) * part)
        assert next_slot(recurrence, between) == following
        assert newest_slots(recurrence, after, between, 1).slots == (slot,)
        assert newest_slots(recurrence, after, following, 1).slots == (following,)


@settings(deadline=None)
@given(recurrences(), instants, st.integers(0, 40), st.integers(0, 50), st.integers(-1, 1))
def test_newest_slots(recurrence: Recurrence, after: int, count: int, limit: int, shift: int) -> None:
    """The newest slots of a range are the last of all its slots. The first older slot is the first of all others."""
    until = [after, *islice(slots_between(recurrence, after, LATEST), count)][-1] + shift
    slots = [*slots_between(recurrence, after, until)]
    newest = newest_slots(recurrence, after, until, limit)
    kept = slots[max(0, len(slots) - limit) :]
    assert newest.slots == tuple(kept)
    assert newest.first_older == (slots[0] if len(slots) > limit else None)


def test_newest_slots_of_a_long_range() -> None:
    """The slots before the newest are not computed: a billion slots take no longer than a few."""
    seconds = Recurrence("* * * * * *", None)
    start, end = parse_instant("1990-01-01T00:00:00Z"), parse_instant("2030-01-01T00:00:00Z")
    newest = newest_slots(seconds, start, end, 3)
    assert newest == ((end - 2000, end - 1000, end), start + 1000)
    # Many slots on one day of each year: no window is good for all of the range.
    new_year = Recurrence("* * * 1 1 *", None)
    last = parse_instant("2029-01-01T23:59:59Z")
    assert newest_slots(new_year, start, end - 1, 2) == ((last - 1000, last), start + 1000)


def test_newest_slots_in_pieces() -> None:
    """The newest slots can be computed in pieces, each before the oldest slot of the piece before."""
    recurrence = Recurrence("*/20 2 * * *", None, "Europe/Berlin")
    after, until = parse_instant("2027-10-25T00:00:00Z"), parse_instant("2027-11-02T00:00:00Z")
    pieces: list[int] = []
    while (piece := newest_slots(recurrence, after, until, 4)).slots:
        pieces = [*piece.slots, *pieces]
        until = piece.slots[0] - 1
        assert (piece.first_older is None) == (pieces[0] == next_slot(recurrence, after))
    assert pieces == [*slots_between(recurrence, after, parse_instant("2027-11-02T00:00:00Z"))]


@given(st.integers(1000, 366 * DAY), st.none() | instants, instants)
def test_every_counts_from_its_start(every: int, start_at: int | None, after: int) -> None:
    """The slots of `every` are the start (or 1970) plus whole multiples, the start itself included."""
    recurrence = Recurrence(None, every, start_at=start_at)
    start = start_at or 0
    assert next_slot(recurrence, start - 1) == start
    slot = next_slot(recurrence, after)
    assert slot == start + max(0, (after - start) // every + 1) * every


def test_every_ignores_clock_changes() -> None:
    """A day of `every` is 24 hours, whatever the clocks do."""
    daily = parse_recurrence(cron=None, every="P1D", start_at=parse_instant("2027-03-27T02:30:00+01:00"))
    assert upcoming(daily, "2027-03-27T12:00:00Z", 2) == ["2027-03-28T01:30:00", "2027-03-29T01:30:00"]


def test_start_and_end() -> None:
    """A slot may be at the start, but not at the end."""
    start, end = parse_instant("2027-01-01T00:00:00Z"), parse_instant("2027-01-03T00:00:00Z")
    for cron, every in (("0 0 * * *", None), (None, DAY)):
        recurrence = Recurrence(cron, every, "UTC", start, end)
        assert [*slots_between(recurrence, 0, LATEST)] == [start, start + DAY]
        assert newest_slots(recurrence, 0, LATEST, 5) == ((start, start + DAY), None)
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
        assert newest_slots(recurrence, -1, -1, 3) == ((), None)
        for hours in range(50):
            slot = next_slot(recurrence, LATEST - hours * HOUR)
            assert slot is None or slot <= LATEST
        (newest,) = newest_slots(recurrence, -1, 10**18, 1).slots
        assert LATEST - 400 * DAY < newest <= LATEST
        assert next_slot(recurrence, newest) is None
        assert newest <= due_of(recurrence, newest, DAY, "acme", "daily") <= LATEST


@pytest.mark.slow
@pytest.mark.parametrize("zone", [*ZONES, "Etc/GMT-14", "Etc/GMT+12"])
@pytest.mark.parametrize(
    ("cron", "month", "day"), [("0 12 29 2 *", 2, 29), ("0 12 1 1 *", 1, 1), ("0 12 31 12 *", 12, 31)]
)
def test_rare_slots(zone: str, cron: str, month: int, day: int) -> None:
    """Slots that are years apart are found in every zone, ahead and back."""
    years = range(1972, 2100, 4) if day == 29 else range(1971, 2100)
    noons = [datetime(year, month, day, 12, tzinfo=ZoneInfo(zone)) for year in years]
    expected = [int(noon.timestamp()) * 1000 for noon in noons]
    recurrence = Recurrence(cron, None, zone)
    after, until = expected[0] - HOUR, expected[-1] + HOUR
    assert [*slots_between(recurrence, after, until)] == expected
    assert newest_slots(recurrence, after, until, 200).slots == tuple(expected)


def test_search_back_from_the_second_pass() -> None:
    """A fixed time of the first pass is found from the second pass, also if it is the only one of the year."""
    yearly = Recurrence("45 2 31 10 *", None, "Europe/Berlin")
    first_pass, second_pass = parse_instant("2027-10-31T00:45:00Z"), parse_instant("2027-10-31T01:10:00Z")
    assert newest_slots(yearly, 0, second_pass, 1).slots == (first_pass,)


def test_search_is_limited() -> None:
    """A search gives up after 50 years: here each match since 2007 is in the gap, and a wildcard has no slots in it."""
    in_the_gap = Recurrence("*/30 2 8 3 */7", None, "America/New_York")
    after, until = parse_instant("2026-01-01T00:00:00Z"), parse_instant("2199-01-01T00:00:00Z")
    started = process_time()
    assert next_slot(in_the_gap, after) is None
    assert process_time() - started < 0.3  # 0.01 s; a search to the year 9999 takes 1 s
    assert newest_slots(in_the_gap, 0, until, 1) == ((), parse_instant("1970-03-08T07:00:00Z"))
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
    ("value", "every"), [("PT1S", 1000), (1000, 1000), ("PT1H30M", 90 * MINUTE), ("P366D", 366 * DAY)]
)
def test_every(value: object, every: int) -> None:
    """`every` is from 1 s to 366 days."""
    assert parse_every(value) == every


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("PT0.999S", "`every` must be from 1 s (PT1S) to 366 days (P366D)"),
        (999, "`every` must be from 1 s (PT1S) to 366 days (P366D)"),
        (0, "`every` must be from 1 s (PT1S) to 366 days (P366D)"),
        ("P366DT0.001S", "`every` must be from 1 s (PT1S) to 366 days (P366D)"),
        (10**30, "`every` must be from 1 s (PT1S) to 366 days (P366D)"),
        (-1000, "`every` must not be negative"),
        ("P1M", "`every` must be an ISO 8601 duration of weeks"),
        ("1h", "`every` must be an ISO 8601 duration of weeks"),
        (1000.0, "`every` must be an ISO 8601 duration of weeks"),
        (True, "`every` must be an ISO 8601 duration of weeks"),
        ("9" * 5000, "`every` must be an ISO 8601 duration of weeks"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_every(value: object, message: str) -> None:
    """Any other value is INVALID_PAYLOAD."""
    with pytest.raises(RecurrenceError) as raised:
        parse_every(value)
    assert (raised.value.code, raised.value.field) == ("INVALID_PAYLOAD", "every")
    assert message in str(raised.value)


def test_recurrence_of_a_command() -> None:
    """A recurrence has the stored text of its expression and a zone, or the milliseconds of `every`."""
    assert parse_recurrence(cron="@daily", every=None) == Recurrence("0 0 * * *", None, "UTC")
    assert parse_recurrence(
        cron="0 9 * * mon", every=None, zone="Europe/Berlin", start_at=5, end_at=10**12
    ) == Recurrence("0 9 * * MON", None, "Europe/Berlin", 5, 10**12)
    assert parse_recurrence(cron=None, every="PT1H") == Recurrence(None, HOUR, "UTC")


@pytest.mark.parametrize(
    ("recurrence", "code", "field"),
    [
        ({}, "INVALID_PAYLOAD", "cron"),
        ({"cron": "@daily", "every": "PT1H"}, "INVALID_PAYLOAD", "cron"),
        ({"every": "PT1H", "zone": "UTC"}, "INVALID_PAYLOAD", "zone"),
        ({"every": "P1Y"}, "INVALID_PAYLOAD", "every"),
        ({"cron": "61 * * * *"}, "INVALID_CRON", "cron"),
        ({"cron": "@daily", "zone": "Mars/Olympus"}, "UNKNOWN_ZONE", "zone"),
        ({"cron": "@daily", "zone": ""}, "UNKNOWN_ZONE", "zone"),
        ({"cron": "0 0 30 2 *"}, "NEVER_FIRES", "cron"),
        ({"cron": "@daily", "start_at": NEW_YEAR, "end_at": NEW_YEAR}, "NEVER_FIRES", "endAt"),
        ({"cron": "@daily", "start_at": NEW_YEAR, "end_at": NEW_YEAR - 1}, "NEVER_FIRES", "endAt"),
        ({"cron": "@daily", "end_at": 0}, "NEVER_FIRES", "endAt"),
        ({"cron": "@daily", "start_at": NEW_YEAR + 1, "end_at": NEW_YEAR + DAY}, "NEVER_FIRES", "startAt"),
        ({"every": "PT1H", "start_at": NEW_YEAR, "end_at": NEW_YEAR}, "NEVER_FIRES", "endAt"),
        ({"cron": "@yearly", "start_at": LATEST - DAY}, "NEVER_FIRES", "startAt"),
    ],
    ids=str,
)
def test_refused_recurrences(recurrence: dict[str, Any], code: str, field: str) -> None:
    """Each invalid recurrence has its code, and the field at fault."""
    with pytest.raises(RecurrenceError) as raised:
        parse_recurrence(**{"cron": None, "every": None, **recurrence})
    assert (raised.value.code, raised.value.field) == (code, field)


@pytest.mark.parametrize(("start_at", "start"), [(None, "1970-01-01T00:00:00Z"), (0, "`startAt`")])
def test_end_that_leaves_no_instant(start_at: int | None, start: str) -> None:
    """The fault of an `endAt` names the start that the user gave, or else the first instant."""
    with pytest.raises(RecurrenceError, match=f"^`endAt` must be later than {start}$"):
        parse_recurrence(cron="@daily", every=None, start_at=start_at, end_at=0)


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
            check_fires,
        ):
            with pytest.raises(RecurrenceError) as raised:
                compute(broken)
            assert raised.value.code == code


def test_an_expression_whose_matches_are_all_in_gaps() -> None:
    """It has no slot, and that is found without a search of all time zone data: anybody may put such a schedule."""
    recurrence = Recurrence("* 2 8-14 3 */7", None, "America/New_York")
    _stretches_of_year.cache_clear()
    assert next_slot(recurrence, 1_800_000_000_000) is None
    assert _stretches_of_year.cache_info().misses <= 20


def test_an_expression_whose_first_matches_are_all_in_gaps() -> None:
    """It fires: until 1986 the clocks of Toronto went forward at 2:00 on these days, and after that they did not."""
    recurrence = parse_recurrence(cron="*/15 2 * 4 0L", every=None, zone="America/Toronto")
    assert upcoming(recurrence, "2026-01-01T00:00:00Z", 2) == ["2026-04-26T06:00:00", "2026-04-26T06:15:00"]
    assert upcoming(recurrence, "1987-01-01T00:00:00Z", 1) == ["1987-04-26T06:00:00"]
    ended = parse_instant("1987-04-26T06:00:00Z")
    with pytest.raises(RecurrenceError, match="no slot is at or after"):
        parse_recurrence(cron="*/15 2 * 4 0L", every=None, zone="America/Toronto", end_at=ended)


def test_an_expression_whose_matches_are_all_in_gaps_is_refused() -> None:
    """The search for a slot ends after 50 years."""
    _stretches_of_year.cache_clear()
    with pytest.raises(RecurrenceError) as raised:
        parse_recurrence(cron="* 2 8-14 3 */7", every=None, zone="America/New_York", start_at=1_800_000_000_000)
    assert raised.value.code == "NEVER_FIRES"
    assert _stretches_of_year.cache_info().misses <= 55
