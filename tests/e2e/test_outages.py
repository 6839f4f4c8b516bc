"""What the broker refuses for a while is neither lost nor held against a timer."""

import asyncio
import time
from pathlib import Path

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.processes import NatsServer, Service


@ON_SQLITE
async def test_event_stream_full(user: User, service: Service) -> None:
    """With the event stream full, timers wait and burn no attempts; as it is purged all fire, without a restart."""
    config = (await user.js.stream_info("TIMER_EVT")).config
    await user.js.update_stream(config.evolve(max_bytes=100_000))
    now = int(time.time() * 1000)
    due = {f"call-{index}": now + index for index in range(1000)}
    await user.schedule(due)
    await user.until_handled()
    await service.until_metric('timer_publish_failures_total{reason="full"}', at_least=1)
    early = await user.fired()
    assert 0 < len(early) < 1000
    assert (await service.page("/livez"))[0] == 200
    fired = 'timer_schedules_processed_total{outcome="fired",table="timer_schedules"}'
    async with asyncio.timeout(60):
        while (before := await service.metric(fired)) < 1000:
            await user.js.purge_stream("TIMER_EVT")
            await service.until_metric(fired, at_least=before + 1)
    assert await service.metric('timer_schedules_processed_total{outcome="retried",table="timer_schedules"}') == 0
    assert await service.metric('timer_schedules_processed_total{outcome="buried",table="timer_schedules"}') == 0
    await user.js.update_stream(config)
    await user.schedule({"afterwards": now})
    await user.until_stored("TIMER_EVT", 1)


async def test_stream_made_anew(user: User, service: Service) -> None:
    """When the command stream is deleted and made anew, the service joins it, and its commands count as newer."""
    far = int(time.time() * 1000) + 3_600_000
    await user.schedule({"call-1": far, "call-2": far})
    await user.until_handled()
    config = (await user.js.stream_info("TIMER_CMD")).config
    await user.js.delete_stream("TIMER_CMD")
    await user.js.add_stream(config)
    due = {"call-1": int(time.time() * 1000)}
    await user.schedule(due)
    await user.until_stored("TIMER_EVT", 1)
    assert check_fired(await user.fired(), due) == 0


@ON_SQLITE
async def test_commands_kept_longer_than_timers(tmp_path: Path, user: User, service: Service) -> None:
    """A command stream that outlives the retention is refused at start, with what to do."""
    await service.terminate()
    config = (await user.js.stream_info("TIMER_CMD")).config
    await user.js.update_stream(config.evolve(max_age=30 * 86_400))
    service.launch()
    assert await service.wait() == 1
    assert "longer than TIMER_RETENTION_DAYS=7" in service.log.read_text()


async def test_role_on_sqlite(tmp_path: Path, broker: NatsServer) -> None:
    """On SQLite only the role `all` starts; another one ends with 1 and says why."""
    worker = Service(tmp_path / "worker", broker.url, TIMER_ROLE="worker")
    worker.launch()
    assert await worker.wait() == 1
    assert "TIMER_ROLE=worker needs a database that processes can share" in worker.log.read_text()
