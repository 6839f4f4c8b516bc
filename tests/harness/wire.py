"""What a user does at a broker, by the contracts alone: commands with replies, queries, and what is stored."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from secrets import token_hex
from typing import Any, NamedTuple, Protocol

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.harness.nats_client import read_stream
from timer_service.core.values.address import Address, Kind

PATIENCE_SECONDS = 30
Receive = Callable[[int, bytes], None]
"""Gets the number and the body of a reply."""


class Stored(NamedTuple):
    """A message that was read from the broker."""

    address: Address
    id: str
    body: bytes
    headers: Mapping[str, str]
    """The headers of the publisher. The broker may add more."""
    stored_ms: float = 0
    """When the broker stored it; 0 if it does not say that."""


class Wire(Protocol):
    """The connection of a user."""

    inbox: str
    """A reply goes to this address with a dot and a number behind it."""

    async def publish(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        """Publish a command, which may have the header `Timer-Reply-To`. Return when it is stored."""
        ...

    async def ask(self, kind: Kind, name: str, tenant: str, body: bytes) -> bytes:
        """Send a query or a request, and return the reply."""
        ...

    async def stored(self, kind: Kind, tenant: str) -> Sequence[Stored]:
        """Return the events or the dead letters of a tenant, oldest first."""
        ...


Connect = Callable[[str, Receive], AbstractAsyncContextManager[Wire]]
"""Connects to the broker at a URL."""


def to_stored(kind: Kind, tenant: str, message: Msg) -> Stored:
    """Convert a message of a stream of NATS."""
    headers = message.headers or {}
    name, *topic = message.subject.split(".")[4:]
    at = message.metadata.timestamp.timestamp() * 1000
    return Stored(Address(kind, tenant, name, *topic), headers["Nats-Msg-Id"], message.data, headers, at)


class NatsWire:
    """The `Wire` of NATS."""

    def __init__(self, client: Client) -> None:
        self.inbox = f"_INBOX.{token_hex(8)}"
        self._client = client
        self._js = client.jetstream()

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str, receive: Receive) -> AsyncIterator["NatsWire"]:
        """Connect, and pass on the replies."""
        async with await nats.connect(url) as client:
            wire = cls(client)

            async def replied(message: Msg) -> None:
                receive(number_of(message.subject), message.data)

            await client.subscribe(f"{wire.inbox}.*", cb=replied)
            yield wire

    async def publish(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        id_header = {"Nats-Msg-Id": message_id} if message_id else {}
        subject = f"timer.cmd.v1.{address.tenant}.{address.message}"
        options: dict[str, Any] = {"headers": {**headers, **id_header}, "timeout": PATIENCE_SECONDS}
        await self._js.publish(subject, body, **options)

    async def ask(self, kind: Kind, name: str, tenant: str, body: bytes) -> bytes:
        return (await self._client.request(f"timer.{kind}.v1.{tenant}.{name}", body, timeout=PATIENCE_SECONDS)).data

    async def stored(self, kind: Kind, tenant: str) -> Sequence[Stored]:
        messages = await read_stream(self._js, f"TIMER_{kind.upper()}", f"timer.{kind}.v1.{tenant}.>")
        return [to_stored(kind, tenant, message) for message in messages]


def number_of(inbox: str) -> int:
    """Return the number behind the last dot of an address."""
    return int(inbox.rpartition(".")[2])
