"""The `BrokerHarness` of a real RabbitMQ. The tests of a process share the server, and each one has its own prefix."""

import asyncio
import itertools
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from tests.harness.broker_harness import Inbox, to_reply
from tests.harness.rabbit_wire import REPLY_TO, RabbitWire
from tests.harness.rabbitmq import RabbitServer, remove_chunks
from tests.harness.waiting import until
from tests.harness.wire import Stored
from timer_service.adapters.rabbitmq import RabbitBroker
from timer_service.adapters.rabbitmq.server import Server
from timer_service.adapters.rabbitmq.stream import ERRORS, LAST, StreamConnection
from timer_service.core.ports.broker import QueryReply
from timer_service.core.ports.log import CommandLog
from timer_service.core.values.address import Address, Kind

_PREFIXES = (f"t{number}" for number in itertools.count())
_STREAM = {"x-queue-type": "stream"}


class _RabbitInbox:
    def __init__(self, address: str) -> None:
        self.address = address
        self.received: asyncio.Queue[bytes] = asyncio.Queue()

    async def next(self) -> bytes:
        return await asyncio.wait_for(self.received.get(), 5)


class RabbitHarness:
    """The `BrokerHarness` of a real RabbitMQ."""

    deduplicates = False

    def __init__(self, server: RabbitServer, prefix: str, folder: Path, stack: AsyncExitStack) -> None:
        self.server = server
        self.prefix = prefix
        self.wire: RabbitWire
        """The connection of a user, and another one for tests that open channels."""
        self.user: AbstractConnection
        self._folder = folder
        self._stack = stack

    async def open(self) -> None:
        self.broker = await self.connect()
        await self.open_user()

    async def connect(self, *, overlap: timedelta = timedelta(0), manage: bool = True, url: str = "") -> RabbitBroker:
        """Return the broker port of one more process of the service."""
        broker = await RabbitBroker.connect(url or self.server.url, self.prefix, manage_streams=manage, overlap=overlap)
        self._stack.push_async_callback(broker.close)
        return broker

    async def open_user(self) -> None:
        self.wire = await self._stack.enter_async_context(
            RabbitWire.connect(self.server.url, lambda _number, _body: None, self.prefix)
        )
        self.user = await aio_pika.connect(self.server.url)
        self._stack.push_async_callback(self.user.close)

    async def send(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str) -> None:
        await self.wire.publish(address, body, headers, message_id)
        # The broker tells the time of a message in milliseconds. Tests need another time for each.
        stored_by = time.time_ns() // 1_000_000
        await until(lambda: time.time_ns() // 1_000_000 > stored_by, pause=0.001)

    async def events(self, tenant: str) -> Sequence[Stored]:
        return await self.wire.stored(Kind.EVENT, tenant)

    async def dead_letters(self, tenant: str) -> Sequence[Stored]:
        return await self.wire.stored(Kind.DEAD_LETTER, tenant)

    async def inbox(self) -> Inbox:
        """Create an inbox. The broker chooses its address for a channel, when the channel sends a message."""
        channel = await self.user.channel()
        inbox = _RabbitInbox("")

        async def receive(message: AbstractIncomingMessage) -> None:
            inbox.received.put_nowait(message.body)

        await (await channel.get_queue(REPLY_TO, ensure=False)).consume(receive, no_ack=True)
        mirror = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"", reply_to=REPLY_TO), mirror.name)
        message = await mirror.get(no_ack=True)
        inbox.address = message.reply_to or ""
        return inbox

    async def request(self, kind: Kind, name: str, tenant: str, body: bytes) -> QueryReply:
        return to_reply(await self.wire.ask(kind, name, tenant, body))

    async def open_log(self, overlap: timedelta = timedelta(0)) -> CommandLog:
        return (await self.connect(overlap=overlap)).log

    async def recreate_log(self) -> None:
        await self.wire.channel.queue_delete(self._log)
        queue = await self.wire.channel.declare_queue(self._log, durable=True, arguments=dict(_STREAM))
        await queue.bind(f"{self.prefix}.cmd", "#")

    async def save_log(self) -> None:
        shutil.copytree(self.server.stream_folder(self._log), self._folder / "saved")

    async def restore_log(self) -> None:
        await self._replace_log(self._folder / "saved")

    async def remove_commands(self, number: int) -> None:
        changed = self._folder / "changed"
        shutil.copytree(self.server.stream_folder(self._log), changed)
        remove_chunks(changed, number)
        await self._replace_log(changed)

    async def stop(self) -> None:
        await self.server.terminate()
        await until(lambda: self.broker.health.reason is not None)

    async def start(self) -> None:
        await self.server.start()
        await until(lambda: self.broker.health.reason is None)
        await self.open_user()
        await self._until_readable()

    @property
    def _log(self) -> str:
        return f"{self.prefix}.cmd.log"

    async def _replace_log(self, folder: Path) -> None:
        await asyncio.to_thread(self.server.replace_stream, self._log, folder)
        await self._until_readable()

    async def _until_readable(self) -> None:
        """Wait until the broker has opened the stream of commands again."""

        async def is_readable() -> bool:
            try:
                connection = await StreamConnection.open(Server(self.server.url), self._log)
            except OSError:
                return False
            try:
                await connection.look(LAST)
            except ERRORS:
                return False
            else:
                return True
            finally:
                await connection.close()

        await until(is_readable, pause=0.05)


@asynccontextmanager
async def rabbit_harness(request: pytest.FixtureRequest) -> AsyncIterator[RabbitHarness]:
    """Yield an empty broker."""
    server: RabbitServer = request.getfixturevalue("rabbit_server")
    folder: Path = request.getfixturevalue("tmp_path")
    await server.ensure_started()
    async with AsyncExitStack() as stack:
        harness = RabbitHarness(server, next(_PREFIXES), folder, stack)
        await harness.open()
        yield harness
