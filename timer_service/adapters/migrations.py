"""Brings the schema to head: ordered, checksummed, all pending ones in one locked transaction.

A file `NNNN_name.sql` is for every engine, `NNNN_name.<engine>.sql` for one: for what has no portable text.
"""

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from timer_service.core.database import Database, Reader
from timer_service.core.errors import StartError
from timer_service.core.transactions import retry_on_conflict

_COMMENTS = re.compile(r"--.*|/\*.*?\*/")
# Not IF NOT EXISTS: that wants the right to make tables even where there is nothing to make.
_IS_THERE = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'",
    "postgres": "SELECT 1 WHERE to_regclass('schema_migrations') IS NOT NULL",
}
_CREATE = """
CREATE TABLE schema_migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL
)
"""
_APPLIED = "SELECT number, name, checksum FROM schema_migrations ORDER BY number"
_RECORD = "INSERT INTO schema_migrations (number, name, checksum) VALUES (:number, :name, :checksum)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    number: int
    name: str
    text: str
    engine: str | None = None
    """The only engine it is for; None for every one."""

    @property
    def checksum(self) -> str:
        """Tells whether an applied migration was edited afterwards."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_migrations(folder: Path) -> list[Migration]:
    """Read the migrations for every engine, in order. Raises `StartError` if there are none or a number is missing."""
    paths = sorted(folder.glob("*.sql"))
    numbers = [f"{number:04}" for number in range(1, len(paths) + 1)]
    if not paths or [path.stem[:4] for path in paths] != numbers:
        raise StartError(f"the migrations in {folder} are not numbered 0001, 0002, ...")
    return [_read(path) for path in paths]


def _read(path: Path) -> Migration:
    name, _, engine = path.stem.partition(".")
    return Migration(int(name[:4]), name, path.read_text("utf-8"), engine or None)


async def migrate(database: Database, migrations: Sequence[Migration]) -> list[Migration]:
    """Apply what is pending; return what was applied. Raises `StartError` when the database is not one of ours."""
    return await retry_on_conflict(lambda: _migrate(database, migrations))


async def _migrate(database: Database, migrations: Sequence[Migration]) -> list[Migration]:
    async with database.migrating() as tx:
        if not await _is_there(tx, database.engine):
            await tx.execute(_CREATE)
        pending = _pending(await _applied(tx), migrations, database.engine)
        for migration in pending:
            for statement in _statements(migration.text):
                await tx.execute(statement)
            await tx.execute(
                _RECORD,
                {"number": migration.number, "name": migration.name, "checksum": migration.checksum},
            )
    return pending


async def pending_migrations(database: Database, migrations: Sequence[Migration]) -> list[Migration]:
    """Return what `migrate` would apply. Raises `StartError` when the database is not one of ours."""
    async with database.migrating() as tx:
        applied = await _applied(tx) if await _is_there(tx, database.engine) else {}
    return _pending(applied, migrations, database.engine)


async def _is_there(reader: Reader, engine: str) -> bool:
    return bool(await reader.fetch(_IS_THERE[engine]))


async def _applied(reader: Reader) -> dict[int, tuple[str, str]]:
    return {row["number"]: (row["name"], row["checksum"]) for row in await reader.fetch(_APPLIED)}


def _pending(applied: dict[int, tuple[str, str]], migrations: Sequence[Migration], engine: str) -> list[Migration]:
    known = {migration.number for migration in migrations}
    if newer := sorted(set(applied) - known):
        raise StartError(f"the database is newer than this version: it has migration {applied[newer[0]][0]}")
    for migration in migrations:
        _, checksum = applied.get(migration.number, ("", migration.checksum))
        if checksum != migration.checksum:
            raise StartError(f"migration {migration.name} was applied to this database with another text")
    mine = (migration for migration in migrations if migration.engine in {None, engine})
    return [migration for migration in mine if migration.number not in applied]


def _statements(text: str) -> Iterator[str]:
    """Split at the semicolons that end statements (SQL of either engine; the splitter is SQLite's own)."""
    statement = ""
    for part in re.split("(?<=;)", text):
        statement += part
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if _COMMENTS.sub("", statement).strip():
        yield statement
