import re
from datetime import datetime, timedelta
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.harness.cron_texts import cron_texts
from tests.harness.reference_slots import PlainCron
from timer_service.schedules.calendar.cron import describe, first_match, last_match, parse_cron
from timer_service.schedules.calendar.errors import RecurrenceError

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock has no zone
LAST = (datetime(9999, 12, 31, 23, 59, 59) - EPOCH) // timedelta(seconds=1)  # noqa: DTZ001


def wall(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(seconds=1)


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 9 * * MON-FRI", "At 09:00 on Monday through Friday"),
        ("0 0 21,22,23,11,31 * *", "At 00:00 on the 21st, the 22nd, the 23rd, the 11th, and the 31st day of month"),
        ("0 0 LW * *", "At 00:00 on the last weekday of every month"),
        ("0 0 15W * *", None),
        ("0 0 1,L-3 * *", None),
        ("0 0 99 * *", None),
        ("0 0 1-31 * *", "At 00:00 every day"),
        ("0 0 */2 * 0-7", "At 00:00 on every second day of month"),
        ("0 0 1-31 * MON-FRI", None),
        ("0 0 1/1 * MON#1", None),
        ("0 0 15 * 0-7", None),
    ],
)
def test_words(cron: str, words: str | None) -> None:
    """An expression is described in words, unless cronsim has none for its days, or wrong ones."""
    assert describe(cron) == words


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("30 2 * * *", "30 2 * * *"),
        ("  30\t2 * *  mon-fri\n", "30 2 * * MON-FRI"),
        ("0 30 2 * jan *", "0 30 2 * JAN *"),
        ("00 09 * 01 */02", "0 9 * 1 */2"),
        ("10-010/5,5-5/5,5/5 * * * *", "10,5,5/5 * * * *"),
        ("0 9-9/2 * JAN-JAN/1 MON-MON/7", "0 9 * JAN MON"),
        ("0 9-11/2 * 1-JAN/3 MON-1/2,2-FRI/2", "0 9-11/2 * 1 MON,2-FRI/2"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        (" @Hourly ", "0 * * * *"),
        (f"10{',0' * 95} * * * *", f"10{',0' * 95} * * * *"),  # 200 characters
    ],
)
def test_stored_text(text: str, stored: str) -> None:
    """Two texts that differ only in case, spaces, zeros, an alias or a range of one value are stored as one."""
    assert parse_cron(text) == stored
    assert parse_cron(stored) == stored


@pytest.mark.parametrize(
    ("text", "after", "match"),
    [
        ("30 2 * * *", "2027-01-01T02:30:00", "2027-01-02T02:30:00"),
        ("15 30 2 * * *", "2027-01-01T00:00:00", "2027-01-01T02:30:15"),
        ("0 0 L * *", "2028-02-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 LW * *", "2027-01-01T00:00:00", "2027-01-29T00:00:00"),
        ("0 0 L-3 * *", "2028-02-01T00:00:00", "2028-02-26T00:00:00"),
        ("0 0 31,L-3 2 *", "2028-02-01T00:00:00", "2028-02-26T00:00:00"),
        ("0 0 L-30 2,3 *", "2028-02-01T00:00:00", "2028-03-01T00:00:00"),
        ("0 0 LW-1 * *", "2027-02-01T00:00:00", "2027-02-25T00:00:00"),
        ("0 0 15W * *", "2027-05-01T00:00:00", "2027-05-14T00:00:00"),
        ("0 0 15W * *", "2027-08-01T00:00:00", "2027-08-16T00:00:00"),
        ("0 0 1W * *", "2027-05-01T00:00:00", "2027-05-03T00:00:00"),
        ("0 0 31W * *", "2027-01-02T00:00:00", "2027-01-29T00:00:00"),
        ("0 0 31W * *", "2027-01-29T00:00:00", "2027-03-31T00:00:00"),
        ("0 0 1,15W * MON", "2027-05-10T00:00:00", "2027-05-14T00:00:00"),
        ("0 0 * * 5L", "2027-01-01T00:00:00", "2027-01-29T00:00:00"),
        ("0 0 * * MON#2", "2027-01-01T00:00:00", "2027-01-11T00:00:00"),
        ("0 0 * * 0", "2027-01-01T00:00:00", "2027-01-03T00:00:00"),
        ("0 0 * * 7", "2027-01-01T00:00:00", "2027-01-03T00:00:00"),
        ("0 0 13 * FRI", "2027-01-02T00:00:00", "2027-01-08T00:00:00"),
        ("0 0 */13 * FRI", "2027-01-02T00:00:00", "2027-05-14T00:00:00"),
        ("0 0 13 * */5", "2027-01-01T00:00:00", "2027-06-13T00:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
        ("0 0 29 2 */7", "2088-03-01T00:00:00", "2128-02-29T00:00:00"),
    ],
    ids=[
        "fixed time",
        "second",
        "last day",
        "last weekday",
        "three days before the last",
        "a form beside a day that February does not have",
        "a day that February does not have",
        "the weekday before the last",
        "Saturday: the day before",
        "Sunday: the day after",
        "Saturday the 1st: the 3rd",
        "Sunday the 31st: the 29th",
        "a month without the day",
        "a form in a list, or the other day field",
        "last Friday",
        "second Monday",
        "0 is Sunday",
        "7 is Sunday",
        "either day field",
        "both day fields, as one begins with *",
        "both day fields, as the other begins with *",
        "no leap day in 2100",
        "the longest wait, 40 years",
    ],
)
def test_fields(text: str, after: str, match: str) -> None:
    """The fields mean the same as in Debian's cron."""
    assert first_match(parse_cron(text), wall(after) + 1) == wall(match)
    assert last_match(parse_cron(text), wall(match)) == wall(match)
    assert (last_match(parse_cron(text), wall(match) - 1) or 0) <= wall(after)


@pytest.mark.slow
@settings(deadline=None)
@given(cron_texts, st.integers(0, LAST), st.integers(0, 600))
def test_searches_agree_with_a_plain_evaluator(text: str, start: int, lead: int) -> None:
    """Around a match, a search ahead and a search back find the seconds that match one by one."""
    plain = PlainCron(text)
    assume(_verdict(text) is None)
    cron = parse_cron(text)
    match = first_match(cron, start)
    assume(match is not None)
    assert match is not None
    window = range(match - lead, min(match + 600, LAST + 1))
    expected = [second for second in window if plain.matches(EPOCH + timedelta(seconds=second))]
    assert match in expected

    ahead: list[int] = []
    at = first_match(cron, window.start)
    while at is not None and at in window:
        ahead.append(at)
        at = first_match(cron, at + 1)
    assert ahead == expected

    back: list[int] = []
    at = last_match(cron, window.stop - 1)
    while at is not None and at in window:
        back.append(at)
        at = last_match(cron, at - 1)
    assert back == expected[::-1]


DAYS = ("29", "30", "31", "29-31", "30,31", "L", "LW", "*", "*/30", "*/29")
MONTHS = ("2", "4", "2,4", "FEB-APR", "*")
WEEKDAYS = ("*", "0", "*/7", "*/6", "MON#5", "MON#1", "0L", "SUN#5")


@pytest.mark.slow
@pytest.mark.parametrize("month", MONTHS)
def test_never_fires_is_the_same_as_no_match_in_28_years(month: str) -> None:
    """NEVER_FIRES is the verdict for exactly the expressions that match no day of 28 years."""
    verdicts = {
        text: _verdict(text) for text in (f"0 0 {day} {month} {weekday}" for day, weekday in product(DAYS, WEEKDAYS))
    }
    assert verdicts == {text: None if _fires_in_28_years(text) else "NEVER_FIRES" for text in verdicts}
    assert set(verdicts.values()) == {None, "NEVER_FIRES"}


def _verdict(text: str) -> str | None:
    try:
        parse_cron(text)
    except RecurrenceError as error:
        return error.code
    return None


def _fires_in_28_years(text: str) -> bool:
    plain = PlainCron(text)
    return any(plain.matches(EPOCH + timedelta(days=passed)) for passed in range(28 * 366))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("60 * * * *", "the field minute is '60'; it allows `*`, 0 to 59, and lists"),
        ("* * 32 * *", "the field day of month is '32'; it allows `*`, 1 to 31, L"),
        ("* * * MON *", "the field month is 'MON'; it allows `*`, 1 to 12, JAN to DEC"),
        ("* * * * 8", "the field day of week is '8'; it allows `*`, 0 to 7 (0 and 7 are Sunday)"),
        ("* * * * MONDAY", "the field day of week is 'MONDAY'; it allows `*`, 0 to 7"),
        (
            "* * * * FRI-SUN",
            "the field day of week is 'FRI-SUN'; write 7 for Sunday at the end of a range, and numbers",
        ),
        ("* 22-2 * * *", "ranges that go up (`22-23,0-2`, not `22-2`)"),
        ("*/0 * * * *", "the field minute is '*/0'; a step is at least 1; write `*` for every value"),
        ("* * L * L", "the field day of week is 'L'; `L` needs a day; write `6` for Saturday"),
        (
            "* * * * FRIL",
            "the field day of week is 'FRIL'; before `L`, write a number instead of a name: the last Friday is `5L`",
        ),
        ("* * L/2 * *", "the field day of month is 'L/2'; `L` and `LW` have no step"),
        ("* * 1,LW/3 * *", "the field day of month is '1,LW/3'; `L` and `LW` have no step"),
        ("* * L-3W * *", "the weekday nearest to `L-3` is not supported"),
        ("* * 32W * *", "the field day of month is '32W'; it allows `*`, 1 to 31, L"),
        ("* * 15W/2 * *", "the field day of month is '15W/2'; it allows"),
        ("* * LW-20 * *", "the field day of month is 'LW-20'; it allows"),
        ("*/61 * * * * *", "which has 60 values; to fire every 61 seconds, write `every`: PT61S"),
        (
            "*/90 9-17 * * *",
            "a step counts within the field, which has 60 values; to fire every 90 minutes, write `every`: PT90M",
        ),
        ("0 0/36 * * *", "which has 24 values; to fire every 36 hours, write `every`: PT36H"),
        ("0 0 1-7,*/32 * MON", "which has 31 values; to fire every 32 days, write `calendar`: 32 `days`"),
        ("0 0 1 */18 *", "which has 12 values; to fire every 18 months, write `calendar`: 18 `months`"),
        ("0 0 * * */14", "which has 7 values; to fire every 14 days, write `calendar`: 14 `days`"),
        ("0 0 * * MON/2", "programs differ in whether such steps reach Sunday; write the last day too"),
        ("0 0 * * 6,0/2", "programs differ in whether such steps reach Sunday"),
        ("? * * * *", "the field minute is '?'; `?` is not supported; write `*` for every value"),
        (
            "* * ? * MON",
            "supported; Quartz and AWS count weekdays from 1 (Sunday), so for their times write `* * * * MON`",
        ),
        ("0 0 12 ? * 2", "so for their times write `0 12 * * MON`"),
        ("0 0 12 ? * 6L", "write `0 12 * * 5L`"),
        (
            "0 0 12 ? * 0",
            "write `*` instead of `?`, and weekdays as names, because Quartz and AWS count weekdays from 1",
        ),
        ("0 0 12 15 * ?", "`?`, years and `cron(...)` are not supported; write `0 12 15 * *`"),
        ("0 12 ? * 2 *", "write `0 12 * * MON`"),
        (
            "cron(0 12 ? * 2-6 2027)",
            "write `0 12 * * MON,TUE,WED,THU,FRI`, with `startAt` and `endAt` for",
        ),
        ("0 9 * * MON-FRI 30", "the first of six fields is the second; write `30 0 9 * * MON-FRI`"),
        ("0 9 * * MON 2027", "there is no year; write `0 9 * * MON`, with `startAt` and `endAt` for the year 2027"),
        ("0 9 * * FRI *", "there is no year; write `0 9 * * FRI`"),
        ("H/15 * * * *", "the field minute is 'H/15'; `H` of Jenkins is not supported"),
        ("H(0-29) * * * *", "the field minute is 'H(0-29)'; `H` of Jenkins is not supported"),
        ("0~59 * * * *", "a random value (`~`) is not supported"),
        ("rate(5 minutes)", "a distance is the field `every` instead of `cron`; write PT5M"),
        ("rate(1 day)", "a distance is the field `every` instead of `cron`; write P1D"),
        ("every 24 hours", "a distance is the field `every` instead of `cron`; write PT24H"),
        ("at(2027-01-01T00:00:00)", "`at(...)` is one instant; schedule a timer instead"),
        ("PT5M", "a distance is the field `every` instead of `cron`"),
        ("5m", "a distance is the field `every` instead of `cron`"),
        ("Mon..Fri *-*-* 09:30:00", "Mon..Fri at 09:30 is `30 9 * * MON-FRI`"),
        ("daily", "names begin with `@`: @yearly"),
        ("weekly", "`@weekly` is Sunday, but `weekly` of systemd is `0 0 * * MON`"),
        ("every monday 09:00", "words, times with `:` and ranges with `..` are not supported"),
        ("*:0/15", "words, times with `:` and ranges with `..` are not supported"),
        ("2 weeks", "write P2W, or `calendar` for a time of day"),
        ("P1M", "write the field `calendar` instead of `cron`"),
        ("cron(0 9 * * *)", "leave out `cron(...)` and write five fields"),
        ("0 9 * * * Europe/Berlin", "the expression names a zone; write the field `zone` instead"),
        ("0 9 * * * root /bin/backup", "the expression has a command; leave it out"),
        ("FREQ=WEEKLY;INTERVAL=2", "write the field `calendar` instead of `cron`"),
        ("R/2026-01-02T09:00/P2W", "write the field `calendar` instead of `cron`"),
        ("@reboot", "`@reboot` is not supported"),
        ("@noon", "`@noon` is not supported; write `0 12 * * *` instead"),
        ("@every 1h30m", "`@every` is not supported; write the field `every` instead of `cron`: PT1H30M"),
        ("@every 1.5h", "`@every` is not supported; write the field `every` instead of `cron`, such as PT1H30M"),
        ("@fortnightly", "this name is not known; write @yearly, @annually, @monthly, @weekly, @daily"),
        ("0 0 12 * * * 2027", "write `0 12 * * *`, with `startAt` and `endAt` for the year 2027"),
        ("CRON_TZ=Europe/Berlin 0 9 * * *", "the expression names a zone; write the field `zone` instead"),
        (
            "",
            "(minute, hour, day of month, month, day of week), or six with the second first; this expression has 0",
        ),
        ("\N{ARABIC-INDIC DIGIT THREE} * * * *", "the expression has characters that are not ASCII"),
        ("1" * 190 + " * * * *", f"the field minute is '{'1' * 40}'; it allows"),
        ("* * * * *" + " " * 192, "the expression has 201 characters; the limit is 200"),
    ],
    ids=lambda text: text[:30],
)
def test_invalid_expressions(text: str, message: str) -> None:
    """An invalid expression is refused. The text names the field and what it allows, or what to write instead."""
    with pytest.raises(RecurrenceError) as raised:
        parse_cron(text)
    assert (raised.value.code, raised.value.field) == ("INVALID_CRON", "cron")
    assert message in str(raised.value)
    assert len(str(raised.value)) < 400


class PlainQuartz(PlainCron):
    """An expression of Quartz with six fields. Its weekdays are 1 (Sunday) to 7, and `?` is any day."""

    def __init__(self, text: str) -> None:
        super().__init__(text.replace("?", "*"))
        self.days_of_week = text.split()[5]

    def _matches_day(self, wall: datetime) -> bool:
        today = (wall.weekday() + 1) % 7 + 1
        is_last = (wall + timedelta(days=7)).month != wall.month
        return (
            super()._matches_day(wall)
            if self.days_of_week in "*?"
            else any(
                self._is_day(term, today, (wall.day + 6) // 7, is_last=is_last) for term in self.days_of_week.split(",")
            )
        )

    @staticmethod
    def _is_day(term: str, today: int, week: int, *, is_last: bool) -> bool:
        day, _, number = term.partition("#")
        if term == "L":
            return today == 7
        if number:
            return today == int(day) and week == int(number)
        if term.endswith("L"):
            return today == int(term[:-1]) and is_last
        span, _, step = term.partition("/")
        first, _, last = span.replace("*", "1-7").partition("-")
        end = int(last or (7 if step else first))
        length = end - int(first) + (8 if end < int(first) else 1)
        return today in {(int(first) - 1 + passed) % 7 + 1 for passed in range(0, length, int(step or 1))}


_quartz_day = st.one_of(
    st.integers(1, 7).map(str),
    st.just("L"),
    st.integers(1, 7).map("{}L".format),
    st.builds("{}#{}".format, st.integers(1, 7), st.integers(1, 5)),
    st.builds("{}-{}".format, st.integers(1, 7), st.integers(1, 7)),
    st.builds("{}/{}".format, st.integers(1, 7), st.integers(1, 7)),
    st.builds("{}-{}/{}".format, st.integers(1, 7), st.integers(1, 7), st.integers(1, 7)),
    st.builds("*/{}".format, st.integers(1, 7)),
)
_quartz_days = st.tuples(st.just("?"), st.lists(_quartz_day, min_size=1, max_size=3).map(",".join)) | st.tuples(
    st.sampled_from(["1", "L", "L-3", "15W", "LW", "*/2", "1,15"]), st.just("?")
)


@pytest.mark.slow
@given(_quartz_days, st.sampled_from(["*", "2", "JAN-MAR", "*/5"]), st.sampled_from(["", " *"]))
def test_advice_keeps_the_meaning_of_quartz(days: tuple[str, str], month: str, year: str) -> None:
    """The expression that an error advises for one of Quartz has slots on the same days as in Quartz."""
    day, weekday = days
    quartz = f"0 30 12 {day} {month} {weekday}"
    with pytest.raises(RecurrenceError) as raised:
        parse_cron(quartz + year)
    found = re.search("write `([^`]+)`", str(raised.value))
    assert found is not None
    advised, meant = PlainCron(parse_cron(found[1])), PlainQuartz(quartz)
    noons = [wall("2026-01-01T12:30:00") + 86_400 * passed for passed in range(1000)]
    at = [EPOCH + timedelta(seconds=noon) for noon in noons]
    assert [advised.matches(each) for each in at] == [meant.matches(each) for each in at]


@pytest.mark.slow
@given(st.text(st.sampled_from("0123456789*/,-#?LW@ MONJANFRISUN\t\0é"), max_size=40) | st.text(max_size=40))
def test_any_text_is_accepted_or_refused(text: str) -> None:
    """Any text is stored, and then fires, or is refused with INVALID_CRON or NEVER_FIRES."""
    if (verdict := _verdict(text)) is None:
        stored = parse_cron(text)
        assert first_match(stored, 0) is not None
        assert parse_cron(stored) == stored
    else:
        assert verdict in {"INVALID_CRON", "NEVER_FIRES"}


def test_ends_of_time() -> None:
    """A search ends with the year 9999, without an error. A wall clock may be in the year before 1970."""
    assert first_match("59 59 23 31 12 *", LAST) == LAST
    assert first_match("59 59 23 31 12 *", LAST + 1) is None
    assert first_match("* * * * * *", LAST + 50_000) is None
    assert first_match("0 0 1 1 *", LAST - 1000) is None
    assert first_match("0 0 29 2 *", LAST - 1000) is None
    assert first_match("0 0 * * *", -50_000) == 0
    assert last_match("* * * * * *", LAST) == LAST
    assert last_match("* * * * * *", LAST + 50_000) == LAST
    assert last_match("0 0 * * *", -1) == -86_400
