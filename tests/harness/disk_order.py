"""Records in which order a process writes files to the disk and names them, which decides what a power cut leaves."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class DiskOrder:
    """The changes of the names in one folder, in order, and the moments in which the names are on the disk.

    A file whose content is not on the disk when it gets a name is in `unwritten`. SQLite writes to the disk by itself,
    which is not recorded.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.steps: list[str] = []
        """The new names, the deleted names with a minus, and `sync`."""
        self.unwritten: list[str] = []
        self._folder = folder
        self._written: dict[int, bytes] = {}
        records: dict[str, Callable[..., None]] = {
            "fsync": self._sync,
            "link": self._name,
            "replace": self._name,
            "unlink": self._delete,
        }
        for name, record in records.items():
            monkeypatch.setattr(os, name, _before(getattr(os, name), record))

    def _sync(self, file: int) -> None:
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode):
            self._written[found.st_ino] = os.pread(file, found.st_size, 0)
        elif os.path.samestat(found, self._folder.stat()):
            self.steps.append("sync")

    def _name(self, source: Path, target: Path) -> None:
        if target.parent == self._folder:
            self.steps.append(target.name)
            if self._written.get(source.stat().st_ino) != source.read_bytes():
                self.unwritten.append(target.name)

    def _delete(self, path: Path | str) -> None:
        if Path(path).parent == self._folder:
            self.steps.append(f"-{Path(path).name}")


def _before(call: Callable[..., Any], record: Callable[..., None]) -> Callable[..., Any]:
    """Return a function that records its arguments before each call."""

    def recorded(*arguments: Any, **options: Any) -> Any:
        record(*arguments)
        return call(*arguments, **options)

    return recorded
