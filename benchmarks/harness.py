"""The environment of a scenario: a broker, a store, instances of the service, and helpers for its client."""

import asyncio
import http.client
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.processes import BenchmarkError, Fleet, Process, nats_server, running
from benchmarks.stores import Store
from benchmarks.timers import Fired, fired, now
from timer_service.adapters.embedded import PROGRAMS, Launch, free_port
from timer_service.core.values.address import kebab
from timer_service.dev_server import BrokerKind, ask_name

ROOT = Path(__file__).parents[1]
SYNC_INTERVALS = {"always": "always", "default": "2m"}
COMMANDS = "TIMER_CMD"
EVENTS = "TIMER_EVT"

_SERVER = "benchmark"
_FSYNC = {"always": "always", "default": "everysec"}
_STORING = {
    BrokerKind.NATS: (4500, 1 / 9),
    BrokerKind.REDIS: (5000, 1 / 5),
    BrokerKind.RABBITMQ: (18_000, 1 / 2),
}
"""How long it takes to start everything, and then to store a timer, in ms."""
_WINDOW = 500
_READ_BATCH = 1000
_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 30


class TooLateError(BenchmarkError):
    """The timers were not stored before they were due. On this machine, they need a later instant."""


@dataclass(frozen=True)
class Rig:
    """The broker, the store and the instances of one scenario. Their files are under `folder`."""

    folder: Path
    sync: str
    store: Store
    instances: int = 1
    patience: float = 1
    """A factor for the time to store timers before they are due."""
    kind: BrokerKind = BrokerKind.NATS
    port: int = field(default_factory=lambda: free_port(0))
    """The port of the broker."""

    @asynccontextmanager
    async def server(self, sync: str | None = None) -> AsyncIterator[Process]:
        """Run the server of the broker. A second call starts it again with the same files."""
        command = [*self._launch.command]
        match self.kind:
            case BrokerKind.NATS:
                config = self.folder / "nats.conf"
                config.write_text(
                    f'listen: "127.0.0.1:{self.port}"\nserver_name: {_SERVER}\n'
                    f'jetstream {{ store_dir: "{self.folder}", sync_interval: {SYNC_INTERVALS[sync or self.sync]} }}\n'
                )
                command = [nats_server(), "-c", str(config)]
            case BrokerKind.REDIS:
                command += ["--appendfsync", _FSYNC[sync or self.sync]]
            case BrokerKind.RABBITMQ:
                pass  # its streams have no such setting
        name = PROGRAMS[self.kind].name
        async with running(name, command, self.folder, self._launch.environment or {}) as process:
            # A client of NATS would log each failed attempt to connect.
            await process.ready(lambda: ask_name(self.url) == _SERVER)
            yield process

    @asynccontextmanager
    async def broker(self, sync: str | None = None) -> AsyncIterator[Client]:
        """Run a nats-server and yield a client. A second call starts it again with the same files."""
        async with self.server(sync), self.nats_client() as client:
            yield client

    @asynccontextmanager
    async def nats_client(self) -> AsyncIterator[Client]:
        """Yield a client of the nats-server."""
        client = await nats.connect(self.url, allow_reconnect=False)
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def service(self, instances: int | None = None, *, ready: bool = True) -> AsyncIterator[Fleet]:
        """Run `instances` of the service, by default all, and yield when they are ready. Not `ready`: yield at once.

        Only addresses and paths differ from the default settings.
        """
        command = [sys.executable, "-m", "timer_service", "serve"]
        async with AsyncExitStack() as stack:
            processes = []
            for number in range(1, 1 + (instances or self.instances)):
                port = free_port(0)
                settings = {"TIMER_BROKER_URL": self.url, "TIMER_HTTP_PORT": str(port), **self.store.settings}
                process = running(f"timer-service-{number}", command, self.folder, settings)
                processes.append((await stack.enter_async_context(process), port))
            for instance, port in processes if ready else ():
                await instance.ready(partial(_is_ready, port))
            yield Fleet([instance for instance, _ in processes])

    @asynccontextmanager
    async def worker(self, *functions: str) -> AsyncIterator[Process]:
        """Run a worker of the tenant `bench` that executes functions of `workflow_functions`. It may not poll yet."""
        names = [f"benchmarks.workflow_functions:{each}" for each in functions]
        command = [sys.executable, "-m", "timer_service", "worker", "bench", *names]
        settings = {"TIMER_BROKER_URL": self.url, "PYTHONPATH": str(ROOT)}
        async with running("worker", command, self.folder, settings) as process:
            yield process

    def soon(self, size: int) -> int:
        """Return an instant that is late enough to store `size` timers before it. See `TooLateError`."""
        start_ms, ms_per_timer = _STORING[self.kind]
        return now() + round(self.patience * (start_ms + size * ms_per_timer))

    @property
    def url(self) -> str:
        """The URL of the broker."""
        return self._launch.url

    @cached_property
    def _launch(self) -> Launch:
        program = PROGRAMS[self.kind]
        return program.prepare(program.find(), self.folder, _SERVER, self.port)


def _is_ready(port: int) -> bool:
    """Return whether a service serves its pages, which it does when it has joined the broker.

    Not `/readyz`: a service is not ready while it handles the commands that were stored before its start.
    """
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False


class Command(Protocol):
    """A command that a client sends."""

    @property
    def subject(self) -> str: ...

    @property
    def id(self) -> str: ...

    def body(self) -> bytes: ...


class Message(NamedTuple):
    """A command whose body exists already."""

    subject: str
    id: str
    text: bytes

    def body(self) -> bytes:
        return self.text


def command(message_type: str, command_id: str, payload: Mapping[str, Any], tenant: str = "bench") -> Message:
    """Return a command of a tenant."""
    body = {"id": command_id, "type": message_type, "tenantId": tenant, "payload": payload}
    return Message(f"timer.cmd.v1.{tenant}.{kebab(message_type)}", command_id, json.dumps(body).encode())


class Publisher:
    """Publishes commands, a window of them in flight. `js.publish_async` would hang at the first refused command."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._window = asyncio.Semaphore(_WINDOW)
        self._refusal = ""

    async def open(self) -> None:
        """Subscribe to the acknowledgements."""
        await self._client.subscribe(self._inbox, cb=self._acknowledged)

    async def send(self, command: Command, headers: Mapping[str, str] | None = None) -> None:
        """Publish one command, with its id and more headers."""
        await self._window.acquire()
        headers = {"Nats-Msg-Id": command.id, **(headers or {})}
        await self._client.publish(command.subject, command.body(), reply=self._inbox, headers=headers)

    async def flush(self) -> None:
        """Wait until all commands are stored. Raises `BenchmarkError` if the broker refused one."""
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


async def publish(client: Client, commands: Iterable[Command]) -> Publisher:
    """Publish commands and wait until all are stored. Return the publisher, for more."""
    publisher = Publisher(client)
    await publisher.open()
    for each in commands:
        await publisher.send(each)
    await publisher.flush()
    return publisher


async def unhandled(rig: Rig, client: Client) -> int:
    """Return how many commands of the stream are not applied in a committed transaction."""
    return await unhandled_of(rig, (await ask(client, f"STREAM.INFO.{COMMANDS}"))["state"]["last_seq"])


async def unhandled_of(rig: Rig, stored: int) -> int:
    """Return how many of the stored commands are not applied in a committed transaction."""
    progress = await rig.store.progress()
    return int(stored - progress.sequence + progress.waiting)


class Beginning(NamedTuple):
    """What was seen when the service had committed its first commands."""

    handled: int
    """How many these are."""
    at: float
    """The time in seconds since the epoch."""
    cpu_seconds: float
    """What all instances had used until then, for example to start."""


async def until_begun(rig: Rig, service: Fleet) -> Beginning:
    """Wait until the service, which has only been started, has committed the first commands of the stream."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    before = await _handled(rig)
    while (handled := await _handled(rig)) == before:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the service has committed no command for {_PATIENCE_SECONDS} s")
        await asyncio.sleep(_POLL_SECONDS)
        service.check()
    return Beginning(handled - before, time.time(), service.cpu_seconds())


async def _handled(rig: Rig) -> int:
    sequence, waiting = await rig.store.progress()
    return sequence - waiting


async def stored_events(client: Client) -> int:
    """Return how many events are in their stream."""
    return int((await ask(client, f"STREAM.INFO.{EVENTS}"))["state"]["messages"])


async def until_none(service: Fleet, count: Callable[[], Awaitable[int]]) -> float:
    """Wait until `count` is 0 or has not changed for 30 seconds. Return the time in seconds since the epoch.

    The checks of the scenario report what is missing.
    """
    seen, since = await count(), time.monotonic()
    while seen and time.monotonic() - since < _PATIENCE_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        service.check()
        before, seen = seen, await count()
        if seen != before:
            since = time.monotonic()
    return time.time()


async def ask(client: Client, subject: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the reply of the JetStream API to a request."""
    body = json.dumps(details).encode() if details else b""
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{subject}", body, timeout=5)).data)
    if "error" in answer:
        raise BenchmarkError(f"{subject}: {answer['error']}")
    return answer


async def read_events(
    client: Client, stream: str = EVENTS, subject: str = "timer.evt.v1.>", expected: int | None = None
) -> list[Fired]:
    """Return every event of a stream, with the time at which the broker stored it. `expected`: how many there are."""
    expected = await stored_events(client) if expected is None else expected
    subscription = await client.jetstream().pull_subscribe(
        subject, stream=stream, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
    )
    events: list[Fired] = []
    while len(events) < expected:
        batch = await subscription.fetch(_READ_BATCH, timeout=10)
        events += [fired(message.data, message.metadata.timestamp.timestamp() * 1000) for message in batch]
    await subscription.unsubscribe()
    return events
