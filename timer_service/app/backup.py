"""Backups of a SQLite database: write one, restore one, and replay the commands that the database lacks."""

import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

from timer_service.adapters.migrations import Migration, migrate, pending_migrations
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.adapters.sqlite.files import check_integrity, copy_database, empty_wal, new_file
from timer_service.adapters.sqlite.lock_file import DatabaseInUseError
from timer_service.adapters.sqlite.restore import copy_private, replace_database, restoring
from timer_service.app.schema import bring_to_head, migrations
from timer_service.app.storage import open_database
from timer_service.config import Config
from timer_service.core.intake.installation import forget_replay, request_replay
from timer_service.core.intake.replay import request_replay_of_later_commands
from timer_service.core.limits.audit import OPERATOR_ACTION
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.errors import StartError
from timer_service.core.values.instant import format_instant

log = logging.getLogger(__name__)

_ON_POSTGRES = (
    "TIMER_DATABASE_URL names a PostgreSQL database, and this command is for SQLite. Use PostgreSQL's own tools: "
    "pg_dump, or a base backup with point-in-time recovery. After a restore, run `timer-service replay`"
)


class Backup(NamedTuple):
    """A backup that was written."""

    size: int
    """In bytes."""
    duration: timedelta


class Restored(NamedTuple):
    """A database that was replaced by a backup."""

    kept: Path | None
    """The old database; None if there was none."""
    replay_since: int | None


async def back_up(config: Config, file: Path) -> Backup:
    """Write a whole copy of the SQLite database, which may be in use. Raises `StartError` if `file` exists.

    The copy replays the commands that it lacks even if it is put in place without `restore`.
    """
    source = _path(config)
    _require(source)
    begun = time.monotonic()
    with new_file(file) as draft:
        copy_database(source, draft)
        async with _draft(draft) as database:
            if not await _pending(database, source):  # an older schema may lack the table
                await in_transaction(database, request_replay_of_later_commands)
        check_integrity(draft, source)
        size = draft.stat().st_size
    return Backup(size, timedelta(seconds=time.monotonic() - begun))


async def restore(config: Config, file: Path, *, since: int | None = None, no_replay: bool = False) -> Restored:
    """Replace the SQLite database by a backup, and bring the schema to this version. The old database is kept.

    The next start replays the commands that the backup may lack, or those since an instant, or none.
    Raises `StartError` if a service uses the database, or if the file is not a backup that this version can use.
    """
    path = _path(config).resolve()
    _check_file(file, path)
    with restoring(path) as draft:
        copy_private(file, draft)
        check_integrity(draft, file)
        async with _draft(draft) as database:
            await _pending(database, file)
            await migrate(database, migrations("sqlite"))
            requested = None
            if no_replay:
                await in_transaction(database, forget_replay)
            else:
                requested = await in_transaction(database, partial(_request_replay, since=since))
        kept = replace_database(path, draft)
    _record(
        "restore",
        file=str(file),
        database=str(path),
        kept=None if kept is None else str(kept),
        since=_instant(requested),
    )
    return Restored(kept, requested)


async def replay(config: Config, since: int | None) -> int:
    """Make the service replay the commands since an instant at its next start. Return the instant.

    None: since an hour before the newest command that the database has handled. Raises `StartError`.
    """
    if config.postgres_url is None:
        _require(config.db_path)
    try:
        async with open_database(config) as database:
            await bring_to_head(database, auto=config.auto_migrate)
            requested = await in_transaction(database, partial(_request_replay, since=since))
    except DatabaseInUseError as error:
        raise StartError(f"a service uses the database {config.db_path} (TIMER_DB_PATH). Stop it first") from error
    _record("replay", since=_instant(requested))
    return requested


def _record(kind: str, **about: str | None) -> None:
    log.info(OPERATOR_ACTION, extra={"type": kind, **about, "uid": os.geteuid()})


def _instant(at: int | None) -> str | None:
    return None if at is None else format_instant(at)


async def _request_replay(tx: Transaction, since: int | None) -> int:
    if since is None:
        return await request_replay_of_later_commands(tx)
    await request_replay(tx, since)
    return since


def _path(config: Config) -> Path:
    if config.postgres_url is not None:
        raise StartError(_ON_POSTGRES)
    return config.db_path


def _require(path: Path) -> None:
    if not path.exists():
        raise StartError(f"there is no database {path}: check TIMER_DB_PATH")


def _check_file(file: Path, path: Path) -> None:
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
async def _draft(path: Path) -> AsyncIterator[SqliteDatabase]:
    """Open a copy, and write everything into the one file at the end."""
    database = await SqliteDatabase.open(path)
    try:
        yield database
    finally:
        await database.close()
    empty_wal(path)


async def _pending(database: SqliteDatabase, file: Path) -> list[Migration]:
    """Return the migrations that a copy lacks. Raises `StartError`, with the name of the file, if it is not usable."""
    known = migrations("sqlite")
    try:
        pending = await pending_migrations(database, known)
    except StartError as error:
        raise StartError(f"{file} cannot be used: {error}") from error
    if len(pending) == len(known):
        raise StartError(f"{file} is not a database of timer-service: it has none of its tables")
    return pending
