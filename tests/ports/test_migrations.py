"""Migrations: from files to the schema, on both engines."""

import asyncio
from pathlib import Path

import pytest

from tests.harness.stores import MIGRATIONS, opened_sqlite
from timer_service.adapters.migrations import Migration, migrate, pending_migrations, read_migrations
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.ports.database import Database
from timer_service.core.values.errors import StartError

# `store` has the bundled schema. The migrations below come after it.
BUNDLED = read_migrations(MIGRATIONS)
FIRST = BUNDLED[-1].number + 1
A = Migration(
    FIRST,
    f"{FIRST:04}_a",
    "-- A; with a comment\nCREATE TABLE a (n BIGINT); INSERT INTO a VALUES (1);\n/* the; end */\n",
)
B = Migration(FIRST + 1, f"{FIRST + 1:04}_b", "INSERT INTO a VALUES (2)")
BROKEN = Migration(FIRST + 1, f"{FIRST + 1:04}_broken", "CREATE TABLE b (n BIGINT);\nINSERT INTO nowhere VALUES (1);")


async def rows_of_a(database: Database) -> list[int]:
    return [row["n"] for row in await database.reader.fetch("SELECT n FROM a ORDER BY n")]


async def test_empty_database(tmp_path: Path) -> None:
    """An empty database gets every bundled migration. To ask which are pending changes nothing."""
    async with opened_sqlite(tmp_path / "fresh.db") as database:
        waiting = await pending_migrations(database, BUNDLED)
        made = await database.reader.fetch("SELECT name FROM sqlite_master")
        applied = await migrate(database, BUNDLED)
        left = await pending_migrations(database, BUNDLED)
        rows = await database.reader.fetch("SELECT * FROM timer_schedules")
    assert (waiting, made, applied, left, rows) == (BUNDLED, [], BUNDLED, [], [])


async def test_only_pending_migrations_are_applied(store: Database) -> None:
    """An applied migration is not applied again. Every statement runs, whatever the layout of its text."""
    first = await migrate(store, [*BUNDLED, A])
    second = await migrate(store, [*BUNDLED, A, B])
    assert (first, second, await rows_of_a(store)) == ([A], [B], [1, 2])


async def test_text_for_postgres_only(store: Database) -> None:
    """PostgreSQL reads what is in a comment for it. SQLite does not."""
    await migrate(store, [*BUNDLED, Migration(FIRST, "c", "CREATE TABLE a (n BIGINT /* postgres: DEFAULT 7 */)"), B])
    async with store.transaction() as tx:
        await tx.execute("INSERT INTO a DEFAULT VALUES")
    (row,) = await store.reader.fetch("SELECT n FROM a WHERE n IS NULL OR n = 7")
    assert row["n"] == (7 if store.engine == "postgres" else None)


async def test_failed_migration_rolls_all_back(store: Database) -> None:
    """If one migration fails, none is applied. After it is fixed, all are applied."""
    with pytest.raises(Exception, match="nowhere"):
        await migrate(store, [*BUNDLED, A, BROKEN])
    assert await migrate(store, [*BUNDLED, A, B]) == [A, B]
    assert await rows_of_a(store) == [1, 2]


async def test_edited_migration(store: Database) -> None:
    """If the text of an applied migration was edited, the error names the migration."""
    await migrate(store, [*BUNDLED, A])
    edited = Migration(A.number, A.name, A.text + "-- better")
    with pytest.raises(StartError, match=rf"{A.name} was applied .* another text"):
        await migrate(store, [*BUNDLED, edited])


async def test_newer_database(store: Database) -> None:
    """An older version of the service refuses a newer database. The error names the unknown migration."""
    await migrate(store, [*BUNDLED, A, B])
    with pytest.raises(StartError, match=f"newer than this version.*{A.name}"):
        await migrate(store, BUNDLED)
    with pytest.raises(StartError, match=f"newer than this version.*{B.name}"):
        await pending_migrations(store, [*BUNDLED, A])


async def test_concurrent_migrations(store: Database) -> None:
    """If several instances migrate at once, one applies the migrations and the others apply none.

    The others wait for it: a column that is there already would be an error of the set-up.
    """
    series = "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 200000) SELECT n FROM s"
    text = f"ALTER TABLE a ADD COLUMN m BIGINT; CREATE TABLE b AS {series}"
    wider = Migration(FIRST + 2, f"{FIRST + 2:04}_wider", text)
    await migrate(store, [*BUNDLED, A, B])
    async with asyncio.TaskGroup() as group:  # no task may go on when the database is closed
        tasks = [group.create_task(migrate(store, [*BUNDLED, A, B, wider])) for _ in range(4)]
    assert sorted((task.result() for task in tasks), key=len) == [[], [], [], [wider]]
    assert await rows_of_a(store) == [1, 2]


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["0002_b.sql", "0001_a.sql", "notes.txt"], ["0001_a", "0002_b"]),
        ([], None),
        (["0002_b.sql"], None),
        (["0001_a.sql", "0003_c.sql"], None),
        (["0001_a.sql", "0001_b.sql"], None),
        (["0001_a.sql", "again.sql"], None),
    ],
    ids=["in order", "none", "no first", "a gap", "one twice", "no number"],
)
def test_reading_a_folder(tmp_path: Path, names: list[str], read: list[str] | None) -> None:
    """Migrations are read in the order of their numbers. A number that is missing or there twice is refused."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1;", "utf-8")
    if read is None:
        with pytest.raises(StartError, match="not numbered 0001, 0002"):
            read_migrations(tmp_path)
    else:
        assert [each.name for each in read_migrations(tmp_path)] == read


async def test_keys_compare_by_bytes(postgres: PostgresDatabase) -> None:
    """On PostgreSQL all text columns of keys have the collation C, so their order is that of SQLite and Python."""
    rows = await postgres.reader.fetch("""
        SELECT DISTINCT attrelid::regclass::text || '.' || attname AS name, collname::text AS collation
        FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
        JOIN pg_collation ON pg_collation.oid = attcollation
        WHERE indrelid >= 16384 AND indrelid::regclass::text NOT LIKE 'pg_%'
    """)
    assert rows
    assert {row["name"] for row in rows if row["collation"] != "C"} == set()
