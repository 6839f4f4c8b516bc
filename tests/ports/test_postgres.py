"""The PostgreSQL database: concurrent writers, conflicts, restarts of the server, poolers."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest

from tests.harness.builders import in_state, scheduled
from tests.harness.clock import NOW, ManualClock
from tests.harness.databases import Databases
from tests.harness.metrics import RecordingMetrics
from tests.harness.postgres import PostgresServer
from tests.harness.stores import bring_to_head
from tests.harness.timers import put_timers
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.postgres import database as database_module
from timer_service.core.due.lease import Lease
from timer_service.core.events.settlement import Settlement, Settler
from timer_service.core.ports import transactions
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import (
    ConflictError,
    DatabaseBlockedError,
    DatabaseBusyError,
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


async def test_swallowed_error_is_not_committed(numbers: PostgresDatabase) -> None:
    """A block that continues after a failed statement raises an error at its end, because nothing is committed."""

    async def swallow_error() -> None:
        async with numbers.transaction() as tx:
            await tx.execute(ADD, {"number": 1})
            with pytest.raises(asyncpg.UniqueViolationError):
                await tx.execute("INSERT INTO numbers VALUES (1, 0)")

    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await swallow_error()
    assert (await read_values(numbers), numbers.health.reason) == ([0, 0], None)


async def deadlock(database: Database, *, retry: bool) -> list[BaseException | None]:
    """Run two transactions that write two rows in opposite orders. Return the error of each, or None."""
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

    async def once(first: int, second: int) -> None:
        async with database.transaction() as tx:
            await write(tx, first, second)

    async def with_retries(first: int, second: int) -> None:
        await in_transaction(database, lambda tx: write(tx, first, second))

    run = with_retries if retry else once
    async with asyncio.timeout(30):
        return list(await asyncio.gather(run(1, 2), run(2, 1), return_exceptions=True))


async def test_deadlock_is_a_conflict(numbers: PostgresDatabase) -> None:
    """If two transactions wait for each other, one raises a conflict and the other commits."""
    ends = await deadlock(numbers, retry=False)
    assert sorted(type(end).__name__ for end in ends) == ["ConflictError", "NoneType"]
    assert (await read_values(numbers), numbers.health.reason) == ([1, 1], None)


async def test_deadlock_is_retried(numbers: PostgresDatabase) -> None:
    """The transaction that met the conflict is run again, and both commit."""
    assert await deadlock(numbers, retry=True) == [None, None]
    assert await read_values(numbers) == [2, 2]


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


async def test_settings_end_with_the_transaction(postgres: PostgresDatabase) -> None:
    """Settings of a transaction do not apply to the next user of the connection, for example behind a pooler."""
    shown = "SELECT current_setting('enable_seqscan') AS seqscan"
    async with postgres.transaction() as tx:
        (inside,) = await tx.fetch(shown)
    outside = await postgres._work_pool.fetchval(shown)
    assert (inside["seqscan"], outside) == ("off", "on")


async def test_concurrent_claims(url: str) -> None:
    """Instances that claim from the same rows at once never get the same row."""
    lease = Lease(TIMERS, timedelta(seconds=30))
    instances = [await PostgresDatabase.open(url) for _ in range(4)]
    rows = [scheduled(f"call-{number}", NOW, Position(1, number), tenant=f"t{number % 7}") for number in range(2000)]
    async with instances[0].transaction() as tx:
        await put_timers(tx, rows)

    async def claim(database: PostgresDatabase) -> list[str]:
        claimed: list[str] = []
        for _ in range(60):
            found = await in_transaction(database, lambda tx: Lease(TIMERS, timedelta(seconds=30)).claim(tx, NOW, 20))
            assert len(found) <= 20
            claimed += [row["service_call_id"] for row in found]
        return claimed

    shares = await asyncio.gather(*(claim(each) for each in instances))
    left = await lease.count_available(instances[0].reader, NOW, 1)
    for each in instances:
        await each.close()
    together = [call for share in shares for call in share]
    assert (len(together), len(set(together)), left) == (2000, 2000, 0)
    assert all(shares), "an instance got nothing"


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


async def test_timer_that_changes_during_a_claim(postgres: PostgresDatabase) -> None:
    """A timer that a command changes while a claim looks for rows is left to the next claim."""
    key = Key("acme", "call-1")
    async with postgres.transaction() as tx:
        await put_timers(tx, [scheduled("call-1", NOW, Position(1, 1))])
    slow = TIMERS.sql("claim").replace(
        "WHERE available_at <= :now", "WHERE available_at <= :now AND pg_advisory_xact_lock(1) IS NOT NULL"
    )
    claimed: list[int] = []

    async def claim() -> None:
        parameters = {"now": NOW, "until": NOW + 30_000, "token": "token", "limit": 10, "inline": 1000}
        claimed.append(len(await in_transaction(postgres, lambda other: other.fetch(slow, parameters))))

    async with postgres.transaction() as tx:
        found = await timers.load(tx, [key])
        await tx.fetch("SELECT pg_advisory_xact_lock(1)")
        claiming = asyncio.create_task(claim())
        await until_waiting(postgres, claiming)
        await timers.save(tx, found, {key: found[key]._replace(position=Position(1, 5))})
    await claiming
    (left,) = await postgres.reader.fetch("SELECT lease_token, attempt, position_sequence FROM timer_schedules")
    lease = Lease(TIMERS, timedelta(seconds=30))
    (row,) = await in_transaction(postgres, lambda tx: lease.claim(tx, NOW, 10))
    assert (claimed, left["lease_token"], left["attempt"], left["position_sequence"]) == ([0], None, 0, 5)
    assert row["attempt"] == 1


async def until_waiting(database: PostgresDatabase, task: asyncio.Task[None]) -> None:
    """Wait until a task waits for a lock, or has ended."""
    async with asyncio.timeout(30):
        while not task.done():
            (row,) = await database.queries.fetch("SELECT COUNT(*) AS count FROM pg_locks WHERE NOT granted")
            if row["count"]:
                return


async def settle_during_cancels(postgres: PostgresDatabase, tenant: str, *, published: int) -> None:
    """Settle a claim of 20 timers while a transaction cancels them. The rest after `published` timers is released."""
    lease = Lease(TIMERS, timedelta(seconds=30))
    made = [scheduled(f"call-{call:02}", NOW - call, Position(1, 1), tenant=tenant) for call in range(20)]
    for timer in reversed(made):  # so that the table and the index have them in other orders than the keys
        async with postgres.transaction() as tx:
            await put_timers(tx, [timer])
    rows = await in_transaction(postgres, lambda tx: lease.claim(tx, NOW, 20))
    settlement = Settlement(NOW, whole=True, complete=rows[:published], release=rows[published:])
    settling: list[asyncio.Task[None]] = []

    async def cancel(tx: Transaction) -> None:
        await timers.load(tx, [made[0].key])
        if not settling:
            settler = Settler(postgres, lease, ManualClock(), RecordingMetrics())
            settling.append(asyncio.create_task(settler.settle([settlement])))
            await until_waiting(postgres, settling[0])
        found = await timers.load(tx, [timer.key for timer in made])
        waiting = {key: timer for key, timer in found.items() if timer.state is State.SCHEDULED}
        cancelled = {key: in_state(State.CANCELLED, timer) for key, timer in waiting.items()}
        await timers.save(tx, waiting, {key: each._replace(position=Position(1, 2)) for key, each in cancelled.items()})

    await in_transaction(postgres, cancel)
    await asyncio.gather(*settling)


@pytest.mark.parametrize("published", [20, 13])
async def test_settling_and_commands_do_not_deadlock(
    postgres: PostgresDatabase, caplog: pytest.LogCaptureFixture, published: int
) -> None:
    """A relay that settles a claim, whole or in part, and a batch of cancels of the same timers never deadlock."""
    caplog.set_level(logging.INFO, transactions.__name__)
    for number in range(6):
        await settle_during_cancels(postgres, f"t{number}", published=published)
    assert [record.getMessage() for record in caplog.records if record.name == transactions.__name__] == []
    held = await postgres.reader.fetch("SELECT 1 AS one FROM timer_schedules WHERE lease_token IS NOT NULL")
    assert list(held) == []


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


async def test_query_that_is_too_slow_does_not_affect_the_health(numbers: PostgresDatabase) -> None:
    """A query that the server ends after its time limit fails alone: the database can still be read and written."""
    slow = asyncio.create_task(cast("Any", numbers.queries.fetch("SELECT pg_sleep(60)")))
    cancel = "SELECT pg_cancel_backend(pid) AS cancelled FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
    async with asyncio.timeout(10):
        while not slow.done():
            await numbers.reader.fetch(cancel)
    with pytest.raises(DatabaseBlockedError, match="canceling statement"):
        await slow
    assert (numbers.health, numbers.read_health) == (HEALTHY, HEALTHY)


async def test_cancellation_while_many_statements_are_sent(numbers: PostgresDatabase) -> None:
    """A transaction that is cancelled before all of its statements are sent is rolled back, and holds no lock."""

    async def add() -> None:
        async with numbers.transaction() as tx:
            await tx.executemany(ADD, [{"number": 100}] * 10_000)  # there is no such number

    for milliseconds in (5, 20):
        adding = asyncio.create_task(add())
        await asyncio.sleep(milliseconds / 1000)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
    async with numbers.transaction() as tx:
        assert await tx.execute(ADD, {"number": 1}) == 1


async def test_transaction_without_a_change_does_not_end_an_outage(numbers: PostgresDatabase) -> None:
    """After a failed write, only a commit that wrote shows that the database can be written again."""

    async def write_and_be_disconnected() -> None:
        async with numbers.transaction() as tx:
            await tx.execute(ADD, {"number": 1})
            await tx.fetch("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(DatabaseUnavailableError):
        await write_and_be_disconnected()
    async with numbers.transaction() as tx:
        await tx.execute(ADD, {"number": 100})  # there is no such number
    unchanged = numbers.health.usable
    async with numbers.transaction() as tx:
        await tx.executemany(ADD, [{"number": 1}, {"number": 2}])
    assert (unchanged, numbers.health) == (False, HEALTHY)


async def test_idle_connection_is_replaced(postgres_server: PostgresServer) -> None:
    """A connection that the server closed while it was idle is replaced after one failure at most."""
    database = await PostgresDatabase.open(postgres_server.url)
    await database.reader.fetch("SELECT 1 AS one")
    await postgres_server.restart("immediate")
    outcomes: list[str] = []
    for _ in range(3):
        try:
            await database.reader.fetch("SELECT 1 AS one")
            outcomes.append("works")
        except DatabaseUnavailableError:
            outcomes.append("away")
    await database.close()
    assert outcomes[1:] == ["works", "works"]


async def test_all_connections_in_use(postgres: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all connections are in use for too long, the database is busy and not away. It works when one is free.

    Users' queries are answered meanwhile.
    """
    async with AsyncExitStack() as transactions:
        for _ in range(database_module._WORK_CONNECTIONS):
            await transactions.enter_async_context(postgres.transaction())
        monkeypatch.setattr(database_module, "_STATEMENT_SECONDS", 0.2)
        with pytest.raises(DatabaseBusyError, match="all 10 connections are in use"):
            async with postgres.transaction():
                pass
        during = postgres.health
        (answer,) = await postgres.queries.fetch("SELECT 42 AS number")
        assert answer["number"] == 42, "queries have connections of their own"
    assert await postgres.clock_at() > 0
    assert (during, postgres.health) == (HEALTHY, HEALTHY)


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
    prepared = await database._work_pool.fetchval("SELECT count(*) FROM pg_prepared_statements")
    await database.close()
    assert prepared == 0


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
