"""After SIGTERM, the service finishes its work and exits with 0 in time. If a part hangs, it exits with 1 in time."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.postgres import PostgresServer
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service

QUICK = {"TIMER_SHUTDOWN_TIMEOUT": "200"}
QUICK_SECONDS = 10
"""Much longer than the 2.2 s that the service may take, because the machine may be busy. Each part hangs longer."""
FORCED = "the service does not end; ending its process"
HANG = """
import asyncio, time
from timer_service.cli import main
from timer_service.core.due.row_counts import RowCounts

async def ignore_cancellation(self, now):
    print("HANGING", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def block_the_event_loop(self, now):
    print("HANGING", flush=True)
    while True:
        time.sleep(0.1)

RowCounts.tick = {worker}
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
@pytest.mark.parametrize("worker", ["ignore_cancellation", "block_the_event_loop"])
async def test_service_with_a_worker_that_hangs_ends(tmp_path: Path, broker: NatsServer, worker: str) -> None:
    """A worker that ignores its cancellation, or blocks the event loop, does not delay the end of the process."""
    service = Service(tmp_path / "service", broker.url, **QUICK)
    service.command = [sys.executable, "-c", HANG.format(worker=worker), "serve"]
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


@pytest.mark.slow
async def test_service_with_a_frozen_postgres_ends(
    user: User, tmp_path: Path, broker: NatsServer, postgres_server: PostgresServer
) -> None:
    """A PostgreSQL server that does not answer any more does not delay the end."""
    settings = {
        **QUICK,
        "TIMER_DATABASE_URL": postgres_server.url,
        "TIMER_POLLING_INTERVAL": "100",
    }
    async with Service(tmp_path / "frozen", broker.url, **settings) as service, frozen(postgres_server):
        await user.schedule({"call-1": int(time.time() * 1000)})
        await user.until_delivered()
        await check_forced_end(service)


@pytest.mark.slow
async def test_service_with_a_frozen_broker_ends(tmp_path: Path, broker: NatsServer) -> None:
    """A broker that does not answer any more does not delay the end."""
    async with Service(tmp_path / "frozen", broker.url, **QUICK) as service:
        broker.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(QUICK_SECONDS):
                await service.terminate()
        finally:
            broker.signal(signal.SIGCONT)


async def check_forced_end(service: Service) -> None:
    """Send SIGTERM. The process must end in time, with exit code 1 and a log line, because a part hangs."""
    async with asyncio.timeout(QUICK_SECONDS):
        assert await service.terminate() == 1
    assert FORCED in service.log.read_text()


@asynccontextmanager
async def frozen(server: PostgresServer) -> AsyncIterator[None]:
    """Stop all processes of a Postgres server, without ending them."""
    connection = await asyncpg.connect(server.url)
    folder = await connection.fetchval("SELECT current_setting('data_directory')")
    backends = [row["pid"] for row in await connection.fetch("SELECT pid FROM pg_stat_activity")]
    processes = [int((Path(folder) / "postmaster.pid").read_text().splitlines()[0]), *backends]
    connection.terminate()
    try:
        for process in processes:
            with suppress(ProcessLookupError):  # a backend may have ended meanwhile
                os.kill(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
