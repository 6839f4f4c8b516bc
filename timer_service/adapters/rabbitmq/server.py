"""Where a server is, and the login at it."""

import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from timer_service.core.values.errors import StartError
from timer_service.secret_source import SecretSource

_PORTS = {"amqp": (5672, 5552), "amqps": (5671, 5551)}


class Login(NamedTuple):
    """A user and its password, and how TLS is used; None: it is not."""

    user: str
    password: str
    tls: ssl.SSLContext | None


class Server:
    """The server of a URL such as `amqps://user:password@host:5671/vhost?stream_port=5551`."""

    def __init__(self, url: str, read_login: Callable[[], Mapping[str, Any]] = dict) -> None:
        """See `RabbitBroker.connect`. Without a user, the login is that of the URL, or `guest`. Raises `StartError`."""
        parts = urlsplit(url)
        try:
            port, stream_port = _PORTS[parts.scheme]
            self.port = parts.port or port
            self.stream_port = int(parse_qs(parts.query).get("stream_port", [stream_port])[0])
        except (KeyError, ValueError):
            raise StartError("TIMER_BROKER_URL must be like amqp://host:5672/vhost?stream_port=5552") from None
        self.host = parts.hostname or "localhost"
        self.vhost = unquote(parts.path[1:]) or "/"
        tls = ssl.create_default_context() if parts.scheme == "amqps" else None
        self._default = Login(unquote(parts.username or "guest"), unquote(parts.password or "guest"), tls)
        self._secrets = SecretSource(read_login, "the login at the broker")

    async def login(self) -> Login:
        """Read the login, for each connect."""
        found = await self._secrets.read()
        user, password, tls = self._default
        if found.get("user"):
            user, password = found["user"], found["password"]
        return Login(user, password, tls and found.get("tls", tls))
