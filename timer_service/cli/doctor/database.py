"""The SQLite file that the settings name, and the migrations of a database."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from timer_service.adapters.migrations import APPLIED, Applied, Migration, find_pending
from timer_service.app.schema import migrations
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.config import Config
from timer_service.core.values.errors import StartError

_SAFE_VERSION = (3, 51, 3)


def check_sqlite(config: Config) -> Iterator[Finding | Skew]:
    """Check the library and the file. Timers fire by the clock of this machine."""
    yield Skew("this clock", timedelta(), timedelta())
    yield check_version(sqlite3.sqlite_version_info)
    if not config.db_path.exists():
        text = f"there is no {config.db_path} yet"
        remedy = "The service creates it when it starts. If it should exist, check TIMER_DB_PATH."
        yield Finding("database", Status.WARN, text, remedy)
        return
    try:
        applied = read_applied(config.db_path)
    except sqlite3.Error as error:
        yield Finding("database", Status.FAIL, f"cannot read {config.db_path}: {error}", "Check TIMER_DB_PATH.")
    else:
        yield check_schema(applied, migrations(), automatic=config.auto_migrate)


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
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=1)) as connection:
        try:
            return {number: (name, checksum) for number, name, checksum in connection.execute(APPLIED)}
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return {}
            raise


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
