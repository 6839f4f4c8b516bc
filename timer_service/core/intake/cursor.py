"""The cursor of the command log: how far the database has read it, and which process reads.

It is one row. Every transaction of the intake writes it, and fails if another process has written it meanwhile. So two
processes that read the same commands apply them once.
"""

import secrets
from typing import NamedTuple

from timer_service.core.ports.database import Database, Reader, Row, Transaction
from timer_service.core.ports.log import LogCursor
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction

_SQL = load_sql("timer_service.core.intake", "cursor.sql")

LEASE_MS = 3000
"""How long after its last transaction a reader that has died keeps other processes from reading."""


class LostCursorError(Exception):
    """Another process has moved the cursor or reads now. Nothing was committed."""


class Place(NamedTuple):
    """The row of the cursor, as this process wrote it last."""

    cursor: LogCursor
    revision: int


class Taken(NamedTuple):
    """What a process found when it became the reader."""

    place: Place
    database_id: str
    is_new: bool
    """Whether the database has never read a log."""
    after_crash: bool
    """Whether the last reader has not stopped in order."""


async def take(database: Database, reader: str, now: int) -> Taken | None:
    """Make a process the reader. Return None if another one reads."""
    rows = [] if database.exclusive else await database.reader.fetch(_SQL["find"])
    for row in rows:  # only to find out without a write; the statement `take` decides
        if row["reader"] not in {None, reader} and now <= row["reads_until"] <= now + 2 * LEASE_MS:
            return None
    return await in_transaction(database, lambda tx: _take(tx, reader, now, alone=database.exclusive))


async def _take(tx: Transaction, reader: str, now: int, *, alone: bool) -> Taken | None:
    """Write the reader into the row of the cursor. Return None if another process reads."""
    await tx.execute(_SQL["create"])
    await tx.execute(_SQL["create_installation"], {"database_id": secrets.token_hex(16)})
    (before,) = await tx.fetch(_SQL["find"])
    looked_at = before["reads_until"] + 1 if alone else now  # alone, the time of any other reader is over
    values = {"reader": reader, "until": now + LEASE_MS, "latest": now + 2 * LEASE_MS, "revision": before["revision"]}
    if not await tx.execute(_SQL["take"], {**values, "now": looked_at}):
        return None
    (row,) = await tx.fetch(_SQL["find"])
    (installation,) = await tx.fetch(_SQL["find_installation"])
    return Taken(
        Place(_read(row), row["revision"]),
        installation["database_id"],
        is_new=not row["log"],
        after_crash=before["reader"] not in {None, reader},
    )


async def move(tx: Transaction, place: Place, now: int) -> Place:
    """Write a place that was made from the last one with `_replace`, and keep the reading. Return it as written.

    Raises `LostCursorError` if another process has written the row since.
    """
    values = {**place.cursor._asdict(), "until": now + LEASE_MS, "revision": place.revision}
    if not await tx.execute(_SQL["move"], values):
        raise LostCursorError
    return place._replace(revision=place.revision + 1)


async def release(database: Database, reader: str) -> None:
    """Let another process read at once."""
    await in_transaction(database, lambda tx: tx.execute(_SQL["release"], {"reader": reader}))


async def find(reader: Reader) -> LogCursor | None:
    """Return how far the log was read; None if no process has ever been the reader."""
    for row in await reader.fetch(_SQL["find"]):
        return _read(row)
    return None


def _read(row: Row) -> LogCursor:
    return LogCursor(row["log"], row["epoch"], row["sequence"], row["stored_at"], row["place"])
