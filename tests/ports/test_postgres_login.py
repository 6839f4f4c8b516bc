"""Connecting to PostgreSQL: a server that is down, a standby, a refused login, a role with few permissions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.harness.databases import Databases
from tests.harness.postgres import PostgresServer
from tests.harness.stores import MIGRATIONS, bring_to_head
from timer_service.adapters.migrations import migrate, pending_migrations, read_migrations
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.postgres import database as database_module
from timer_service.core.values.errors import DatabaseUnavailableError, StartError

BUNDLED = read_migrations(MIGRATIONS)


async def test_open_waits_for_the_server(postgres_server: PostgresServer) -> None:
    """`open` succeeds if the server starts within ten seconds."""
    await postgres_server.stop()
    opening = asyncio.create_task(PostgresDatabase.open(postgres_server.url))
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(opening), 0.5)  # some attempts fail
    assert not opening.done()
    await postgres_server.start()
    database = await opening
    assert await pending_migrations(database, BUNDLED) == BUNDLED
    await database.close()


async def test_standby_is_an_outage(postgres_server: PostgresServer) -> None:
    """A standby is an outage although it could be read. The outage ends when the standby is promoted."""
    database = await PostgresDatabase.open(postgres_server.url)
    async with database.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT)")
    (row,) = await database.reader.fetch("SELECT current_setting('data_directory') AS folder")
    await postgres_server.stop()
    (Path(row["folder"]) / "standby.signal").touch()
    await postgres_server.start()
    with suppress(DatabaseUnavailableError):
        await write(database)  # the connection is from before the restart
    for request in (write(database), database.reader.fetch("SELECT 1 AS one"), database.clock_at()):
        with pytest.raises(DatabaseUnavailableError, match="standby"):
            await request
    assert "standby" in (database.health.reason or "")
    assert "standby" in (database.read_health.reason or "")
    promoting = await asyncpg.connect(postgres_server.url)
    others = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with asyncio.timeout(10):  # connections to a standby are closed, so that a new one can reach the primary
        while await promoting.fetchval(others):
            pass
    await promoting.execute("SELECT pg_promote()")
    await promoting.close()
    await database.clock_at()
    assert database.read_health.reason is None
    await write(database)
    assert database.health.reason is None
    await database.close()


async def write(database: PostgresDatabase) -> None:
    async with database.transaction() as tx:
        await tx.execute("INSERT INTO numbers VALUES (1)")


@pytest.mark.parametrize(("user", "path"), [("nobody-here", ""), ("postgres", "/nowhere")])
async def test_refused_login(databases: Databases, user: str, path: str) -> None:
    """A refused login raises an error at once. The error does not hold the password."""
    async with databases.database() as url:
        wrong = urlsplit(url)._replace(netloc=f"{user}:s3cret@{urlsplit(url).netloc.rpartition('@')[2]}")
        async with asyncio.timeout(5):
            with pytest.raises(StartError, match="refuses the login") as caught:
                await PostgresDatabase.open(wrong.geturl() if not path else wrong._replace(path=path).geturl())
    assert "s3cret" not in str(caught.value)


async def test_url_that_changes(databases: Databases) -> None:
    """Each new connection has the newest URL. One that cannot be used is an outage, also if it is wrong in itself."""
    async with databases.database() as url:
        urls = [url]
        database = await PostgresDatabase.open(lambda: urls[-1])
        nobody = urlsplit(url)._replace(netloc=f"nobody-here:s3cret@{urlsplit(url).netloc.rpartition('@')[2]}").geturl()
        for wrong, reason in (
            (nobody, "^the database refuses the login: .*nobody-here"),
            (f"{url}?sslmode=nonsense", "^the URL of the database cannot be used: .*sslmode"),
        ):
            urls.append(wrong)
            with pytest.raises(DatabaseUnavailableError, match=reason) as caught:
                await database.queries.fetch("SELECT 1 AS one")  # its pool has no connection yet
            assert "s3cret" not in str(caught.value)
        urls.append(url)
        assert [row["one"] for row in await database.queries.fetch("SELECT 1 AS one")] == [1]
        await database.close()


async def test_oldest_version(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of the oldest supported version is used. An older one is refused, and no connection stays open."""
    sessions = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()"
    async with databases.database() as url:
        server = await asyncpg.connect(url)
        version = server.get_server_version().major
        before = await server.fetchval(sessions)
        monkeypatch.setattr(database_module, "OLDEST_VERSION", version)
        await (await PostgresDatabase.open(url)).close()
        monkeypatch.setattr(database_module, "OLDEST_VERSION", version + 1)
        with pytest.raises(StartError, match="too old"):
            await PostgresDatabase.open(url)
        async with asyncio.timeout(10):
            while await server.fetchval(sessions) > before:
                pass
        await server.close()


@pytest.fixture
async def empty_database(databases: Databases) -> AsyncIterator[tuple[str, str]]:
    """Return the URL of an empty database for its owner, and for a role that may create nothing in it."""
    role = f"timer_test_{token_hex(4)}"
    async with databases.database() as url:
        owner = await asyncpg.connect(url)
        await owner.execute(f"REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {role} LOGIN")
        await owner.execute(f"ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}")
        netloc = urlsplit(url).netloc.rpartition("@")[2]
        yield url, urlsplit(url)._replace(netloc=f"{role}@{netloc}").geturl()
        await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await owner.close()


async def test_role_that_only_reads_and_writes(empty_database: tuple[str, str]) -> None:
    """If another role applies the migrations, the service's own role needs no right to create tables."""
    owner, role = empty_database
    database = await PostgresDatabase.open(role)
    assert await pending_migrations(database, BUNDLED) == BUNDLED
    with pytest.raises(StartError, match="permission denied for schema public"):
        await migrate(database, BUNDLED)
    await bring_to_head(owner)
    assert await pending_migrations(database, BUNDLED) == await migrate(database, BUNDLED) == []
    await database.close()
