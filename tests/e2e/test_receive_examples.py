"""The examples of docs/receive.md, as a reader runs them."""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE
from tests.e2e.test_examples import EXAMPLES, block, run
from tests.harness.databases import Databases
from tests.harness.processes import NatsServer, Process, Service, unused_port
from tests.harness.receiving import Publisher, publisher
from tests.harness.spawn import BIN
from tests.harness.user_databases import UserDatabase
from tests.harness.waiting import until

PAGE = "docs/receive.md"


@pytest.fixture
async def events(broker: NatsServer) -> AsyncIterator[Publisher]:
    async with publisher(broker.url) as found:
        yield found


class Example(Process):
    """An example that runs until SIGTERM."""

    def __init__(self, folder: Path, broker: NatsServer, *command: str) -> None:
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        super().__init__([*command], folder / "output", {"TIMER_BROKER_URL": broker.url, "PATH": path})
        self.log.touch()
        self.launch()

    async def until_prints(self, text: str) -> None:
        await self._until(lambda: text in self.log.read_text())


async def test_the_first_program_of_the_page(tmp_path: Path, broker: NatsServer, events: Publisher) -> None:
    """Each handler prints its event. The data have the declared type."""
    program = tmp_path / "program.py"
    program.write_text(block(PAGE, "python", "app.on_slot"), "utf-8")
    async with Example(tmp_path, broker, sys.executable, "-u", str(program)) as example:
        await example.until_prints("waiting for timer.evt.v1.shop.due-time-reached.unpaid, ")
        await events.fire("order-1", {"id": "1", "total": 12}, topic="unpaid", tenant="shop")
        await example.until_prints("cancel order-1 12.0")
        await events.publish("ScheduleFired", tenant="shop", scheduleId="report")
        await example.until_prints("report 2026-11-21 09:00:00+00:00")
        assert await example.terminate() == 0


async def test_an_effect_that_happens_once(
    tmp_path: Path, broker: NatsServer, events: Publisher, databases: Databases
) -> None:
    """The handler cancels an order in the database, together with the mark of the event."""
    async with databases.database() as url:
        database = UserDatabase(url)
        await database.query("CREATE TABLE orders (name TEXT PRIMARY KEY, state TEXT)")
        await database.query("INSERT INTO orders VALUES ('order-1', 'placed'), ('order-2', 'placed')")
        script = block(PAGE, "python", "PostgresSeen").replace("postgresql://localhost/shop", url)
        (tmp_path / "program.py").write_text(script, "utf-8")
        async with Example(tmp_path, broker, sys.executable, str(tmp_path / "program.py")) as example:
            await example.until_prints("waiting for ")
            await events.fire("order-1", topic="unpaid", tenant="shop")
            await events.until_acknowledged("shop~orders")
            assert await example.terminate() == 0
        assert await database.query("SELECT name FROM orders WHERE state = 'cancelled'") == [("order-1",)]
        assert await database.query("SELECT consumer, event_id FROM timer_seen") == [("shop~orders", "event-order-1")]


async def test_listen_in_a_shell(tmp_path: Path, broker: NatsServer, events: Publisher) -> None:
    """The program that `listen` runs writes each event to a file."""
    line = block(PAGE, "sh", "timer-service listen")
    async with Example(tmp_path, broker, "bash", "-c", f"cd {tmp_path}; exec {line}") as example:
        await example.until_prints("waiting for timer.evt.v1.shop.due-time-reached.unpaid, ")
        await events.fire("order-1", topic="unpaid", tenant="shop")
        written = tmp_path / "unpaid.jsonl"
        await until(lambda: written.exists() and written.read_text().endswith("\n"))
        assert json.loads(written.read_text())["payload"]["serviceCallId"] == "order-1"
        assert await example.terminate() == 0


@ON_SQLITE
async def test_the_shop(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """The order that is not paid is cancelled, the other one is not. The schedule calls its handler."""
    async with Example(tmp_path, broker, sys.executable, str(EXAMPLES / "shop.py"), broker.url) as example:
        await example.until_prints("cancelled order-7: 12.50 were not paid in time")
        await run(broker, "timer-service", "schedules", "trigger", "shop", "report")
        await example.until_prints("report of ")
        assert "paid order-8\n" in example.log.read_text()
        assert "cancelled order-8" not in example.log.read_text()
        assert await example.terminate() == 0


@pytest.mark.slow
@ON_SQLITE
async def test_the_web_application(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """A reminder that was scheduled over HTTP fires, and its event reaches the application."""
    port = unused_port()
    server = ("uvicorn", "--app-dir", str(EXAMPLES), "--port", str(port), "web:web")
    async with Example(tmp_path, broker, *server) as example:
        await example.until_prints("Uvicorn running on")  # it listens after the startup of the application
        outcome = await asyncio.to_thread(ask, port, "/call-kim", method="POST")
        assert outcome == {"outcome": "scheduled"}
        async with asyncio.timeout(20):
            while await asyncio.to_thread(ask, port, "/") != ["call-kim"]:
                await asyncio.sleep(0.05)
        assert await example.terminate() in {0, -15}  # uvicorn raises the signal again after its end
        assert "Application shutdown complete" in example.log.read_text()


def ask(port: int, path: str, *, method: str = "GET") -> object:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


async def test_faststream(tmp_path: Path, broker: NatsServer, events: Publisher) -> None:
    """A subscriber of FastStream reads the events as values of this client."""
    command = (sys.executable, "-m", "faststream", "run", "--app-dir", str(EXAMPLES), "invoices:app")
    async with Example(tmp_path, broker, *command) as example:
        await example.until_prints("FastStream app started")
        await events.fire("order-1", tenant="shop")
        await example.until_prints("invoice for order-1")
        assert await example.terminate() == 0
