"""How the service meets a PostgreSQL server: one that is not there yet, that refuses it, that permits it little."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.harness.databases import Databases
from tests.harness.provision import RestartablePostgres
from tests.harness.stores import MIGRATIONS, bring_to_head
from timer_service.adapters.migrations import migrate, pending_migrations, read_migrations
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.errors import DatabaseUnavailableError, StartError

SHIPPED = read_migrations(MIGRATIONS)
MINE = [each for each in SHIPPED if each.engine in {None, "postgres"}]


async def test_waits_for_the_server(postgres_server: RestartablePostgres) -> None:
    """A server that comes up within ten seconds is not too late."""
    await postgres_server.stop()
    opening = asyncio.create_task(PostgresDatabase.open(postgres_server.url))
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(opening), 0.5)  # some attempts fail
    assert not opening.done()
    await postgres_server.start()
    database = await opening
    assert await pending_migrations(database, SHIPPED) == MINE
    await database.close()


async def test_a_standby(postgres_server: RestartablePostgres) -> None:
    """A standby is an outage, though it could be read, and one that is over when it is promoted."""
    database = await PostgresDatabase.open(postgres_server.url)
    (row,) = await database.reader.fetch("SELECT current_setting('data_directory') AS folder")
    await postgres_server.stop()
    (Path(row["folder"]) / "standby.signal").touch()
    await postgres_server.start()
    with suppress(DatabaseUnavailableError):
        await write(database)  # that was on a connection from before the restart
    for asked in (write(database), database.reader.fetch("SELECT 1 AS one"), database.clock_at()):
        with pytest.raises(DatabaseUnavailableError, match="standby"):
            await asked
        assert "standby" in (database.health.reason or "")
    promoting = await asyncpg.connect(postgres_server.url)
    await promoting.execute("SELECT pg_promote()")
    await promoting.close()
    await database.clock_at()
    assert database.health.reason is None
    await write(database)
    await database.close()


async def write(database: PostgresDatabase) -> None:
    async with database.transaction() as tx:
        await tx.fetch("SELECT 1 AS one")


@pytest.mark.parametrize(("user", "path"), [("nobody-here", ""), ("postgres", "/nowhere")])
async def test_refused_login(databases: Databases, user: str, path: str) -> None:
    """A login that is refused ends at once with the reason, which holds no password."""
    async with databases.database() as url:
        wrong = urlsplit(url)._replace(netloc=f"{user}:s3cret@{urlsplit(url).netloc.rpartition('@')[2]}")
        async with asyncio.timeout(5):
            with pytest.raises(StartError, match="refuses the login") as caught:
                await PostgresDatabase.open(wrong.geturl() if not path else wrong._replace(path=path).geturl())
    assert "s3cret" not in str(caught.value)


@pytest.fixture
async def empty(databases: Databases) -> AsyncIterator[tuple[str, str]]:
    """An empty database: its URL, and the one of a role that may make nothing there."""
    role = f"timer_test_{token_hex(4)}"
    async with databases.database() as url:
        owner = await asyncpg.connect(url)
        await owner.execute(f"REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {role} LOGIN")
        await owner.execute(f"ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}")
        netloc = urlsplit(url).netloc.rpartition("@")[2]
        yield url, urlsplit(url)._replace(netloc=f"{role}@{netloc}").geturl()
        await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await owner.close()


async def test_a_role_that_only_reads_and_writes(empty: tuple[str, str]) -> None:
    """Where another role brings the schema to head, the service's own needs no right to make anything."""
    owner, role = empty
    database = await PostgresDatabase.open(role)
    assert await pending_migrations(database, SHIPPED) == MINE
    with pytest.raises(StartError, match="permission denied for schema public"):
        await migrate(database, SHIPPED)
    await bring_to_head(owner)
    assert await pending_migrations(database, SHIPPED) == await migrate(database, SHIPPED) == []
    await database.close()
