"""Cron expressions: their text, and the seconds of a wall clock that they match. Pure, and without time zones.

A wall second is a reading of a wall clock, counted in seconds since 1970-01-01 00:00:00 on that clock. This is the only
module that imports cronsim. cronsim parses an expression and searches on datetimes without a zone.
"""

import re
from calendar import monthrange
from datetime import date, datetime, timedelta
from functools import lru_cache

from cronsim import CronSim

from timer_service.schedules.calendar.dialects import WEEKDAYS, advise, advise_field, advise_order
from timer_service.schedules.calendar.errors import RecurrenceError

MAX_LENGTH = 200
"""The number of characters that an expression may have."""

_ALIASES = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
_FIELDS = {  # the fields in their order, and the values that each allows
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of month": "1 to 31, L (the last day), L-3 (three days before), LW (the last day from Monday to Friday), "
    "LW-1 (the one before), 15W (the day from Monday to Friday nearest to the 15th)",
    "month": "1 to 12, JAN to DEC",
    "day of week": "0 to 7 (0 and 7 are Sunday), SUN to SAT, MON#2 (the second Monday), 5L (the last Friday)",
}
_SYNTAX = "lists (`1,2`), ranges that go up (`22-23,0-2`, not `22-2`) and steps (`*/2`)"
_LEADING_ZEROS = re.compile(r"\b0+(?=\d)")
_STEPPED_RANGE = re.compile(r"(?<![^ ,])(\d+|[A-Z]{3})-(\d+|[A-Z]{3})/[1-9]\d*(?![^ ,])")
_DAY_FORM = re.compile(r"(?P<day>[1-9]|[12]\d|3[01])W|L-(?P<days>[1-9]|[12]\d|30)|LW-(?P<weekdays>[1-9]|1\d)")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_VALUES = {
    name: str(value) for names, first in ((WEEKDAYS, 0), (_MONTHS, 1)) for value, name in enumerate(names, first)
}
_WRONG_ORDINAL = re.compile(r"\b((?!1)\d?[123])th\b")
_ENDINGS = {"1": "st", "2": "nd", "3": "rd"}
"""cronsim writes `21th`."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock has no zone
_SECOND = timedelta(seconds=1)
_LAST = (datetime(9999, 12, 31, 23, 59, 59) - _EPOCH) // _SECOND  # noqa: DTZ001 - a wall clock has no zone
_QUOTED = 40
_FRIDAY, _SATURDAY = 4, 5


class _Search(CronSim):
    """A search of cronsim with three more forms of days, as `_DAY_FORM`."""

    def __init__(self, cron: str, begin: datetime, reverse: bool = False) -> None:  # noqa: FBT001, FBT002 - cronsim's
        fields = _with_second(cron)
        terms = fields[3].split(",")
        self._forms = [term for term in terms if _DAY_FORM.fullmatch(term)]
        others = [term for term in terms if term not in self._forms]
        begins_with_star = any(field.startswith("*") for field in fields[3::2])
        day = "1" if self._forms else fields[3]  # cronsim refuses days that its months do not have
        super().__init__(" ".join([*fields[:3], day, *fields[4:]]), begin, reverse)
        self.day_and = begins_with_star
        if self._forms:
            self.days = CronSim(f"* * {','.join(others)} * *", begin).days if others else set()

    def match_dom(self, d: date) -> bool:
        """Return whether the day of the month matches."""
        return super().match_dom(d) or any(_day_of(form, d.year, d.month) == d.day for form in self._forms)


@lru_cache(maxsize=1024)
def _day_of(form: str, year: int, month: int) -> int | None:
    """Return the day of a month that a form names, or None if the month does not have it."""
    last = monthrange(year, month)[1]
    found = _DAY_FORM.fullmatch(form)
    assert found is not None  # noqa: S101 - `_Search` passes no other text
    if found["days"]:
        day = last - int(found["days"])
        return day if day > 0 else None
    if found["weekdays"]:
        weekdays = [day for day in range(last, 0, -1) if date(year, month, day).weekday() <= _FRIDAY]
        return weekdays[int(found["weekdays"])]
    day = int(found["day"])
    if day > last:
        return None
    weekday = date(year, month, day).weekday()
    if weekday == _SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday > _SATURDAY:
        return day + 1 if day < last else day - 2
    return day


def parse_cron(text: str) -> str:
    """Return an expression as it is stored.

    It is in upper case, has single spaces and no leading zeros, and aliases such as @daily are translated.
    Raises `RecurrenceError` with INVALID_CRON, or with NEVER_FIRES if no date matches.
    """
    if len(text) > MAX_LENGTH:
        raise _invalid(f"the expression has {len(text)} characters; the limit is {MAX_LENGTH}. Use several schedules")
    if not text.isascii():
        raise _invalid("the expression has characters that are not ASCII; write digits, English names and `* , - / #`")
    words = " ".join(text.upper().split())
    cron = _STEPPED_RANGE.sub(_without_step, _LEADING_ZEROS.sub("", _ALIASES.get(words, words)))
    if advice := advise(cron, _is_valid):
        raise _invalid(advice)
    _check_count(cron)
    try:
        for name, field in zip(_FIELDS, _with_second(cron), strict=True):
            _check_field(name, field)
    except RecurrenceError as error:
        if advice := advise_order(cron, _is_valid):
            raise _invalid(advice) from error
        raise
    try:
        parsed = _Search(cron, _EPOCH)
    except Exception as error:  # whatever the parser raises
        raise _never_fires(cron) from error  # each field is valid by itself
    if next(parsed, None) is None:  # no match in 50 years; every date with every weekday comes again within 40
        raise _never_fires(cron)
    return cron


def is_fixed(cron: str) -> bool:
    """Return whether an expression names fixed times: neither its second, minute nor hour begins with `*`."""
    return not any(field.startswith("*") for field in _with_second(cron)[:3])


def describe(cron: str) -> str | None:
    """Return an expression in English words, or None if cronsim has none or wrong ones.

    It lacks some forms of days. It reads a full range of days, such as `1-31`, as `*`; but such a range fires on each
    day, whatever the other day field has.
    """
    if any(_DAY_FORM.fullmatch(term) for term in _with_second(cron)[3].split(",")):
        return None
    try:
        parsed = CronSim(cron, _EPOCH)
        words = parsed.explain()
    except Exception:  # noqa: BLE001 - whatever the parser raises for an expression of another version
        return None
    if not parsed.day_and and (parsed.days.issuperset(range(1, 32)) or parsed.weekdays.issuperset(range(7))):
        return None
    return _WRONG_ORDINAL.sub(lambda found: f"{found[1]}{_ENDINGS[found[1][-1]]}", words)


def first_match(cron: str, first: int) -> int | None:
    """Return the first wall second from `first` on that matches, or None if there is none in 50 years.

    No match is later than the year 9999. Raises `RecurrenceError` (INVALID_CRON) if the expression does not parse.
    """
    return None if first > _LAST else _search(cron, first - 1, reverse=False)


def last_match(cron: str, last: int) -> int | None:
    """Return the last wall second up to `last` that matches, or None if there is none in 50 years.

    Raises `RecurrenceError` (INVALID_CRON) if the expression does not parse.
    """
    return _search(cron, min(last, _LAST), reverse=True)


def _search(cron: str, second: int, *, reverse: bool) -> int | None:
    """Return the first match after a wall second, or with `reverse` the last match up to it; None if there is none."""
    begin = _EPOCH + timedelta(seconds=second)
    if reverse:  # cronsim searches before `begin`, so a later one includes the second itself
        begin += timedelta(microseconds=1)
    try:
        search = _Search(cron, begin, reverse)
    except Exception as error:
        raise _invalid(f"{cron[:_QUOTED]!r} cannot be read by this version of the service; write it again") from error
    try:
        return (next(search) - _EPOCH) // _SECOND
    except (StopIteration, OverflowError):  # no match in 50 years, or none before the year 10000
        return None


def _with_second(cron: str) -> list[str]:
    """Return the six fields of an expression. An expression with five fields has the second 0."""
    fields = cron.split()
    return ["0", *fields] if len(fields) == len(_FIELDS) - 1 else fields


def _without_step(stepped: re.Match[str]) -> str:
    """Return a stepped range; if it has one value, such as `9-9/2` or `MON-1/2`, without its end and its step.

    cronsim would read `9-9/2` as `9/2`.
    """
    first, last = stepped.groups()
    return first if _VALUES.get(first, first) == _VALUES.get(last, last) else stepped[0]


def _is_valid(cron: str) -> bool:
    """Return whether an expression in the stored form can be written here."""
    try:
        return parse_cron(cron) == cron
    except RecurrenceError:
        return False


def _check_count(cron: str) -> None:
    """Raise `RecurrenceError` if an expression has the wrong number of fields."""
    if (count := len(cron.split())) not in (len(_FIELDS) - 1, len(_FIELDS)):
        names = ", ".join(list(_FIELDS)[1:])
        raise _invalid(f"write five fields ({names}), or six with the second first; this expression has {count}")


def _check_field(name: str, field: str) -> None:
    """Raise `RecurrenceError` if a field has a form of other programs, or is invalid in an expression of its own."""
    if advice := advise_field(name, field):
        raise _invalid(f"the field {name} is {field[:_QUOTED]!r}; {advice}")
    alone = " ".join(field if each == name else "*" for each in _FIELDS)
    try:
        _Search(alone, _EPOCH)
    except Exception as error:  # whatever the parser raises
        raise _invalid(
            f"the field {name} is {field[:_QUOTED]!r}; it allows `*`, {_FIELDS[name]}, and {_SYNTAX}"
        ) from error


def _invalid(message: str) -> RecurrenceError:
    return RecurrenceError("INVALID_CRON", "cron", message)


def _never_fires(cron: str) -> RecurrenceError:
    text = f"no date matches {cron!r}; write days that its months have, and weekdays that these days can be"
    return RecurrenceError("NEVER_FIRES", "cron", text)
