"""A plain evaluator of cron expressions. The service must agree with it.

It looks at each second, or minute, of a clock.
"""

from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

HOUR = 3600
DAY = 24 * HOUR
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class Change(NamedTuple):
    """A clock change: the second (UTC) from which the new offset holds, and both offsets in seconds."""

    zone: str
    second: int
    before: int
    after: int

    @property
    def same_walls(self) -> tuple[int, int, int]:
        """Equal for changes that look the same on the clocks."""
        return self.second + self.before, self.before, self.after


class PlainCron:
    """An expression, as the sets of values that its fields allow."""

    def __init__(self, text: str) -> None:
        fields = text.split()
        second, minute, hour, self.day, month, self.weekday = ["0"] * (6 - len(fields)) + fields
        self.fixed = not any(field.startswith("*") for field in (second, minute, hour))
        self.both_days = self.day.startswith("*") or self.weekday.startswith("*")
        self.seconds = _values(second, range(60))
        self.minutes = _values(minute, range(60))
        self.hours = _values(hour, range(24))
        self.months = _values(month, range(1, 13), MONTHS)

    def matches(self, wall: datetime) -> bool:
        """Return whether a reading of a clock matches."""
        return (
            wall.second in self.seconds
            and wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.month in self.months
            and self._matches_day(wall)
        )

    def _matches_day(self, wall: datetime) -> bool:
        day = any(_is_day(term, wall) for term in self.day.split(","))
        weekday = any(_is_weekday(term, wall) for term in self.weekday.split(","))
        return day and weekday if self.both_days else day or weekday


class Clock:
    """What the clocks of a zone show in [`start`, `end`), every `step` seconds. All are seconds (UTC).

    Clock changes and slots must lie on these steps. No overlap may begin before the first step.
    """

    def __init__(self, zone: str, start: int, end: int, step: int) -> None:
        there = ZoneInfo(zone)
        self.step = timedelta(seconds=step)
        self.shown = [(at, datetime.fromtimestamp(at, there).replace(tzinfo=None)) for at in range(start, end, step)]

    def slots(self, cron: str) -> list[int]:
        """Return the seconds that are slots."""
        expression = PlainCron(cron)
        return [*(self._fixed(expression) if expression.fixed else self._wildcard(expression))]

    def _wildcard(self, expression: PlainCron) -> Iterator[int]:
        yield from (at for at, wall in self.shown if expression.matches(wall))

    def _fixed(self, expression: PlainCron) -> Iterator[int]:
        """Yield each second that shows a match for the first time, or that follows a gap with a match."""
        latest = self.shown[0][1] - self.step
        for at, wall in self.shown:
            new = latest
            while new < wall:
                new += self.step
                if expression.matches(new):
                    yield at
                    break
            latest = max(latest, wall)


def find_changes(zone: str, start: int, end: int) -> Iterator[Change]:
    """Yield the clock changes of a zone in [`start`, `end`). The clock is looked at every 12 hours."""
    there = ZoneInfo(zone)
    after = _offset(there, start)
    for early in range(start, end, 12 * HOUR):
        low, high = early, early + 12 * HOUR
        before, after = after, _offset(there, high)
        if before != after:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(there, middle) == before else (low, middle)
            yield Change(zone, high, before, after)


def _offset(zone: ZoneInfo, second: int) -> int:
    there = datetime.fromtimestamp(second, zone)
    return (there.replace(tzinfo=UTC) - there) // timedelta(seconds=1)


def _values(field: str, allowed: range, names: tuple[str, ...] = ()) -> set[int]:
    """Return the values of a field."""
    values = set[int]()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            chosen = allowed
        elif last:
            chosen = range(_value(first, allowed, names), _value(last, allowed, names) + 1)
        elif step:
            chosen = range(_value(first, allowed, names), allowed.stop)
        else:
            chosen = range(_value(first, allowed, names), _value(first, allowed, names) + 1)
        values |= set(chosen[:: int(step or 1)])
    return values


def _value(text: str, allowed: range, names: tuple[str, ...]) -> int:
    return allowed.start + names.index(text) if text in names else int(text)


def _is_day(term: str, wall: datetime) -> bool:
    last = monthrange(wall.year, wall.month)[1]
    if term == "L":
        return wall.day == last
    weekdays = [day for day in range(1, last + 1) if wall.replace(day=day).weekday() < 5]
    if term.startswith("LW"):
        return wall.day == weekdays[-1 - int(term[3:] or 0)]
    if term.startswith("L-"):
        return wall.day == last - int(term[2:])
    if term.endswith("W"):  # of two weekdays that are equally near, there is none: two days apart is the other side
        day = int(term[:-1])
        return day <= last and wall.day == min(weekdays, key=lambda each: abs(each - day))
    return wall.day in _values(term, range(1, 32))


def _is_weekday(term: str, wall: datetime) -> bool:
    today = (wall.weekday() + 1) % 7
    if "#" in term:
        name, _, number = term.partition("#")
        return today in _weekdays(name) and (wall.day + 6) // 7 == int(number)
    if term.endswith("L"):
        return today in _weekdays(term[:-1]) and wall.day + 7 > monthrange(wall.year, wall.month)[1]
    return today in _weekdays(term)


def _weekdays(term: str) -> set[int]:
    return {value % 7 for value in _values(term, range(8), WEEKDAYS)}
