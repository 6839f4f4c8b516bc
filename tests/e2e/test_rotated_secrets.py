"""Secrets in files are replaced while a service and its users work. Nothing is restarted, and nothing is lost."""

import asyncio
import json
import signal
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service
from tests.harness.rotations import Certificate, Credentials, Nkey, Password, Rotation, Token
from timer_service.client import DueTimeReached, NoAnswerError, TimerApp, TimerClient

_WRITERS = 8
_DUE_IN = timedelta(milliseconds=300)


class Load:
    """A client that schedules timers without a pause, and an app that receives their events."""

    def __init__(self, url: str, rotation: Rotation) -> None:
        self._url = url
        self._login = rotation.login
        self.scheduled: dict[str, datetime] = {}
        self.received: dict[str, float] = {}
        self._stop = asyncio.Event()

    async def run(self) -> None:
        app = TimerApp(self._url, tenant="acme", name="load", login=self._login, concurrency=100)

        @app.on_due()
        async def note(event: DueTimeReached) -> None:
            late = (datetime.now(UTC) - self.scheduled.get(event.timer_id, datetime.now(UTC))).total_seconds()
            self.received.setdefault(event.timer_id, late)

        serving = asyncio.create_task(app.serve())
        try:
            async with TimerClient.connect(self._url, login=self._login) as client:
                await asyncio.gather(*(self._write(client, number) for number in range(_WRITERS)))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self.scheduled.keys() - self.received.keys():
                    await asyncio.sleep(0.02)
        finally:
            app.stop()
            await serving

    async def _write(self, client: TimerClient, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            timer, due_at = f"{writer}-{number}", datetime.now(UTC) + _DUE_IN
            while True:
                self.scheduled[timer] = due_at
                try:
                    await client.timers.schedule("acme", timer, due_at=due_at)
                    break
                except NoAnswerError:
                    await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Password, Token, Nkey, Credentials, Certificate])
async def test_rotation(kind: type[Rotation], tmp_path: Path) -> None:
    rotation = kind(tmp_path)
    rotation.write(0)
    broker = NatsServer(tmp_path / "nats", rotation.server(0))
    conf = tmp_path / "nats" / "nats.conf"
    url = broker.url.replace("nats", "tls") if kind is Certificate else broker.url

    async def replace(number: int) -> None:
        conf.write_text(conf.read_text().replace(rotation.server(number - 1), rotation.server(number)))
        if kind is Certificate:
            await broker.terminate()
            await broker.start()
        else:
            broker.signal(signal.SIGHUP)

    async with broker, Service(tmp_path / "service", url, **rotation.settings) as service:
        load = Load(url, rotation)
        running = asyncio.create_task(load.run())
        while len(load.received) < 200:
            await asyncio.sleep(0.05)
        rotation.write(1)
        began = time.monotonic()
        before = max(load.received.values())
        await replace(1)
        await service.until_page("/readyz", 503)
        down = time.monotonic()
        await service.until_page("/readyz", 200)
        up = time.monotonic()
        count = len(load.received)
        while len(load.received) < count + 200:
            await asyncio.sleep(0.05)
        print(kind.__name__, "late before", before, "down after", down - began, "up after", up - began, "late", max(load.received.values()))
        await replace(2)
        page = await service.until_page("/readyz", 503)
        await asyncio.sleep(1)
        page = await service.until_page("/readyz", 503)
        print(page)
        rotation.write(2)
        began = time.monotonic()
        await service.until_page("/readyz", 200)
        print("back after", time.monotonic() - began)
        await asyncio.sleep(2)
        load.stop()
        await running
        print(len(load.scheduled), len(load.received))
        print(*[line for line in service.log.read_text().splitlines() if '"info"' not in line], sep="\n")
