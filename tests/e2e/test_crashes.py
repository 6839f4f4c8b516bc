"""A killed service or a broker outage loses nothing."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.processes import NatsServer, Service


@pytest.mark.slow
async def test_killed_service_fires_every_timer(user: User, service: Service) -> None:
    """A service that is killed five times fires every timer, none early, and duplicates have the same id."""
    rng = random.Random(1)
    start = int(time.time() * 1000) + 2_000
    due = {f"call-{index}": start + rng.randrange(5_000) for index in range(2_000)}
    scheduling = asyncio.create_task(user.schedule(due))
    for _ in range(5):
        await asyncio.sleep(rng.uniform(0, 0.8))
        await service.kill()
        await service.start()
    await scheduling
    await user.until_stored("TIMER_EVT", len(due))
    await user.until_handled()
    check_fired(await user.fired(), due)


@pytest.mark.slow
@ON_SQLITE
async def test_timers_fire_after_a_broker_outage(user: User, broker: NatsServer, service: Service) -> None:
    """Timers that become due during a broker outage fire within 2 s after its end, and lose no attempt."""
    start = int(time.time() * 1000) + 4_000
    due = {f"call-{index}": start + index for index in range(2_000)}
    await user.schedule(due)
    await user.until_handled()
    assert time.time() * 1000 < start, "scheduling took too long for this test to show anything"
    await broker.terminate()
    await asyncio.sleep(max(due.values()) / 1000 - time.time())
    assert (await service.page("/readyz"))[0] == 503
    assert (await service.page("/livez"))[0] == 200
    await broker.start()
    restarted = time.time()
    await user.until_stored("TIMER_EVT", len(due))
    lateness = time.time() - restarted
    assert check_fired(await user.fired(), due) == 0
    assert lateness < 2
    assert await service.metric('timer_schedules_processed_total{outcome="retried",table="timer_schedules"}') == 0
    assert (await service.page("/readyz"))[0] == 200


@ON_SQLITE
async def test_commands_in_flight_at_a_kill_are_handled(user: User, service: Service) -> None:
    """Commands that were delivered but not committed are handled within 2 s after the service is started again."""
    due = {f"call-{index}": int(time.time() * 1000) for index in range(800)}
    with service.locked_database():
        await user.schedule(due)
        await user.until_delivered()
        await service.kill()
    await service.start()
    await user.until_handled(seconds=2)
    await user.until_stored("TIMER_EVT", 800)
    assert check_fired(await user.fired(), due) == 0


async def test_second_instance_on_sqlite_is_refused(tmp_path: Path, broker: NatsServer) -> None:
    """A second service on the same SQLite file exits with 1 and says what to do."""
    async with Service(tmp_path / "service", broker.url) as service:
        second = Service(tmp_path / "service", broker.url)
        second.log = tmp_path / "second.log"
        second.launch()
        assert await second.wait() == 1
        assert "use PostgreSQL (TIMER_DATABASE_URL) for several instances" in second.log.read_text()
        assert (await service.page("/readyz"))[0] == 200
