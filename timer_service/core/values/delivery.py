"""A command as a broker delivers it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from timer_service.core.values.message import Address, Position


class Headers(Protocol):
    """The headers of a command. A dictionary is enough."""

    def get(self, name: str, /) -> str | None:
        """Return the last value of a header, or None."""
        ...

    def items(self) -> Iterable[tuple[str, str]]:
        """Return all headers in order. A name may occur several times."""
        ...


@dataclass(slots=True, eq=False)
class Delivery:
    """One command as the broker hands it over. Its subscription must settle it exactly once, or take it back."""

    address: Address
    source: str
    """Where the command came from, as the broker names it; goes into the dead letter."""
    message_id: str
    """The command's id if its envelope has none; an identifier as defined in contracts/README.md."""
    body: bytes
    headers: Headers
    position: Position
    attempt: int
    """1 on the first delivery."""
    handle: Any
    """Private to the subscription."""
    size: int
    """The bytes of subject, headers and body. Every limit in bytes counts them."""
    stored_at: int = 0
    """When the broker stored it, in nanoseconds of the broker's clock; 0 if not known."""
    newest_epoch: int = 0
    """The newest epoch of the stream that the subscription knew when it read the command."""
