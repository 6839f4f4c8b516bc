"""The files that the service has open: whether the next process will find them under the path of the database."""

import os
from pathlib import Path

from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.errors import DatabaseUnavailableError


class OpenFiles:
    """The database file and its `-wal` file, as they were when they were opened."""

    def __init__(self, path: Path) -> None:
        """Remember the files. Call it when the database is open."""
        self._paths = (path, Path(f"{path.resolve()}-wal"))
        self._opened = [_identify(each) for each in self._paths]
        self.health = HEALTHY
        """The result of the last check."""

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
        'have copied its open files: see "If the database file was deleted" in docs/operations.md. Until then commands '
        "wait in the broker"
    )
