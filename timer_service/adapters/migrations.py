"""Migrations: read them from files, find the pending ones, apply them in order in one locked transaction.

A file `NNNN_name.sql` is for both engines. PostgreSQL also reads what is in a comment `/* postgres: ... */`, and
`COLLATE "C"` for `COLLATE BINARY`. The database keeps a checksum of each applied migration.
"""

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from timer_service.core.ports.database import Database, Reader
from timer_service.core.ports.transactions import retry_on_conflict
from timer_service.core.values.errors import StartError

_COMMENTS = re.compile(r"--.*|/\*.*?\*/")
_FOR_POSTGRES = re.compile(r"/\* postgres: (.*?) \*/", re.DOTALL)
# Not CREATE TABLE IF NOT EXISTS: that needs the right to create tables even if the table exists.
_TABLE_EXISTS = {
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
APPLIED = "SELECT number, name, checksum FROM schema_migrations ORDER BY number"
Applied: TypeAlias = Mapping[int, tuple[str, str]]
"""The applied migrations: number -> name and checksum."""
_RECORD = "INSERT INTO schema_migrations (number, name, checksum) VALUES (:number, :name, :checksum)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the text. It shows whether an applied migration was edited later."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_migrations(folder: Path) -> list[Migration]:
    """Return the migrations in order. Raises `StartError` if there are none or a number is missing or there twice."""
    paths = sorted(folder.glob("*.sql"))
    if not paths or [path.stem[:4] for path in paths] != [f"{number:04}" for number in range(1, len(paths) + 1)]:
        raise StartError(f"the migrations in {folder} are not numbered 0001, 0002, ...")
    return [Migration(number, path.stem, path.read_text("utf-8")) for number, path in enumerate(paths, 1)]


async def migrate(database: Database, migrations: Sequence[Migration]) -> list[Migration]:
    """Apply the pending migrations and return them. Raises `StartError` if the database and `migrations` disagree."""
    return await retry_on_conflict(lambda: _migrate(database, migrations))


async def _migrate(database: Database, migrations: Sequence[Migration]) -> list[Migration]:
    """Apply the pending migrations in one transaction."""
    async with database.migrating() as tx:
        applied = await _find_applied(tx, database.engine)
        if applied is None:
            await tx.execute(_CREATE)
        pending = find_pending(applied or {}, migrations)
        for migration in pending:
            for statement in _statements(migration.text, database.engine):
                await tx.execute(statement)
            record = {"number": migration.number, "name": migration.name, "checksum": migration.checksum}
            await tx.execute(_RECORD, record)
    return pending


async def pending_migrations(database: Database, migrations: Sequence[Migration]) -> list[Migration]:
    """Return the pending migrations, in order. Raises `StartError` if the database and `migrations` disagree."""
    async with database.migrating() as tx:
        applied = await _find_applied(tx, database.engine)
    return find_pending(applied or {}, migrations)


async def _find_applied(reader: Reader, engine: str) -> Applied | None:
    """Return the applied migrations, or None if the table of migrations does not exist."""
    if not await reader.fetch(_TABLE_EXISTS[engine]):
        return None
    return {row["number"]: (row["name"], row["checksum"]) for row in await reader.fetch(APPLIED)}


def find_pending(applied: Applied, migrations: Sequence[Migration]) -> list[Migration]:
    """Return the migrations that are not applied yet. Raises `StartError` if the database and `migrations` disagree."""
    known = {migration.number for migration in migrations}
    if newer := sorted(set(applied) - known):
        raise StartError(
            f"the database is newer than this version of the service: it has migration {applied[newer[0]][0]}. "
            "Start the version that applied it, or restore a backup"
        )
    for migration in migrations:
        if migration.number in applied and applied[migration.number][1] != migration.checksum:
            raise StartError(
                f"migration {migration.name} was applied to this database with another text. "
                "Start the version that applied it, or restore a backup"
            )
    return [migration for migration in migrations if migration.number not in applied]


def _statements(text: str, engine: str) -> Iterator[str]:
    """Split a text into the statements for an engine. SQLite's parser finds the semicolons that end a statement."""
    if engine == "postgres":
        text = _FOR_POSTGRES.sub(r"\1", text).replace("COLLATE BINARY", 'COLLATE "C"')
    statement = ""
    for part in re.split("(?<=;)", text):
        statement += part
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if _COMMENTS.sub("", statement).strip():  # the last statement may have no semicolon
        yield statement
