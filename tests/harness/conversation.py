"""What a tenant says to the service, is told by it and asks it, whatever lies between the two."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, ClassVar

from tests.harness.brokers import Stored
from tests.harness.builders import command, command_address
from timer_service.core.codec import REPLY_TO
from timer_service.core.message import Address, kebab


class Conversation(ABC):
    """Commands and their outcomes, events and queries: a scenario that needs no more is written once for every way."""

    fields: ClassVar[Mapping[str, Any]] = {}
    """What a payload has unless a test says otherwise."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.sent = 0
        """How many commands were sent."""
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
        """Send a command as a user, to be handled with the next `consume`; `from_` is the payload's `from`."""
        tenant = tenant or self.tenant
        fields = {"tenantId": tenant, **self.fields, **{name.rstrip("_"): value for name, value in payload.items()}}
        body = command(message_type, fields, tenant=tenant, envelope=envelope)
        address = command_address(tenant, kebab(message_type))
        self._post(address, body, {REPLY_TO: f"{self._inbox}.{self.sent}", **(headers or {})}, message_id)
        self.sent += 1

    async def request(self, message_type: str, **fields: Any) -> Any:
        """Send one command and have it handled; return what is replied."""
        self.send(message_type, **fields)
        await self.consume()
        return self.reply(self.sent - 1)

    @abstractmethod
    async def consume(self) -> None:
        """Have what was sent handled."""

    @abstractmethod
    async def deliver_reversed(self) -> None:
        """Have what was sent delivered one by one, the newest first, and handled so."""

    @abstractmethod
    def reply(self, number: int) -> Any:
        """Return what was replied to one of the commands sent, from 0 on."""

    @abstractmethod
    def outcomes(self) -> list[str]:
        """Return the outcomes that commands had, in order of their names, each as often as it was had."""

    @abstractmethod
    async def stored(self, tenant: str | None = None) -> Sequence[Stored]:
        """Return every event for a tenant, by now none being on its way."""

    @abstractmethod
    async def dead_letters(self) -> Sequence[Stored]:
        """Return the tenant's dead letters."""

    @abstractmethod
    async def ask(self, name: str, *, tenant: str | None = None, **question: Any) -> Any:
        """Ask a query; return its answer, or its error."""

    @abstractmethod
    def _post(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        """Put a command where it goes."""
