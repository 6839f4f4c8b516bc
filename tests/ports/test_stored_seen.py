"""The seen stores: marks of handled events in a SQLite file or in PostgreSQL."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import asyncpg
import pytest

from tests.harness.databases import LOST, Databases
from tests.harness.postgres import PostgresServer
from tests.harness.user_databases import UserDatabase, postgres_database
from timer_service.client.receive.seen import SeenStore
from timer_service.client.receive.stored_seen import KEPT_SECONDS, PostgresSeen, SqliteSeen

MARKS = "SELECT consumer, event_id FROM timer_seen ORDER BY consumer, event_id"


def seen_in(database: UserDatabase) -> SeenStore:
    return PostgresSeen(database.place) if database.is_postgres else SqliteSeen(database.place)


@asynccontextmanager
async def opened(database: UserDatabase) -> AsyncIterator[SeenStore]:
    seen = seen_in(database)
    await seen.open()
    try:
        yield seen
    finally:
        await seen.close()


async def test_marks_outlive_the_store(user_database: UserDatabase) -> None:
    """Many stores at once, in new and old tables, mark the same events: each is marked once, by consumer."""
    seen = seen_in(user_database)
    with pytest.raises(RuntimeError, match="not open"):
        await seen.has("orders", "event-1")
    for _ in range(2):
        stores = [seen_in(user_database) for _ in range(3)]
        await asyncio.gather(*(each.open() for each in stores))
        await asyncio.gather(*(each.add("orders", f"event-{number}") for number in range(20) for each in stores))
        await stores[0].add("mails", "event-0")
        assert [await stores[1].has("mails", f"event-{number}") for number in range(2)] == [True, False]
        assert await stores[2].has("orders", "event-19")
        await asyncio.gather(*(each.close() for each in stores))
        assert len(await user_database.query(MARKS)) == 21
    await seen.open()
    assert await seen.has("orders", "event-1")
    await seen.close()
    await seen.close()


@pytest.mark.parametrize("is_committed", [True, False])
async def test_two_transactions_mark_one_event(databases: Databases, *, is_committed: bool) -> None:
    """The second one waits for the first. It finds the mark if the first was committed, and else makes it."""
    async with postgres_database(databases) as database, opened(database) as seen:
        first, second = [await asyncpg.connect(database.place) for _ in range(2)]
        try:
            block = first.transaction()
            await block.start()
            assert await seen.add_in(first, "orders", "event-1")
            async with second.transaction():
                waiting = asyncio.create_task(seen.add_in(second, "orders", "event-1"))
                while not await database.query("SELECT 1 FROM pg_locks WHERE NOT granted"):
                    await asyncio.sleep(0.01)
                assert not waiting.done()
                await (block.commit() if is_committed else block.rollback())
                assert await waiting is not is_committed
        finally:
            await first.close()
            await second.close()


async def test_a_locked_file(tmp_path: Path) -> None:
    """A second writer of a SQLite file waits for the first one, and then finds its mark."""
    database = UserDatabase(str(tmp_path / "user.db"))
    async with opened(database) as seen, aiosqlite.connect(database.place) as first:
        assert await seen.add_in(first, "orders", "event-1")
        waiting = asyncio.create_task(seen.add("orders", "event-1"))
        assert not await seen_elsewhere(database)
        await first.commit()
        await waiting
        assert await database.query(MARKS) == [("orders", "event-1")]


async def seen_elsewhere(database: UserDatabase) -> bool:
    return bool(await database.query(MARKS))


async def test_old_marks_are_deleted(user_database: UserDatabase) -> None:
    """An opened store deletes marks older than 14 days, more than a step of them. Younger ones stay."""
    async with opened(user_database):
        pass
    now = round(time.time() * 1000)
    old, young = now - KEPT_SECONDS * 1000 - 1000, now - KEPT_SECONDS * 1000 + 60_000
    rows = [f"('orders', 'event-{number}', {old if number else young})" for number in range(2_500)]
    await user_database.query(f"INSERT INTO timer_seen VALUES {', '.join(rows)}")
    async with opened(user_database) as seen, asyncio.timeout(10):
        while len(await user_database.query(MARKS)) > 1:
            await asyncio.sleep(0.02)
        assert await seen.has("orders", "event-0")


async def test_a_restart_of_the_server(postgres_server: PostgresServer) -> None:
    """While PostgreSQL is away, a call raises. Afterwards the same store works."""
    async with opened(UserDatabase(postgres_server.url)) as seen:
        await seen.add("orders", "event-1")
        await postgres_server.stop("immediate")
        with pytest.raises(LOST):
            await seen.has("orders", "event-1")
        with pytest.raises(LOST):
            await seen.add("orders", "event-2")
        await postgres_server.start()
        assert await seen.has("orders", "event-1")
        await seen.add("orders", "event-2")


async def test_a_login_that_may_not_create_tables(databases: Databases) -> None:
    """It opens a store whose table exists, because operators may have created it."""
    async with postgres_database(databases) as database:
        async with opened(database):
            pass
        connection = await asyncpg.connect(database.place)
        try:
            await connection.execute("CREATE ROLE reader LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            await connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON timer_seen TO reader")
            async with opened(UserDatabase(database.place.replace("postgres@", "reader@"))) as seen:
                await seen.add("orders", "event-1")
            await connection.execute("DROP TABLE timer_seen")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await seen.open()
        finally:
            await connection.execute("DROP OWNED BY reader; DROP ROLE reader")
            await connection.close()


def test_wrong_places() -> None:
    """Each store refuses the place of the other one."""
    with pytest.raises(ValueError, match=r"^path must be"):
        SqliteSeen("postgresql://localhost/shop")
    with pytest.raises(ValueError, match=r"^dsn must begin with postgresql"):
        PostgresSeen("shop.db")


async def test_two_apps_share_a_store(user_database: UserDatabase) -> None:
    """The store stays open until the last one closes it."""
    store = seen_in(user_database)
    await store.open()
    await store.open()
    await store.close()
    await store.add("orders", "1")
    assert await store.has("orders", "1")
    await store.close()
    with pytest.raises(RuntimeError, match="the seen store is not open"):
        await store.has("orders", "1")
