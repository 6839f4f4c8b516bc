"""Conversations with the real service over a real broker. Many tests share them, so each test has its own tenant."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Self

from tests.harness.backlog import Backlog
from tests.harness.conversation import Conversation
from tests.harness.databases import Databases
from tests.harness.processes import NatsServer, Service
from tests.harness.rabbit_wire import RabbitWire
from tests.harness.rabbitmq import RabbitServer
from tests.harness.redis import RedisServer, RedisWire
from tests.harness.wire import PATIENCE_SECONDS, Connect, NatsWire, Stored, Wire
from timer_service.core.values.address import Address, Kind

_WINDOW = 200


class RealBroker(NamedTuple):
    """A broker that tests start, and how a user connects to it."""

    start: Callable[[Path], AbstractAsyncContextManager[Any]]
    """Starts it with its files in a folder. The result has its `url`."""
    connect: Connect


BROKERS: Mapping[str, RealBroker] = {
    "nats": RealBroker(lambda folder: NatsServer(folder / "nats"), NatsWire.connect),
    "redis": RealBroker(lambda folder: RedisServer(folder / "redis"), RedisWire.connect),
    "rabbitmq": RealBroker(lambda folder: RabbitServer(folder / "rabbitmq"), RabbitWire.connect),
}
"""The real brokers, by name."""


class Server(NamedTuple):
    """A running broker and service."""

    broker: str
    """The name of the broker."""
    broker_url: str
    service: Service
    """One instance of the service."""


class Command(NamedTuple):
    """A sent command that is not yet published."""

    address: Address
    body: bytes
    headers: Mapping[str, str]
    message_id: str | None


class Live(Conversation):
    """A `Conversation` with the real service, over the broker."""

    def __init__(self, backlog: Backlog) -> None:
        super().__init__(f"tenant-{token_hex(4)}")
        self._wire: Wire
        self._backlog = backlog
        self._commands: list[Command] = []
        self._replies: dict[int, Any] = {}
        self._replied = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def connect(cls, server: Server) -> AsyncIterator[Self]:
        """Open a conversation."""
        async with server.service.backlog() as backlog:
            conversation = cls(backlog)
            async with BROKERS[server.broker].connect(server.broker_url, conversation._receive_reply) as wire:
                conversation._wire, conversation._inbox = wire, wire.inbox
                yield conversation

    async def consume(self) -> None:
        """Publish the sent commands and wait for every reply."""
        await self.publish()
        await self._until_replied(range(self.sent))

    async def publish(self) -> None:
        """Publish the sent commands without waiting for replies."""
        commands, self._commands = self._commands, []
        for start in range(0, len(commands), _WINDOW):
            await asyncio.gather(*(self._wire.publish(*each) for each in commands[start : start + _WINDOW]))

    def reply(self, number: int) -> Any:
        return self._replies[number]

    def outcomes(self) -> list[str]:
        return sorted(reply["outcome"] for reply in self._replies.values())

    async def stored(self, tenant: str | None = None) -> Sequence[Stored]:
        await self.until_quiet(tenant)
        return await self._wire.stored(Kind.EVENT, tenant or self.tenant)

    async def dead_letters(self) -> Sequence[Stored]:
        await self.until_quiet()
        return await self._wire.stored(Kind.DEAD_LETTER, self.tenant)

    async def ask(self, name: str, *, tenant: str | None = None, **question: Any) -> Any:
        return json.loads(await self._wire.ask(Kind.QUERY, name, tenant or self.tenant, json.dumps(question).encode()))

    async def until_quiet(self, tenant: str | None = None) -> None:
        """Wait until the service has no due work for a tenant. All its due events are then in the stream."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._backlog(tenant or self.tenant):
                await asyncio.sleep(0.002)

    def _post(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        self._commands.append(Command(address, body, headers, message_id))

    def _receive_reply(self, number: int, body: bytes) -> None:
        self._replies[number] = json.loads(body)
        self._replied.set()

    async def _until_replied(self, numbers: Sequence[int]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(number not in self._replies for number in numbers):
                self._replied.clear()
                await self._replied.wait()


@contextmanager
def shared_server(folder: Path, broker: str, databases: Databases | None = None) -> Iterator[Server]:
    """Run a broker and the service for many tests. The store is PostgreSQL if `databases` is given, else SQLite."""
    # It has its own event loop, because every test has another one.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(_start(stack, folder, broker, databases))
        finally:
            runner.run(stack.aclose())


async def _start(stack: AsyncExitStack, folder: Path, name: str, databases: Databases | None) -> Server:
    settings = {}
    if databases is not None:
        settings["TIMER_DATABASE_URL"] = await stack.enter_async_context(databases.database())
    broker = await stack.enter_async_context(BROKERS[name].start(folder))
    return Server(name, broker.url, await stack.enter_async_context(Service(folder, broker.url, **settings)))
