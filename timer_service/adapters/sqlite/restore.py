"""Replaces a SQLite database by another one. A crash leaves the old database or the new one, and never a mix.

SQLite reads a `-wal` file that it finds next to a database as part of this database. So the `-wal` file of the old
database must be gone before the new database gets its name. What is on the disk after each step of `replace_database`:

| step | the database after a crash |
|---|---|
| 1. Write the `-wal` file into the old database. | the old one |
| 2. Give the old database a second name. | the old one |
| 3. Delete its `-wal` and `-shm` files, which are empty. | the old one |
| 4. Rename the new database to the name of the old one. | the new one |

Step 1 fails if the old database is damaged or missing. Then its `-wal` file gets a second name too, and a mark exists
from before step 3 until after step 4. While it exists, the service does not start, and the restore must be run again.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from timer_service.adapters.sqlite.files import (
    create_if_missing,
    empty_wal,
    is_readable,
    open_lock_file,
    sync,
)
from timer_service.core.values.errors import StartError


@contextmanager
def restoring(path: Path) -> Iterator[Path]:
    """Lock a database and yield the path of its draft, in a private folder. Raises `StartError` if it is in use."""
    lock = open_lock_file(path)
    folder = Path(f"{path}.restoring")
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of a restore that was killed
        folder.mkdir(mode=0o700)
        yield folder / path.name
    except (OSError, sqlite3.Error) as error:
        raise StartError(f"cannot restore {path} (TIMER_DB_PATH): {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def replace_database(path: Path, draft: Path) -> Path | None:
    """Replace the database by the draft, which no process has open, and return the new name of the old database.

    Returns None if there was no database. The draft has no `-wal` file, `path` has no symbolic links, and its lock is
    held.
    """
    sync(draft)
    kept = _keep(path, draft)
    sync(path.parent)
    for name in _side_files(path):  # step 3
        name.unlink(missing_ok=True)
    sync(path.parent)
    draft.replace(path)  # step 4
    sync(path.parent)
    _mark(path).unlink(missing_ok=True)
    return kept


def refuse_unfinished_restore(path: Path) -> None:
    """Raise `StartError` if a restore was interrupted and left no database that can be used."""
    if _mark(path.resolve()).exists():
        raise StartError(
            f"a restore of the database {path} (TIMER_DB_PATH) was interrupted: run `timer-service restore` again"
        )


def _keep(path: Path, draft: Path) -> Path | None:
    """Do steps 1 and 2. Give the draft the owner and the mode of the old database. Return its second name, or None."""
    kept = path.with_name(f"{path.name}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    if not _empty_wal(path):  # a crash could leave no database that can be used
        create_if_missing(_mark(path))
        wal, _ = _side_files(path)
        if wal.exists():  # commits that could not be written into the database
            os.link(wal, f"{kept}-wal")
    if not path.exists():
        return None
    os.link(path, kept)
    found = path.stat()
    if os.geteuid() == 0:  # only root can restore a database of another user, and the service must be able to open it
        os.chown(draft, found.st_uid, found.st_gid)
    draft.chmod(found.st_mode & 0o777)
    return kept


def _empty_wal(path: Path) -> bool:
    """Do step 1. Return whether there is a database that is whole now. A damaged one cannot be."""
    if not path.exists() or not is_readable(path):  # closing it after it was opened to write could delete the file
        return False
    try:
        empty_wal(path)
    except sqlite3.Error:
        return False
    return True


def _side_files(path: Path) -> tuple[Path, Path]:
    return Path(f"{path}-wal"), Path(f"{path}-shm")


def _mark(path: Path) -> Path:
    return Path(f"{path}.restore-unfinished")
