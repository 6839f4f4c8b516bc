from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from timer_service.core.values.instant import LATEST
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.zones import LAST_SECOND, Stretch, check_zone, stretch_at
from timer_service.zone_data import zone_data


def second(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+12", "CET"])
def test_known_zones(name: str) -> None:
    """Every IANA name of the time zone data is accepted."""
    check_zone(name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Berlin", "write Europe/Berlin instead"),
        ("europe/berlin", "write Europe/Berlin instead"),
        ("Europe/Berlim", "write Europe/Berlin"),
        ("America/NewYork", "write America/New_York"),
        ("utc", "write UTC instead"),
        ("+02:00", "write an IANA name such as Europe/Berlin instead"),
        ("", "write an IANA name such as Europe/Berlin instead"),
        ("Europe/", "write an IANA name such as Europe/Berlin instead"),
        ("localtime", "write an IANA name such as Europe/Berlin instead"),
        ("posix/Europe/Berlin", "write Europe/Berlin"),
        ("right/Europe/Berlin", "write Europe/Berlin"),
        ("../../etc/passwd", "instead"),
        ("/usr/share/zoneinfo/UTC", "instead"),
        ("UTC\0", "instead"),
        ("\ud800", "write an IANA name such as Europe/Berlin instead"),
        ("tzdata.zi", "instead"),
        ("x" * 5000, f"'{'x' * 40}' is not a time zone that this instance knows ({zone_data()}); write an IANA name"),
    ],
    ids=lambda text: text[:30].encode("ascii", "replace").decode(),
)
def test_unknown_zones(name: str, remedy: str) -> None:
    """Another name is refused with the nearest names, also if the system has a file of this name."""
    with pytest.raises(RecurrenceError) as checked:
        check_zone(name)
    assert (checked.value.code, checked.value.field) == ("UNKNOWN_ZONE", "zone")
    assert remedy in str(checked.value)
    assert len(str(checked.value)) < 200


def test_stretches_of_an_unknown_zone() -> None:
    """A zone that this instance does not have is UNKNOWN_ZONE, also for a stored recurrence."""
    with pytest.raises(RecurrenceError, match="'Europe/Utopia' is not a time zone") as raised:
        stretch_at("Europe/Utopia", 0)
    assert raised.value.code == "UNKNOWN_ZONE"


def test_stretches_of_a_year() -> None:
    """A year has a stretch for each offset, and ends a stretch."""
    spring, autumn = second("2027-03-28T01:00:00"), second("2027-10-31T01:00:00")
    start, end = second("2027-01-01T00:00:00"), second("2028-01-01T00:00:00")
    winter = Stretch(start, spring, 3600, 3600)
    summer = Stretch(spring, autumn, 7200, 3600)
    assert stretch_at("Europe/Berlin", start) == stretch_at("Europe/Berlin", spring - 1) == winter
    assert stretch_at("Europe/Berlin", spring) == stretch_at("Europe/Berlin", autumn - 1) == summer
    assert stretch_at("Europe/Berlin", end - 1) == Stretch(autumn, end, 3600, 7200)
    assert stretch_at("Asia/Kolkata", spring) == Stretch(start, end, 19_800, 19_800)


@pytest.mark.parametrize(
    "zone", ["Africa/Casablanca", "America/Recife", "Asia/Gaza", "Australia/Lord_Howe", "Africa/Monrovia", "UTC"]
)
def test_stretches_follow_each_other(zone: str) -> None:
    """Stretches leave no second out. Each has the offset of the zone, from its first to its last second."""
    there = ZoneInfo(zone)
    stretches = [stretch_at(zone, 0)]
    while stretches[-1].end < second("2101-01-01T00:00:00"):
        stretches.append(stretch_at(zone, stretches[-1].end))
    for before, after in pairwise(stretches):
        assert (after.start, after.offset_before) == (before.end, before.offset)
    for stretch in stretches:
        seconds = {stretch.start, (stretch.start + stretch.end) // 2, stretch.end - 1}
        offsets = {datetime.fromtimestamp(each, there).utcoffset() for each in seconds}
        assert offsets == {timedelta(seconds=stretch.offset)}


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin"])
def test_ends_of_time(zone: str) -> None:
    """The stretches reach from 1970 to the last instant of 9999, also where the local year is another one."""
    assert LAST_SECOND == LATEST // 1000
    assert stretch_at(zone, 0).start == 0
    assert stretch_at(zone, LAST_SECOND).end == LAST_SECOND + 1
