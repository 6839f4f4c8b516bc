"""After SIGTERM, the service finishes its work and exits with 0 in time."""

import asyncio
import time

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.processes import Service


@ON_SQLITE
async def test_idle_service_exits_at_once(service: Service) -> None:
    """An idle service with a waiting pull request exits with 0 within 3 s."""
    started = time.monotonic()
    assert await service.terminate() == 0
    assert time.monotonic() - started < 3


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
