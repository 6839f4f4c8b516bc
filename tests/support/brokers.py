"""The brokers that the port's suite runs on, each behind what a test must be able to do to it from the outside."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, Protocol

import pytest

from timer_service.adapters.memory import MemoryBroker
from timer_service.core.broker import Broker
from timer_service.core.message import Address, Message


class Stored(NamedTuple):
    """A message as a reader of the broker finds it."""

    address: Address
    id: str
    body: bytes
    headers: Mapping[str, str]
    """At least those it was published with."""


class Inbox(Protocol):
    """Where someone waits for an answer."""

    @property
    def address(self) -> str:
        """What to put into `Timer-Reply-To`."""
        ...

    async def next(self) -> bytes:
        """Wait for the next answer."""
        ...


class BrokerHarness(Protocol):
    """A broker as its users and its operator have it, beside the `Broker` the service holds."""

    @property
    def broker(self) -> Broker:
        """The broker as the service uses it."""
        ...

    async def send(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str) -> None:
        """Publish a command as a user."""
        ...

    async def events(self, tenant: str) -> Sequence[Stored]:
        """Read a tenant's stored events, oldest first."""
        ...

    async def dead_letters(self, tenant: str) -> Sequence[Stored]:
        """Read a tenant's dead letters, oldest first."""
        ...

    async def inbox(self) -> Inbox:
        """Begin to listen for answers."""
        ...

    async def let_deliveries_lapse(self) -> None:
        """Return once all that is unsettled, given back or forgotten is to be delivered again."""
        ...

    async def go_away(self) -> None:
        """Take the broker away; return once the service's side has noticed."""
        ...

    async def come_back(self) -> None:
        """Bring the broker back with all it had stored; return once the service's side can use it."""
        ...


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
    """`BrokerHarness` of the broker in this process."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self._inboxes = 0

    async def send(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str) -> None:
        self.broker.send(address, body, headers, message_id)

    async def events(self, tenant: str) -> Sequence[Stored]:
        return _of(tenant, self.broker.events)

    async def dead_letters(self, tenant: str) -> Sequence[Stored]:
        return _of(tenant, self.broker.dead_letters)

    async def inbox(self) -> Inbox:
        self._inboxes += 1
        return _MemoryInbox(self.broker, f"_INBOX.{self._inboxes}")

    async def let_deliveries_lapse(self) -> None:
        self.broker.redeliver()

    async def go_away(self) -> None:
        self.broker.trouble = "gone"

    async def come_back(self) -> None:
        self.broker.trouble = None


def _of(tenant: str, messages: Sequence[Message]) -> list[Stored]:
    return [Stored(*message) for message in messages if message.address.tenant == tenant]


@asynccontextmanager
async def _memory(_request: pytest.FixtureRequest) -> AsyncIterator[BrokerHarness]:
    yield MemoryHarness()


HARNESSES: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[BrokerHarness]]] = {
    "memory": _memory,
}
"""Name -> how to start an empty broker; one more entry puts one more broker through the whole suite."""
