"""The Redis client of the service and of users: the keys, and connections that read their login again."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from timer_service.core.values.address import Kind
from timer_service.core.values.broker_url import broker_of
from timer_service.secret_source import SecretSource

CONNECT_SECONDS = 2
ANSWER_SECONDS = 5
"""How long a call waits for an answer of the server. A blocking call must end earlier."""
ERRORS = (RedisError, OSError)
"""What a call raises if the server is away, or refuses it."""
_LAST_MS = 253_402_300_799_000
_REFUSED = ("WRONGPASS", "NOAUTH", "invalid username-password", "AUTH")

RedisClient = Any
"""`redis.asyncio.Redis`. Its types say that each answer may be of each protocol, and awaited or not."""
_OF_PIPELINE = re.compile(r"^Command # \d+ .* of pipeline caused error: (?:\('?)?(.*?)(?:'?,?\))?$", re.DOTALL)
Login = Mapping[str, Any]
"""A login: `user`, if it is not the default one, and `password`."""
ReadLogin = Callable[[], Login]


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys and channels with one prefix. A dot in the prefix stays."""

    prefix: str

    def stream(self, kind: Kind, tenant: str = "") -> str:
        """Return the stream of a kind, such as `timer:cmd`, or the one of a tenant, such as `timer:evt:acme`."""
        return f"{self.prefix}:{kind}:{tenant}" if tenant else f"{self.prefix}:{kind}"

    @property
    def log(self) -> str:
        """The hash with the identity of the log of commands, and of the database that reads it."""
        return f"{self.prefix}:log"

    @property
    def tenants(self) -> str:
        """The set of the tenants that publish to streams of their own."""
        return f"{self.prefix}:tenants"

    @property
    def hints(self) -> str:
        """The channel of the hints of the service."""
        return f"{self.prefix}:wake"

    @property
    def replies(self) -> str:
        """How the channels of replies begin."""
        return f"{self.prefix}:reply:"


class _Credentials(CredentialProvider):
    """Reads the login again at each connect."""

    def __init__(self, secrets: SecretSource[Login]) -> None:
        self._secrets = secrets

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        login = await self._secrets.read()
        password = login.get("password") or ""
        return (login["user"], password) if login.get("user") else (password,)


def new_client(
    url: str,
    name: str,
    *,
    login: ReadLogin = dict,
    on_connect: Callable[[], None] = lambda: None,
    **tls: Any,
) -> RedisClient:
    """Return a client that is not connected yet. It does not repeat a call that has failed.

    `login`: read at each connect, if it gives a password; otherwise the one in the URL counts. `on_connect` is called
    for each connection. `tls`: options such as `ssl_ca_certs`, for rediss://. Raises the error of the first call of
    `login`, and ValueError for a URL that is none.
    """
    if broker_of(url) != "redis":
        raise ValueError("the URL must be like redis://host:6379 or redis://host:6379/0, without options")
    parts = urlsplit(url)
    scheme = parts.scheme.replace("valkey", "redis")
    options: dict[str, Any] = dict(tls) if scheme == "rediss" else {}
    if login().get("password"):
        options["credential_provider"] = _Credentials(SecretSource(login, "the login at the broker"))
    return Redis.from_url(
        urlunsplit(parts._replace(scheme=scheme)),
        client_name=name,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        redis_connect_func=_connector(on_connect),
        **options,
    )


def _connector(on_connect: Callable[[], None]) -> Callable[[AbstractConnection], Awaitable[None]]:
    """Return what the driver calls when a connection was made."""

    async def connected(connection: AbstractConnection) -> None:
        await connection.on_connect()
        on_connect()

    return connected


def instant_of(milliseconds: int) -> datetime:
    """Return the instant in an id of an entry. A user can choose ids, so it can be later than any date."""
    return datetime.fromtimestamp(min(milliseconds, _LAST_MS) / 1000, UTC)


def is_refused(error: BaseException) -> bool:
    """Return whether an error says that the server refuses the login."""
    refuses = isinstance(error, ResponseError) and str(error).startswith(_REFUSED)
    return refuses or isinstance(error, AuthenticationError)


def reason_of(error: BaseException) -> str:
    """Return what an error says, for an operator."""
    text = str(error)
    if "[SSL" in text:  # behind what the driver says
        return f"TLS with the Redis server has failed: {text[text.index('[SSL') :]}"
    if isinstance(error, asyncio.TimeoutError):
        return "the Redis server does not answer"
    if text.startswith("Timeout connecting"):  # a port without TLS does not answer a handshake
        return f"no connection within {CONNECT_SECONDS} s; with rediss://, the port must be one of TLS"
    # The driver puts the whole call in front, which may be long, and is another one each time.
    return _OF_PIPELINE.sub(r"\1", text).removesuffix(".") or type(error).__name__
