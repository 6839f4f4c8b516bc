"""A command as a broker stores it, before it is decoded."""

import re
from dataclasses import dataclass

from timer_service.core.values.headers import Headers
from timer_service.core.values.message import IDENTIFIER_PATTERN, Address, Position

MESSAGE_ID = "Nats-Msg-Id"
"""The header with the id of the message. A broker that keeps the id elsewhere adds it."""
_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)


@dataclass(slots=True, eq=False)
class RawCommand:
    """A command of the log, as it was published."""

    address: Address
    source: str
    """Where the command came from, as the broker names it; goes into the dead letter."""
    body: bytes
    headers: Headers
    position: Position
    size: int
    """The bytes of subject, headers and body. Every limit in bytes counts them."""
    stored_at: int = 0
    """When the broker stored it, in nanoseconds of the broker's clock; 0 if not known."""
    left_bytes: int = 0
    """The bytes of the body if it is empty here because it was left in the log. `CommandLog.body` returns it."""

    @property
    def held_bytes(self) -> int:
        """How many bytes of the command are here."""
        return self.size - self.left_bytes

    @property
    def message_id(self) -> str:
        """The command's id if its envelope has none; an identifier as defined in contracts/README.md."""
        found = self.headers.get(MESSAGE_ID) or ""
        return found if _IDENTIFIER.fullmatch(found) else f"{self.position.epoch}-{self.position.sequence}"
