"""Requests to the API of JetStream, as JSON. The driver's own types lack or shorten settings that the server has."""

import json
from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client
from nats.js.errors import APIError


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
