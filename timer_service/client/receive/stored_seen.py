"""Stores of handled events in the database of the user: a SQLite file or PostgreSQL."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any

from timer_service.client import user_connection
from timer_service.client.own_database import OwnDatabase, database_errors, is_postgres, open_pool, open_sqlite
from timer_service.client.user_tables import scripts
from timer_service.core.values.error_text import error_text

log = logging.getLogger(__name__)

TABLE = "timer_seen"
DEFINITION = (
    """CREATE TABLE IF NOT EXISTS timer_seen (
    consumer TEXT NOT NULL,
    event_id TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (consumer, event_id)
)""",
    "CREATE INDEX IF NOT EXISTS timer_seen_by_age ON timer_seen (seen_at)",
)
"""`seen_at` has Unix milliseconds."""
_SCRIPTS = scripts(TABLE, {"sqlite": DEFINITION, "postgresql": DEFINITION})
_HAS = "SELECT 1 FROM timer_seen WHERE consumer = :consumer AND event_id = :event_id"
_ONCE = "ON CONFLICT DO NOTHING"
_ADD = (
    "INSERT INTO timer_seen (consumer, event_id, seen_at) VALUES (:consumer, :event_id, :seen_at) "
    "ON CONFLICT DO NOTHING"
)
_OLD = (
    "DELETE FROM timer_seen WHERE (consumer, event_id) IN "
    "(SELECT consumer, event_id FROM timer_seen WHERE seen_at < :before ORDER BY seen_at LIMIT :most {lock})"
)
_FORGET = {"sqlite": _OLD.format(lock=""), "postgresql": _OLD.format(lock="FOR UPDATE SKIP LOCKED")}
KEPT_SECONDS = 14 * 24 * 3600
"""Twice as long as the stream keeps an event, unless an operator has changed that."""
_STEP = 1_000
_PAUSE_SECONDS = 0.05
"""Between two steps, so that the program's own transactions have a turn."""
_INTERVAL_SECONDS = 60


class _StoredSeen:
    """Marks of handled events in the table `timer_seen`. Marks older than 14 days are deleted, a thousand at a time."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[OwnDatabase]]) -> None:
        self._connect = connect
        self._stack = AsyncExitStack()
        self._opened: OwnDatabase | None = None
        self._users = 0

    async def open(self) -> None:
        """Connect, and create the table if it is missing. Raises the errors of the driver.

        Several apps can share the object.
        """
        if self._opened is not None:
            self._users += 1
            return
        async with AsyncExitStack() as stack:
            database = await stack.enter_async_context(self._connect())
            for statement in _SCRIPTS[database.engine]:
                await database.run(statement, [{}])
            forgetting = asyncio.create_task(_forget_old(database))
            stack.push_async_callback(_end, forgetting)
            self._opened, self._stack, self._users = database, stack.pop_all(), 1

    async def close(self) -> None:
        """Close the connections, if no other app uses them. The same object can be opened again."""
        self._users -= 1
        if self._users > 0:
            return
        self._opened = None
        await self._stack.aclose()

    async def has(self, consumer: str, event_id: str) -> bool:
        """Return whether an event is marked. Raises the errors of the driver."""
        return bool(await self._database.fetch(_HAS, {"consumer": consumer, "event_id": event_id}))

    async def add(self, consumer: str, event_id: str) -> None:
        """Mark an event. Does nothing if it is marked. Raises the errors of the driver."""
        await self._database.run(_ADD, [_mark(consumer, event_id)])

    async def add_in(self, connection: Any, consumer: str, event_id: str) -> bool:
        """Mark an event in the open transaction of a connection. Returns False if it was marked before.

        `connection` is one of the user's to the same database: see `user_connection.KNOWN`. Raises ValueError if it is
        another one, or in no transaction. If another transaction has marked the event and is open, this call waits for
        its end.
        """
        return await user_connection.insert(connection, TABLE, [_mark(consumer, event_id)], _ONCE) == 1

    @property
    def _database(self) -> OwnDatabase:
        if self._opened is None:
            raise RuntimeError("the seen store is not open")
        return self._opened


class SqliteSeen(_StoredSeen):
    """Marks of handled events in the table `timer_seen` of a SQLite file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if is_postgres(path):
            raise ValueError("path must be the path of a SQLite file")
        super().__init__(lambda: open_sqlite(path, create=True))


class PostgresSeen(_StoredSeen):
    """Marks of handled events in the table `timer_seen` of a PostgreSQL database. Needs asyncpg."""

    def __init__(self, dsn: str) -> None:
        if not is_postgres(dsn):
            raise ValueError("dsn must begin with postgresql://")
        super().__init__(lambda: open_pool(dsn))


async def _forget_old(database: OwnDatabase) -> None:
    """Delete old marks once a minute, in bounded steps, until cancelled."""
    while True:
        try:
            before = _now() - KEPT_SECONDS * 1000
            deleted = _STEP
            while deleted == _STEP:
                deleted = await database.run(_FORGET[database.engine], [{"before": before, "most": _STEP}])
                await asyncio.sleep(_PAUSE_SECONDS)
        except database_errors() as error:
            log.warning("old marks of handled events were not deleted: %s", error_text(error))
        await asyncio.sleep(_INTERVAL_SECONDS)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _mark(consumer: str, event_id: str) -> dict[str, Any]:
    return {"consumer": consumer, "event_id": event_id, "seen_at": _now()}


def _now() -> int:
    """Return the time in Unix milliseconds."""
    return time.time_ns() // 1_000_000
