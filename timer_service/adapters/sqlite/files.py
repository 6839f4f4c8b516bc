"""Files of SQLite databases: whole copies, private new files, the lock, and whether an open file is still there."""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from timer_service.core.due.loop import Pass
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.errors import DatabaseUnavailableError, StartError

_LOOKING_MS = 2000
PRIVATE_FILE = 0o600
_READ_SCHEMA = "SELECT COUNT(*) FROM sqlite_master"
_IN_USE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def create_private_file(path: Path) -> None:
    """Create a file that only its owner may read, whatever the umask. Raises `FileExistsError`."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        os.fchmod(file, PRIVATE_FILE)
    finally:
        os.close(file)


def create_if_missing(path: Path) -> None:
    """Create a private file if there is none. A file that exists keeps its mode.

    SQLite gives `-wal` and `-shm` the mode of the database.
    """
    with suppress(FileExistsError):
        create_private_file(path)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield the path of a private, empty draft. When the block ends, the draft gets the name `path`.

    The file appears whole or not at all, and never replaces another one. Raises `StartError`.
    """
    if os.path.lexists(path):
        raise _exists(path)
    try:
        with TemporaryDirectory(prefix=f"{path.name}.", suffix=".partial", dir=path.parent) as folder:
            draft = Path(folder) / path.name
            create_private_file(draft)
            yield draft
            sync(draft)
            os.link(draft, path)  # only a rename could replace a file
            sync(path.parent)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StartError(f"cannot write {path}: {error}") from error


def copy_database(source: Path, target: Path) -> None:
    """Write the committed state of a database to `target`, an empty file. Other processes may write to `source`.

    The connection only reads. SQLite before 3.51.3 can corrupt a WAL database if two connections write to it. Writers
    do not wait for it, but the WAL file of the source grows until the copy is complete. Raises `StartError`.
    """
    try:
        with closing(_open_to_read(source)) as connection:
            connection.execute(_READ_SCHEMA)  # if it is damaged, VACUUM reports that it cannot open the target
            connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        raise StartError(f"cannot copy the database {source} (TIMER_DB_PATH): {error}") from error


def check_integrity(path: Path, name: Path) -> None:
    """Raise `StartError`, with `name` in the message, if the file is damaged or is not a SQLite database.

    No process may have the file open.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as connection:
            ((result,), *_) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.Error as error:
        raise StartError(f"{name} is not a SQLite database, or is damaged: {error}") from error
    if result != "ok":
        raise StartError(f"{name} is damaged: {result}")


def is_readable(path: Path) -> bool:
    """Return whether SQLite can open a database. The file and its `-wal` file stay as they are."""
    try:
        with closing(_open_to_read(path)) as connection:
            connection.execute(_READ_SCHEMA)
    except sqlite3.Error as error:
        return error.sqlite_errorcode in _IN_USE
    return True


def empty_wal(path: Path) -> None:
    """Write the content of the `-wal` file into the database, so that the database is whole without it.

    The caller holds the lock of the database. Raises `sqlite3.Error`, and `StartError` if another process uses it.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in _IN_USE:
            raise
        busy = True
    if busy:
        raise StartError(f"another program reads the database {path}, such as `timer-service backup`: wait for its end")


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write. The error of a file that is no database comes with its first statement."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _exists(path: Path) -> StartError:
    return StartError(f"{path} exists already: give another name. Nothing was written")


def open_lock_file(path: Path) -> int:
    """Lock the database at `path`, and return the file whose `os.close` releases it.

    Raises `StartError` if another process has the lock, or if the file cannot be created.
    """
    path = path.resolve()  # a second name of the file has the same lock
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        create_if_missing(Path(f"{path}.lock"))
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise StartError(f"cannot create {path}.lock (TIMER_DB_PATH): {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StartError(
            f"another instance uses the database {path} (TIMER_DB_PATH). "
            "Stop it, or use PostgreSQL (TIMER_DATABASE_URL) for several instances"
        ) from error
    return lock


class OpenFiles:
    """The database file and its `-wal` file, as they were when they were opened.

    Transactions of commands check them. As a worker, it also checks them for a service that gets no commands.
    """

    def __init__(self, path: Path) -> None:
        """Remember the files. Call it when the database is open."""
        self._paths = (path, Path(f"{path.resolve()}-wal"))
        self._opened = [_identify(each) for each in self._paths]
        self.health = HEALTHY
        """The result of the last check."""

    async def tick(self, now: int) -> Pass:
        """Check the files once."""
        await asyncio.to_thread(self.check)
        return Pass(0, now + _LOOKING_MS)

    def check(self) -> None:
        """Raise `DatabaseUnavailableError` if a file was deleted or replaced: its new content ends with the process."""
        for number, path in enumerate(self._paths):
            try:
                found = _identify(path)
            except OSError as error:
                self.health = Health.down(f"the file {path} (TIMER_DB_PATH) cannot be looked at: {error}")
                raise DatabaseUnavailableError(self.health.reason) from error
            self._opened[number] = self._opened[number] or found  # SQLite creates the `-wal` file when it needs it
            if found != self._opened[number]:
                self.health = Health.down(_lost(path))
                raise DatabaseUnavailableError(self.health.reason)
        self.health = HEALTHY


def _identify(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a file; None if there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _lost(path: Path) -> str:
    return (
        f"the file {path} was deleted or replaced while the service uses it (TIMER_DB_PATH). Its data is only in this "
        f"process (pid {os.getpid()}), and `timer-service backup` cannot read it. Do not stop the process before you "
        'have copied its open files: see "If the database file was deleted" in docs/operations/backup.md. Until then '
        "commands wait in the broker"
    )
