"""A small disk of its own for a test. It needs the permission to mount, so most tests have it only as root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LEFT_BYTES = 4096


class SmallDisk:
    """A mounted folder with a fixed number of bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Take all free room."""
        with self._filler.open("ab", buffering=0) as file:
            size = 1024 * 1024
            while size >= _LEFT_BYTES:
                try:
                    file.write(b"x" * size)
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink()


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mount a disk of `mib` MiB at `folder`. The test is skipped if this process may not mount."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this process may not mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
