"""Events that the broker refuses for a while are not lost, and cost no attempts. Wrong settings fail at the start."""

import asyncio
import time

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.processes import Service


@ON_SQLITE
async def test_timers_wait_while_the_event_stream_is_full(user: User, service: Service) -> None:
    """Timers wait and lose no attempts while the event stream is full. They fire when it is purged."""
    config = (await user.js.stream_info("TIMER_EVT")).config
    await user.js.update_stream(config.evolve(max_bytes=30_000))
    now = int(time.time() * 1000)
    due = {f"call-{index}": now + index for index in range(300)}
    await user.schedule(due)
    await user.until_handled()
    await service.until_metric('timer_publish_failures_total{reason="full"}', at_least=1)
    early = await user.fired()
    assert 0 < len(early) < 300
    assert (await service.page("/livez"))[0] == 200
    fired = 'timer_schedules_processed_total{outcome="fired",table="timer_schedules"}'
    async with asyncio.timeout(60):
        while (before := await service.metric(fired)) < 300:
            await user.js.purge_stream("TIMER_EVT")
            await service.until_metric(fired, at_least=before + 1)
    assert await service.metric('timer_schedules_processed_total{outcome="retried",table="timer_schedules"}') == 0
    assert await service.metric('timer_schedules_processed_total{outcome="buried",table="timer_schedules"}') == 0
    await user.js.update_stream(config)
    await user.schedule({"afterwards": now})
    await user.until_stored("TIMER_EVT", 1)
