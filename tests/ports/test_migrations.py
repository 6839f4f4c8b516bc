import asyncio
from pathlib import Path

import pytest

from tests.harness.stores import MIGRATIONS
from timer_service.adapters.migrations import Migration, migrate, pending_migrations, read_migrations
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.database import Database
from timer_service.core.errors import StartError

# `store` has the shipped schema; these come after it.
SHIPPED = read_migrations(MIGRATIONS)
FOR_SQLITE = [each for each in SHIPPED if each.engine in {None, "sqlite"}]
FIRST = len(SHIPPED) + 1
A = Migration(FIRST, f"{FIRST:04}_a", "-- A; with a comment\nCREATE TABLE a (n BIGINT);\nINSERT INTO a VALUES (1);\n")
B = Migration(FIRST + 1, f"{FIRST + 1:04}_b", "INSERT INTO a VALUES (2)")
BROKEN = Migration(FIRST + 1, f"{FIRST + 1:04}_broken", "CREATE TABLE b (n BIGINT);\nINSERT INTO nowhere VALUES (1);")


async def rows_of_a(database: Database) -> list[int]:
    return [row["n"] for row in await database.reader.fetch("SELECT n FROM a ORDER BY n")]


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("SELECT 1;", "utf-8")
    return folder


async def test_fresh(tmp_path: Path) -> None:
    """A fresh database gets every shipped migration, and has timers then."""
    database = await SqliteDatabase.open(tmp_path / "fresh.db")
    waiting = await pending_migrations(database, SHIPPED)
    applied = await migrate(database, SHIPPED)
    left = await pending_migrations(database, SHIPPED)
    rows = await database.reader.fetch("SELECT * FROM timer_schedules")
    await database.close()
    assert (waiting, applied, left, rows) == (FOR_SQLITE, FOR_SQLITE, [], [])


async def test_twice(store: Database) -> None:
    """A database at head is left as it is."""
    assert await migrate(store, SHIPPED) == []


async def test_only_what_is_pending(store: Database) -> None:
    """What was applied before is not applied again; each statement of the new ones is, in order."""
    first = await migrate(store, [*SHIPPED, A])
    second = await migrate(store, [*SHIPPED, A, B])
    assert (first, second, await rows_of_a(store)) == ([A], [B], [1, 2])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "CREATE TABLE a (n BIGINT); INSERT INTO a VALUES (3);",
            id="two on a line",
        ),
        pytest.param(
            "CREATE TABLE a (\n    n BIGINT -- one; two\n);\nINSERT INTO a\nVALUES (3)\n-- the end",
            id="no last semicolon",
        ),
        pytest.param(
            "CREATE TABLE a (n BIGINT);\n/* over;\nlines; */\nINSERT INTO a VALUES (3);\n\n-- the end\n",
            id="comment at the end",
        ),
    ],
)
async def test_texts(store: Database, text: str) -> None:
    """A migration's text may be laid out as its author likes: every statement in it is run."""
    await migrate(store, [*SHIPPED, Migration(FIRST, "laid out", text)])
    assert await rows_of_a(store) == [3]


async def test_pending_applies_nothing(store: Database) -> None:
    """Asking what is pending changes nothing."""
    asked = [await pending_migrations(store, [*SHIPPED, A]) for _ in range(2)]
    assert asked == [[A], [A]]


async def test_pending_in_an_empty_database(tmp_path: Path) -> None:
    """Asking an empty database makes nothing in it."""
    database = await SqliteDatabase.open(tmp_path / "empty.db")
    waiting = await pending_migrations(database, SHIPPED)
    made = await database.reader.fetch("SELECT name FROM sqlite_master")
    await database.close()
    assert (waiting, made) == (FOR_SQLITE, [])


async def test_all_or_nothing(store: Database) -> None:
    """When one migration fails, none of those that were pending with it stays, and mending it is enough."""
    with pytest.raises(Exception, match="nowhere"):
        await migrate(store, [*SHIPPED, A, BROKEN])
    assert await migrate(store, [*SHIPPED, A, B]) == [A, B]
    assert await rows_of_a(store) == [1, 2]


async def test_edited_afterwards(store: Database) -> None:
    """A migration whose text was edited after it was applied is refused by name."""
    await migrate(store, [*SHIPPED, A])
    edited = Migration(A.number, A.name, A.text + "-- better")
    with pytest.raises(StartError, match=rf"{A.name} was applied .* another text"):
        await migrate(store, [*SHIPPED, edited])


async def test_newer_database(store: Database) -> None:
    """An older version of the service refuses a newer database, naming what it doesn't know."""
    await migrate(store, [*SHIPPED, A, B])
    with pytest.raises(StartError, match=f"newer than this version.*{A.name}"):
        await migrate(store, SHIPPED)
    with pytest.raises(StartError, match=f"newer than this version.*{B.name}"):
        await pending_migrations(store, [*SHIPPED, A])


async def test_two_runners_at_once(store: Database) -> None:
    """Of runners at the same moment one applies what is pending, and the others find nothing left to do."""
    applied = await asyncio.gather(*(migrate(store, [*SHIPPED, A, B]) for _ in range(4)))
    assert sorted(applied, key=len) == [[], [], [], [A, B]]
    assert await rows_of_a(store) == [1, 2]


def test_reads_in_order(tmp_path: Path) -> None:
    """Migrations are read by number, whatever the order of the folder; other files are left alone."""
    folder = write(tmp_path, "0002_b.sql", "0001_a.sql", "0003_c.sql", "notes.txt")
    assert [(each.number, each.name) for each in read_migrations(folder)] == [
        (1, "0001_a"),
        (2, "0002_b"),
        (3, "0003_c"),
    ]


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["0002_b.sql"],
        ["0001_a.sql", "0003_c.sql"],
        ["0001_a.sql", "0001_b.sql"],
        ["0000_a.sql", "0001_b.sql"],
    ],
    ids=["none", "no first", "a gap", "one twice", "from nought"],
)
def test_missing_number(tmp_path: Path, names: list[str]) -> None:
    """A folder where a number is missing or there twice is refused, naming the folder."""
    with pytest.raises(StartError, match="not numbered 0001, 0002"):
        read_migrations(write(tmp_path, *names))


def test_name_without_number(tmp_path: Path) -> None:
    """A file without a number is refused like a wrong number."""
    with pytest.raises(StartError):
        read_migrations(write(tmp_path, "0001_a.sql", "again.sql"))


def test_shipped() -> None:
    """The shipped migrations are numbered without a gap, and each has a name that says what it is about."""
    assert [each.number for each in SHIPPED] == list(range(1, len(SHIPPED) + 1))
    assert all(each.name[4] == "_" and len(each.name) > 5 for each in SHIPPED)


async def test_in_the_way_of_an_instance(postgres: PostgresDatabase) -> None:
    """A migration that a running instance's transaction deadlocks with gives way, and is applied after it."""
    await migrate(postgres, [*SHIPPED, A])
    change = "ALTER TABLE a ADD COLUMN more TEXT; UPDATE timer_schedules SET attempt = 1; DROP TABLE a"
    async with postgres.transaction() as instance:
        await instance.execute("LOCK TABLE timer_schedules")
        migrating = asyncio.create_task(migrate(postgres, [*SHIPPED, A, Migration(FIRST + 1, "change", change)]))
        async with asyncio.timeout(30):
            while not await postgres.reader.fetch("SELECT 1 AS one FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
        await instance.execute("SET LOCAL deadlock_timeout = '10s'")  # so that it is the migration that gives way
        await instance.fetch("SELECT n FROM a")
    assert [each.name for each in await migrating] == ["change"]
