import asyncio
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.harness.stores import opened_sqlite
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Database, Reader, Transaction
from timer_service.core.ports.health import HEALTHY
from timer_service.core.ports.transactions import in_transaction, run_at_once
from timer_service.core.values.errors import DatabaseSetupError, DatabaseUnavailableError, StartError

INSERT = "INSERT INTO numbers (number) VALUES (:number)"
SLOW_INSERT = """
INSERT INTO numbers (number)
WITH RECURSIVE series (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM series WHERE number < 300000)
SELECT number FROM series
"""

SLOW_QUERY = """
WITH RECURSIVE series (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM series WHERE number < 2000000)
SELECT COUNT(*) AS count FROM series
"""


class OurError(Exception):
    """The error that the tests raise."""


@pytest.fixture
async def database(store: Database) -> Database:
    """Return a store with a table of numbers."""
    async with store.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
    return store


async def numbers(database: Database) -> list[int]:
    return [row["number"] for row in await database.reader.fetch("SELECT number FROM numbers ORDER BY number")]


def get_reader(database: Database, name: str) -> Reader:
    return {"reader": database.reader, "queries": database.queries}[name]


@pytest.mark.parametrize("name", ["reader", "queries"])
async def test_reader_sees_only_committed_rows(database: Database, name: str) -> None:
    """A reader does not see an open transaction and does not wait for it. It sees a commit at once."""
    reader = get_reader(database, name)
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 1})
        during = await reader.fetch("SELECT number FROM numbers")
    (row,) = await reader.fetch("SELECT number FROM numbers")
    assert (during, row["number"]) == ([], 1)


@pytest.mark.parametrize("name", ["reader", "queries"])
async def test_reader_cannot_write(database: Database, name: str) -> None:
    """A reader refuses a statement that writes."""
    with pytest.raises(Exception, match=r"(?i)read-?only"):
        await get_reader(database, name).fetch("INSERT INTO numbers (number) VALUES (1) RETURNING number")
    assert await numbers(database) == []


async def test_slow_queries_do_not_block(database: Database) -> None:
    """While a slow query runs, the reader answers and a transaction commits."""
    slow_query = asyncio.create_task(database.queries.fetch(SLOW_QUERY))
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 1})
    found = await numbers(database)
    done = slow_query.done()
    (row,) = await slow_query
    assert (found, done, row["count"]) == ([1], False, 2_000_000)


async def test_failing_statement_rolls_back(database: Database) -> None:
    """A refused statement rolls the whole transaction back. The next transaction works."""
    with pytest.raises(Exception, match=r"(?i)unique"):
        async with database.transaction() as tx:
            await tx.executemany(INSERT, [{"number": 1}, {"number": 2}, {"number": 1}])
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 3})
    assert await numbers(database) == [3]


async def test_what_waits_for_a_commit(database: Database) -> None:
    """After a commit, each `then` is called once. After any other end of a transaction, none is called."""
    then: list[str] = []

    async def write(name: str, statement: str = "SELECT 1 AS one", error: Exception | None = None) -> None:
        async with database.transaction() as tx:
            for _ in range(2):
                tx.on_commit(lambda: then.append(name))
            await tx.fetch(statement)
            assert name not in then
            if error is not None:
                raise error

    with pytest.raises(OurError):
        await write("the block fails", error=OurError())
    with pytest.raises(DatabaseSetupError):
        await write("a statement fails", "SELECT * FROM nowhere")
    await write("it is committed")
    assert then == ["it is committed"] * 2


@pytest.mark.parametrize(
    "statement", ["SELECT * FROM nowhere", "SELECT nowhere FROM numbers", "SELECT nowhere(number) FROM numbers"]
)
async def test_missing_table_column_or_function(database: Database, statement: str) -> None:
    """A missing table, column or function is a fault of the set-up, until the next transaction that works."""
    with pytest.raises(DatabaseSetupError, match="nowhere"):
        async with database.transaction() as tx:
            await tx.fetch(statement)
    during = database.health
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 3})
    assert (during.usable, "nowhere" in (during.reason or "")) == (False, True)
    assert database.health == HEALTHY


@pytest.mark.parametrize("at_once", [False, True])
async def test_cancellation_at_any_point(database: Database, at_once: bool) -> None:  # noqa: FBT001
    """A transaction that is cancelled is committed whole or not at all; `then` is called if it was. The next works."""
    then: list[int] = []

    async def work(tx: Transaction, turn: int) -> None:
        tx.on_commit(lambda: then.append(turn))
        await tx.execute(INSERT, {"number": turn})
        await tx.fetch_each("SELECT number FROM numbers WHERE number = :number", [{"number": turn}] * 3)
        await tx.execute(INSERT, {"number": -turn})

    async def write(turn: int) -> None:
        if at_once:
            return await database.run(lambda tx: work(tx, turn))
        async with database.transaction() as tx:
            return await work(tx, turn)

    for turn in range(1, 60):
        writing = asyncio.create_task(write(turn))
        await yield_to_others(turn)
        writing.cancel()
        _, pending = await asyncio.wait([writing], timeout=10)
        assert not pending, "it does not wait for the time limit of a statement"
    assert await numbers(database) == sorted([*then, *(-each for each in then)])
    await write(100)
    assert then[-1] == 100


async def yield_to_others(count: int) -> None:
    """Let the other tasks run, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_rollback_keeps_writes_of_others(database: Database) -> None:
    """If one of several concurrent transactions fails, only its own writes are rolled back."""

    async def write(start: int, *, fails: bool) -> None:
        async with database.transaction() as tx:
            for number in range(start, start + 5):
                await tx.execute(INSERT, {"number": number})
            if fails:
                raise OurError

    results = await asyncio.gather(
        *(write(start, fails=start % 20 == 0) for start in range(0, 100, 10)), return_exceptions=True
    )
    assert [type(result) for result in results] == [OurError, type(None)] * 5
    assert await numbers(database) == [start + n for start in range(10, 100, 20) for n in range(5)]
    assert database.health == HEALTHY, "an error of a block is no fault of the database"


async def test_writes_return_row_counts(database: Database) -> None:
    """A write returns how many rows it changed, over all its parameters. Parameters without a match count 0."""
    async with database.transaction() as tx:
        inserted = await tx.executemany(INSERT, [{"number": number} for number in range(10)])
        one = await tx.execute("UPDATE numbers SET number = 100 WHERE number = :number", {"number": 9})
        none = await tx.execute("UPDATE numbers SET number = 100 WHERE number = :number", {"number": 77})
        deleted = await tx.executemany("DELETE FROM numbers WHERE number < :below", [{"below": 3}, {"below": 5}])
        nothing = await tx.executemany(INSERT, [])
    assert (inserted, one, none, deleted, nothing) == (10, 1, 0, 5, 0)


async def test_insert_returns_the_rows_that_did_not_exist(database: Database) -> None:
    """`insert` takes any number of rows, and skips and leaves out those that exist if the statement says so."""
    add = "INSERT INTO numbers (number) VALUES (:number) ON CONFLICT (number) DO NOTHING RETURNING number"
    async with database.transaction() as tx:
        await tx.executemany(INSERT, [{"number": 7}, {"number": 670}])
        inserted = await tx.insert(add, [(number,) for number in range(700)])
        again = await tx.insert(add, [(number,) for number in range(700)])
        others = await tx.insert(add, [(number,) for number in range(700, 1400)])
        nothing = await tx.insert(add, [])
    assert sorted(number for (number,) in inserted) == [each for each in range(700) if each not in {7, 670}]
    assert sorted(number for (number,) in others) == list(range(700, 1400))
    assert (list(again), list(nothing)) == ([], [])
    assert await numbers(database) == list(range(1400))


async def test_fetch_each(database: Database) -> None:
    """`fetch_each` returns the rows of all parameters in their order, in a transaction and in the reader."""
    wanted = [{"number": number} for number in (3, 77, 1)]
    select = "SELECT number FROM numbers WHERE number = :number"
    async with database.transaction() as tx:
        await tx.executemany(INSERT, [{"number": number} for number in range(5)])
        inside = await tx.fetch_each(select, wanted)
        nothing = await tx.fetch_each(select, [])
    outside = await database.reader.fetch_each(select, wanted)
    assert [[row["number"] for row in rows] for rows in (inside, nothing, outside)] == [[3, 1], [], [3, 1]]


async def test_large_integers_and_text(database: Database) -> None:
    """64-bit integers, nulls and any text are read as they were written."""
    text = "é \U0001f600 '\"\\ %s :name"
    async with database.transaction() as tx:
        await tx.execute("CREATE TABLE texts (number BIGINT, words TEXT, absent TEXT)")
        await tx.execute(
            "INSERT INTO texts VALUES (:number, :words, :absent)",
            {"number": 2**63 - 1, "words": text, "absent": None},
        )
    (row,) = await database.reader.fetch("SELECT * FROM texts")
    assert (row["number"], row["words"], row["absent"]) == (2**63 - 1, text, None)


async def test_sqlite_is_durable(sqlite: SqliteDatabase) -> None:
    """A commit is on the disk: SQLite uses a WAL and syncs at each commit. It waits 5 s for another program."""
    async with sqlite.transaction() as tx:
        (mode,) = await tx.fetch("PRAGMA journal_mode")
        (level,) = await tx.fetch("PRAGMA synchronous")
        (wait,) = await tx.fetch("PRAGMA busy_timeout")
    assert (mode["journal_mode"], level["synchronous"], wait["timeout"]) == ("wal", 2, 5000)


async def test_a_failed_commit(postgres: PostgresDatabase) -> None:
    """If the commit is refused, or the server rolls back because a statement has failed, `then` is not called."""
    then: list[str] = []

    async def write() -> None:
        async with postgres.transaction() as tx:
            tx.on_commit(lambda: then.append("refused"))
            await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
            await tx.execute("CREATE TABLE more (n BIGINT REFERENCES numbers (number) DEFERRABLE INITIALLY DEFERRED)")
            await tx.execute("INSERT INTO more VALUES (1)")

    async def go_on_after_an_error() -> None:
        async with postgres.transaction() as tx:
            tx.on_commit(lambda: then.append("rolled back"))
            with suppress(Exception):
                await tx.fetch("SELECT 1 / 0 AS one")

    with pytest.raises(Exception, match=r"(?i)foreign key"):
        await write()
    with pytest.raises(Exception, match="was rolled back"):
        await go_on_after_an_error()
    assert then == []


async def open_and_close(path: Path) -> None:
    async with opened_sqlite(path):
        pass


def file_modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o777])
async def test_sqlite_files_are_private(tmp_path: Path, umask: int) -> None:
    """The files of a database are created with mode 0600, whatever the umask."""
    before = os.umask(umask)
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data").chmod(0o700)
    try:
        async with opened_sqlite(tmp_path / "data" / "timers.db") as database:
            async with database.transaction() as tx:
                await tx.execute("CREATE TABLE numbers (number BIGINT)")
            found = file_modes(tmp_path / "data")
    finally:
        os.umask(before)
    assert found == dict.fromkeys(["timers.db", "timers.db-wal", "timers.db-shm", "timers.db.lock"], 0o600)


def count_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_second_instance_on_sqlite_is_refused(tmp_path: Path) -> None:
    """A second instance is refused, under each name of the file. The first one continues, until it is closed."""
    (tmp_path / "link.db").symlink_to(tmp_path / "timers.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    async with opened_sqlite(tmp_path / "timers.db") as first:
        open_before = count_open_files()
        for name in ("timers.db", "link.db", "folder/timers.db"):
            with pytest.raises(StartError, match=r"another instance uses the database.*TIMER_DATABASE_URL"):
                await open_and_close(tmp_path / name)
        assert count_open_files() == open_before
        async with first.transaction() as tx:
            await tx.execute("CREATE TABLE numbers (number BIGINT)")
    await open_and_close(tmp_path / "timers.db")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("file/timers.db", r"cannot create .*file/timers\.db\.lock \(TIMER_DB_PATH\)"),
        ("folder", r"cannot open the database .*folder \(TIMER_DB_PATH\)"),
        ("file", "file is not a database"),
    ],
)
async def test_sqlite_path_that_cannot_be_used(tmp_path: Path, name: str, error: str) -> None:
    """A path that is no database is refused and not changed, again and again. The error names the setting."""
    (tmp_path / "file").write_text("dear diary, " * 100)
    (tmp_path / "folder").mkdir()
    for _ in range(2):
        with pytest.raises(StartError, match=error):
            await open_and_close(tmp_path / name)
    assert (tmp_path / "file").read_text().startswith("dear diary")


async def test_sqlite_on_a_full_disk(sqlite: SqliteDatabase) -> None:
    """A full disk is an outage, until something could be written again."""

    async def write(number: int, statement: str = INSERT, pages: int | None = None) -> None:
        async with sqlite.transaction() as tx:
            if pages is not None:
                await tx.fetch(f"PRAGMA max_page_count = {pages}")
            await tx.execute(statement, {"number": number} if statement == INSERT else {})

    await write(0, "CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
    with pytest.raises(DatabaseUnavailableError, match="full"):
        await write(0, SLOW_INSERT, pages=1)
    await write(0, "DELETE FROM numbers")
    still_full = sqlite.health
    await write(1, pages=1_000_000)
    assert (still_full.reason, sqlite.health) == ("database or disk is full", HEALTHY)


async def test_sqlite_locked_by_another_program(sqlite: SqliteDatabase, tmp_path: Path) -> None:
    """While another program locks the file for too long, the database is unavailable. The next write ends this."""
    async with sqlite.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT)")
        await tx.fetch("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(tmp_path / "timers.db", isolation_level=None)) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailableError, match="locked"):
            async with sqlite.transaction() as tx:
                await tx.execute(INSERT, {"number": 1})
        during = sqlite.health.reason
    async with sqlite.transaction() as tx:
        await tx.execute(INSERT, {"number": 1})
    assert (during, sqlite.health.reason) == ("database is locked", None)


async def test_sqlite_damaged_file_cannot_be_read(sqlite: SqliteDatabase, tmp_path: Path) -> None:
    """While the file cannot be read, the health of reading has the reason, and users' queries do not change it."""
    file = tmp_path / "timers.db"
    content = file.read_bytes()
    file.write_bytes(b"\0" * len(content))
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            await sqlite.reader.fetch("SELECT * FROM timer_schedules")
    damaged = sqlite.read_health.usable
    file.write_bytes(content)
    await sqlite.queries.fetch("SELECT * FROM timer_schedules")
    unchanged = sqlite.read_health.usable
    await sqlite.reader.fetch("SELECT * FROM timer_schedules")
    assert (damaged, unchanged, sqlite.read_health) == (False, False, HEALTHY)


async def test_sqlite_text_that_is_not_utf8(sqlite: SqliteDatabase) -> None:
    """A damaged text is read with U+FFFD in place of the damage, in transactions at the second attempt."""
    numbers = "SELECT name FROM texts ORDER BY number"
    async with sqlite.transaction() as tx:
        await tx.execute("CREATE TABLE texts (number INTEGER PRIMARY KEY, name TEXT)")
        await tx.execute("INSERT INTO texts VALUES (1, 'one'), (2, CAST(x'74ff77' AS TEXT)), (3, 'drei ä')")
    expected = ["one", "t\ufffdw", "drei ä"]
    assert [row["name"] for row in await sqlite.reader.fetch(numbers)] == expected
    assert sqlite.read_health == HEALTHY

    async def change(tx: Transaction) -> list[str]:
        rows = await tx.fetch("UPDATE texts SET number = number + 10 RETURNING name")
        return [row["name"] for row in rows]

    assert sorted(await in_transaction(sqlite, change)) == sorted(expected)
    assert sorted(await run_at_once(sqlite, change)) == sorted(expected)
    (row,) = await sqlite.reader.fetch("SELECT MAX(number) AS number FROM texts")
    assert (row["number"], sqlite.health) == (23, HEALTHY)


async def test_lost_file_refuses_commands(tmp_path: Path) -> None:
    """Only transactions of commands fail while the file has no name. They work again when it has its name back."""
    path, elsewhere = tmp_path / "timers.db", tmp_path / "elsewhere.db"
    async with opened_sqlite(path) as database:
        async with database.accepting() as tx:
            await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
        path.rename(elsewhere)
        with pytest.raises(DatabaseUnavailableError, match="was deleted or replaced"):
            async with database.accepting() as tx:
                await tx.execute(INSERT, {"number": 1})
        async with database.transaction() as tx:
            await tx.execute(INSERT, {"number": 2})
        lost = database.health
        elsewhere.rename(path)
        async with database.accepting() as tx:
            await tx.execute(INSERT, {"number": 3})
        assert (lost.usable, database.health, await numbers(database)) == (False, HEALTHY, [2, 3])


async def test_lost_file_is_noticed_without_commands(tmp_path: Path) -> None:
    """A look at the files finds a file that was replaced, and a `-wal` file that was deleted."""
    path = tmp_path / "timers.db"
    async with opened_sqlite(path) as database:
        async with database.accepting() as tx:
            await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
        assert await database.files.tick(0) == Pass(0, 2000)
        path.with_name("timers.db-wal").unlink()
        with pytest.raises(DatabaseUnavailableError, match=r"timers\.db-wal was deleted"):
            await database.files.tick(2000)
        path.with_name("new.db").touch()
        path.with_name("new.db").replace(path)
        with pytest.raises(DatabaseUnavailableError, match=r"timers\.db was deleted or replaced"):
            await database.files.tick(4000)
        assert not database.health.usable
