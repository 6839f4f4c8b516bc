"""How a transaction on SQLite begins: with its first statement, in one call to the thread of the database."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

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

    def check_is_free(self) -> None:
        """Check that no transaction is open: the other program can begin one."""
        self.other.execute("BEGIN IMMEDIATE")
        self.other.execute("ROLLBACK")

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
            await tx.fetch("PRAGMA busy_timeout = 0")
        started = Site(database, tmp_path / "timers.db")
        yield started
        started.other.close()


async def test_whole_transaction_that_waits(site: Site) -> None:
    """Work that awaits something else than its transaction is an error, and is rolled back."""

    async def wait(tx: Transaction) -> None:
        await tx.execute(INSERT, {"number": 1})
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaits something else"):
        await site.database.run(wait)
    site.check_is_free()
    assert await site.count() == 0


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


async def test_reads_of_a_transaction_are_locked(site: Site) -> None:
    """A transaction that has only read so far has the lock of writers: no other changes the rows that it has read."""
    async with site.database.transaction() as tx:
        await tx.fetch(COUNT)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            site.other.execute("INSERT INTO numbers (number) VALUES (9)")


async def test_transaction_that_cannot_begin(site: Site) -> None:
    """If another program has the lock, nothing is written, and the next transaction begins as usual."""
    site.other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailableError, match="locked"):
        await site.insert(1)
    during = site.database.health.reason
    site.other.execute("ROLLBACK")
    await site.insert(2)
    site.check_is_free()
    assert (during, site.database.health, await site.count()) == ("database is locked", HEALTHY, 1)


async def test_first_statement_that_fails(site: Site) -> None:
    """If the first statement fails, the transaction that began with it is rolled back."""
    with pytest.raises(sqlite3.OperationalError, match="syntax"):
        async with site.database.transaction() as tx:
            await tx.fetch("SELEC 1")
    site.check_is_free()


async def test_a_read_is_no_success_of_writing(site: Site) -> None:
    """A transaction that only reads does not show that the database can be written again."""
    await site.insert(7)
    site.other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailableError):
        await site.insert(1)
    site.other.execute("ROLLBACK")
    async with site.database.transaction() as tx:
        await tx.fetch(COUNT)
    await site.database.run(lambda tx: tx.fetch(COUNT))
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
