"""Backups of a SQLite database, and their restore."""

# ruff: noqa: ASYNC240 - these tests prepare and read small files

import asyncio
import logging
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.sqlite_files import ADD, kill_while_open, read_epochs, write_database
from tests.harness.stores import open_sqlite
from tests.harness.timers import Timers
from timer_service.adapters.migrations import migrate
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.adapters.sqlite.files import check_integrity, copy_database, new_file
from timer_service.app import schema
from timer_service.app.backup import back_up, restore
from timer_service.config import Config, load_config
from timer_service.core.limits.audit import OPERATOR_ACTION
from timer_service.core.values.errors import StartError

OLD, NEW = 1, 2


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(db_path=tmp_path / "timers.db", database_url=None, database_url_file=None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / "backup.db"


def others(file: Path) -> list[str]:
    """Return the other files in the folder of a file."""
    return sorted(each.name for each in file.parent.iterdir() if each != file)


def kept(config: Config) -> Path:
    """Return the old database that a restore kept."""
    (found,) = config.db_path.parent.glob(f"{config.db_path.name}.before-restore-*Z")
    return found


def tear(file: Path) -> None:
    """Write zeros over the pages in the middle of a file."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(size // 4)
        opened.write(bytes(size // 2))


async def commit_pairs(database: SqliteDatabase, count: int, copying: "asyncio.Task[None]") -> int:
    """Commit rows in pairs until the copy is written, at least one. Return how many pairs there are then."""
    while True:
        async with database.transaction() as tx:
            for number in (2 * count, 2 * count + 1):
                await tx.execute(ADD, {"epoch": NEW + number})
        count += 1
        if copying.done():
            return count


async def test_a_copy_has_whole_transactions_and_delays_no_writer(config: Config, file: Path) -> None:
    """A copy that is written while transactions commit has each of them whole or not at all, and none waits for it."""
    await write_database(config.db_path, OLD)
    async with open_sqlite(config.db_path) as database:
        async with database.transaction() as tx:
            await tx.execute("CREATE TABLE ballast AS SELECT randomblob(8000000) AS bytes")
        committed = 0
        for number in range(8):
            copy = file.with_name(f"{number}.db")
            copying = asyncio.create_task(asyncio.to_thread(copy_database, config.db_path, copy))
            before, committed = committed, await commit_pairs(database, committed, copying)
            await copying
            copied = len(await read_epochs(copy)) - 1
            print(f"{committed - before} transactions during a copy, which has {copied} rows of {2 * committed}")
            assert committed > before + 1
            assert copied % 2 == 0
            assert 2 * before <= copied < 2 * committed


async def test_backup_of_a_running_service(config: Config, file: Path) -> None:
    """A backup of a database in use has the rows that are only in the `-wal` file. Only the owner can read the file."""
    await write_database(config.db_path, OLD)
    async with open_sqlite(config.db_path) as database:
        async with database.transaction() as tx:
            await tx.execute(ADD, {"epoch": NEW})
        umask = os.umask(0)
        try:
            done = await back_up(config, file)
        finally:
            os.umask(umask)
    assert await read_epochs(file) == [OLD, NEW]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert done.size == file.stat().st_size
    assert others(file) == ["backup.db.lock"]  # of `read_epochs`


@pytest.mark.parametrize("name", ["backup.db", "link.db"])
async def test_backup_overwrites_nothing(config: Config, file: Path, name: str) -> None:
    """A backup to a file or a link that exists fails, and leaves it as it was."""
    await write_database(config.db_path, OLD)
    file.write_text("precious")
    (file.parent / "link.db").symlink_to("nowhere.db")
    with pytest.raises(StartError, match=f"{name} exists already: give another name"):
        await back_up(config, file.parent / name)
    assert (file.read_text(), others(file)) == ("precious", ["link.db"])


async def test_failed_backup_leaves_no_file(config: Config, file: Path) -> None:
    """A backup of a damaged, foreign or missing database fails, says why, and leaves no file."""
    with pytest.raises(StartError, match=r"no database .*timers.db: check TIMER_DB_PATH"):
        await back_up(config, file)
    await write_database(config.db_path, OLD)
    tear(config.db_path)
    with pytest.raises(StartError, match=r"cannot copy the database .*timers.db \(TIMER_DB_PATH\): .*malformed"):
        await back_up(config, file)
    config.db_path.unlink()
    with closing(sqlite3.connect(config.db_path)) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(StartError, match=r"timers.db is not a database of timer-service"):
        await back_up(config, file)
    assert list(file.parent.iterdir()) == []
    with pytest.raises(StartError, match=r"cannot write .*/missing/backup.db: No such file or directory"):
        await back_up(config, file.parent / "missing" / "backup.db")


async def test_restore_keeps_the_old_database(config: Config, file: Path) -> None:
    """A restore replaces a database whose service was killed, and keeps it whole under another name."""
    await write_database(config.db_path, OLD)
    await back_up(config, file)
    kill_while_open(config.db_path, NEW)
    config.db_path.chmod(0o640)
    before = file.read_bytes()
    old = await restore(config, file)
    assert others(config.db_path) == ["backups", old.name if old else "", "timers.db.lock"]
    assert stat.S_IMODE(config.db_path.stat().st_mode) == 0o640
    assert await read_epochs(config.db_path) == [OLD]
    assert await read_epochs(kept(config)) == [OLD, NEW]
    assert file.read_bytes() == before


async def test_restore_of_an_older_version(config: Config, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A restore brings the schema to this version, and is in the audit log."""
    caplog.set_level(logging.INFO)
    old = await SqliteDatabase.open(file)
    await migrate(old, schema.migrations()[:-1])
    await old.close()
    assert await restore(config, file) is None
    assert await schema.unapplied_migrations(config) == []
    (line,) = [vars(each) for each in caplog.records if each.message == OPERATOR_ACTION]
    found = [line[name] for name in ("type", "file", "database", "kept", "uid")]
    assert found == ["restore", str(file), str(config.db_path), None, os.geteuid()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can restore a database of another user")
async def test_restore_as_root_keeps_the_owner(config: Config, file: Path) -> None:
    """If root restores the database of another user, this user owns the new one too."""
    await write_database(config.db_path, OLD)
    os.chown(config.db_path, 12345, 12346)
    await write_database(file, NEW)
    await restore(config, file)
    found = config.db_path.stat()
    assert (found.st_uid, found.st_gid) == (12345, 12346)


@pytest.mark.slow
async def test_restore_while_the_database_is_used(config: Config, file: Path) -> None:
    """A restore fails while a service has the database, and while another program reads it."""
    await write_database(file, NEW)
    await write_database(config.db_path, OLD)
    async with open_sqlite(config.db_path):
        with pytest.raises(StartError, match=r"another instance uses .*timers.db \(TIMER_DB_PATH\). Stop it"):
            await restore(config, file)
    kill_while_open(config.db_path, NEW)
    with closing(sqlite3.connect(config.db_path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM command_log").fetchall()
        with pytest.raises(StartError, match=r"another program reads the database .*wait for its end"):
            await restore(config, file)
    with closing(sqlite3.connect(config.db_path, isolation_level=None)) as owner:
        owner.execute("PRAGMA locking_mode = EXCLUSIVE")
        owner.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StartError, match=r"another program reads the database"):
            await restore(config, file)
    assert await read_epochs(config.db_path) == [OLD, NEW]
    assert others(config.db_path) == ["backups", "timers.db.lock"]


async def test_restore_refuses_other_files(config: Config, file: Path, tmp_path: Path) -> None:
    """A restore from a file that is not a whole database of this version fails, and changes nothing."""
    await write_database(config.db_path, OLD)
    before = config.db_path.read_bytes()

    async def refused(match: str) -> None:
        with pytest.raises(StartError, match=match):
            await restore(config, file)
        assert config.db_path.read_bytes() == before
        assert others(config.db_path) == ["backups", "timers.db.lock"]

    await refused("backup.db: there is no such file")
    file.write_text("not a database\n" * 1000)
    await refused("backup.db is not a SQLite database, or is damaged: file is not a database")
    file.write_bytes(b"")
    await refused("backup.db is not a database of timer-service")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    await refused("backup.db is not a database of timer-service")
    file.unlink()
    await write_database(file, NEW)
    whole = file.read_bytes()
    tear(file)
    await refused("backup.db is not a SQLite database, or is damaged: |backup.db is damaged: ")
    file.write_bytes(whole)
    kill_while_open(file, 3)
    await refused(r"backup.db is not whole without .*backup.db-wal. Write a backup of it first")
    await read_epochs(file)  # closes the database, so that its `-wal` file is gone
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (9999, '9999_future', '')")
        connection.commit()
    await refused("backup.db cannot be used: the database is newer than this version .* 9999_future")
    file.unlink()
    file.symlink_to(config.db_path)
    await refused("is the database itself")


async def test_commands_since_a_backup(config: Config, file: Path) -> None:
    """After a restore, the service reads on where the backup was written: exactly the commands since then."""
    broker, clock = MemoryBroker(), ManualClock()
    async with open_sqlite(config.db_path) as database:
        timers = Timers(database, broker, clock)
        await timers.schedule("before")
        await back_up(config, file)
        await timers.schedule("since 1")
        await timers.schedule("since 2")
    await restore(config, file)
    async with open_sqlite(config.db_path) as database:
        restored = Timers(database, broker, clock)
        await restored.consume()
        rows = await database.reader.fetch("SELECT service_call_id FROM timer_schedules ORDER BY 1")
    assert restored.outcomes() == {"scheduled": 2}
    assert [row["service_call_id"] for row in rows] == ["before", "since 1", "since 2"]


async def test_postgres_has_its_own_tools(tmp_path: Path) -> None:
    """On PostgreSQL, backup and restore name the tools of PostgreSQL."""
    config = load_config(database_url="postgresql://timer@localhost/timer", database_url_file=None)
    for command in (back_up, restore):
        with pytest.raises(StartError, match=r"pg_dump, .* point-in-time recovery"):
            await command(config, tmp_path / "backup.db")


def test_file_that_appears_meanwhile(tmp_path: Path) -> None:
    """A file that gets the name of a backup while this is written is not replaced."""
    path = tmp_path / "backup.db"

    def write_meanwhile() -> None:
        with new_file(path) as draft:
            draft.write_text("backup")
            path.write_text("precious")

    with pytest.raises(StartError, match="exists already"):
        write_meanwhile()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("backup.db", "precious")]


def test_database_with_a_wrong_row(tmp_path: Path) -> None:
    """A database that can be read, but whose rows break its rules, is damaged."""
    with closing(sqlite3.connect(tmp_path / "copy.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")
        connection.execute("INSERT INTO numbers VALUES (NULL)")
        check_integrity(tmp_path / "copy.db", tmp_path / "backup.db")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = 'CREATE TABLE numbers (number INTEGER NOT NULL)'")
    with pytest.raises(StartError, match=r"backup\.db is damaged: NULL value in numbers"):
        check_integrity(tmp_path / "copy.db", tmp_path / "backup.db")
