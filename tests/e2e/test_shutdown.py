"""After SIGTERM, the service finishes its work and exits with 0 in time. If a part hangs, it exits with 1 in time."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service

QUICK = {"TIMER_SHUTDOWN_TIMEOUT": "200"}
QUICK_SECONDS = 10
"""Much longer than the 2.2 s that the service may take, because the machine may be busy. Each part hangs longer."""
HANG = """
import time
from timer_service.cli import main
from timer_service.core.due.row_counts import RowCounts

async def block_the_event_loop(self, now):
    print("HANGING", flush=True)
    while True:
        time.sleep(0.1)

RowCounts.tick = block_the_event_loop
main()
"""


@ON_SQLITE
async def test_idle_service_exits_at_once(service: Service) -> None:
    """An idle service with a waiting pull request exits with 0 within 3 s."""
    started = time.monotonic()
    assert await service.terminate() == 0
    assert time.monotonic() - started < 3


@pytest.mark.slow
async def test_busy_service_loses_nothing(user: User, service: Service) -> None:
    """A busy service exits with 0 within 10 s, loses no timer and fires none twice."""
    due = {f"call-{index}": int(time.time() * 1000) + 500 + index // 4 for index in range(4000)}
    scheduling = asyncio.create_task(user.schedule(due))
    await user.until_stored("TIMER_EVT", 200)
    started = time.monotonic()
    assert await service.terminate() == 0
    assert time.monotonic() - started < 10
    await scheduling
    await service.start()
    await user.until_stored("TIMER_EVT", len(due))
    assert check_fired(await user.fired(), due) == 0


@pytest.mark.slow
async def test_service_with_a_worker_that_hangs_ends(tmp_path: Path, broker: NatsServer) -> None:
    """A worker that blocks the event loop does not delay the end of the process."""
    service = Service(tmp_path / "service", broker.url, **QUICK)
    service.command = [sys.executable, "-c", HANG, "serve"]
    service.launch()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "HANGING" not in service.log.read_text():
                await asyncio.sleep(0.02)
        await check_forced_end(service)
    finally:
        await service.kill()


@pytest.mark.slow
async def test_service_with_a_locked_database_ends(user: User, tmp_path: Path, broker: NatsServer) -> None:
    """A thread that waits for the lock of SQLite does not delay the end. The command is handled after the restart."""
    due = {"call-1": int(time.time() * 1000)}
    async with Service(tmp_path / "locked", broker.url, **QUICK) as service:
        with service.locked_database():
            await user.schedule(due)
            await user.until_delivered()
            await check_forced_end(service)
        await service.start()
        await user.until_stored("TIMER_EVT", 1)
        assert check_fired(await user.fired(), due) == 0


async def check_forced_end(service: Service) -> None:
    """Send SIGTERM. The process must end in time, with exit code 1 and a log line, because a part hangs."""
    async with asyncio.timeout(QUICK_SECONDS):
        assert await service.terminate() == 1
    assert "the process does not end; ending it" in service.log.read_text()
