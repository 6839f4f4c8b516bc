"""Real releases of the time zone data, before and after the rules of a zone changed.

`tzdata/` has the compiled files of a few zones from the wheels of the package `tzdata`. The data are in the
public domain. Other zones have the data of the installed package.
"""

import zoneinfo
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from timer_service.schedules.calendar import recurrence, zones

FOLDER = Path(__file__).with_name("tzdata")


class RuleChange(NamedTuple):
    """A change of the rules of a zone: the releases before and after it, and the first instant that differs."""

    zone: str
    before: str
    after: str
    since: int


def _change(zone: str, before: str, after: str, since: str) -> RuleChange:
    return RuleChange(zone, before, after, int(datetime.fromisoformat(since).replace(tzinfo=UTC).timestamp() * 1000))


RULE_CHANGES = (
    _change("America/Mexico_City", "2022.1", "2022.7", "2023-04-02T08:00"),
    _change("America/Chihuahua", "2022.1", "2022.7", "2022-10-30T08:00"),
    _change("Asia/Amman", "2022.1", "2022.7", "2022-10-27T22:00"),
    _change("Asia/Tehran", "2022.1", "2022.7", "2023-03-21T20:30"),
    _change("Africa/Cairo", "2022.7", "2023.3", "2023-04-27T22:00"),
    _change("Asia/Almaty", "2023.3", "2024.2", "2024-02-29T18:00"),
    _change("America/Asuncion", "2024.2", "2025.1", "2025-03-23T03:00"),
)


def use_release(release: str) -> None:
    """Let this process use the data of a release, as if it had started with them."""
    zoneinfo.reset_tzpath([str(FOLDER / release)])
    _forget()


@contextmanager
def releases() -> Iterator[None]:
    """Let the block use releases, and go back to the data of the machine at its end."""
    before = zoneinfo.TZPATH
    try:
        yield
    finally:
        zoneinfo.reset_tzpath(before)
        _forget()


def _forget() -> None:
    """Forget what was read or computed from other data."""
    zoneinfo.ZoneInfo.clear_cache()
    for cached in (zones.load_zone, zones.stretches_of_year, recurrence.next_slot):
        cached.cache_clear()
