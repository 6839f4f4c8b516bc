"""A connection of AMQP, with a channel for commands and queries, and channels for what is received."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import aiormq
from aiormq.exceptions import AMQPError, ChannelInvalidStateError
from yarl import URL

from timer_service.client.errors import NoAnswerError
from timer_service.secret_source import SecretSource

ERRORS = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError, RuntimeError)
"""What the driver raises if the server is away, or refuses something."""
ANSWER_SECONDS = 5
_HEARTBEAT_SECONDS = 10
_PORTS = {"amqp": 5672, "amqps": 5671}

Login = Callable[[], Mapping[str, Any]]
"""Returns `user` and `password`, and `tls`, an `ssl.SSLContext`."""

logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it logs each attempt to connect as an error


class Server:
    """The server at a URL, and the login at it, which is read at each connect."""

    def __init__(self, url: str, name: str, login: Login) -> None:
        """`name`: for the server. Raises the error of the first call of `login`, and ValueError for a wrong URL."""
        self._parts = urlsplit(url)
        self._port = self._parts.port or _PORTS[self._parts.scheme]
        self._name = name
        self._secrets = SecretSource(login, "the login at the broker")

    async def connect(self) -> aiormq.Connection:
        """Return a new connection. Raises one of `ERRORS`."""
        login, parts = await self._secrets.read(), self._parts
        url = URL.build(
            scheme=parts.scheme,
            user=login.get("user") or unquote(parts.username or "guest"),
            password=login.get("password") or unquote(parts.password or "guest"),
            host=parts.hostname or "localhost",
            port=self._port,
            path="/" + (unquote(parts.path[1:]) or "/").replace("/", "%2F"),
            query={"heartbeat": str(_HEARTBEAT_SECONDS), "name": self._name},
        )
        connection = aiormq.Connection(url, context=login.get("tls"))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.connect()
        except BaseException:
            await connection.close()
            raise
        return connection


async def new_channel(connection: aiormq.Connection | None, *, confirms: bool = False) -> aiormq.Channel:
    """Open a channel. Raises `NoAnswerError` without a connection, and one of `ERRORS`."""
    if connection is None:
        raise NoAnswerError("not connected to the broker")
    return cast(aiormq.Channel, await connection.channel(publisher_confirms=confirms, timeout=ANSWER_SECONDS))


async def close_channel(channel: aiormq.Channel) -> None:
    """Close a channel, unless the connection is lost."""
    with suppress(*ERRORS, asyncio.CancelledError):
        if not channel.is_closed:
            await channel.close()


def number(value: object) -> int:
    """Return a header that is a number; 0 if it is something else, or missing."""
    return value if isinstance(value, int) else 0


def reason_of(error: BaseException) -> str:
    """Return what an error says, for people."""
    if isinstance(error, TimeoutError):
        return "RabbitMQ does not answer"
    return str(error) or type(error).__name__


def on_closed(channel: aiormq.Channel, call: Callable[[], None]) -> None:
    """Call a function when a channel is closed, for example because the broker has refused something."""
    channel.closing.add_done_callback(partial(_ignore, call))


def _ignore(call: Callable[[], None], closing: "asyncio.Future[Any]") -> None:
    if not closing.cancelled():
        closing.exception()
    call()
