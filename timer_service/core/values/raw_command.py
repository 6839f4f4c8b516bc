"""A command as a broker stores it, before it is decoded. Its headers stay bytes until somebody reads them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from timer_service.core.values.address import IDENTIFIER_PATTERN, Address
from timer_service.core.values.message import Position

MESSAGE_ID = "Nats-Msg-Id"
"""The header with the id of the message. A broker that keeps the id elsewhere adds it."""
_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
_MOST_BYTES = 64 * 1024
"""How much of a block is kept."""
_END = b"\r\n"


def decode_text(raw: bytes) -> str:
    r"""Return text of a protocol. Bytes that are not UTF-8 become escapes such as `\xff`."""
    return raw.decode("utf-8", "backslashreplace")


class Headers:
    """The headers of a command. Lines that are no headers are skipped."""

    __slots__ = ("block",)

    def __init__(self, block: bytes) -> None:
        """`block`: a line that is skipped, and a line for each header. Only the first 64 KiB are kept."""
        self.block = block if len(block) <= _MOST_BYTES else block[:_MOST_BYTES]

    def get(self, name: str) -> str | None:
        """Return the last value of a header, or None. Case matters. The first line of the block is no header."""
        beginning = _beginning(name)
        found = self.block.rfind(beginning)
        if found < 0:
            return None
        start = found + len(beginning)
        end = self.block.find(_END, start)
        return decode_text(self.block[start : end if end >= 0 else None]).strip()

    def items(self) -> Iterator[tuple[str, str]]:
        """Return all headers in order. A name may occur several times."""
        for line in self.block.split(_END)[1:]:
            name, colon, value = line.partition(b":")
            if name and colon:
                yield decode_text(name), decode_text(value).strip()


@cache
def _beginning(name: str) -> bytes:
    """Return the bytes with which the line of a header begins, with the end of the line before it."""
    return b"\r\n%b:" % name.encode()


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
    place: str = ""
    """Where it is in the log: see `LogCursor.place`."""

    @property
    def held_bytes(self) -> int:
        """How many bytes of the command are here."""
        return self.size - self.left_bytes

    @property
    def message_id(self) -> str:
        """The command's id if its envelope has none: that of the broker, or the position if that is no identifier."""
        return self.sent_id or f"{self.position.epoch}-{self.position.sequence}"

    @property
    def sent_id(self) -> str | None:
        """The id that the sender gave the broker, if it is an identifier."""
        found = self.headers.get(MESSAGE_ID) or ""
        return found if _IDENTIFIER.fullmatch(found) else None
