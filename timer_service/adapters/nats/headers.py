"""The headers of a message as NATS transmits them. They stay bytes until somebody reads them.

Anybody may publish a command with 10,000 headers. As a dictionary they would take 20 times the memory of their bytes,
and as much time as hundreds of commands.
"""

from collections.abc import Iterator
from functools import cache

_MOST_BYTES = 64 * 1024
"""How much of a header block is kept. JetStream stores no more; other messages may have more."""
_VERSION = b"NATS/1.0"
_END = b"\r\n"
_WITHOUT_STATUS = _VERSION + _END


def decode_text(raw: bytes) -> str:
    r"""Return text of the protocol. Bytes that are not UTF-8 become escapes such as `\xff`."""
    return raw.decode("utf-8", "backslashreplace")


class RawHeaders:
    """`core.broker.Headers` on a header block. Lines that are no headers are skipped.

    A status in the first line becomes the headers `Status` and `Description`, as in the driver.
    """

    __slots__ = ("_block",)

    def __init__(self, block: bytes) -> None:
        """`block`: the version, and a line for each header. Only the first 64 KiB are kept."""
        self._block = block[:_MOST_BYTES]
        if block.startswith(_WITHOUT_STATUS):  # this is called for each command
            return
        line = block[: block.find(_END)]
        code, _, description = line.removeprefix(_VERSION).strip().partition(b" ")
        if code.isdigit():
            self._block += b"\r\nStatus: " + code
            if description:
                self._block += b"\r\nDescription: " + description

    @property
    def size(self) -> int:
        """The bytes that they take in memory, which are the bytes on the wire."""
        return len(self._block)

    def get(self, name: str) -> str | None:
        """Return the last value of a header, or None."""
        beginning = _beginning(name)
        found = self._block.rfind(beginning)
        if found < 0:
            return None
        start = found + len(beginning)
        end = self._block.find(_END, start)
        return decode_text(self._block[start : end if end >= 0 else None]).strip()

    def items(self) -> Iterator[tuple[str, str]]:
        """Return all headers in order. A name may occur several times."""
        for line in self._block.split(_END)[1:]:
            name, colon, value = line.partition(b":")
            if name and colon:
                yield decode_text(name), decode_text(value).strip()


@cache
def _beginning(name: str) -> bytes:
    """Return the bytes with which the line of a header begins, with the end of the line before it."""
    return b"\r\n%b:" % name.encode()
