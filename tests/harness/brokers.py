"""The brokers on which the tests of the port run. A `BrokerHarness` gives a test what users and operators can do."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.harness.broker_harness import BrokerHarness, Inbox
from tests.harness.clock import NOW
from tests.harness.jetstream import Snapshot, restore_snapshot, take_snapshot
from tests.harness.memory_broker import MemoryBroker
from tests.harness.memory_log import MemoryLog
from tests.harness.nats_client import ignore, round_trip
from tests.harness.processes import NatsServer
from tests.harness.rabbit_harness import rabbit_harness
from tests.harness.redis import redis_harness
from tests.harness.waiting import until
from tests.harness.wire import NatsWire, Stored
from timer_service.adapters.nats import NatsBroker
from timer_service.core.ports.broker import QueryReply
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.log import CommandLog
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.errors import Code
from timer_service.core.values.message import Message
from timer_service.core.values.raw_command import RawCommand


class _MemoryInbox:
    def __init__(self, broker: MemoryBroker, address: str) -> None:
        self.address = address
        self._broker = broker
        self._seen = 0

    async def next(self) -> bytes:
        mine = [reply.body for reply in self._broker.replies if reply.to == self.address]
        self._seen += 1
        return mine[self._seen - 1]


class MemoryHarness:
    """The `BrokerHarness` of the in-memory broker."""

    deduplicates = True

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self._inboxes = 0
        self._times = itertools.count(NOW * 1_000_000, 1_000_000)
        """When commands are stored: one each millisecond."""
        self._saved: tuple[list[RawCommand], int] = [], 0

    async def send(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str) -> None:
        self.broker.send(address, body, headers, message_id, stored_at=next(self._times))

    async def events(self, tenant: str) -> Sequence[Stored]:
        return _of(tenant, self.broker.events)

    async def dead_letters(self, tenant: str) -> Sequence[Stored]:
        return _of(tenant, self.broker.dead_letters)

    async def inbox(self) -> Inbox:
        self._inboxes += 1
        return _MemoryInbox(self.broker, f"_INBOX.{self._inboxes}")

    async def request(self, kind: Kind, name: str, tenant: str, body: bytes) -> QueryReply:
        del kind
        return await self.broker.request(name, tenant, body)

    async def open_log(self, overlap: timedelta = timedelta(0)) -> CommandLog:
        return MemoryLog(self.broker.stored, overlap // timedelta(microseconds=1) * 1000)

    async def recreate_log(self) -> None:
        self.broker.stored.recreate(self.broker.stored.epoch + 1)

    async def save_log(self) -> None:
        self._saved = list(self.broker.stored.commands), self.broker.stored.last_sequence

    async def restore_log(self) -> None:
        await self.recreate_log()
        commands, self.broker.stored.last_sequence = self._saved
        self.broker.stored.commands += commands

    async def remove_commands(self, number: int) -> None:
        self.broker.stored.remove(*(each.position for each in self.broker.stored.commands[:number]))

    async def stop(self) -> None:
        self.broker.health, self.broker.stored.away = Health.down("stopped"), "stopped"
        self.broker.stored.changed.set()

    async def start(self) -> None:
        self.broker.health, self.broker.stored.away = HEALTHY, None


def _of(tenant: str, messages: Sequence[Message]) -> list[Stored]:
    return [Stored(*message) for message in messages if message.address.tenant == tenant]


@asynccontextmanager
async def _memory(_request: pytest.FixtureRequest) -> AsyncIterator[BrokerHarness]:
    yield MemoryHarness()


class _NatsInbox:
    def __init__(self, subscription: Any) -> None:
        self.address = subscription.subject
        self._subscription = subscription

    async def next(self) -> bytes:
        body: bytes = (await self._subscription.next_msg(5)).data
        return body


class NatsHarness:
    """The `BrokerHarness` of a real nats-server."""

    deduplicates = True

    def __init__(self, server: NatsServer, broker: NatsBroker, user: Client, stack: AsyncExitStack) -> None:
        self.broker = broker
        self._server = server
        self._stack = stack
        self._saved: Snapshot
        self.user = user
        """The connection of a user, for features that only NATS has."""
        self._wire = NatsWire(user)
        self._js = user.jetstream()

    async def send(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str) -> None:
        await self._wire.publish(address, body, headers, message_id)

    async def events(self, tenant: str) -> Sequence[Stored]:
        return await self._wire.stored(Kind.EVENT, tenant)

    async def dead_letters(self, tenant: str) -> Sequence[Stored]:
        return await self._wire.stored(Kind.DEAD_LETTER, tenant)

    async def inbox(self) -> Inbox:
        inbox = _NatsInbox(await self.user.subscribe(self.user.new_inbox()))
        await round_trip(self.user)
        return inbox

    async def request(self, kind: Kind, name: str, tenant: str, body: bytes) -> QueryReply:
        answer = await self.user.request(f"timer.{kind}.v1.{tenant}.{name}", body, timeout=10)
        headers = answer.headers or {}
        code = headers.get("Nats-Service-Error-Code")
        return QueryReply(answer.data, Code(code) if code else None, headers.get("Nats-Service-Error", ""))

    async def open_log(self, overlap: timedelta = timedelta(0)) -> CommandLog:
        broker = await NatsBroker.connect(
            self._server.url, "timer", reply_prefix="_INBOX.", manage_streams=True, overlap=overlap
        )
        self._stack.push_async_callback(broker.close)
        return broker.log

    async def recreate_log(self) -> None:
        config = (await self._js.stream_info("TIMER_CMD")).config
        await self._js.delete_stream("TIMER_CMD")
        await self._js.add_stream(config)

    async def save_log(self) -> None:
        self._saved = await take_snapshot(self.user, "TIMER_CMD")

    async def restore_log(self) -> None:
        await self._js.delete_stream("TIMER_CMD")
        await restore_snapshot(self.user, self._saved)

    async def remove_commands(self, number: int) -> None:
        first = (await self._js.stream_info("TIMER_CMD")).state.first_seq
        await self._js.purge_stream("TIMER_CMD", seq=first + number)

    async def stop(self) -> None:
        await self._server.terminate()
        await until(lambda: self.broker.health.reason is not None)

    async def start(self) -> None:
        await self._server.start()
        await until(lambda: all(each.health.reason is None for each in self.broker.connections))
        await until(lambda: self.user.is_connected)
        for connection in self.broker.connections:  # it reports as connected before its subscriptions are restored
            await connection.flush()


@asynccontextmanager
async def _nats(request: pytest.FixtureRequest) -> AsyncIterator[BrokerHarness]:
    folder: Path = request.getfixturevalue("tmp_path")
    async with NatsServer(folder / "nats") as server:
        broker = await NatsBroker.connect(server.url, "timer", reply_prefix="_INBOX.", manage_streams=True)
        options: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1, "error_cb": ignore}
        async with await nats.connect(server.url, **options) as user, AsyncExitStack() as stack:
            yield NatsHarness(server, broker, user, stack)
        await broker.close()


HARNESSES: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[BrokerHarness]]] = {
    "memory": _memory,
    "nats": _nats,
    "redis": redis_harness,
    "rabbitmq": rabbit_harness,
}
"""The functions that start an empty broker, by name. Add an entry to run all tests of the port on another broker."""
