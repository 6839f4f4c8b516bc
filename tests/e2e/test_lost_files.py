"""The SQLite file of a running service is deleted or replaced."""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.processes import NatsServer, Service
from tests.harness.spawn import TIMER_SERVICE, spawn

SCHEDULED = 'timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}'


def delete(path: Path) -> None:
    """Delete the database with its other files, as `rm timers.db*` does, but not the lock file."""
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        each.unlink()


def replace(path: Path) -> None:
    """Put another file in place, as `mv` does."""
    other = path.with_name("other.db")
    shutil.copy(path, other)
    other.replace(path)


def delete_wal(path: Path) -> None:
    """Delete only the file with the newest commits."""
    Path(f"{path}-wal").unlink()


def save_open_files(service: Service, path: Path, saved: Path) -> None:
    """Copy the open files of a service while it is stopped, as docs/operations/backup.md says."""
    folder = Path(f"/proc/{service.running.pid}/fd")
    service.signal(signal.SIGSTOP)
    opened = {str(each.readlink()): each for each in folder.iterdir()}
    for suffix in ("", "-wal"):
        name = f"{path}{suffix}"
        shutil.copy(opened.get(f"{name} (deleted)") or opened[name], f"{saved}{suffix}")
    service.signal(signal.SIGCONT)


def run(folder: Path, *arguments: str, db_path: Path) -> int:
    """Run a command on a database. Return its exit code."""
    process = spawn(
        [TIMER_SERVICE, *arguments], folder / "cli.log", environment={"TIMER_DB_PATH": str(db_path)}, cwd=folder
    )
    return process.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize("lose", [delete, replace, delete_wal])
@ON_SQLITE
async def test_lost_file(
    lose: Callable[[Path], None], tmp_path: Path, broker: NatsServer, user: User, service: Service
) -> None:
    """Commands wait, timers fire, and the health names the file. Its data can be saved, and then nothing is lost."""
    path = tmp_path / "service" / "timers.db"
    now = int(time.time() * 1000)
    soon, late = {"soon": now + 4_000}, {f"late-{index}": now + 20_000 for index in range(20)}
    await user.schedule({**soon, **late})
    await user.until_handled()
    lose(path)
    page = await service.until_page("/readyz", 503)  # although no command arrives
    assert "was deleted or replaced" in page
    assert "docs/operations/backup.md" in page
    waiting = {f"waiting-{index}": now + 20_000 for index in range(20)}
    await user.schedule(waiting)
    await user.until_stored("TIMER_EVT", 1)
    assert await service.metric(SCHEDULED) == 1 + len(late)
    assert (await service.page("/livez"))[0] == 200
    saved, backup = tmp_path / "saved.db", tmp_path / "backup.db"
    save_open_files(service, path, saved)
    assert await service.terminate() == 0
    assert await user.stored("TIMER_EVT") == 1, "this took too long to show anything"
    assert run(tmp_path, "backup", str(backup), db_path=saved) == 0
    assert run(tmp_path, "restore", str(backup), db_path=path) == 0
    await service.start()
    await user.until_stored("TIMER_EVT", 1 + len(late) + len(waiting))
    check_fired(await user.fired(), {**soon, **late, **waiting})
