"""The lock file of a SQLite database. It lets one process at a time write to the database, or replace it."""

import fcntl
import os
from pathlib import Path

from timer_service.adapters.sqlite.files import create_if_missing
from timer_service.core.values.errors import StartError


class DatabaseInUseError(StartError):
    """Another process has the lock of the database."""


def open_lock_file(path: Path) -> int:
    """Lock the database at `path`, and return the file whose `os.close` releases it.

    Raises `DatabaseInUseError`, or `StartError` if the file cannot be created.
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
        raise DatabaseInUseError(
            f"another instance uses the database {path} (TIMER_DB_PATH). "
            "Stop it, or use PostgreSQL (TIMER_DATABASE_URL) for several instances"
        ) from error
    return lock
