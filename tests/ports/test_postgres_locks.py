"""Statements on PostgreSQL that wait too long for a lock, or take too long: not an outage, while the server answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest

from tests.harness.databases import Databases
from tests.harness.locks import LockedPostgres
from tests.harness.stores import bring_to_head
from tests.harness.tcp_proxy import GOOD, STALLED, TcpProxy
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.postgres import database as database_module
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseBusyError, DatabaseUnavailableError


@asynccontextmanager
async def behind_a_proxy(url: str) -> AsyncIterator[tuple[TcpProxy, PostgresDatabase]]:
    """Open a database through a proxy, with one connection."""
    parts = urlsplit(url)
    assert parts.port is not None
    async with TcpProxy(parts.port) as proxy:
        netloc = parts.netloc.replace(f":{parts.port}", f":{proxy.port}")
        database = await PostgresDatabase.open(parts._replace(netloc=netloc).geturl())
        yield proxy, database
        await database.close()


_CREATE = "CREATE TABLE notes (number BIGINT PRIMARY KEY, version BIGINT NOT NULL)"


async def lock_the_notes(database: PostgresDatabase) -> None:
    async with database.transaction() as tx:
        await tx.fetch("SELECT 1 AS one FROM notes /* for update */")


async def test_locked_row(locks: LockedPostgres) -> None:
    """A statement that waits for a lock fails with the name of the table. The database stays healthy and usable."""
    database = locks.database
    async with database.transaction() as tx:
        await tx.execute(_CREATE)
        await tx.execute("INSERT INTO notes VALUES (1, 1)")
    async with locks.locked("SELECT 1 FROM notes FOR UPDATE"):
        with pytest.raises(DatabaseBlockedError, match=r"lock timeout.*notes"):
            await lock_the_notes(database)
        assert (database.health, database.read_health) == (HEALTHY, HEALTHY)
    await lock_the_notes(database)


async def test_locked_names(locks: LockedPostgres) -> None:
    """A name that another transaction has is left out, or waited for. The end of the transaction releases all names."""
    database = locks.database
    async with locks.locked("SELECT pg_advisory_xact_lock(hashtextextended('a', 0))"):
        async with database.transaction() as tx:
            assert await tx.lock(["a", "b"], wait=False) == ["b"]
        with pytest.raises(DatabaseBlockedError):
            async with database.transaction() as tx:
                await tx.lock(["a"])
        assert database.health == HEALTHY
    for _ in range(2):
        async with database.transaction() as tx, database.transaction() as other:
            assert await tx.lock(["a", "b"]) == ["a", "b"]
            assert await tx.lock(["a"], wait=False) == ["a"], "it has the name already"
            assert await other.lock(["a", "b", "c"], wait=False) == ["c"]


async def test_time_limits(databases: Databases) -> None:
    """Transactions wait 1.5 s for a lock, which is longer than the server takes to find a deadlock. Migrations wait."""
    async with databases.database(bring_to_head) as url:
        database = await PostgresDatabase.open(url)
        async with database.transaction() as tx:
            (row,) = await tx.fetch("SELECT current_setting('lock_timeout') AS lock_timeout")
        async with database.migrating() as tx:
            (migrating,) = await tx.fetch("SELECT current_setting('lock_timeout') AS lock_timeout")
        await database.close()
    assert (row["lock_timeout"], migrating["lock_timeout"]) == ("1500ms", "0")


async def test_settings_of_a_transaction(postgres: PostgresDatabase) -> None:
    """Each transaction excludes the plans that read whole tables, and the server ends it if it is left open."""
    names = [*(f"enable_{plan}" for plan in ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin")), "jit"]
    read = ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    read += ", current_setting('idle_in_transaction_session_timeout') AS idle"
    (reading,) = await postgres.reader.fetch(f"SELECT {read}")
    async with postgres.transaction() as tx:
        (writing,) = await tx.fetch(f"SELECT {read}")
    for row in (reading, writing):
        assert [row[name] for name in names] == ["off"] * len(names)
        assert row["idle"] == "10s"


async def test_a_commit_that_wrote_ends_an_outage(postgres: PostgresDatabase) -> None:
    """After an outage, a commit counts as a success if any of its statements has changed a row."""
    insert_new = "INSERT INTO notes VALUES (:n, 1) ON CONFLICT DO NOTHING RETURNING number"
    async with postgres.transaction() as tx:
        await tx.execute(_CREATE)
    found = []
    for number in range(6):
        postgres.health = Health.down("the disk is full")
        async with postgres.transaction() as tx:
            match number:
                case 1:
                    await tx.execute("INSERT INTO notes VALUES (1, 1)")
                case 2:
                    await tx.executemany("INSERT INTO notes VALUES (:n, 1)", [{"n": 2}, {"n": 3}])
                case 3:
                    await tx.insert(insert_new, [(3,), (4,)])
                case 4:
                    await tx.insert("INSERT INTO notes VALUES (:n, 1)", [(5,)])
                case 5:
                    await tx.executemany("UPDATE notes SET version = 2 WHERE number = :n", [{"n": 5}, {"n": 78}])
            await tx.executemany("DELETE FROM notes WHERE number = :n", [{"n": 78}])
        found.append(postgres.health.usable)
    assert found == [False, True, True, True, True, True]


async def sleep_in_a_transaction(database: PostgresDatabase) -> None:
    async with database.transaction() as tx:
        await tx.fetch("SELECT pg_sleep(60)")


async def test_slow_statement(locks: LockedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that reaches its time limit, on a connection that answers, is not an outage."""
    monkeypatch.setattr(database_module, "STATEMENT_SECONDS", 0.2)
    with pytest.raises(DatabaseBlockedError, match="the server answers"):
        await sleep_in_a_transaction(locks.database)
    assert locks.database.health == HEALTHY
    assert await locks.database.clock_at() > 0
    async with locks.database.migrating() as tx:
        assert await tx.fetch("SELECT pg_sleep(0.4)"), "a statement of a migration may take longer"


async def test_slow_statement_on_a_dead_connection(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that reaches its time limit, on a connection that does not answer, is an outage."""
    monkeypatch.setattr(database_module, "STATEMENT_SECONDS", 0.5)
    monkeypatch.setattr(database_module, "ROLLBACK_SECONDS", 0.5)
    async with databases.database(bring_to_head) as url, behind_a_proxy(url) as (proxy, database):

        async def read_after_a_stall() -> None:
            async with database.transaction() as tx:
                proxy.stall_open_connections()
                await tx.fetch("SELECT 1 AS one")

        with pytest.raises(DatabaseUnavailableError) as found:
            await read_after_a_stall()
        assert not isinstance(found.value, DatabaseBlockedError)
        assert not database.health.usable
        async with database.transaction() as tx:
            assert await tx.fetch("SELECT 1 AS one"), "the next transaction has a new connection"
        proxy.cut()


async def test_all_connections_in_use(postgres: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all connections are in use for too long, the database is busy and not away. Queries are answered meanwhile."""
    async with AsyncExitStack() as transactions:
        for _ in range(10):
            await transactions.enter_async_context(postgres.transaction())
        monkeypatch.setattr(database_module, "STATEMENT_SECONDS", 0.2)
        with pytest.raises(DatabaseBusyError, match="all 10 connections are in use"):
            await transactions.enter_async_context(postgres.transaction())
        monkeypatch.undo()
        (answer,) = await postgres.queries.fetch("SELECT 42 AS number")
        assert (answer["number"], postgres.health) == (42, HEALTHY)
    assert await postgres.clock_at() > 0


async def test_server_that_accepts_no_connection(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a new connection gets no answer, the database is away, and not busy: not all connections are in use."""
    monkeypatch.setattr(database_module, "STATEMENT_SECONDS", 0.3)
    async with databases.database() as url, behind_a_proxy(url) as (proxy, database):

        async def write() -> None:
            async with database.transaction():
                pass

        async def read() -> None:
            await database.reader.fetch("SELECT 1 AS one")

        async with database.transaction():  # the only open connection
            proxy.set_link(STALLED)
            found = await asyncio.gather(write(), read(), return_exceptions=True)
            during = (database.health.usable, database.read_health.usable)
            proxy.set_link(GOOD)
    assert [type(each) for each in found] == [DatabaseUnavailableError] * 2
    assert during == (False, False)
