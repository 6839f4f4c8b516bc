import shutil
import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.harness.zone_releases import FOLDER, releases, use_release
from timer_service.core.values.instant import LATEST
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.zones import LAST_SECOND, check_zone, load_zone, stretch_at
from timer_service.zone_data import zone_data


def second(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Berlin", "write Europe/Berlin instead"),
        ("europe/berlin", "write Europe/Berlin instead"),
        ("Europe/Berlim", "write Europe/Berlin"),
        ("America/NewYork", "write America/New_York instead"),
        ("utc", "write UTC instead"),
        ("+02:00", "or Etc/GMT-2 for UTC+2 all year (the sign of these names is reversed)"),
        ("GMT+2", "or Etc/GMT-2 for UTC+2"),
        ("utc-5", "or Etc/GMT+5 for UTC-5"),
        ("UTC+0", "or UTC for UTC+0"),
        ("Etc/UTC+2", "or Etc/GMT-2 for UTC+2"),
        ("Etc/GMT+02", "or Etc/GMT+2 for UTC-2"),
        ("Etc/GMT+25", "write the IANA name of a place"),
        ("UTC+5:30", "write the IANA name of a place, such as Asia/Kolkata for UTC+5:30"),
        ("GMT2", "write an IANA name such as Europe/Berlin instead"),
        ("UTC-14", "write the IANA name of a place, such as Asia/Kolkata for UTC+5:30"),
        (
            "EST",
            "is an abbreviation, not the rules of a place; write America/New_York or America/Panama (UTC-5 all year)",
        ),
        ("PST", "write America/Los_Angeles instead"),
        ("cst", "write America/Chicago or Asia/Shanghai instead"),
        ("NZST", "write an IANA name such as Europe/Berlin instead"),
        ("Eastern Standard Time", "is a name of Windows; write an IANA name such as Europe/Berlin instead"),
        ("", "write an IANA name such as Europe/Berlin instead"),
        ("Europe/", "instead"),
        ("W. Europe Standard Time", "is a name of Windows; write an IANA name such as Europe/Berlin instead"),
        ("Factory", "write an IANA name such as Europe/Berlin instead"),
        ("localtime", "write an IANA name such as Europe/Berlin instead"),
        ("posix/Europe/Berlin", "write Europe/Berlin"),
        ("right/Europe/Berlin", "write Europe/Berlin"),
        ("../../etc/passwd", "instead"),
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


def rules_of(release: str, zone: str) -> str:
    use_release(release)
    return load_zone(zone).rules


def test_data_that_are_replaced_in_a_running_process(tmp_path: Path) -> None:
    """A slot is stored with the rules by which it was computed, not with those that lie on the disk by now."""
    zone, summer = "Africa/Cairo", 1_690_000_000
    with releases():
        file = tmp_path / zone
        file.parent.mkdir()
        shutil.copy(FOLDER / "2022.7" / zone, file)
        zoneinfo.reset_tzpath([str(tmp_path)])
        offset = stretch_at(zone, summer).offset
        shutil.copy(FOLDER / "2023.3" / zone, file)
        found = load_zone(zone).rules
        assert (offset, found) == (7200, rules_of("2022.7", zone))
        assert found != rules_of("2023.3", zone)
