"""The wiring of an instance, in this process and on a real broker: what it starts, recovers and stops."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.harness.processes import PATIENCE_SECONDS, NatsServer, unused_port
from timer_service.adapters.nats.log import NatsLog
from timer_service.app.service import App
from timer_service.app.startup import open_app
from timer_service.client import State, TimerClient
from timer_service.config import Config
from timer_service.core.due import loop as loop_module
from timer_service.core.intake.backlog import BacklogGate

TOMORROW = datetime.now(UTC) + timedelta(days=1)
PAST = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def config(tmp_path: Path, broker: NatsServer) -> Config:
    return Config(broker_url=broker.url, db_path=tmp_path / "timers.db", http_port=unused_port())


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[tuple[App, asyncio.Task[None]]]:
    """Run an instance until the end of the block. The block may end it earlier."""
    async with open_app(config) as app:
        task = asyncio.create_task(app.run())
        await until(lambda: is_ready(config))
        try:
            yield app, task
        finally:
            app.stop()
            await asyncio.wait([task])


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await reached():
            await asyncio.sleep(0.01)


async def page(config: Config, path: str) -> dict[str, Any]:
    def get() -> dict[str, Any]:
        with closing(http.client.HTTPConnection(config.http_host, config.http_port, timeout=5)) as connection:
            connection.request("GET", path)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found

    return await asyncio.to_thread(get)


async def is_ready(config: Config) -> bool:
    try:
        return set((await page(config, "/readyz")).values()) == {"ok"}
    except OSError:
        return False


async def is_served(config: Config) -> bool:
    try:
        return bool(await page(config, "/livez"))
    except OSError:
        return False


@pytest.mark.slow
async def test_reader_that_fails_begins_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error of the reader stops the flow of commands for a second only. The instance keeps running."""

    async def fail(_log: NatsLog, limit: int, _most_bytes: int, _seconds: float) -> NoReturn:
        raise RuntimeError(f"no batch of {limit}")

    async with running(config) as (_, task), TimerClient.connect(str(config.broker_url)) as client:

        async def is_failing() -> bool:
            reason: str = (await page(config, "/readyz"))["commands"]
            return reason == "commands cannot be applied: RuntimeError: no batch of 1000"

        with monkeypatch.context() as patch:
            patch.setattr(NatsLog, "read", fail)
            await client.schedule("acme", "call-1", TOMORROW)  # it has its batch already, and reads the next one then
            await until(is_failing)
        assert (await client.schedule("acme", "call-2", TOMORROW)).name == "scheduled"
        await until(lambda: is_ready(config))
        assert not task.done()


@pytest.mark.slow
async def test_backlog_that_takes_long(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the commands from before the start are applied, nothing fires, and readiness says why. Liveness is fine."""

    async def never(_gate: BacklogGate, _now: int) -> bool:
        return False

    async with TimerClient.connect(str(config.broker_url)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(BacklogGate, "is_open", never)
            patch.setattr(loop_module, "_LONGEST_PASS_SECONDS", -1000)  # any pass that has begun counts as stalled
            async with open_app(config) as app:
                task = asyncio.create_task(app.run())
                await until(lambda: is_served(config))
                await client.schedule("acme", "call-1", PAST)
                assert "stored before the start" in (await page(config, "/readyz"))["events"]
                stalled = (await page(config, "/livez"))["stalled"]
                assert (await state_of(client, "call-1")) == State.SCHEDULED
                patch.undo()

                async def has_fired() -> bool:
                    return await state_of(client, "call-1") == State.REACHED

                await until(has_fired)
                await until(lambda: is_ready(config))
                app.stop()
                await task
    assert set(stalled).isdisjoint({"timers", "outbox", "firings", "sweep"})


async def state_of(client: TimerClient, call: str) -> str:
    timer = await client.get("acme", call)
    assert timer is not None
    return timer.state
