"""`timer-service dev`: what a new user starts with."""

import signal
from pathlib import Path

from tests.harness.processes import Dev


async def test_demo(tmp_path: Path) -> None:
    """It shows a timer firing, says how to go on, and keeps off the database that the environment names."""
    async with Dev(tmp_path, TIMER_DATABASE_URL="postgresql://user:password@127.0.0.1:1/production") as dev:
        dev.signal(signal.SIGINT)
        assert await dev.wait() == 0
    text = dev.log.read_text()
    assert "scheduled: a timer of tenant demo" in text
    assert "fired:     " in text
    assert (tmp_path / "dev" / "timers.db").exists()
