"""The versions of the time zone data that this process uses. Instances with different data may know different zones."""

import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from zoneinfo import TZPATH

_VERSION = re.compile(r"# version (\S{1,20})\s*")


class ZoneData(NamedTuple):
    """The versions of the sources of zones. `zoneinfo` takes a zone from the package only if the system lacks it."""

    system: str
    """The version of the IANA data of the system, such as 2025b; `none`, or `unknown` if the data do not say it."""
    package: str
    """The version of the Python package `tzdata`."""

    def __str__(self) -> str:
        return f"system {self.system}, tzdata {self.package}"


@cache
def zone_data() -> ZoneData:
    """Return the versions of the time zone data."""
    return ZoneData(_system_version(), version("tzdata"))


def _system_version() -> str:
    """Return the version in the first folder in which `zoneinfo` looks, as `ZoneData.system` describes it."""
    folder = next((each for each in map(Path, TZPATH) if each.is_dir()), None)
    if folder is None:
        return "none"
    try:
        with (folder / "tzdata.zi").open(encoding="utf-8") as file:
            found = _VERSION.fullmatch(file.readline(100))
    except (OSError, ValueError):
        return "unknown"
    return found[1] if found else "unknown"
