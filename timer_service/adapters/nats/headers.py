"""The headers of a message of NATS. The status of an answer is in their first line."""

from timer_service.core.values.headers import Headers

_VERSION = b"NATS/1.0"
_END = b"\r\n"


class RawHeaders(Headers):
    """Headers with the status of the first line as the headers `Status` and `Description`, as in the driver."""

    __slots__ = ()

    def __init__(self, block: bytes) -> None:
        """`block`: the version, which a status may follow, and a line for each header."""
        super().__init__(block)
        line = self.block[: self.block.find(_END)]
        code, _, description = line.removeprefix(_VERSION).strip().partition(b" ")
        if code.isdigit():
            self.block += b"\r\nStatus: " + code
            if description:
                self.block += b"\r\nDescription: " + description
