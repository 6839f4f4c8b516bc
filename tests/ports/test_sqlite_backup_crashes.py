"""A backup that is killed at any step, or that meets a fault, leaves a whole file under its name or none."""

import shutil
from pathlib import Path

import pytest

from tests.harness.disk_order import DiskOrder
from tests.harness.sqlite_files import KILLED, kill_while_open, read_epochs, run_until_step, write_database
from timer_service.app.backup import back_up
from timer_service.config import Config, load_config

ROWS = [1, 2]


def settings(folder: Path) -> Config:
    return load_config(db_path=folder / "timers.db", database_url=None, database_url_file=None)


async def _back_up(folder: Path) -> None:
    await back_up(settings(folder), folder / "backup.db")


def _is_step(name: str) -> bool:
    return name.startswith("/backup.db")


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
async def test_backup_killed_at_each_step(tmp_path: Path, every: int) -> None:
    """After a kill at any step, the backup does not exist or is whole. Without a file, a second backup succeeds."""
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    await write_database(prepared / "timers.db", ROWS[0])
    kill_while_open(prepared / "timers.db", ROWS[1])
    found: list[list[int] | None] = []
    code = KILLED
    while code == KILLED:
        step = every * len(found) + 1
        folder = tmp_path / f"killed-at-{step}"
        shutil.copytree(prepared, folder)
        code = run_until_step(_back_up, folder, _is_step, step)
        file = folder / "backup.db"
        if file.exists():
            found.append(await read_epochs(file) if file.stat().st_size else [])
        else:
            found.append(None)
            await _back_up(folder)
            assert await read_epochs(file) == ROWS
    missing = found.count(None)
    print(f"killed at {len(found) - 1} steps; after {missing} of them there was no file")
    assert found == [None] * missing + [ROWS] * (len(found) - missing)
    assert min(missing, len(found) - missing) > 1


async def test_backup_and_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content of a backup is on the disk before it gets its name, and the name before the command ends."""
    await write_database(tmp_path / "timers.db", ROWS[0])
    disk = DiskOrder(monkeypatch, tmp_path)
    await _back_up(tmp_path)
    assert (disk.steps, disk.unwritten) == (["backup.db", "sync"], [])
