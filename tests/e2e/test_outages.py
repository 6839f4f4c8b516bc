"""Events and dead letters that the broker has no room for are not lost, and cost no attempts."""

import asyncio
import time
from pathlib import Path

from tests.e2e.conftest import ON_SQLITE, User, check_fired
from tests.harness.processes import NatsServer, Service

FIRED = 'timer_schedules_processed_total{{outcome="{}",table="timer_schedules"}}'


@ON_SQLITE
async def test_timers_wait_while_the_event_stream_is_full(user: User, service: Service) -> None:
    """Timers wait and lose no attempts while the event stream is full. They fire when it is purged."""
    config = (await user.js.stream_info("TIMER_EVT")).config
    await user.js.update_stream(config.evolve(max_bytes=30_000))
    now = int(time.time() * 1000)
    await user.schedule({f"call-{index}": now + index for index in range(300)})
    await user.until_handled()
    await service.until_metric('timer_publish_failures_total{reason="full"}', at_least=1)
    assert 0 < len(await user.fired()) < 300
    assert (await service.page("/livez"))[0] == 200
    async with asyncio.timeout(60):
        while (before := await service.metric(FIRED.format("fired"))) < 300:
            await user.js.purge_stream("TIMER_EVT")
            await service.until_metric(FIRED.format("fired"), at_least=before + 1)
    assert [await service.metric(FIRED.format(outcome)) for outcome in ("retried", "buried")] == [0, 0]


@ON_SQLITE
async def test_full_stream_of_dead_letters_stops_nobody(user: User, service: Service) -> None:
    """Dead letters wait until their stream has room, and `/readyz` says it. Commands and events go on."""
    config = (await user.js.stream_info("TIMER_DLQ")).config
    await user.js.update_stream(config.evolve(max_bytes=100_000))
    await user.send([("timer.cmd.v1.acme.schedule-timer", b"no JSON" * 3_000)] * 20)
    assert "maximum bytes exceeded" in await service.until_page("/readyz", 503)
    due = {"call-1": int(time.time() * 1000)}
    await user.schedule(due)
    async with asyncio.timeout(20):
        while not await user.fired():
            await asyncio.sleep(0.02)
    assert check_fired(await user.fired(), due) == 0
    await user.js.update_stream(config)
    await service.until_page("/readyz", 200)
    await user.until_stored("TIMER_DLQ", 20)


async def test_too_small_max_payload_is_refused(tmp_path: Path) -> None:
    """If the max_payload of the broker is too small for an event, the service exits with 1 and says what to do."""
    async with NatsServer(tmp_path / "nats", "max_payload: 1048575") as broker:
        service = Service(tmp_path / "service", broker.url)
        service.launch()
        assert await service.wait() == 1
    assert "set max_payload of the NATS server" in service.log.read_text()
