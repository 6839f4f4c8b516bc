"""Conversations with the real service over a real broker. Many tests share them, so each test has its own tenant."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.harness.backlog import Backlog
from tests.harness.broker_harness import Stored
from tests.harness.brokers import to_stored
from tests.harness.conversation import Conversation
from tests.harness.databases import Databases
from tests.harness.nats_client import read_stream
from tests.harness.processes import NatsServer, Service
from timer_service.core.values.address import Address, Kind

PATIENCE_SECONDS = 30
_WINDOW = 200


class Server(NamedTuple):
    """A running broker and service."""

    broker_url: str
    service: Service
    """One instance of the service."""


class Command(NamedTuple):
    """A sent command that is not yet published."""

    subject: str
    body: bytes
    headers: Mapping[str, str]


class Live(Conversation):
    """A `Conversation` with the real service, over the broker."""

    def __init__(self, connection: Client, backlog: Backlog) -> None:
        super().__init__(f"tenant-{token_hex(4)}")
        self._connection = connection
        self._js = connection.jetstream()
        self._backlog = backlog
        self._commands: list[Command] = []
        self._replies: dict[int, Any] = {}
        self._replied = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def connect(cls, server: Server) -> AsyncIterator[Self]:
        """Open a conversation."""
        async with await nats.connect(server.broker_url) as connection, server.service.backlog() as backlog:
            conversation = cls(connection, backlog)
            await connection.subscribe(f"{conversation._inbox}.*", cb=conversation._receive_reply)
            yield conversation

    async def consume(self) -> None:
        """Publish the sent commands and wait for every reply."""
        await self.publish()
        await self._until_replied(range(self.sent))

    async def publish(self) -> None:
        """Publish the sent commands without waiting for replies."""
        commands, self._commands = self._commands, []
        for start in range(0, len(commands), _WINDOW):
            await asyncio.gather(*(self._publish(each) for each in commands[start : start + _WINDOW]))

    def reply(self, number: int) -> Any:
        return self._replies[number]

    def outcomes(self) -> list[str]:
        return sorted(reply["outcome"] for reply in self._replies.values())

    async def stored(self, tenant: str | None = None) -> Sequence[Stored]:
        await self.until_quiet(tenant)
        return await self._read(Kind.EVENT, tenant or self.tenant)

    async def dead_letters(self) -> Sequence[Stored]:
        await self.until_quiet()
        return await self._read(Kind.DEAD_LETTER, self.tenant)

    async def ask(self, name: str, *, tenant: str | None = None, **question: Any) -> Any:
        subject = f"timer.qry.v1.{tenant or self.tenant}.{name}"
        reply = await self._connection.request(subject, json.dumps(question).encode(), timeout=PATIENCE_SECONDS)
        return json.loads(reply.data)

    async def until_quiet(self, tenant: str | None = None) -> None:
        """Wait until the service has no due work for a tenant. All its due events are then in the stream."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._backlog(tenant or self.tenant):
                await asyncio.sleep(0.002)

    def _post(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        id_header = {"Nats-Msg-Id": message_id} if message_id else {}
        subject = f"timer.cmd.v1.{address.tenant}.{address.message}"
        self._commands.append(Command(subject, body, {**headers, **id_header}))

    async def _publish(self, command: Command) -> None:
        subject, body, headers = command
        await self._js.publish(subject, body, headers=dict(headers), timeout=PATIENCE_SECONDS)

    async def _receive_reply(self, message: Msg) -> None:
        self._replies[_number(message.subject)] = json.loads(message.data)
        self._replied.set()

    async def _until_replied(self, numbers: Sequence[int]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(number not in self._replies for number in numbers):
                self._replied.clear()
                await self._replied.wait()

    async def _read(self, kind: Kind, tenant: str) -> list[Stored]:
        messages = await read_stream(self._js, f"TIMER_{kind.upper()}", f"timer.{kind}.v1.{tenant}.*")
        return [to_stored(kind, tenant, message) for message in messages]


def _number(inbox: str) -> int:
    return int(inbox.rpartition(".")[2])


@contextmanager
def shared_server(folder: Path, databases: Databases | None = None) -> Iterator[Server]:
    """Run a broker and the service for many tests. The store is PostgreSQL if `databases` is given, else SQLite."""
    # It has its own event loop, because every test has another one.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(_start(stack, folder, databases))
        finally:
            runner.run(stack.aclose())


async def _start(stack: AsyncExitStack, folder: Path, databases: Databases | None) -> Server:
    settings = {}
    if databases is not None:
        settings["TIMER_DATABASE_URL"] = await stack.enter_async_context(databases.database())
    broker = await stack.enter_async_context(NatsServer(folder / "nats"))
    return Server(broker.url, await stack.enter_async_context(Service(folder, broker.url, **settings)))
