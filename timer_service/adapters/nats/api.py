"""Requests to the API of JetStream, as JSON, and headers. The driver's types lack or refuse what the server has."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from nats.aio.client import Client
from nats.errors import BadHeaderError
from nats.js.errors import APIError

from timer_service.core.values.raw_command import Headers

_VERSION = b"NATS/1.0"
_END = b"\r\n"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_is_name = lru_cache(maxsize=256)(_NAME.fullmatch)
_LINE_ENDS = str.maketrans("\r\n", "  ")


async def request(
    client: Client, name: str, body: Mapping[str, Any] | None = None, *, seconds: float = 2
) -> Mapping[str, Any]:
    """Return the answer to a request such as `STREAM.INFO.TIMER_CMD`. Raises `APIError` if it is an error."""
    data = b"" if body is None else json.dumps(body).encode()
    reply = await client.request(f"$JS.API.{name}", data, timeout=seconds)
    answer: Mapping[str, Any] = json.loads(reply.data)
    if "error" in answer:
        APIError.from_error(answer["error"])  # raises
    return answer


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


def write_headers(headers: Mapping[str, str]) -> bytes:
    """Return a block of headers, as the driver writes it. Raises `BadHeaderError` for a name that cannot be sent."""
    lines = ["NATS/1.0"]
    for name, value in headers.items():
        if not _is_name(name):
            raise BadHeaderError(name)
        text = value.strip()
        lines.append(f"{name}: {text if text.isprintable() else text.translate(_LINE_ENDS)}")
    return "\r\n".join([*lines, "\r\n"]).encode()
