"""What the operator asks JetStream for to set up streams, and the errors of that."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError

from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.streams import StreamInfo
from timer_service.core.values.errors import StartError
from timer_service.nats_client import UNREADABLE_ANSWER

SECONDS = 5


@contextmanager
def start_errors(what: str) -> Iterator[None]:
    """Raise `StartError` with the reason of the server if `what` cannot be set up."""
    try:
        yield
    except APIError as error:
        raise StartError(f"{what} cannot be set up: {error.description}") from error
    except UNREADABLE_ANSWER as error:
        reason = f"the server sent an answer that cannot be read ({type(error).__name__})"
        raise StartError(f"{what} cannot be set up: {reason}") from error
    except (nats.errors.Error, TimeoutError) as error:
        reason = "JetStream does not answer; this needs the login of the operator"
        raise StartError(f"{what} cannot be set up: {reason}") from error


async def find(client: Client, stream: str) -> StreamInfo | None:
    """Return the info of a stream, or None if it does not exist."""
    return await find_info(client, f"STREAM.INFO.{stream}")


async def find_info(client: Client, name: str) -> StreamInfo | None:
    """Return the answer to a request for the info of a stream or a consumer, or None if it does not exist."""
    try:
        return await request(client, name)
    except NotFoundError:
        return None


async def create(client: Client, config: Mapping[str, Any]) -> StreamInfo:
    """Create a stream."""
    return await request(client, f"STREAM.CREATE.{config['name']}", config, seconds=SECONDS)


async def create_consumer(client: Client, stream: str, config: Mapping[str, Any]) -> None:
    """Create a durable consumer of a stream."""
    name = f"CONSUMER.DURABLE.CREATE.{stream}.{config['durable_name']}"
    await request(client, name, {"stream_name": stream, "config": config}, seconds=SECONDS)
