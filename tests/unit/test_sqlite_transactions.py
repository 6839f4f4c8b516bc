"""How a transaction on SQLite begins: with its first statement, in one call to the thread of the database."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.stores import opened_sqlite
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.adapters.sqlite.statements import translate_errors
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.errors import DatabaseSetupError, DatabaseUnavailableError

INSERT = "INSERT INTO numbers (number) VALUES (:number)"
COUNT = "SELECT COUNT(*) AS count FROM numbers"


class Site:
    """A database with a table, and another program that uses the file too."""

    def __init__(self, database: SqliteDatabase, path: Path) -> None:
        self.database = database
        self.other = sqlite3.connect(path, isolation_level=None, timeout=0)
        self.calls = 0
        """How many calls to its thread the writing connection has made."""

    def count_calls(self) -> None:
        writer: Any = self.database._writer

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def count(*arguments: Any) -> Any:
                self.calls += 1
                return call(*arguments)

            return count

        writer._execute, writer.submit = counted(writer._execute), counted(writer.submit)

    @property
    def is_in_transaction(self) -> bool:
        return self.database._writer.in_transaction

    async def insert(self, *numbers: int) -> None:
        async with self.database.transaction() as tx:
            for number in numbers:
                await tx.execute(INSERT, {"number": number})

    async def count(self) -> int:
        (row,) = await self.database.reader.fetch(COUNT)
        found: int = row["count"]
        return found


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Return a database and another program."""
    async with opened_sqlite(tmp_path / "timers.db") as database:
        async with database.transaction() as tx:
            await tx.execute("CREATE TABLE numbers (number BIGINT PRIMARY KEY)")
        await database._writer.control("PRAGMA busy_timeout = 0")
        started = Site(database, tmp_path / "timers.db")
        started.count_calls()
        yield started
        started.other.close()


async def test_calls_of_a_small_transaction(site: Site) -> None:
    """A transaction makes a call for each statement, and one to commit."""
    await site.insert(1)
    await site.insert(2, 3)
    assert (site.calls, await site.count()) == (2 + 3, 3)


async def test_calls_of_a_whole_transaction(site: Site) -> None:
    """A transaction that runs at once makes one call, with all its statements."""

    async def insert_two(tx: Transaction) -> int:
        await tx.execute(INSERT, {"number": 1})
        return await tx.executemany(INSERT, [{"number": 2}, {"number": 3}])

    assert (await site.database.run(insert_two), site.calls, await site.count()) == (2, 1, 3)


async def test_whole_transaction_that_waits(site: Site) -> None:
    """Work that awaits something else than its transaction is an error, and is rolled back."""

    async def wait(tx: Transaction) -> None:
        await tx.execute(INSERT, {"number": 1})
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaits something else"):
        await site.database.run(wait)
    assert (site.is_in_transaction, await site.count()) == (False, 0)


async def test_whole_transactions_overtake_others(site: Site) -> None:
    """What runs at once is short, and due rows wait for it, so it goes before the transactions that wait."""
    ended: list[str] = []

    async def transact(name: str, during: asyncio.Event | None = None) -> None:
        async with site.database.transaction() as tx:
            await tx.fetch(COUNT)
            if during is not None:
                await during.wait()
        ended.append(name)

    async def run(name: str) -> None:
        await site.database.run(lambda tx: tx.fetch(COUNT))
        ended.append(name)

    go_on = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for work in (transact("first", go_on), transact("second"), transact("third"), run("short"), run("shorter")):
            group.create_task(work)
            await asyncio.sleep(0)
        go_on.set()
    assert ended == ["first", "short", "shorter", "second", "third"]


async def test_whole_transaction_that_cannot_begin(site: Site) -> None:
    """If another program has the lock, the work does not run, and the health says so until a write succeeds."""
    site.other.execute("BEGIN IMMEDIATE")
    ran: list[object] = []

    async def insert(tx: Transaction) -> None:
        ran.append(tx)
        await tx.execute(INSERT, {"number": 1})

    with pytest.raises(DatabaseUnavailableError, match="locked"):
        await site.database.run(insert)
    during = site.database.health.reason
    site.other.execute("ROLLBACK")
    await site.database.run(insert)
    assert (during, len(ran), site.database.health, await site.count()) == ("database is locked", 1, HEALTHY, 1)


async def test_whole_transaction_that_is_cancelled(site: Site) -> None:
    """If the caller is cancelled, the transaction is finished first, and the next one waits for it."""

    async def insert(tx: Transaction) -> None:
        await tx.execute(INSERT, {"number": 1})

    running = asyncio.create_task(site.database.run(insert))
    while not site.calls:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (site.is_in_transaction, await site.count()) == (False, 1)


async def test_transaction_without_a_statement(site: Site) -> None:
    """A transaction without a statement needs no call. It takes no lock."""
    site.other.execute("BEGIN IMMEDIATE")
    async with site.database.accepting():
        pass
    assert (site.calls, site.database.health) == (0, HEALTHY)
    await site.database._writer.control("PRAGMA user_version")
    assert not site.is_in_transaction, "no later statement begins it"


async def test_reads_of_a_transaction_are_locked(site: Site) -> None:
    """A transaction that has only read so far has the lock of writers: no other changes the rows that it has read."""
    async with site.database.transaction() as tx:
        await tx.fetch(COUNT)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            site.other.execute("INSERT INTO numbers (number) VALUES (9)")


async def test_transaction_that_cannot_begin(site: Site) -> None:
    """If another program has the lock, the first statement is not run, and the next transaction begins as usual."""
    site.other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailableError, match="locked"):
        await site.insert(1)
    found = site.is_in_transaction, site.database.health.reason, site.database._writer.begins_next
    site.other.execute("ROLLBACK")
    await site.database._writer.control("PRAGMA user_version")
    left_open = site.is_in_transaction
    await site.insert(2)
    assert (found, left_open) == ((False, "database is locked", False), False)
    assert (site.database.health, await site.count()) == (HEALTHY, 1)


async def test_error_that_a_caller_ignores(site: Site) -> None:
    """If a transaction could not begin and its caller goes on, the next statement begins it."""
    site.other.execute("BEGIN IMMEDIATE")
    async with site.database.transaction() as tx:
        with pytest.raises(DatabaseUnavailableError):
            await tx.execute(INSERT, {"number": 1})
        site.other.execute("ROLLBACK")
        await tx.execute(INSERT, {"number": 2})
        begun = site.is_in_transaction
    assert (begun, await site.count()) == (True, 1)


async def test_first_statement_that_fails(site: Site) -> None:
    """If the first statement fails, the transaction that began with it is rolled back."""
    with pytest.raises(sqlite3.OperationalError, match="syntax"):
        async with site.database.transaction() as tx:
            await tx.fetch("SELEC 1")
    assert not site.is_in_transaction


async def test_first_statement_that_is_cancelled(site: Site) -> None:
    """If the first statement is cancelled while it runs, the transaction that began with it is rolled back."""
    inserting = asyncio.create_task(site.insert(1))
    while not site.calls:
        await asyncio.sleep(0)
    inserting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await inserting
    assert not site.is_in_transaction
    await site.insert(2)
    assert await site.count() == 1


async def test_a_read_is_no_success_of_writing(site: Site) -> None:
    """A transaction that only reads does not show that the database can be written again."""
    site.other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailableError):
        await site.insert(1)
    site.other.execute("ROLLBACK")
    async with site.database.transaction() as tx:
        await tx.fetch(COUNT)
    assert site.database.health.reason == "database is locked"


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (sqlite3.SQLITE_READONLY_DIRECTORY, DatabaseSetupError),
        (sqlite3.SQLITE_ERROR_MISSING_COLLSEQ, sqlite3.OperationalError),
        (sqlite3.SQLITE_IOERR_WRITE, DatabaseUnavailableError),
    ],
)
def test_extended_codes(code: int, raised: type[Exception]) -> None:
    """An error with an extended code, which says more exactly what failed, is translated by its primary code."""
    error = sqlite3.OperationalError("failed")
    error.sqlite_errorcode = code
    with pytest.raises(raised), translate_errors():
        raise error


async def test_a_new_file_takes_commands(tmp_path: Path) -> None:
    """SQLite creates the `-wal` file of a new database with the first write. It does not count as a replaced file."""
    async with opened_sqlite(tmp_path / "new.db") as database:
        for _ in range(2):
            async with database.accepting() as tx:
                await tx.execute("CREATE TABLE IF NOT EXISTS t (number INTEGER)")
        assert database.health == HEALTHY
