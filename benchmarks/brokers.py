"""What a scenario does at the broker as a user, over NATS, Redis or RabbitMQ."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol

from nats.aio.client import Client
from nats.aio.msg import Msg
from rstream.exceptions import StreamNotAvailable

from benchmarks.harness import COMMANDS, EVENTS, Command, Publisher, Rig, ask, publish, read_events
from benchmarks.processes import Process
from benchmarks.sender import frame, send_frames
from benchmarks.timers import Fired, fired
from tests.harness.rabbit_wire import RabbitWire
from tests.harness.redis import RedisWire
from tests.harness.wire import Wire
from timer_service.adapters.rabbitmq.server import Server
from timer_service.adapters.rabbitmq.stream import FIRST, LAST, Chunk, StreamConnection
from timer_service.core.values.address import Address, Kind
from timer_service.dev_server import BrokerKind

_TENANT = "bench"
_PORTION = 500
_BLOCK_MS = 1000
_PATIENCE_SECONDS = 10
_PAUSE_SECONDS = 0.1


class Sender(Protocol):
    """Sends commands one by one."""

    async def send(self, command: Command, headers: Mapping[str, str] | None = None) -> None:
        """Send a command, and more headers. It may not be stored yet."""
        ...

    async def flush(self) -> None:
        """Wait until all commands are stored."""
        ...


class User(Protocol):
    """A user of the tenant `bench`, whose events are all there are."""

    async def load(self, commands: Sequence[Command]) -> None:
        """Store commands as fast as the broker takes them."""
        ...

    async def sender(self) -> Sender: ...

    async def listen(self, arrive: Callable[[bytes], None]) -> None:
        """Call `arrive` with the body of each event from now on."""
        ...

    async def commands(self) -> int:
        """Return how many commands are stored."""
        ...

    async def events(self) -> int:
        """Return how many events are stored."""
        ...

    async def read_events(self) -> Sequence[Fired]:
        """Return all events, with the times at which the broker stored them."""
        ...


class NatsUser:
    def __init__(self, client: Client, port: int) -> None:
        self._client = client
        self._port = port

    async def load(self, commands: Sequence[Command]) -> None:
        await send_frames(self._port, [frame(each.subject, {"Nats-Msg-Id": each.id}, each.body()) for each in commands])

    async def sender(self) -> Publisher:
        return await publish(self._client, ())

    async def listen(self, arrive: Callable[[bytes], None]) -> None:
        async def receive(message: Msg) -> None:
            arrive(message.data)

        await self._client.subscribe("timer.evt.v1.>", cb=receive)

    async def commands(self) -> int:
        return await self._count(COMMANDS)

    async def events(self) -> int:
        return await self._count(EVENTS)

    async def read_events(self) -> Sequence[Fired]:
        return await read_events(self._client)

    async def _count(self, stream: str) -> int:
        return int((await ask(self._client, f"STREAM.INFO.{stream}"))["state"]["messages"])


class WireSender:
    """Sends over the connection that tests have."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._sending: list[asyncio.Task[None]] = []

    async def send(self, command: Command, headers: Mapping[str, str] | None = None) -> None:
        sending = self._wire.publish(_address(command), command.body(), headers or {}, command.id)
        self._sending.append(asyncio.create_task(sending))

    async def flush(self) -> None:
        await asyncio.gather(*self._sending)
        self._sending.clear()


class RedisUser:
    def __init__(self, wire: RedisWire, tasks: asyncio.TaskGroup) -> None:
        self._wire = wire
        self._tasks = tasks
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def connect(cls, rig: Rig) -> AsyncIterator["RedisUser"]:
        async with RedisWire.connect(rig.url, _ignore_reply) as wire, asyncio.TaskGroup() as tasks:
            user = cls(wire, tasks)
            yield user
            if user._listening is not None:
                user._listening.cancel()

    async def load(self, commands: Sequence[Command]) -> None:
        for portion in _portions(commands):
            pipeline = self._wire.client.pipeline(transaction=False)
            for each in portion:
                _, tenant, name, _ = _address(each)
                pipeline.xadd("timer:cmd", {"tenant": tenant, "type": name, "body": each.body(), "id": each.id})
            await pipeline.execute()

    async def sender(self) -> WireSender:
        return WireSender(self._wire)

    async def listen(self, arrive: Callable[[bytes], None]) -> None:
        self._listening = self._tasks.create_task(self._listen(arrive))

    async def _listen(self, arrive: Callable[[bytes], None]) -> None:
        position: Any = 0
        while True:
            found = await self._wire.client.xread({f"timer:evt:{_TENANT}": position}, block=_BLOCK_MS)
            entries = found[0][1] if found else []
            for _, fields in entries:
                arrive(fields[b"body"])
            position = entries[-1][0] if entries else position

    async def commands(self) -> int:
        return int(await self._wire.client.xlen("timer:cmd"))

    async def events(self) -> int:
        return int(await self._wire.client.xlen(f"timer:evt:{_TENANT}"))

    async def read_events(self) -> Sequence[Fired]:
        return await _read_stored(self._wire)


class RabbitUser:
    def __init__(self, wire: RabbitWire, url: str) -> None:
        self._wire = wire
        self._url = url
        self._reading: StreamConnection | None = None
        self._events = 0

    @classmethod
    @asynccontextmanager
    async def connect(cls, rig: Rig) -> AsyncIterator["RabbitUser"]:
        async with RabbitWire.connect(rig.url, _ignore_reply) as wire:
            user = cls(wire, rig.url)
            yield user
            if user._reading is not None:
                await user._reading.close()

    async def load(self, commands: Sequence[Command]) -> None:
        sender = await self.sender()
        for portion in _portions(commands):
            for each in portion:
                await sender.send(each)
            await sender.flush()

    async def sender(self) -> WireSender:
        return WireSender(self._wire)

    async def listen(self, arrive: Callable[[bytes], None]) -> None:
        async def receive(message: Any) -> None:
            arrive(message.body)

        queue = await self._wire.channel.declare_queue(exclusive=True)
        await queue.bind("timer.evt", "#")
        await queue.consume(receive, no_ack=True)

    async def commands(self) -> int:
        connection = await StreamConnection.open(Server(self._url), "timer.cmd.log")
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while True:
                    with suppress(StreamNotAvailable):  # for a moment after the start of the broker
                        last = await connection.look(LAST)
                        return last.end if last else 0
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await connection.close()

    async def events(self) -> int:
        """Count by reading: the broker says how many there are only once in five seconds."""
        if self._reading is None:
            self._reading = await StreamConnection.open(Server(self._url), "timer.evt.log")
            await self._reading.follow(FIRST, 2, self._count)
        return self._events

    def _count(self, chunk: Chunk) -> None:
        self._events = chunk.end
        if self._reading is not None:
            self._reading.ask_more(1)

    async def read_events(self) -> Sequence[Fired]:
        return await _read_stored(self._wire)


@asynccontextmanager
async def _connect_nats(rig: Rig) -> AsyncIterator[NatsUser]:
    async with rig.nats_client() as client:
        yield NatsUser(client, rig.port)


_CONNECT: Mapping[BrokerKind, Callable[[Rig], AbstractAsyncContextManager[User]]] = {
    BrokerKind.NATS: _connect_nats,
    BrokerKind.REDIS: RedisUser.connect,
    BrokerKind.RABBITMQ: RabbitUser.connect,
}


@asynccontextmanager
async def broker_and_user(rig: Rig, sync: str | None = None) -> AsyncIterator[tuple[Process, User]]:
    """Run the broker and yield it with a user. A second call starts it again with the same files."""
    async with rig.server(sync) as server, _CONNECT[rig.kind](rig) as user:
        yield server, user


async def load(rig: Rig, commands: Iterable[Command]) -> None:
    """Store commands at the broker before the service starts.

    The broker does not sync, whatever `rig.sync` is. The measurement comes later, on a restarted broker.
    """
    ready = list(commands)
    async with broker_and_user(rig, "default") as (_, user):
        async with rig.service(1):
            pass  # the service creates the streams and the tables
        await user.load(ready)


def _portions(commands: Sequence[Command]) -> Iterable[Sequence[Command]]:
    return (commands[start : start + _PORTION] for start in range(0, len(commands), _PORTION))


def _address(command: Command) -> Address:
    *_, tenant, name = command.subject.split(".")
    return Address(Kind.COMMAND, tenant, name)


async def _read_stored(wire: Wire) -> Sequence[Fired]:
    return [fired(each.body, each.stored_ms) for each in await wire.stored(Kind.EVENT, _TENANT)]


def _ignore_reply(_: int, __: bytes) -> None:
    """No command asks for an outcome."""
