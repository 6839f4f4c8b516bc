"""The database that the settings name, and its clock."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.tasks import close_within
from timer_service.clock import SystemClock
from timer_service.config import Config
from timer_service.core.due.loop import Worker
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.service.clock_repair import ClockReader
from timer_service.core.values.errors import StartError

if TYPE_CHECKING:
    from timer_service.adapters.postgres import PostgresClock, PostgresDatabase

_CLOSE_SECONDS = 5


@dataclass(frozen=True)
class Storage:
    """An open database and its clock."""

    database: Database
    clock: Clock
    upkeep: Mapping[str, Worker] = field(default_factory=dict)
    """The workers that database and clock need, by the names of their loops."""


@asynccontextmanager
async def open_storage(config: Config, metrics: MetricsPort) -> AsyncIterator[Storage]:
    """Open the configured database and its clock. Raises `StartError` if that fails."""
    async with open_database(config) as database:
        if isinstance(database, SqliteDatabase):
            system_clock = SystemClock()
            upkeep: dict[str, Worker] = {"clock": ClockReader(system_clock), "file": database.files}
            yield Storage(database, system_clock, upkeep)
        else:
            clock = await _postgres_clock(database, metrics)
            yield Storage(database, clock, {"clock": clock})


@asynccontextmanager
async def open_database(config: Config) -> AsyncIterator["SqliteDatabase | PostgresDatabase"]:
    """Open the configured database. Raises `StartError` if that fails."""
    database: SqliteDatabase | PostgresDatabase
    if config.engine == "postgres":
        database = await _open_postgres(lambda: config.postgres_url or "", config.database_statement_cache)
    elif config.role == "all":
        database = await SqliteDatabase.open(config.db_path)
    else:
        raise StartError(
            f"TIMER_ROLE={config.role} needs a database that processes can share (TIMER_DATABASE_URL); "
            "with SQLite use TIMER_ROLE=all"
        )
    try:
        yield database
    finally:
        await close_within(_CLOSE_SECONDS, database.close(), "database")


async def _open_postgres(read_url: Callable[[], str], statement_cache_size: int) -> "PostgresDatabase":
    """Open a PostgreSQL database. Raises `StartError` if the driver is not installed."""
    try:
        from timer_service.adapters.postgres import PostgresDatabase  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        raise StartError("TIMER_DATABASE_URL needs asyncpg: pip install 'timer-service[postgres]'") from error
    return await PostgresDatabase.open(read_url, statement_cache_size=statement_cache_size)


async def _postgres_clock(database: "PostgresDatabase", metrics: MetricsPort) -> "PostgresClock":
    """Return the clock of a database, which was measured once, so that it can be read."""
    from timer_service.adapters.postgres import PostgresClock  # noqa: PLC0415 - optional dependency

    clock = PostgresClock(database.clock_at, metrics.clock_measured)
    await clock.measure()
    return clock
