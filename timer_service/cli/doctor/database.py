"""The SQLite file that the settings name, and the migrations of a database."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from timer_service.adapters.migrations import APPLIED, Applied, Migration, find_pending
from timer_service.app.schema import migrations
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.config import Config
from timer_service.core.values.errors import StartError
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.zones import load_zone

_SAFE_VERSION = (3, 51, 3)
ZONES = (
    "SELECT zone, zone_rules, COUNT(*) AS count FROM schedules WHERE zone_rules IS NOT NULL GROUP BY 1, 2 ORDER BY 1"
)
"""The rules of zones from which the next slots were computed. A database whose schema is at head has them."""


def check_sqlite(config: Config) -> Iterator[Finding | Skew]:
    """Check the library and the file. Timers fire by the clock of this machine."""
    yield Skew("this clock", timedelta(), timedelta())
    yield check_version(sqlite3.sqlite_version_info)
    if not config.db_path.exists():
        text = f"there is no {config.db_path} here; this matters only where the service runs"
        remedy = "The service creates it at its first start. If it has started before, check TIMER_DB_PATH."
        yield Finding("database", Status.NOTE, text, remedy)
        return
    try:
        schema = check_schema(read_applied(config.db_path), migrations(), automatic=config.auto_migrate)
        zones = list(check_zones(_read(config.db_path, ZONES))) if schema.status is Status.OK else []
    except sqlite3.Error as error:
        yield Finding("database", Status.FAIL, f"cannot read {config.db_path}: {error}", "Check TIMER_DB_PATH.")
    else:
        yield schema
        yield from zones


def check_zones(rows: Iterable[Sequence[object]]) -> Iterator[Finding]:
    """Check that the next slots were computed from the zone data of this machine. `rows`: the result of `ZONES`."""
    other = [f"{zone} ({count})" for zone, rules, count in rows if _rules(str(zone)) not in {rules, None}]
    if other:
        text = f"next slots were computed from other time zone data than those of this machine: {', '.join(other[:10])}"
        remedy = "Update the data of all machines, and restart the instances: they compute the slots again and log it."
        yield Finding("time zones", Status.WARN, text, remedy)


def _rules(zone: str) -> str | None:
    """Return the rules of a zone on this machine; None if it does not know the zone."""
    try:
        return load_zone(zone).rules
    except RecurrenceError:
        return None


def check_version(version: tuple[int, ...]) -> Finding:
    """Check the version of the library."""
    text = f"SQLite {'.'.join(map(str, version))}"
    if version < _SAFE_VERSION:
        return Finding(
            "sqlite",
            Status.NOTE,
            f"{text} has an error that several writers of a WAL database can meet; the service has one writer",
            "The lock file excludes other instances. Let no other program write to the file.",
        )
    return Finding("sqlite", Status.OK, text)


def read_applied(path: Path) -> Applied:
    """Return the migrations of a database file. Takes no lock and creates nothing. Raises `sqlite3.Error`.

    Without a `-wal` file, no process has the database open, and it is read as immutable. Otherwise SQLite would create
    that file, with the owner of this process.
    """
    try:
        return {number: (name, checksum) for number, name, checksum in _read(path, APPLIED)}
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return {}
        raise


def _read(path: Path, sql: str) -> list[tuple[Any, ...]]:
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=1)) as connection:
        return connection.execute(sql).fetchall()


def check_schema(applied: Applied, migrations: Sequence[Migration], *, automatic: bool) -> Finding:
    """Check the applied migrations. `automatic`: the service applies those that are pending."""
    try:
        pending = find_pending(applied, migrations)
    except StartError as error:
        return Finding("schema", Status.FAIL, str(error))
    if pending:
        status = Status.WARN if automatic else Status.FAIL
        remedy = "The service applies it when it starts." if automatic else "Run `timer-service migrate up`."
        return Finding("schema", status, f"lacks {', '.join(each.name for each in pending)}", remedy)
    return Finding("schema", Status.OK, f"at head ({migrations[-1].name})")
