"""The versions of the time zone data."""

from importlib.metadata import version
from pathlib import Path

import pytest

from timer_service import zone_data as module
from timer_service.zone_data import ZoneData, zone_data


def test_versions() -> None:
    """The versions are those of the system and of the package."""
    assert zone_data().package == version("tzdata")
    assert str(ZoneData("2025b", "2026.6")) == "system 2025b, tzdata 2026.6"


@pytest.mark.parametrize(
    ("first_line", "expected"),
    [
        (b"# version 2025b\n# This zic input file is in the public domain.\n", "2025b"),
        (b"# version " + b"2" * 1000, "unknown"),
        (b"R d 1916 o\n", "unknown"),
        (b"\xff\n", "unknown"),
        (b"", "unknown"),
        (None, "unknown"),
    ],
)
def test_version_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_line: bytes | None, expected: str
) -> None:
    """The first folder that exists says its version in `tzdata.zi`."""
    monkeypatch.setattr(module, "TZPATH", (str(tmp_path / "missing"), str(tmp_path)))
    if first_line is not None:
        (tmp_path / "tzdata.zi").write_bytes(first_line)
    zone_data.cache_clear()
    try:
        assert zone_data().system == expected
    finally:
        zone_data.cache_clear()


def test_a_system_without_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty `PYTHONTZPATH`, the system has no data."""
    monkeypatch.setattr(module, "TZPATH", ())
    zone_data.cache_clear()
    try:
        assert zone_data().system == "none"
    finally:
        zone_data.cache_clear()
