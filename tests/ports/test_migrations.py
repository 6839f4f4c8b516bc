import asyncio
from pathlib import Path

import pytest

from tests.harness.databases import Databases
from tests.harness.stores import MIGRATIONS, opened_sqlite
from timer_service.adapters.migrations import Migration, migrate, pending_migrations, read_migrations
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database
from timer_service.core.values.errors import StartError
from timer_service.runs.graph import Edge, read_needed_by, read_needs
from timer_service.runs.messages import IfFailed

# `store` has the bundled schema. The migrations below come after it.
BUNDLED = read_migrations(MIGRATIONS)
FOR_SQLITE = [each for each in BUNDLED if each.engine in {None, "sqlite"}]
FIRST = BUNDLED[-1].number + 1
RUN_EDGES = 23
SKIP, RUN = IfFailed.SKIP, IfFailed.RUN
A = Migration(FIRST, f"{FIRST:04}_a", "-- A; with a comment\nCREATE TABLE a (n BIGINT);\nINSERT INTO a VALUES (1);\n")
B = Migration(FIRST + 1, f"{FIRST + 1:04}_b", "INSERT INTO a VALUES (2)")
BROKEN = Migration(FIRST + 1, f"{FIRST + 1:04}_broken", "CREATE TABLE b (n BIGINT);\nINSERT INTO nowhere VALUES (1);")


async def rows_of_a(database: Database) -> list[int]:
    return [row["n"] for row in await database.reader.fetch("SELECT n FROM a ORDER BY n")]


def write_files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("SELECT 1;", "utf-8")
    return folder


async def test_empty_database(tmp_path: Path) -> None:
    """An empty database gets every bundled migration and then has the table of timers."""
    async with opened_sqlite(tmp_path / "fresh.db") as database:
        waiting = await pending_migrations(database, BUNDLED)
        applied = await migrate(database, BUNDLED)
        left = await pending_migrations(database, BUNDLED)
        rows = await database.reader.fetch("SELECT * FROM timer_schedules")
    assert (waiting, applied, left, rows) == (FOR_SQLITE, FOR_SQLITE, [], [])


async def test_database_at_head(store: Database) -> None:
    """A database at head is not changed."""
    assert await migrate(store, BUNDLED) == []


async def test_only_pending_migrations_are_applied(store: Database) -> None:
    """An applied migration is not applied again. The statements of new migrations run in order."""
    first = await migrate(store, [*BUNDLED, A])
    second = await migrate(store, [*BUNDLED, A, B])
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
async def test_layout_of_a_migration(store: Database, text: str) -> None:
    """Every statement of a migration runs, whatever the layout of its text."""
    await migrate(store, [*BUNDLED, Migration(FIRST, "layout", text)])
    assert await rows_of_a(store) == [3]


async def test_pending_migrations_changes_nothing(store: Database) -> None:
    """`pending_migrations` applies nothing."""
    asked = [await pending_migrations(store, [*BUNDLED, A]) for _ in range(2)]
    assert asked == [[A], [A]]


async def test_pending_migrations_of_an_empty_database(tmp_path: Path) -> None:
    """`pending_migrations` creates no table in an empty database."""
    async with opened_sqlite(tmp_path / "empty.db") as database:
        waiting = await pending_migrations(database, BUNDLED)
        made = await database.reader.fetch("SELECT name FROM sqlite_master")
    assert (waiting, made) == (FOR_SQLITE, [])


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


async def test_concurrent_migrations_on_sqlite(sqlite: SqliteDatabase) -> None:
    """If several tasks migrate at once, one applies the migrations and the others apply none."""
    async with asyncio.TaskGroup() as group:  # no task may go on when the database is closed
        tasks = [group.create_task(migrate(sqlite, [*BUNDLED, A, B])) for _ in range(4)]
    assert sorted((task.result() for task in tasks), key=len) == [[], [], [], [A, B]]
    assert await rows_of_a(sqlite) == [1, 2]


async def test_concurrent_migrations_on_postgres(postgres: PostgresDatabase) -> None:
    """The same is true for several processes. None of them ends before all have begun."""
    async with asyncio.TaskGroup() as group, postgres.transaction() as holder:
        await holder.execute("LOCK TABLE schema_migrations")
        tasks = [group.create_task(migrate(postgres, [*BUNDLED, A, B])) for _ in range(4)]
        await until_waiting(postgres, len(tasks))
    assert sorted((task.result() for task in tasks), key=len) == [[], [], [], [A, B]]
    assert await rows_of_a(postgres) == [1, 2]


async def until_waiting(database: PostgresDatabase, sessions: int) -> None:
    """Return when so many sessions wait for a lock."""
    async with asyncio.timeout(30):
        while len(await database.reader.fetch("SELECT 1 AS one FROM pg_locks WHERE NOT granted")) < sessions:
            await asyncio.sleep(0.01)


def test_migrations_are_read_in_order(tmp_path: Path) -> None:
    """Migrations are read in the order of their numbers. Other files are ignored."""
    folder = write_files(tmp_path, "0002_b.sql", "0001_a.sql", "0003_c.sql", "notes.txt")
    assert [(each.number, each.name) for each in read_migrations(folder)] == [
        (1, "0001_a"),
        (2, "0002_b"),
        (3, "0003_c"),
    ]


async def test_one_step_for_each_engine(store: Database) -> None:
    """If the files of a step have the same number, each engine applies its own, and ignores the text of the other."""
    step = [
        Migration(FIRST, f"{FIRST:04}_a", f"CREATE TABLE a (n BIGINT); INSERT INTO a VALUES ({number})", engine)
        for number, engine in ((1, "postgres"), (2, "sqlite"))
    ]
    own = [each for each in step if each.engine == store.engine]
    assert await migrate(store, [*BUNDLED, *step]) == own
    assert await rows_of_a(store) == [1 if store.engine == "postgres" else 2]
    assert await migrate(store, [*BUNDLED, *step]) == []


def test_files_of_one_step(tmp_path: Path) -> None:
    """Files with the same number are one step if each is for another engine."""
    folder = write_files(tmp_path, "0001_a.sql", "0002_b.sqlite.sql", "0002_b.postgres.sql", "0003_c.sql")
    assert [(each.number, each.engine) for each in read_migrations(folder)] == [
        (1, None),
        (2, "postgres"),
        (2, "sqlite"),
        (3, None),
    ]


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["0002_b.sql"],
        ["0001_a.sql", "0003_c.sql"],
        ["0001_a.sql", "0001_b.sql"],
        ["0001_a.sqlite.sql", "0001_b.postgres.sql"],
        ["0001_a.sql", "0001_a.postgres.sql"],
        ["0000_a.sql", "0001_b.sql"],
    ],
    ids=["none", "no first", "a gap", "one twice", "two steps", "for all engines and for one", "from zero"],
)
def test_missing_number(tmp_path: Path, names: list[str]) -> None:
    """A folder in which a number is missing or exists twice is refused. The error names the folder."""
    with pytest.raises(StartError, match="not numbered 0001, 0002"):
        read_migrations(write_files(tmp_path, *names))


def test_name_without_number(tmp_path: Path) -> None:
    """A file without a number is refused."""
    with pytest.raises(StartError):
        read_migrations(write_files(tmp_path, "0001_a.sql", "again.sql"))


def test_bundled_migrations() -> None:
    """The bundled migrations are numbered without a gap, and each has a name."""
    assert sorted({each.number for each in BUNDLED}) == list(range(1, FIRST))
    assert all(each.name[4] == "_" and len(each.name) > 5 for each in BUNDLED)


NEEDS = """
INSERT INTO run_needs (tenant_id, run_id, job_name, upstream_name, if_failed) VALUES
    ('acme', 'r', 'last', 'b "quoted"', 'skip'), ('acme', 'r', 'last', 'a', 'skip'), ('acme', 'r', 'last', 'c', 'run'),
    ('acme', 'r', 'c', 'a', 'run'), ('acme', 'other', 'last', 'a', 'skip')
"""


async def test_needs_of_runs_are_kept(databases: Databases, tmp_path: Path) -> None:
    """On both engines, the rows of edges have the needs of the old rows, from both ends."""
    a, b, c, last = Edge("a", "last", SKIP), Edge('b "quoted"', "last", SKIP), Edge("c", "last", RUN), "last"
    async with opened_sqlite(tmp_path / "old.db") as sqlite, databases.database() as url:
        postgres = await PostgresDatabase.open(url)
        try:
            for database in (sqlite, postgres):
                await migrate(database, [each for each in BUNDLED if each.number < RUN_EDGES])
                async with database.transaction() as tx:
                    await tx.execute(NEEDS)
                await migrate(database, BUNDLED)
                rows = await database.reader.fetch("SELECT * FROM run_edges ORDER BY run_id, job_name")
                read = {(row["run_id"], row["job_name"]): row for row in rows}
                needs = {key: read_needs(row["needs"]) for key, row in read.items() if row["needs"] is not None}
                needed_by = {
                    key: sorted(read_needed_by(row["job_name"], row["needed_by"]))
                    for key, row in read.items()
                    if row["needed_by"] is not None
                }
                assert needs == {
                    ("other", last): [("a", SKIP)],
                    ("r", last): [("a", SKIP), (b.upstream, SKIP), ("c", RUN)],
                    ("r", "c"): [("a", RUN)],
                }
                assert needed_by == {
                    ("other", "a"): [a],
                    ("r", "a"): [Edge("a", "c", RUN), a],
                    ("r", b.upstream): [b],
                    ("r", "c"): [c],
                }
                assert all(row["needs_size"] == len(row["needs"] or "") for row in rows)
        finally:
            await postgres.close()


async def test_needs_that_a_running_instance_commits_meanwhile_are_kept(databases: Databases) -> None:
    """A migration waits for an instance of the previous version that is storing a run, and copies its needs too."""
    async with databases.database() as url:
        postgres = await PostgresDatabase.open(url)
        try:
            await migrate(postgres, [each for each in BUNDLED if each.number < RUN_EDGES])
            async with postgres.transaction() as instance:
                await instance.execute(NEEDS)
                migrating = asyncio.create_task(migrate(postgres, BUNDLED))
                await until_waiting(postgres, 1)
            await migrating
            rows = await postgres.reader.fetch("SELECT run_id, job_name FROM run_edges WHERE needs IS NOT NULL")
            assert {(row["run_id"], row["job_name"]) for row in rows} == {("r", "last"), ("r", "c"), ("other", "last")}
        finally:
            await postgres.close()


async def test_deadlock_with_a_running_instance(postgres: PostgresDatabase) -> None:
    """A migration that deadlocks with the transaction of a running instance is rolled back and applied after it."""
    await migrate(postgres, [*BUNDLED, A])
    change = "ALTER TABLE a ADD COLUMN more TEXT; UPDATE timer_schedules SET attempt = 1; DROP TABLE a"
    async with postgres.transaction() as instance:
        await instance.execute("LOCK TABLE timer_schedules")
        migrating = asyncio.create_task(migrate(postgres, [*BUNDLED, A, Migration(FIRST + 1, "change", change)]))
        await until_waiting(postgres, 1)
        await instance.execute("SET LOCAL deadlock_timeout = '10s'")  # so the database rolls the migration back
        await instance.fetch("SELECT n FROM a")
    assert [each.name for each in await migrating] == ["change"]
