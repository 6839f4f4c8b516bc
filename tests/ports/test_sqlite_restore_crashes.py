"""A restore that is killed at any step leaves the old database or the new one."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.harness.disk_order import DiskOrder
from tests.harness.memory_folder import memory_folder
from tests.harness.sqlite_files import KILLED, kill_while_open, read_epochs, run_until_step, write_database
from timer_service.app.backup import restore
from timer_service.config import Config, load_config
from timer_service.core.values.errors import StartError

OLD, OLD_IN_WAL, NEW = 1, 2, 3


def settings(folder: Path) -> Config:
    return load_config(db_path=folder / "timers.db", database_url=None, database_url_file=None)


async def _restore(folder: Path) -> None:
    await restore(settings(folder), folder / "backup.db")


def _is_step(name: str) -> bool:
    return name.startswith("/timers.db") and not name.startswith("/timers.db.restoring/")


def restore_until(folder: Path, steps: int) -> int:
    """Restore in a process that is killed at its nth step that touches the database or a file beside it."""
    return run_until_step(_restore, folder, _is_step, steps)


async def start_on_a_copy(folder: Path) -> list[int]:
    """Return the rows that the service finds. It starts on a copy, because it deletes a `-wal` file that is damaged."""
    with TemporaryDirectory(dir=memory_folder()) as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        return await read_epochs(Path(copy) / "timers.db")


@pytest.fixture
async def prepared(tmp_path: Path) -> Path:
    """Return a folder with a database whose service was killed, and a backup."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    await write_database(folder / "backup.db", NEW)
    await write_database(folder / "timers.db", OLD)
    kill_while_open(folder / "timers.db", OLD_IN_WAL)
    return folder


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
async def test_restore_killed_at_each_step(prepared: Path, tmp_path: Path, every: int) -> None:
    """After a kill at any step, the service finds the old database whole or the new one. A second restore succeeds."""
    found: list[list[int]] = []
    code, folder = KILLED, prepared
    while code == KILLED:
        step = every * len(found) + 1
        folder = tmp_path / f"killed-at-{step}"
        shutil.copytree(prepared, folder)
        code = restore_until(folder, step)
        found.append(await start_on_a_copy(folder))
        await restore(settings(folder), folder / "backup.db")
        assert await read_epochs(folder / "timers.db") == [NEW]
        kept = [await read_epochs(each) for each in folder.glob("*.before-restore-*Z")]
        assert [OLD, OLD_IN_WAL] in kept
    print(f"killed at {len(found) - 1} steps; the last one that left the old database was {found.count(found[0])}")
    old, new = [OLD, OLD_IN_WAL], [NEW]
    assert found == [old] * found.count(old) + [new] * found.count(new)
    assert min(found.count(old), found.count(new)) > 1


async def test_restore_and_a_power_cut(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a restore is on the disk before the next one begins, and the new content before its name."""
    disk = DiskOrder(monkeypatch, prepared)
    await _restore(prepared)
    kept, *steps = disk.steps
    assert kept.startswith("timers.db.before-restore-")
    side_files = ["-timers.db-wal", "-timers.db-shm"]
    assert steps == ["sync", *side_files, "sync", "timers.db", "sync", "-timers.db.restore-unfinished"]
    assert "timers.db" not in disk.unwritten


async def test_unfinished_restore_behind_a_symbolic_link(prepared: Path, tmp_path: Path) -> None:
    """The service finds the mark of an interrupted restore also if TIMER_DB_PATH is a symbolic link."""
    (prepared / "timers.db.restore-unfinished").touch()
    (link := tmp_path / "link.db").symlink_to(prepared / "timers.db")
    with pytest.raises(StartError, match="run `timer-service restore` again"):
        await read_epochs(link)


@pytest.mark.slow
async def test_restore_of_a_damaged_database_killed_at_each_step(prepared: Path, tmp_path: Path) -> None:
    """A damaged database is kept with its `-wal` file. After a kill, the service finds the new one or refuses to start.

    The service never starts with the damaged database but without its `-wal` file, or with a new one and this file.
    """
    broken, wal = b"damaged" * 1000, (prepared / "timers.db-wal").read_bytes()
    torn = b"damaged" + wal[7:]
    (prepared / "timers.db").write_bytes(broken)
    (prepared / "timers.db-wal").write_bytes(torn)
    outcomes: list[str] = []
    code, folder = KILLED, prepared
    while code == KILLED:
        folder = tmp_path / f"killed-at-{len(outcomes) + 1}"
        shutil.copytree(prepared, folder)
        code = restore_until(folder, len(outcomes) + 1)
        untouched = (folder / "timers.db").read_bytes() == broken and (folder / "timers.db-wal").exists()
        try:
            outcomes.append(str(await start_on_a_copy(folder)))
        except StartError as error:
            outcomes.append("interrupted" if "run `timer-service restore` again" in str(error) else str(untouched))
        await restore(settings(folder), folder / "backup.db")
        assert await read_epochs(folder / "timers.db") == [NEW]
        kept = {each.read_bytes() for each in folder.glob("*.before-restore-*")}
        assert {broken, torn} <= kept
    seen = list(dict.fromkeys(outcomes))
    print(f"killed at {len(outcomes) - 1} steps: {', '.join(seen)}")
    assert seen == ["True", "interrupted", f"[{NEW}]"]
