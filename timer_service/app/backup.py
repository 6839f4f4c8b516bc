"""Backups of a SQLite database: write one, and restore one. The service then reads on from the backup's own cursor."""

import logging
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from timer_service.adapters.migrations import migrate, pending_migrations
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.adapters.sqlite.files import check_integrity, copy_database, create_private_file, empty_wal, new_file
from timer_service.adapters.sqlite.restore import replace_database, restoring
from timer_service.app.schema import migrations
from timer_service.config import Config
from timer_service.core.limits.audit import OPERATOR_ACTION
from timer_service.core.values.errors import StartError

log = logging.getLogger(__name__)

_ON_POSTGRES = (
    "TIMER_DATABASE_URL names a PostgreSQL database, and this command is for SQLite. Use PostgreSQL's own tools: "
    "pg_dump, or a base backup with point-in-time recovery"
)


class Backup(NamedTuple):
    """A backup that was written."""

    size: int
    """In bytes."""
    duration: timedelta


async def back_up(config: Config, file: Path) -> Backup:
    """Write a whole copy of the SQLite database, which may be in use. Raises `StartError` if `file` exists."""
    source = _sqlite_path(config)
    if not source.exists():
        raise StartError(f"there is no database {source}: check TIMER_DB_PATH")
    begun = time.monotonic()
    with new_file(file) as draft:
        copy_database(source, draft)
        async with _open_copy(draft) as database:
            await _check_schema(database, source)
        check_integrity(draft, source)
        size = draft.stat().st_size
    return Backup(size, timedelta(seconds=time.monotonic() - begun))


async def restore(config: Config, file: Path) -> Path | None:
    """Replace the SQLite database by a backup, and bring the schema to this version.

    Return where the old database is kept; None if there was none. The next start handles the commands that the backup
    lacks, as far as the broker still has them.
    Raises `StartError` if a service uses the database, or if the file is not a backup that this version can use.
    """
    path = _sqlite_path(config).resolve()
    _check_backup(file, path)
    with restoring(path) as draft:
        create_private_file(draft)
        shutil.copyfile(file, draft)
        check_integrity(draft, file)
        async with _open_copy(draft) as database:
            await _check_schema(database, file)
            await migrate(database, migrations())
        kept = replace_database(path, draft)
    about = {"file": str(file), "database": str(path), "kept": None if kept is None else str(kept)}
    log.info(OPERATOR_ACTION, extra={"type": "restore", **about, "uid": os.geteuid()})
    return kept


def _sqlite_path(config: Config) -> Path:
    """Return the path of the SQLite database. Raises `StartError` if the settings name a PostgreSQL database."""
    if config.engine == "postgres":
        raise StartError(_ON_POSTGRES)
    return config.db_path


def _check_backup(file: Path, path: Path) -> None:
    """Raise `StartError` if a file is not there, is the database itself, or has newer pages in a `-wal` file."""
    if not file.is_file():
        raise StartError(f"cannot read {file}: there is no such file")
    if path.exists() and file.samefile(path):
        raise StartError(f"{file} is the database itself (TIMER_DB_PATH): give the file of a backup")
    wal = Path(f"{file}-wal")
    if wal.exists() and wal.stat().st_size:
        raise StartError(
            f"{file} is not whole without {wal}. Write a backup of it first: "
            f"TIMER_DB_PATH={file} timer-service backup NEWFILE"
        )


@asynccontextmanager
async def _open_copy(path: Path) -> AsyncIterator[SqliteDatabase]:
    """Open a copy, and write everything into the one file at the end."""
    database = await SqliteDatabase.open(path)
    try:
        yield database
    finally:
        await database.close()
    empty_wal(path)


async def _check_schema(database: SqliteDatabase, file: Path) -> None:
    """Raise `StartError`, with the name of the file, if a copy has no tables of the service or is newer than it."""
    known = migrations()
    try:
        missing = await pending_migrations(database, known)
    except StartError as error:
        raise StartError(f"{file} cannot be used: {error}") from error
    if len(missing) == len(known):
        raise StartError(f"{file} is not a database of timer-service: it has none of its tables")
