"""The versions of the time zone data."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from timer_service import zone_data as module
from timer_service.zone_data import zone_data


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    zone_data.cache_clear()
    yield
    zone_data.cache_clear()


@pytest.mark.parametrize(
    ("first_line", "expected"),
    [
        (b"# version 2025b\n# This zic input file is in the public domain.\n", "2025b"),
        (b"# version " + b"2" * 1000, "unknown"),
        (b"R d 1916 o\n", "unknown"),
        (b"\xff\n", "unknown"),
        (None, "unknown"),
    ],
)
def test_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_line: bytes | None, expected: str) -> None:
    """The first folder that exists says the version of the system in `tzdata.zi`. The package has its own."""
    monkeypatch.setattr(module, "TZPATH", (str(tmp_path / "missing"), str(tmp_path)))
    if first_line is not None:
        (tmp_path / "tzdata.zi").write_bytes(first_line)
    assert str(zone_data()) == f"system {expected}, tzdata {version('tzdata')}"
