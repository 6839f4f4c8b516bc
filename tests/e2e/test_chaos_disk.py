"""The disk under the SQLite file is full."""

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.harness.load import Load
from tests.harness.load_check import check_load
from tests.harness.load_user import LoadUser
from tests.harness.processes import NatsServer, Service
from tests.harness.small_disk import small_disk

RECOVERY_SECONDS = 20
WAITING = 50


class FullDisk:
    """How to fill the disk of a service, and how to make room."""

    def __init__(self, fill: Callable[[], None], free: Callable[[], None]) -> None:
        self.fill = fill
        self.free = free


Disk = Callable[[Path, NatsServer], AbstractAsyncContextManager[tuple[Service, FullDisk]]]
"""Runs a service whose disk can be filled."""


@asynccontextmanager
async def on_a_small_disk(folder: Path, broker: NatsServer) -> AsyncIterator[tuple[Service, FullDisk]]:
    with small_disk(folder / "disk", mib=16) as disk:
        async with Service(folder / "service", broker.url, TIMER_DB_PATH=str(disk.folder / "timers.db")) as service:
            yield service, FullDisk(disk.fill, disk.free)


@asynccontextmanager
async def with_a_file_size_limit(folder: Path, broker: NatsServer) -> AsyncIterator[tuple[Service, FullDisk]]:
    """The operating system refuses to write beyond a size. It needs no permission, but the error is another one."""
    async with Service(folder / "service", broker.url) as service:
        pid = service.running.pid
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        written = (folder / "service" / "service.log").stat().st_size

        def limit(size: int) -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))

        yield service, FullDisk(lambda: limit(written // 2), lambda: limit(most))


@pytest.mark.slow
@pytest.mark.parametrize("disk", [on_a_small_disk, pytest.param(with_a_file_size_limit, marks=pytest.mark.full)])
async def test_commands_wait_while_the_disk_is_full(disk: Disk, tmp_path: Path, broker: NatsServer) -> None:
    """While the disk is full, commands wait and none becomes a dead letter. All are handled when there is room."""
    async with disk(tmp_path, broker) as (service, full), Load.running(broker.url, seed=1, writers=3) as load:
        await load.until_answered(20)
        full.fill()
        await _until_waiting(load.user, WAITING)
        await service.until_page("/readyz", 503)
        assert (await service.page("/livez"))[0] == 200
        assert await load.user.count_dead_letters() == 0
        full.free()
        await load.until_answered(20, seconds=RECOVERY_SECONDS)
        found = await check_load(load)
        await service.until_page("/readyz", 200)
        assert await service.metric('timer_buried_total{table="timer_schedules"}') == 0
    print(f"disk full: {found}")


async def _until_waiting(user: LoadUser, count: int) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        while user.unanswered < count:
            await asyncio.sleep(0.02)
