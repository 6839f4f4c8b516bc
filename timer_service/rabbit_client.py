"""The RabbitMQ client of the service and of users: the URL, and connections that read their login again."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import aiormq
from aiormq.exceptions import AMQPError, InvalidFrameError
from yarl import URL

from timer_service.core.values.broker_url import broker_of
from timer_service.secret_source import SecretSource

ERRORS = (AMQPError, OSError, RuntimeError)
"""What the driver raises if the server is away, or refuses something."""
ANSWER_SECONDS = 5
_HEARTBEAT_SECONDS = 10
_PORTS = {"amqp": 5672, "amqps": 5671}

ReadLogin = Callable[[], Mapping[str, Any]]
"""Returns `user` and `password`, and `tls`, an `ssl.SSLContext`."""

logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it logs each attempt to connect as an error


class Login(NamedTuple):
    """A user and its password, and how TLS is used; None: it is not."""

    user: str
    password: str
    tls: ssl.SSLContext | None


class Server:
    """The server of a URL such as `amqps://user:password@host:5671/vhost`, and the login at it."""

    def __init__(self, url: str, read_login: ReadLogin = dict) -> None:
        """`read_login` is called for each connect. What it leaves out is in the URL, or is `guest`.

        Raises the error of its first call, and ValueError for a URL that is none.
        """
        if broker_of(url) != "rabbitmq":
            raise ValueError("the URL must be like amqp://host:5672/vhost")
        parts = urlsplit(url)
        self.host = parts.hostname or "localhost"
        self.port = parts.port or _PORTS[parts.scheme]
        self.vhost = unquote(parts.path[1:]) or "/"
        tls = ssl.create_default_context() if parts.scheme == "amqps" else None
        self._default = Login(unquote(parts.username or "guest"), unquote(parts.password or "guest"), tls)
        self._secrets = SecretSource(read_login, "the login at the broker")

    async def login(self) -> Login:
        """Read the login."""
        found, (user, password, tls) = await self._secrets.read(), self._default
        return Login(found.get("user") or user, found.get("password") or password, tls and (found.get("tls") or tls))

    async def connect(self, name: str) -> aiormq.Connection:
        """Return a new connection. `name`: for the server. Raises one of `ERRORS`."""
        user, password, tls = await self.login()
        url = URL.build(
            scheme="amqp" if tls is None else "amqps",
            user=user,
            password=password,
            host=self.host,
            port=self.port,
            path="/" + self.vhost.replace("/", "%2F"),
            query={"heartbeat": str(_HEARTBEAT_SECONDS), "name": name},
        )
        connection = aiormq.Connection(url, context=tls)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.connect()
        except BaseException as error:
            await connection.close()
            if isinstance(error, InvalidFrameError):  # the driver hides the reason
                text = f"RabbitMQ does not open the virtual host {self.vhost}"
                raise ConnectionError(f"{text}: it does not exist, or this login may not use it") from error
            if isinstance(error.__cause__, ConnectionResetError) or "WRONG_VERSION" in str(error):
                raise ConnectionError(f"{error}: is {self.host}:{self.port} a port of {url.scheme}://?") from error
            raise
        return connection


def reason_of(error: BaseException) -> str:
    """Return what an error says, for people."""
    if isinstance(error, TimeoutError):
        return "RabbitMQ does not answer"
    return str(error) or type(error).__name__
