"""The SQLite file, as the settings name it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from timer_service.app.schema import migrations
from timer_service.cli.doctor.checks.schema import Applied, check_schema
from timer_service.cli.doctor.checks.versions import check_sqlite
from timer_service.cli.doctor.finding import Finding, Status
from timer_service.config import Config

_APPLIED = "SELECT number, name, checksum FROM schema_migrations"


def look_at_sqlite(config: Config) -> Iterator[Finding]:
    """Look at the library and the file, which needs not be there yet."""
    yield check_sqlite(sqlite3.sqlite_version_info)
    if not config.db_path.exists():
        text = f"there is no {config.db_path} yet"
        yield Finding("database", Status.WARN, text, "The service makes it when it starts; else check TIMER_DB_PATH.")
        return
    try:
        applied = _applied(config)
    except sqlite3.Error as error:
        yield Finding("database", Status.FAIL, f"can't read {config.db_path}: {error}", "Check TIMER_DB_PATH.")
    else:
        yield check_schema(applied, migrations("sqlite"), automatic=config.auto_migrate, setting="TIMER_DB_PATH")


def _applied(config: Config) -> Applied:
    """Read which migrations are applied: without the lock, so that a running service is not disturbed.

    Without a `-wal` beside it nobody has the file open, and it is read as it is: otherwise SQLite would make that file,
    owned by whoever runs this.
    """
    how = "mode=ro" if Path(f"{config.db_path}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"{config.db_path.absolute().as_uri()}?{how}", uri=True, timeout=1)) as connection:
        try:
            return {number: (name, checksum) for number, name, checksum in connection.execute(_APPLIED)}
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return {}
            raise
