import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.harness.stores import opened_sqlite
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.adapters.sqlite import database as database_module
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


async def write_and_fail(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 1})
        raise OurError


async def test_commit_makes_writes_visible(database: Database) -> None:
    """The writes of a transaction can be read after its block."""
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 1})
    assert await numbers(database) == [1]


async def test_transaction_reads_its_own_writes(database: Database) -> None:
    """A transaction can read its own writes."""
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 1})
        (row,) = await tx.fetch("SELECT number FROM numbers WHERE number = :number", {"number": 1})
    assert row["number"] == 1


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


async def test_exception_rolls_back(database: Database) -> None:
    """An exception in the block rolls the transaction back. The next transaction works."""
    with pytest.raises(OurError):
        await write_and_fail(database)
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 2})
    assert await numbers(database) == [2]


async def test_failing_statement_rolls_back(database: Database) -> None:
    """A refused statement rolls the whole transaction back. The next transaction works."""
    with pytest.raises(Exception, match=r"(?i)unique"):
        async with database.transaction() as tx:
            await tx.executemany(INSERT, [{"number": 1}, {"number": 2}, {"number": 1}])
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 3})
    assert await numbers(database) == [3]


async def test_what_waits_for_a_commit(database: Database) -> None:
    """After a commit, `then` is called once. After any other end of a transaction, it is not called."""
    then: list[str] = []

    async def write(name: str, statement: str = "SELECT 1 AS one", error: Exception | None = None) -> None:
        async with database.transaction() as tx:
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
    assert then == ["it is committed"]


async def test_work_that_runs_at_once(database: Database) -> None:
    """Work that runs at once is committed as a whole. If it fails, it is rolled back, and `then` is not called."""
    then: list[int] = []

    async def write(tx: Transaction, number: int, error: Exception | None = None) -> int:
        tx.on_commit(lambda: then.append(number))
        written: int = await tx.execute(INSERT, {"number": number})
        if error is not None:
            raise error
        return written

    assert await database.run(lambda tx: write(tx, 1)) == 1
    with pytest.raises(OurError):
        await database.run(lambda tx: write(tx, 2, OurError()))
    with pytest.raises(DatabaseSetupError):
        await database.run(lambda tx: tx.fetch("SELECT * FROM nowhere"))
    assert (then, await numbers(database)) == ([1], [1])


async def test_a_failed_commit(database: Database) -> None:
    """If the commit is refused, `then` is not called."""
    if isinstance(database, SqliteDatabase):
        await database._writer.control("PRAGMA foreign_keys = ON")
    async with database.transaction() as tx:
        await tx.execute("CREATE TABLE more (n BIGINT REFERENCES numbers (number) DEFERRABLE INITIALLY DEFERRED)")
    then: list[str] = []

    async def write() -> None:
        async with database.transaction() as tx:
            tx.on_commit(lambda: then.append("refused"))
            await tx.execute("INSERT INTO more VALUES (1)")

    with pytest.raises(Exception, match=r"(?i)foreign key"):
        await write()
    assert then == []


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


async def test_refused_value_is_not_a_wrong_setup(database: Database) -> None:
    """A value that the database refuses is neither an outage nor a fault of the set-up."""
    with pytest.raises(Exception, match=r"(?i)unique|out of|too large") as caught:
        async with database.transaction() as tx:
            await tx.execute(INSERT, {"number": 2**64})
    assert not isinstance(caught.value, DatabaseUnavailableError)


async def test_cancellation_in_a_statement_rolls_back(database: Database) -> None:
    """A transaction that is cancelled during a statement is rolled back. The next transaction works."""
    started = asyncio.Event()

    async def write() -> None:
        async with database.transaction() as tx:
            await tx.execute(INSERT, {"number": -1})
            started.set()
            await tx.execute(SLOW_INSERT)

    writing = asyncio.create_task(write())
    await started.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 7})
    assert await numbers(database) == [7]


async def yield_to_others(count: int) -> None:
    """Let the other tasks run, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_cancellation_at_any_point(database: Database) -> None:
    """A transaction that is cancelled at any point is committed whole or not at all. The next transaction works."""

    async def write() -> None:
        async with database.transaction() as tx:
            await tx.execute(INSERT, {"number": 1})
            await tx.execute(INSERT, {"number": 2})

    for turn in range(1, 100):
        writing = asyncio.create_task(write())
        await yield_to_others(turn)
        writing.cancel()
        await asyncio.wait([writing])
        async with database.transaction() as tx:
            await tx.execute(INSERT, {"number": 7})
        assert await numbers(database) in ([7], [1, 2, 7]), f"cancelled at turn {turn}"
        async with database.transaction() as tx:
            await tx.execute("DELETE FROM numbers")


async def test_the_end_of_a_transaction_at_any_cancellation(database: Database) -> None:
    """`then` is called exactly if the transaction was committed, also if that was cancelled."""
    then: list[int] = []

    async def write(turn: int) -> None:
        async with database.transaction() as tx:
            tx.on_commit(lambda: then.append(turn))
            began.append(turn)
            await tx.execute(INSERT, {"number": turn})

    began: list[int] = []
    turn = len(await numbers(database))  # connected: each transaction takes a few round trips, and no more
    while turn < 60 or len(began) == len(then):
        turn += 1
        writing = asyncio.create_task(write(turn))
        await yield_to_others(turn)
        writing.cancel()
        await asyncio.wait([writing])
    assert set(then) == set(await numbers(database))


async def test_cancellation_of_a_waiting_transaction(database: Database) -> None:
    """Cancelling a transaction that waits for another one affects neither that one nor the next."""

    async def write(number: int) -> None:
        async with database.transaction() as tx:
            await tx.execute(INSERT, {"number": number})

    async with database.transaction() as tx:
        waiting = asyncio.create_task(write(1))
        await yield_to_others(3)
        waiting.cancel()
        await asyncio.wait([waiting])
        await tx.execute(INSERT, {"number": 2})
    await write(3)
    assert await numbers(database) == [2, 3]


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


async def test_no_update_is_lost(database: Database) -> None:
    """Concurrent transactions that increment the same row are all counted."""
    async with database.transaction() as tx:
        await tx.execute(INSERT, {"number": 0})

    async def increment() -> None:
        async with database.transaction() as tx:
            await tx.execute("UPDATE numbers SET number = number + 1")

    await asyncio.gather(*(increment() for _ in range(50)))
    assert await numbers(database) == [50]


async def test_writes_return_row_counts(database: Database) -> None:
    """A write returns how many rows it changed, over all its parameters. Parameters without a match count 0."""
    async with database.transaction() as tx:
        inserted = await tx.executemany(INSERT, [{"number": number} for number in range(10)])
        one = await tx.execute("UPDATE numbers SET number = 100 WHERE number = :number", {"number": 9})
        none = await tx.execute("UPDATE numbers SET number = 100 WHERE number = :number", {"number": 77})
        deleted = await tx.executemany("DELETE FROM numbers WHERE number < :below", [{"below": 3}, {"below": 5}])
        nothing = await tx.executemany(INSERT, [])
    assert (inserted, one, none, deleted, nothing) == (10, 1, 0, 5, 0)


async def test_skipped_upserts_do_not_count(database: Database) -> None:
    """An upsert whose condition fails is not counted. The count shows a lost race."""
    upsert = """
        INSERT INTO numbers (number) VALUES (:number)
        ON CONFLICT (number) DO UPDATE SET number = excluded.number WHERE numbers.number > 5
    """
    async with database.transaction() as tx:
        await tx.executemany(INSERT, [{"number": 1}, {"number": 9}])
        written = await tx.executemany(upsert, [{"number": number} for number in (1, 9, 2)])
    assert written == 2


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


async def test_health_of_a_working_store(database: Database) -> None:
    """A working store is healthy, also after a block has raised its own error."""
    with pytest.raises(OurError):
        await write_and_fail(database)
    assert database.health.reason is None


async def test_sqlite_runs_transactions_one_by_one(sqlite: SqliteDatabase) -> None:
    """On SQLite a transaction begins only after the previous one has ended."""
    order: list[str] = []

    async def write(name: str) -> None:
        async with sqlite.transaction() as tx:
            order.append(f"{name} begins")
            await tx.fetch("SELECT 1")
            order.append(f"{name} ends")

    await asyncio.gather(write("a"), write("b"))
    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_sqlite_is_durable(sqlite: SqliteDatabase) -> None:
    """A commit is on the disk: SQLite uses a WAL and syncs at each commit."""
    async with sqlite.transaction() as tx:
        (mode,) = await tx.fetch("PRAGMA journal_mode")
        (level,) = await tx.fetch("PRAGMA synchronous")
    assert (mode["journal_mode"], level["synchronous"]) == ("wal", 2)


async def test_sqlite_file_is_opened_again(tmp_path: Path) -> None:
    """A file that is closed and opened again holds the committed rows."""
    path = tmp_path / "a new folder" / "timers.db"
    async with opened_sqlite(path) as first, first.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT)")
        await tx.execute(INSERT, {"number": 1})
    async with opened_sqlite(path) as second:
        assert await numbers(second) == [1]


async def open_and_close(path: Path) -> None:
    async with opened_sqlite(path):
        pass


def count_open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def file_modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
async def test_sqlite_files_are_private(tmp_path: Path, umask: int) -> None:
    """The database file and the files next to it are created with mode 0600, whatever the umask."""
    before = os.umask(umask)
    try:
        async with opened_sqlite(tmp_path / "timers.db") as database:
            async with database.transaction() as tx:
                await tx.execute("CREATE TABLE numbers (number BIGINT)")
            found = file_modes(tmp_path)
    finally:
        os.umask(before)
    assert found == dict.fromkeys(["timers.db", "timers.db-wal", "timers.db-shm", "timers.db.lock"], 0o600)


async def test_sqlite_file_behind_a_link_is_private(tmp_path: Path) -> None:
    """A database that is created through a link to it is private too."""
    (tmp_path / "link.db").symlink_to(tmp_path / "timers.db")
    before = os.umask(0)
    try:
        await open_and_close(tmp_path / "link.db")
    finally:
        os.umask(before)
    assert file_modes(tmp_path)["timers.db"] == 0o600


async def test_sqlite_keeps_the_mode_of_an_existing_file(tmp_path: Path) -> None:
    """A database file that exists keeps the mode that the operator gave it."""
    path = tmp_path / "timers.db"
    path.touch()
    path.chmod(0o640)
    await open_and_close(path)
    assert file_modes(tmp_path)["timers.db"] == 0o640


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o604, 0o666])
async def test_sqlite_files_of_others(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    """If others may use a file of the database, the log names it and the remedy. Its mode stays."""
    path = tmp_path / "timers.db"
    for each in (path, tmp_path / "timers.db.lock"):
        each.touch()
        each.chmod(mode)
    await open_and_close(path)
    warnings = [vars(record) for record in caplog.records if record.levelname == "WARNING"]
    assert {(line["file"], line["mode"], line["remedy"]) for line in warnings} == {
        (str(each), f"{mode:04o}", f"chmod 600 {each}") for each in (path, tmp_path / "timers.db.lock")
    }
    assert file_modes(tmp_path) == {"timers.db": mode, "timers.db.lock": mode}


async def test_private_sqlite_files_have_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that the service has created cause no warning when they are opened again."""
    for _ in range(2):
        await open_and_close(tmp_path / "timers.db")
    assert caplog.records == []


async def test_second_instance_on_sqlite_is_refused(tmp_path: Path) -> None:
    """A second instance on the same file is refused, and the error names PostgreSQL. The first one continues."""
    path = tmp_path / "timers.db"
    async with opened_sqlite(path) as first:
        files = count_open_files()
        with pytest.raises(StartError, match=r"another instance uses .*timers\.db.*TIMER_DATABASE_URL"):
            await open_and_close(path)
        assert count_open_files() == files, "the lock file is closed again"
        async with first.transaction() as tx:
            await tx.execute("CREATE TABLE numbers (number BIGINT)")
    await open_and_close(path)


async def test_sqlite_path_below_a_file(tmp_path: Path) -> None:
    """If the path cannot be written to, the error names the setting."""
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"cannot create .*file/timers\.db\.lock \(TIMER_DB_PATH\)"):
        await open_and_close(tmp_path / "file" / "timers.db")


async def test_sqlite_path_is_a_folder(tmp_path: Path) -> None:
    """If the path is a folder, the error names the setting, and the lock is released."""
    path = tmp_path / "timers.db"
    path.mkdir()
    with pytest.raises(StartError, match=r"cannot open the database .*timers\.db \(TIMER_DB_PATH\)"):
        await open_and_close(path)
    path.rmdir()
    await open_and_close(path)


async def test_sqlite_file_that_is_not_a_database(tmp_path: Path) -> None:
    """A file that is not a database is refused and not changed."""
    path = tmp_path / "timers.db"
    path.write_text("dear diary, " * 100)
    with pytest.raises(StartError, match="file is not a database"):
        await open_and_close(path)
    assert path.read_text().startswith("dear diary")


async def test_sqlite_transaction_after_a_failed_commit(sqlite: SqliteDatabase) -> None:
    """A refused commit raises an error and writes nothing. The next transaction works."""
    await sqlite._writer.control("PRAGMA foreign_keys = ON")
    async with sqlite.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
        await tx.execute("CREATE TABLE more (n BIGINT REFERENCES numbers (number) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(Exception, match="FOREIGN KEY"):
        async with sqlite.transaction() as tx:
            await tx.execute("INSERT INTO more VALUES (1)")
    async with sqlite.transaction() as tx:
        await tx.execute(INSERT, {"number": 7})
        left = await tx.fetch("SELECT * FROM more")
    assert (left, await numbers(sqlite)) == ([], [7])


async def test_sqlite_empty_commit_on_a_full_disk(sqlite: SqliteDatabase) -> None:
    """A transaction that writes nothing succeeds on a full disk, but does not make the database healthy."""
    async with sqlite.transaction() as tx:
        await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
    (row,) = await sqlite.reader.fetch("PRAGMA page_count")
    await sqlite._writer.control(f"PRAGMA max_page_count = {row['page_count']}")

    async def write_too_much() -> None:
        async with sqlite.transaction() as tx:
            await tx.execute(INSERT, {"number": 0})
            await tx.execute(SLOW_INSERT)

    with pytest.raises(DatabaseUnavailableError, match="full"):
        await write_too_much()
    async with sqlite.transaction() as tx:
        await tx.execute("DELETE FROM numbers")
    still_full = sqlite.health
    await sqlite._writer.control("PRAGMA max_page_count = 1000000")
    async with sqlite.transaction() as tx:
        await tx.execute(INSERT, {"number": 1})
    assert (still_full.reason, sqlite.health) == ("database or disk is full", HEALTHY)


async def test_sqlite_damaged_file_cannot_be_read(sqlite: SqliteDatabase, tmp_path: Path) -> None:
    """While the file cannot be read, the health of reading has the reason, and users' queries do not change it."""
    await sqlite._writer.control("PRAGMA wal_checkpoint(TRUNCATE)")
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


async def test_sqlite_locked_under_another_name(sqlite: SqliteDatabase, tmp_path: Path) -> None:
    """A database that is open is in use under each of its names: a link to the file, and a link to its folder."""
    (tmp_path / "link.db").symlink_to(tmp_path / "timers.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("timers.db", "link.db", "folder/timers.db"):
        with pytest.raises(StartError, match="another instance uses the database"):
            await open_and_close(tmp_path / name)


async def test_sqlite_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    """The lock of the database is held until its writer is closed: closing it can still write to the file."""
    database = await SqliteDatabase.open(tmp_path / "timers.db")
    close = database._writer.close

    async def close_late() -> None:
        with pytest.raises(StartError, match="another instance uses the database"):
            await open_and_close(tmp_path / "timers.db")
        await close()

    database._writer.close = close_late  # type: ignore[method-assign]
    await database.close()
    await open_and_close(tmp_path / "timers.db")


@pytest.mark.parametrize("failing", range(3))
async def test_sqlite_that_cannot_be_opened_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """If one of the three connections fails, the threads of the others end, and the lock is released."""
    connect, calls = database_module._connect, iter(range(3))

    async def fail_once(path: Path, *pragmas: str) -> Any:
        if next(calls) == failing:
            raise DatabaseUnavailableError("no more files")
        return await connect(path, *pragmas)

    before = set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(database_module, "_connect", fail_once)
        with pytest.raises(StartError, match="no more files"):
            await SqliteDatabase.open(tmp_path / "timers.db")
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()
    await open_and_close(tmp_path / "timers.db")


async def test_sqlite_waits_for_another_program(sqlite: SqliteDatabase) -> None:
    """A statement waits some seconds for the lock of another program, such as a backup, before it fails."""
    waits = [
        (await connection.fetch("PRAGMA busy_timeout"))[0]["timeout"]
        for connection in (sqlite._writer, sqlite.reader, sqlite.queries)
    ]
    assert waits == [5000] * 3


async def test_sqlite_locked_by_another_program(sqlite: SqliteDatabase, tmp_path: Path) -> None:
    """While another program locks the file, the database is unavailable and unhealthy. The next write ends this."""
    async with opened_sqlite(tmp_path / "link" / "other.db") as intruder:
        await sqlite._writer.control("PRAGMA busy_timeout = 0")
        await intruder._writer.control(f"ATTACH DATABASE '{tmp_path / 'timers.db'}' AS ours")
        async with intruder.transaction() as tx:
            await tx.execute("CREATE TABLE ours.numbers (number BIGINT)")
            with pytest.raises(DatabaseUnavailableError, match="locked"):
                async with sqlite.transaction() as other:
                    await other.execute(INSERT, {"number": 1})
            during = sqlite.health.reason
        async with sqlite.transaction() as tx:
            await tx.execute(INSERT, {"number": 1})
    assert (during, sqlite.health.reason) == ("database is locked", None)


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
        path.with_name("timers.db-wal").unlink()
        with pytest.raises(DatabaseUnavailableError, match=r"timers\.db-wal was deleted"):
            await database.check_files()
        path.with_name("new.db").touch()
        path.with_name("new.db").replace(path)
        with pytest.raises(DatabaseUnavailableError, match=r"timers\.db was deleted or replaced"):
            await database.check_files()
        assert not database.health.usable
