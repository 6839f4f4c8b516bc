"""The conversation of a tenant with the service, for tests that run on every broker and store."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, ClassVar

from tests.harness.builders import command, command_address
from tests.harness.wire import Stored
from timer_service.core.values.address import Address, kebab
from timer_service.core.values.codec import REPLY_TO


class Conversation(ABC):
    """The commands that a tenant sends, the replies and events that it receives, and its queries.

    The service is either a slice in this process (`InProcess`) or the real service (`Live`). A test that needs only
    these methods runs on both.
    """

    fields: ClassVar[Mapping[str, Any]] = {}
    """The default fields of every payload."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.sent = 0
        """The number of commands sent."""
        self._inbox = f"_INBOX.{token_hex(8)}"

    def send(
        self,
        message_type: str,
        *,
        tenant: str | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        envelope: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> None:
        """Send a command. The next `consume` handles it. The parameter `from_` sets the field `from`."""
        tenant = tenant or self.tenant
        fields = {"tenantId": tenant, **self.fields, **{name.rstrip("_"): value for name, value in payload.items()}}
        body = command(message_type, fields, tenant=tenant, envelope=envelope)
        address = command_address(tenant, kebab(message_type))
        self._post(address, body, {REPLY_TO: f"{self._inbox}.{self.sent}", **(headers or {})}, message_id)
        self.sent += 1

    async def request(self, message_type: str, **fields: Any) -> Any:
        """Send one command, wait until it is handled, and return the reply."""
        self.send(message_type, **fields)
        await self.consume()
        return self.reply(self.sent - 1)

    @abstractmethod
    async def consume(self) -> None:
        """Wait until all sent commands are handled."""

    @abstractmethod
    def reply(self, number: int) -> Any:
        """Return the reply to a command. The first command has number 0."""

    @abstractmethod
    def outcomes(self) -> list[str]:
        """Return the outcome of every command, sorted by name."""

    @abstractmethod
    async def stored(self, tenant: str | None = None) -> Sequence[Stored]:
        """Wait until no event is waiting to be published, then return all events of a tenant."""

    @abstractmethod
    async def dead_letters(self) -> Sequence[Stored]:
        """Return the dead letters of the tenant."""

    @abstractmethod
    async def ask(self, name: str, *, tenant: str | None = None, **question: Any) -> Any:
        """Send a query and return the reply, or the error."""

    @abstractmethod
    def _post(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        """Send an encoded command."""
