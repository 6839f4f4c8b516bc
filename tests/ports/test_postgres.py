"""The PostgreSQL database: concurrent writers, conflicts, restarts of the server, poolers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import cast

import asyncpg
import pytest

from tests.harness.builders import in_state, scheduled
from tests.harness.clock import NOW
from tests.harness.databases import Databases
from tests.harness.postgres import PostgresServer
from tests.harness.stores import bring_to_head
from tests.harness.timers import put_timers
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.due.lease import Lease
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import (
    ConflictError,
    DatabaseBlockedError,
    DatabaseSetupError,
    DatabaseUnavailableError,
    DuplicateError,
)
from timer_service.core.values.message import Position
from timer_service.logs import error_trace
from timer_service.timers import store as timers
from timer_service.timers.messages import State
from timer_service.timers.rules import Key
from timer_service.timers.store import TIMERS

ADD = "UPDATE numbers SET value = value + 1 WHERE number = :number"


@pytest.fixture
async def url(databases: Databases) -> AsyncIterator[str]:
    async with databases.database(bring_to_head) as url:
        yield url


@pytest.fixture
async def numbers(postgres: PostgresDatabase) -> PostgresDatabase:
    """Return a store with two numbers, both 0."""
    async with postgres.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY, value BIGINT)")
        await tx.execute("INSERT INTO numbers VALUES (1, 0), (2, 0)")
    return postgres


async def read_values(database: Database) -> list[int]:
    return [row["value"] for row in await database.reader.fetch("SELECT value FROM numbers ORDER BY number")]


async def test_deadlock_is_retried(numbers: PostgresDatabase) -> None:
    """If two transactions wait for each other, one of them is a conflict and is run again. Both commit."""
    both_wrote = asyncio.Barrier(2)
    waited = False

    async def write(tx: Transaction, first: int, second: int) -> None:
        nonlocal waited
        await tx.execute("SET LOCAL deadlock_timeout = '10ms'")
        await tx.execute(ADD, {"number": first})
        if not waited:
            await both_wrote.wait()
            waited = True
        await tx.execute(ADD, {"number": second})

    async def with_retries(first: int, second: int) -> None:
        await in_transaction(numbers, lambda tx: write(tx, first, second))

    async with asyncio.timeout(30):
        await asyncio.gather(with_retries(1, 2), with_retries(2, 1))
    assert (await read_values(numbers), numbers.health.reason) == ([2, 2], None)


async def test_statement_of_an_older_schema(numbers: PostgresDatabase) -> None:
    """A statement that was prepared before a migration raises a conflict once. The next run succeeds."""
    everything = "SELECT * FROM numbers WHERE number = 1 /* for update */"

    async def read(tx: Transaction) -> list[str]:
        (row,) = await tx.fetch(everything)
        return list(cast("asyncpg.Record", row).keys())

    assert await in_transaction(numbers, read) == ["number", "value"]
    async with numbers.transaction() as tx:
        await tx.execute("ALTER TABLE numbers ADD COLUMN more TEXT")
    with pytest.raises(ConflictError):
        async with numbers.transaction() as tx:
            await read(tx)
    assert await in_transaction(numbers, read) == ["number", "value", "more"]


async def test_commands_on_the_same_timer_wait(postgres: PostgresDatabase) -> None:
    """While one instance changes a timer, another instance waits to read it. Claims skip it."""
    key = Key("acme", "call-1")
    lease = Lease(TIMERS, timedelta(seconds=30))
    async with postgres.transaction() as tx:
        await put_timers(tx, [scheduled("call-1", NOW, Position(1, 1))])
    read: list[Position] = []

    async def read_locked() -> None:
        async with postgres.transaction() as other:
            read.append((await timers.load(other, [key]))[key].position)

    async with postgres.transaction() as tx:
        found = await timers.load(tx, [key])
        waiting = asyncio.create_task(read_locked())
        skipped = await in_transaction(postgres, lambda other: lease.claim(other, NOW, 10))
        await timers.save(tx, found, {key: found[key]._replace(position=Position(1, 5))})
        before = list(read)
    await waiting
    assert (skipped, before, read) == ([], [], [Position(1, 5)])


async def test_restart_of_the_server(postgres_server: PostgresServer) -> None:
    """While the server is down, the database is unavailable and unhealthy. Afterwards the same object works."""
    database = await PostgresDatabase.open(postgres_server.url)
    async with database.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY, value BIGINT)")
        await tx.execute("INSERT INTO numbers VALUES (1, 0)")

    async def write() -> None:
        async with database.transaction() as tx:
            await tx.execute(ADD, {"number": 1})
            await postgres_server.stop("immediate")
            await tx.execute(ADD, {"number": 1})

    with pytest.raises(DatabaseUnavailableError):
        await write()
    for reader in (database.reader, database.queries):
        with pytest.raises(DatabaseUnavailableError):
            await reader.fetch("SELECT 1 AS one")
    away = (database.health.usable, database.read_health.usable)
    assert str(database.read_health.reason).startswith("the database is unavailable: ")
    assert "Errno" not in str(database.read_health.reason)
    await postgres_server.start()
    async with asyncio.timeout(10):
        while not database.read_health.usable:
            try:
                await database.reader.fetch("SELECT 1 AS one")
            except DatabaseUnavailableError:
                await asyncio.sleep(0.01)
    readable = (database.health.usable, database.read_health.usable)
    async with database.transaction() as tx:
        await tx.execute(ADD, {"number": 1})
    assert (away, readable, database.health.usable) == ((False, False), (False, True), True)
    assert await read_values(database) == [1]
    await database.close()


@pytest.mark.parametrize("name", ["reader", "queries"])
async def test_query_that_is_too_slow_does_not_affect_the_health(numbers: PostgresDatabase, name: str) -> None:
    """A query that the server ends after its time limit fails alone: the database can still be read and written."""
    slow = asyncio.create_task(getattr(numbers, name).fetch("SELECT pg_sleep(60)"))
    cancel = "SELECT pg_cancel_backend(pid) AS cancelled FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
    async with asyncio.timeout(10):
        while not slow.done():
            await numbers.queries.fetch(cancel)
    with pytest.raises(DatabaseBlockedError, match="canceling statement"):
        await slow
    assert (numbers.health, numbers.read_health) == (HEALTHY, HEALTHY)


async def test_without_a_statement_cache(url: str) -> None:
    """Without a statement cache, as behind a pooler in transaction mode, no statement stays prepared."""
    database = await PostgresDatabase.open(url, statement_cache_size=0)
    lease = Lease(TIMERS, timedelta(seconds=30))
    async with database.transaction() as tx:
        await put_timers(tx, [scheduled(f"call-{number}", NOW, Position(1, number)) for number in range(50)])
    for _ in range(2):
        rows = await in_transaction(database, lambda tx: lease.claim(tx, NOW, 20))
        settled = await in_transaction(database, lambda tx, rows=rows: lease.complete(tx, rows, NOW))  # type: ignore[misc]
        assert settled == 20
    async with database.transaction() as tx:
        assert await tx.fetch("SELECT name FROM pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared%'") == []
    await database.close()


async def test_retention_skips_a_timer_that_is_scheduled_again(postgres: PostgresDatabase) -> None:
    """Retention skips an old cancelled timer that a command is scheduling again."""
    timer = scheduled("call-1", NOW, Position(1, 1))
    async with postgres.transaction() as tx:
        await put_timers(tx, [in_state(State.CANCELLED, timer)])
    async with postgres.transaction() as tx, asyncio.timeout(10):
        await timers.load(tx, [timer.key])
        await put_timers(tx, [timer._replace(position=Position(1, 2))])
        deleted = await in_transaction(postgres, lambda other: timers.delete_settled(other, NOW + 1, 10))
    left = await timers.find(postgres.reader, [timer.key])
    assert (deleted, left[timer.key].state) == (0, State.SCHEDULED)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO people VALUES ('secret', 1)",
        "INSERT INTO people VALUES ('secret-2', NULL)",
        "INSERT INTO people VALUES ('secret-2', -1)",
        "SELECT 'secret'::integer",
        "SELECT 'secret'::jsonb",
        "SELECT secret FROM people WHERE name = 'secret'",
        "INSERT INTO people (name, secret) VALUES ('secret', 1)",
    ],
)
async def test_errors_without_the_values_of_rows(postgres: PostgresDatabase, statement: str) -> None:
    """Neither the text nor the traceback of an error contains a value of a row or of a statement."""
    async with postgres.transaction() as tx:
        await tx.execute("CREATE TABLE people (name TEXT PRIMARY KEY, age INTEGER NOT NULL CHECK (age > 0))")
        await tx.execute("INSERT INTO people VALUES ('secret', 1)")
    with pytest.raises((asyncpg.PostgresError, DatabaseSetupError, DuplicateError)) as caught:
        await in_transaction(postgres, lambda tx: tx.execute(statement))
    lines = [line for line in error_trace(caught.value).splitlines() if "secret" in line]
    assert all('column "secret"' in line for line in lines)
    assert "SQLSTATE" in error_text(caught.value) or isinstance(caught.value, DatabaseSetupError)
