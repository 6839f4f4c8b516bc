"""A folder whose files are in memory. The tests write thousands of small databases, and wait for each to be synced."""

import os
import shutil
from pathlib import Path

_FOLDER = Path("/dev/shm")


def memory_folder(least_bytes: int = 1 << 30) -> Path | None:
    """Return a folder in memory that has room for so much, and whose programs can be run, or None."""
    if not _FOLDER.is_dir() or shutil.disk_usage(_FOLDER).free < least_bytes:
        return None
    return None if os.statvfs(_FOLDER).f_flag & os.ST_NOEXEC else _FOLDER
