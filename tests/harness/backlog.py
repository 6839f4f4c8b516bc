"""The work that the service has left for a tenant. It is read from the service's database."""

import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import asyncpg

Backlog = Callable[[str], Awaitable[int]]
"""Counts the due work of a tenant. It reads all tables in one statement, so that no moving work is missed."""

_COUNT = """
SELECT (SELECT COUNT(*) FROM outbox WHERE tenant_id = $1 AND available_at IS NOT NULL)
     + (SELECT COUNT(*) FROM dead_letters WHERE tenant_id = $1)
     + (SELECT COUNT(*) FROM work_item_events WHERE tenant_id = $1 AND evaluate_at <= $2)
     + (SELECT COUNT(*) FROM work_signal_firings WHERE tenant_id = $1 AND available_at IS NOT NULL AND due_at <= $2)
     + (SELECT COUNT(*) FROM schedules WHERE tenant_id = $1 AND available_at <= $2)
     + (SELECT COUNT(*) FROM runs WHERE tenant_id = $1 AND sweep_at <= $2)
"""


@asynccontextmanager
async def sqlite_backlog(path: Path) -> AsyncIterator[Backlog]:
    """Yield the backlog of a SQLite file."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:

        async def count(tenant: str) -> int:
            (found,) = connection.execute(_COUNT, {"1": tenant, "2": _now()}).fetchone()
            return int(found)

        yield count


@asynccontextmanager
async def postgres_backlog(url: str) -> AsyncIterator[Backlog]:
    """Yield the backlog of a PostgreSQL database."""
    connection = await asyncpg.connect(url)
    try:

        async def count(tenant: str) -> int:
            return int(await connection.fetchval(_COUNT, tenant, _now()))

        yield count
    finally:
        await connection.close()


def _now() -> int:
    return int(time.time() * 1000)
