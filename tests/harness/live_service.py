"""Conversations with the real service over a real broker, which many tests share: each has a tenant of its own."""

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
from tests.harness.barrier import barrier
from tests.harness.brokers import Stored, stored
from tests.harness.conversation import Conversation
from tests.harness.databases import Databases
from tests.harness.processes import NatsServer, Service
from tests.harness.streams import read
from timer_service.core.codec import REPLY_TO
from timer_service.core.message import Address, Kind

PATIENCE_SECONDS = 30
_WINDOW = 200


class Server(NamedTuple):
    """Where the service runs."""

    broker_url: str
    service: Service
    """One of its instances."""


class Command(NamedTuple):
    """A command that was sent and not yet published."""

    subject: str
    body: bytes
    headers: Mapping[str, str]


class Live(Conversation):
    """`Conversation` as any user has it."""

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
    async def at(cls, place: Server) -> AsyncIterator[Self]:
        """Begin one."""
        async with await nats.connect(place.broker_url) as connection, place.service.backlog() as backlog:
            conversation = cls(connection, backlog)
            await connection.subscribe(f"{conversation._inbox}.*", cb=conversation._hear)
            yield conversation

    async def consume(self) -> None:
        """Publish what was sent and wait for each outcome."""
        await self.publish()
        await self._until_replied(range(self.sent))

    async def publish(self) -> None:
        """Publish what was sent."""
        commands, self._commands = self._commands, []
        for start in range(0, len(commands), _WINDOW):
            await asyncio.gather(*(self._publish(each) for each in commands[start : start + _WINDOW]))

    async def deliver_reversed(self) -> None:
        """Take the commands as another instance would, and give them back one by one."""
        commands, self._commands = self._commands, []
        for message in reversed(await self._taken(commands)):
            await message.nak()
            await self._until_replied([_number((message.headers or {})[REPLY_TO])])

    def reply(self, number: int) -> Any:
        return self._replies[number]

    def outcomes(self) -> list[str]:
        return sorted(reply["outcome"] for reply in self._replies.values())

    async def stored(self, tenant: str | None = None) -> Sequence[Stored]:
        await self.until_quiet(tenant)
        return await self._read(Kind.EVENT, tenant or self.tenant)

    async def dead_letters(self) -> Sequence[Stored]:
        return await self._read(Kind.DEAD_LETTER, self.tenant)

    async def ask(self, name: str, *, tenant: str | None = None, **question: Any) -> Any:
        subject = f"timer.qry.v1.{tenant or self.tenant}.{name}"
        answer = await self._connection.request(subject, json.dumps(question).encode(), timeout=PATIENCE_SECONDS)
        return json.loads(answer.data)

    async def until_quiet(self, tenant: str | None = None) -> None:
        """Wait until there is nothing left to do for a tenant: what it is to be told by now is in its stream."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._backlog(tenant or self.tenant):
                await asyncio.sleep(0.002)

    def _post(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        given = {"Nats-Msg-Id": message_id} if message_id else {}
        self._commands.append(Command(f"timer.cmd.v1.{address.tenant}.{address.message}", body, {**headers, **given}))

    async def _publish(self, command: Command) -> None:
        subject, body, headers = command
        await self._js.publish(subject, body, headers=dict(headers), timeout=PATIENCE_SECONDS)

    async def _hear(self, message: Msg) -> None:
        self._replies[_number(message.subject)] = json.loads(message.data)
        self._replied.set()

    async def _until_replied(self, numbers: Sequence[int]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(number not in self._replies for number in numbers):
                self._replied.clear()
                await self._replied.wait()

    async def _read(self, kind: Kind, tenant: str) -> list[Stored]:
        messages = await read(self._js, f"TIMER_{kind.upper()}", f"timer.{kind}.v1.{tenant}.*")
        return [stored(kind, tenant, message) for message in messages]

    async def _taken(self, commands: Sequence[Command]) -> list[Msg]:
        """Publish commands and pull them before the service does.

        Whoever pulls takes turns: once the service has had its turn, with a decoy, all others that wait come before it.
        """
        inbox = self._connection.new_inbox()
        pulled = await self._connection.subscribe(inbox)
        decoy = Command(f"timer.cmd.v1.{self.tenant}-decoy.none", b"{}", {REPLY_TO: inbox})
        ours, its_turn_is_over = 0, False
        while not its_turn_is_over:
            if ours < len(commands):
                await self._pull(inbox, 2 * len(commands))
                ours += 2 * len(commands)
            await self._publish(decoy)
            message = await pulled.next_msg(PATIENCE_SECONDS)
            if message.reply:
                await message.term()
                ours -= 1
            else:  # the service's, who knows no such command
                its_turn_is_over = ours >= len(commands)
        for command in commands:
            await self._publish(command)
        messages = [await pulled.next_msg(PATIENCE_SECONDS) for _ in commands]
        await pulled.unsubscribe()
        await barrier(self._connection)
        return messages

    async def _pull(self, inbox: str, count: int) -> None:
        """Pull so many commands, one by one; return once the server knows."""
        pull = json.dumps({"batch": 1, "expires": PATIENCE_SECONDS * 1_000_000_000}).encode()
        for _ in range(count):
            await self._connection.publish("$JS.API.CONSUMER.MSG.NEXT.TIMER_CMD.timer-service", pull, reply=inbox)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await self._js.consumer_info("TIMER_CMD", "timer-service")).num_waiting < count:
                await asyncio.sleep(0.002)


def _number(inbox: str) -> int:
    return int(inbox.rpartition(".")[2])


@contextmanager
def shared_server(folder: Path, databases: Databases | None = None) -> Iterator[Server]:
    """Run a broker and the service for many tests, on PostgreSQL if there are databases, else on SQLite."""
    # In a loop of its own, which is nobody else's current one.
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
