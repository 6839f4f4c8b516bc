"""SIGTERM drains: nothing lost, exit 0, in time."""

import asyncio
import time

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.processes import Service


@ON_SQLITE
async def test_terminated_while_idle(service: Service) -> None:
    """An idle service, its pull waiting, ends with 0 at once."""
    started = time.monotonic()
    assert await service.terminate() == 0
    assert time.monotonic() - started < 3


async def test_terminated_under_load(user: User, service: Service) -> None:
    """Terminated amid commands and due timers, it ends with 0 in time, loses nothing and fires nothing twice."""
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
