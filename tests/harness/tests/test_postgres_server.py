"""The Postgres of other tests: each test gets an empty database, and nothing is left afterwards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import pytest

from tests.harness.databases import LOST, Databases

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


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
        "INSERT INTO written (text) VALUES ('a'), ('b'); ANALYZE written",
        "ANALYZE",
        "DO $$ BEGIN PERFORM nextval('written_id_seq'); END $$",
        "CREATE TABLE other (id INTEGER); CREATE INDEX ON other (id); INSERT INTO other VALUES (1)",
        "CREATE SCHEMA other; CREATE TABLE other.other (id INTEGER)",
        "UPDATE kept SET text = 'by a test'",
        "ALTER TABLE written ADD COLUMN other TEXT",
        "DROP TABLE written",
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


async def test_two_databases_at_once_are_different(databases: Databases) -> None:
    """A test that opens two databases gets two different ones."""
    async with databases.database(create_schema) as one, databases.database(create_schema) as other:
        await execute(one, "INSERT INTO written DEFAULT VALUES")
        assert await fetch(other, "SELECT count(*) FROM written") == 0


async def test_open_session_is_ended(databases: Databases) -> None:
    """A session that a test left open in a transaction is ended, and does not block the next test."""
    async with databases.database(create_schema) as url:
        left = await asyncpg.connect(url)
        await left.execute("BEGIN; INSERT INTO written DEFAULT VALUES; LOCK TABLE kept")
    async with databases.database(create_schema) as url:
        assert await fetch(url, "SELECT count(*) FROM written, kept") == 0
    with pytest.raises(LOST):
        await left.execute("COMMIT")
