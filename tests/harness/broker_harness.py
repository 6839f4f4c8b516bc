"""What the tests of the port need of a broker: what users and operators can do with it."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from tests.harness.wire import Stored
from timer_service.core.ports.broker import Broker, QueryReply
from timer_service.core.ports.log import CommandLog
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.errors import Code


class Inbox(Protocol):
    """An inbox that receives replies."""

    @property
    def address(self) -> str:
        """The subject of the inbox, for `Timer-Reply-To`."""
        ...

    async def next(self) -> bytes:
        """Wait for the next reply."""
        ...


class BrokerHarness(Protocol):
    """A broker, with the operations of its users and its operator."""

    @property
    def broker(self) -> Broker:
        """The port that the service uses."""
        ...

    @property
    def deduplicates(self) -> bool:
        """Whether the broker drops a second event with the same id."""
        ...

    async def send(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str) -> None:
        """Publish a command as a user."""
        ...

    async def events(self, tenant: str) -> Sequence[Stored]:
        """Return the stored events of a tenant, oldest first."""
        ...

    async def dead_letters(self, tenant: str) -> Sequence[Stored]:
        """Return the dead letters of a tenant, oldest first."""
        ...

    async def inbox(self) -> Inbox:
        """Create an inbox and subscribe to it."""
        ...

    async def request(self, kind: Kind, name: str, tenant: str, body: bytes) -> QueryReply:
        """Send a query or a request and return the reply."""
        ...

    async def open_log(self, overlap: timedelta = timedelta(0)) -> CommandLog:
        """Return the log of commands as one more process of the service has it."""
        ...

    async def recreate_log(self) -> None:
        """Replace the log of commands by an empty one."""
        ...

    async def save_log(self) -> None:
        """Take a backup of the log of commands."""
        ...

    async def restore_log(self) -> None:
        """Replace the log of commands by its backup. For the broker it is another log with the same commands."""
        ...

    async def remove_commands(self, number: int) -> None:
        """Remove so many of the oldest commands, as if they had expired."""
        ...

    async def stop(self) -> None:
        """Stop the broker. Return when the service's connection has noticed."""
        ...

    async def start(self) -> None:
        """Start the broker again with its stored messages. Return when the service can use it."""
        ...


def to_reply(body: bytes) -> QueryReply:
    """Return a reply of a broker on which an error is in the body, and nowhere else."""
    if not body.startswith(b'{"error":'):
        return QueryReply(body)
    error = json.loads(body)["error"]
    return QueryReply(body, Code(error["code"]), error["message"])
