"""`timer-service dev`: the first command of a new user."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.harness.processes import Dev
from tests.harness.spawn import TIMER_SERVICE, spawn


@pytest.mark.slow
async def test_demo(tmp_path: Path) -> None:
    """It shows a timer firing and does not use the database that the environment names."""
    async with Dev(tmp_path, TIMER_DATABASE_URL="postgresql://user:password@127.0.0.1:1/production") as dev:
        dev.signal(signal.SIGINT)
        assert await dev.wait() == 0
    text = dev.log.read_text()
    assert "scheduled: a timer of tenant demo" in text
    assert "fired:     " in text
    assert " timers watch --server nats://127.0.0.1:" in text, "other commands do not look in this folder"
    assert (tmp_path / "dev" / "timers.db").exists()


@pytest.mark.slow
async def test_other_commands_find_it(tmp_path: Path) -> None:
    """In the folder of a running `dev`, the other commands use its broker and its database. A second `dev` fails."""
    async with Dev(tmp_path) as dev:
        (tmp_path / ".timer-service").symlink_to(tmp_path / "dev")
        done = await run(tmp_path, "timers", "list", "demo", "--json")
        assert json.loads(done.stdout)[0]["state"] == "Reached"
        done = await run(tmp_path, "doctor")
        assert (done.returncode, "ok    target: the `dev` that runs in this folder" in done.stdout) == (0, True)
        assert "ok    flow of commands: ok" in done.stdout
        done = await run(tmp_path, "doctor", "--server", "nats://127.0.0.1:1")
        assert "fail  broker: cannot connect to nats://127.0.0.1:1: " in done.stdout
        done = await run(tmp_path, "migrate", "status")
        assert (done.returncode, "pending" in done.stdout) == (0, False)
        done = await run(tmp_path, "dev", "--data-dir", str(tmp_path / "dev"))
        assert (done.returncode, f"(process {dev.running.pid}, broker nats://127.0.0.1:" in done.stderr) == (1, True)
        dev.signal(signal.SIGINT)
        await dev.wait()
    assert not (tmp_path / "dev" / "dev.json").exists()


async def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    output, errors = folder / "stdout", folder / "stderr"
    output.unlink(missing_ok=True)
    errors.unlink(missing_ok=True)
    process = spawn([TIMER_SERVICE, *arguments], output, errors, environment={}, cwd=folder)
    code = await asyncio.to_thread(process.wait, 30)
    return subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text())
