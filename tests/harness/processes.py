"""Processes for tests: a nats-server, the service and others. A test can stop, kill and restart them."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.backlog import Backlog, postgres_backlog, sqlite_backlog
from tests.harness.spawn import BIN, TIMER_SERVICE, Spawned, spawn
from tests.harness.waiting import until

PATIENCE_SECONDS = 30

_WORKERS = 16
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_RANGE = range(20_000 + _WORKER, 32_000, _WORKERS)
"""Below the ports that systems give to connections, and others for each worker of pytest.

A process that is started again finds its port free, and no other test takes it first.
"""
_FIRST = os.getpid() % len(_RANGE)
"""Test runs at the same time begin with different ports."""
_PORTS: Iterator[int] = itertools.cycle([*_RANGE[_FIRST:], *_RANGE[:_FIRST]])


def unused_port() -> int:
    """Return a free loopback port that no other test uses."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable: the ports repeat")


def read_page(port: int, path: str) -> tuple[int, str]:
    """Return the status and the text of a page of a service."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Process:
    """A process that can be started again. Its output goes to a file."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.command = command
        self.log = log
        self._environment = environment
        self._process: Spawned | None = None

    def launch(self) -> None:
        self._process = spawn(self.command, self.log, environment=self._environment, cwd=Path.cwd())

    @property
    def running(self) -> Spawned:
        assert self._process is not None, "not started"
        return self._process

    def signal(self, number: signal.Signals) -> None:
        self.running.send_signal(number)

    async def wait(self) -> int:
        return await asyncio.to_thread(self.running.wait, PATIENCE_SECONDS)

    async def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            await self.kill()

    async def _until(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so, which is asked in a thread. If it does not come, raise with the log."""

        async def is_ready() -> bool:
            if (code := self.running.poll()) is not None:
                raise AssertionError(f"{self.command[0]} ended with {code}: {self.log.read_text()[-3000:]}")
            return await asyncio.to_thread(ready)

        try:
            await until(is_ready, seconds=PATIENCE_SECONDS, pause=0.02)
        except TimeoutError as error:
            raise AssertionError(f"{self.command[0]} is not ready: {self.log.read_text()[-3000:]}") from error


class Server(Process):
    """A process that is ready some time after its start: by default, when its page says so."""

    port: int

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        await self._until(self._ready)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # such as a start that takes too long
            await self.__aexit__(None, None, None)
            raise
        return self

    def _ready(self) -> bool:
        try:
            return read_page(self.port, "/readyz")[0] == 200
        except OSError:
            return False


class NatsServer(Server):
    """A nats-server that keeps its streams and port across restarts."""

    def __init__(self, folder: Path, extra: str = "", *, config: str | None = None, **environment: str) -> None:
        """Add `extra` to the default configuration, or use `config` instead. Its port and folder are replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        self.port = unused_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        config = config or f'port: 4222\njetstream {{ store_dir: "/data" }}\n{extra}\n'
        file = folder / "nats.conf"
        file.write_text(
            config.replace("port: 4222", f'listen: "127.0.0.1:{self.port}"').replace('"/data"', f'"{folder}/js"')
        )
        super().__init__([str(BIN / "nats-server"), "-c", str(file)], folder / "nats.log", environment)

    def _ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            return connection.recv(4) == b"INFO"
        return False


class Dev(Server):
    """`timer-service dev --demo`, with its files in a folder."""

    def __init__(self, folder: Path, *options: str, **settings: str) -> None:
        command = [
            sys.executable,
            str(BIN / "timer-service"),
            "dev",
            "--demo",
            "--data-dir",
            str(folder / "dev"),
            *options,
        ]
        self.port = unused_port()
        super().__init__(command, folder / "dev.log", {"TIMER_HTTP_PORT": str(self.port), **settings})

    async def start(self) -> None:
        """Start it and wait until it is ready and has printed its guide. The log is that of this start."""
        self.log.unlink(missing_ok=True)
        await super().start()

    def _ready(self) -> bool:
        return "Serving. From another terminal" in self.log.read_text() and super()._ready()


class Service(Server):
    """`timer-service serve`. It keeps its database and port across restarts."""

    def __init__(self, folder: Path, broker_url: str, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = unused_port()
        environment = {
            "TIMER_BROKER_URL": broker_url,
            "TIMER_DB_PATH": str(folder / "timers.db"),
            "TIMER_HTTP_PORT": str(self.port),
            **settings,
        }
        super().__init__([TIMER_SERVICE, "serve"], folder / "service.log", environment)

    async def page(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page."""
        return await asyncio.to_thread(read_page, self.port, path)

    async def until_page(self, path: str, status: int) -> str:
        """Wait until a page has a status and return its text."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (page := await self.page(path))[0] != status:
                await asyncio.sleep(0.02)
        return page[1]

    async def metric(self, sample: str) -> float:
        """Return a sample of /metrics, or 0 if it does not exist yet."""
        _, text = await self.page("/metrics")
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return 0.0

    async def until_metric(self, sample: str, *, at_least: float) -> None:
        """Wait until a sample of /metrics is at least `at_least`."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.metric(sample) < at_least:
                await asyncio.sleep(0.02)

    @contextlib.contextmanager
    def locked_database(self) -> Iterator[None]:
        """Lock its SQLite database, so that the service can commit nothing."""
        with contextlib.closing(sqlite3.connect(self._environment["TIMER_DB_PATH"], isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            yield

    def backlog(self) -> AbstractAsyncContextManager[Backlog]:
        """Open the backlog of its database."""
        url = self._environment.get("TIMER_DATABASE_URL")
        return postgres_backlog(url) if url else sqlite_backlog(Path(self._environment["TIMER_DB_PATH"]))


class Executor(Process):
    """The executor in docs/examples. A test must start it."""

    def __init__(self, folder: Path, script: Path, broker_url: str) -> None:
        command = [sys.executable, str(script), "acme", "--ack-wait", "1"]
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        super().__init__(command, folder / "executor.log", {"TIMER_BROKER_URL": broker_url, "PATH": path})


def body(message_type: str, tenant: str, payload: Mapping[str, Any], **envelope: Any) -> bytes:
    """Return the body of a command."""
    return json.dumps({"type": message_type, "tenantId": tenant, "payload": payload, **envelope}).encode()
