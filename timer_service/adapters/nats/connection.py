"""A connection: its login, how it connects and reconnects, its health, its outages, and what the server has denied."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import RawCredentials

from timer_service.adapters.nats.driver import GuardedClient
from timer_service.core.ports.health import HEALTHY, Health, OutageLog, log_waiting
from timer_service.core.values.errors import StartError
from timer_service.nats_client import LOGIN_REFUSED, ReadLogin

log = logging.getLogger(__name__)

_OPEN_SECONDS = 10
_CLOSE_SECONDS = 2
_RECONNECT_SECONDS: Any = 0.2  # bounds how late timers fire after an outage; the driver types it as int
_PING_SECONDS = 20
_INBOX_PREFIX = "_INBOX_TIMER_SERVICE"
"""Not a prefix of client inboxes. So the service needs no permission to read those."""
_CONNECTION_ERRORS = (OSError, nats.errors.StaleConnectionError)


@dataclass(frozen=True, slots=True)
class Login:
    """At most one way to authenticate, and the files for TLS."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def options(self) -> dict[str, Any]:
        """Read the files, and return the options for `nats.connect`.

        Raises `StartError` with the name of a setting that cannot be used.
        """
        if self.nkey_seed is not None:
            _check_seed(self.nkey_seed, "TIMER_NATS_NKEY_SEED")
        options = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "nkeys_seed_str": self.nkey_seed,
            "user_credentials": self.credentials and _read_credentials(self.credentials),
            "tls": self._tls(),
        }
        return {name: value for name, value in options.items() if value is not None}

    def _tls(self) -> ssl.SSLContext | None:
        """Return the certificates for TLS; None if no file is set: the URL then decides about TLS."""
        if self.tls_ca is None and self.tls_cert is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
        except OSError as error:
            raise StartError(f"TIMER_BROKER_TLS_CA: cannot load the certificates: {error}") from error
        if self.tls_cert is not None:
            try:
                # Without a password OpenSSL asks for one on the terminal if the key is encrypted.
                context.load_cert_chain(self.tls_cert, self.tls_key, password="")
            except OSError as error:
                raise StartError(
                    f"TIMER_BROKER_TLS_CERT, TIMER_BROKER_TLS_KEY: cannot load the certificate and its key: {error}"
                ) from error
        return context


class Connection:
    """A connection that connects again for ever after it was lost."""

    def __init__(
        self,
        name: str,
        *,
        unsent_bytes: int,
        part: str = "the broker",
        harmless: str = "",
        new: Callable[[], GuardedClient] = GuardedClient,
    ) -> None:
        """`name`: for the server. A publish waits while `unsent_bytes` are not sent yet. `part`: for messages.

        `harmless`: a subject. If the server denies a permission for it, the health stays as it is.
        """
        self.client = new()
        self.outages = 0
        """How many times the connection was lost."""
        self.on_lost: list[Callable[[], None]] = []
        """Called in this order when the connection is lost, before anything is sent again."""
        self.closed = asyncio.Event()
        """Set when the connection is closed for good."""
        self.last_error = ""
        """What the server or the driver has reported last on this connection."""
        self._name = name
        self._unsent_bytes = unsent_bytes
        self._part = part
        self._harmless = harmless.lower()  # the driver reports errors of the server in lower case
        self._new = new
        self._denied: str | None = None
        self._closing = False
        self._outage = OutageLog(part=part, quiet_seconds=0)

    @property
    def health(self) -> Health:
        """Down without a connection. Otherwise usable, with a reason if the server denied a permission."""
        if not self.client.is_connected:
            return Health.down(f"not connected to {self._part}: {self.last_error or 'connection lost'}")
        if self._denied is not None:
            return Health(reason=f"{self._denied}; `timer-service doctor` names every missing permission")
        return HEALTHY

    @property
    def reading(self) -> bool:
        """Whether the connection is read, or is being restored."""
        return self.client.reading or not self.client.is_connected

    async def open(self, urls: str, login: ReadLogin) -> None:
        """Connect. `urls` is comma-separated. `login` returns the options of a `Login`, for each connect.

        Raises `StartError` at once if the login is refused, and after ten seconds without an answer.
        """
        with log_waiting(f"{self._part} (TIMER_BROKER_URL)", lambda: self.last_error):
            await self._connect([url.strip() for url in urls.split(",")], login)
        # Not earlier: with -1 the driver would retry the first connect forever, without an error.
        options: dict[str, Any] = self.client.options
        options["max_reconnect_attempts"] = -1
        self.closed.clear()  # a failed attempt sets it
        self.last_error = ""

    async def _connect(self, urls: Sequence[str], login: ReadLogin) -> None:
        """Connect for the first time. Raises `StartError` as `open`."""
        give_up_at = asyncio.get_running_loop().time() + _OPEN_SECONDS
        while True:
            self.client = self._new()  # each attempt needs another one
            try:
                # A server that accepts connections can answer slowly.
                async with asyncio.timeout_at(give_up_at):
                    await self.client.connect(
                        urls,
                        name=self._name,
                        inbox_prefix=_INBOX_PREFIX,
                        max_reconnect_attempts=1,
                        connect_timeout=2,
                        reconnect_time_wait=_RECONNECT_SECONDS,
                        ping_interval=_PING_SECONDS,
                        pending_size=self._unsent_bytes,
                        error_cb=self._on_error,
                        disconnected_cb=self._on_disconnected,
                        reconnected_cb=self._on_reconnected,
                        closed_cb=self._on_closed,
                        login=login,
                    )
            except (nats.errors.Error, OSError) as error:
                reason = self.last_error or str(error) or type(error).__name__
                if LOGIN_REFUSED in reason:
                    raise StartError(f"{reason} (TIMER_BROKER_..., TIMER_NATS_...)") from error
                if asyncio.get_running_loop().time() >= give_up_at:
                    raise StartError(f"cannot connect to the broker (TIMER_BROKER_URL): {reason}") from error
                await asyncio.sleep(_RECONNECT_SECONDS)
            else:
                return

    async def flush(self) -> None:
        """Wait until the server has taken what was sent before. Raises an error of the driver if it does not."""
        # The driver sends a flush before its buffered messages. When the second one returns, the server has these too.
        for _ in range(2):
            if self.client.is_connected:
                await self.client.flush(_CLOSE_SECONDS)

    async def close(self) -> None:
        """Send what is buffered, such as replies, and disconnect."""
        self._closing = True
        try:
            await self.flush()
        except nats.errors.Error:
            log.warning("could not flush the connection to %s", self._part, exc_info=True)
        await self.client.close()

    async def _on_error(self, error: Exception) -> None:
        """Record an error that the server or the driver reports."""
        reason = str(error) or type(error).__name__
        # A denied hint does not count: without hints timers only fire later, and `doctor` reports the permission.
        if "permissions violation" in reason.lower() and not (self._harmless and self._harmless in reason.lower()):
            self._denied = reason
        if reason == self.last_error:  # each attempt to reconnect reports the same error
            return
        self.last_error = reason
        # The outage is logged with its reason when the connection is lost.
        of_connection = not self.client.is_connected or isinstance(error, _CONNECTION_ERRORS)
        log.log(logging.DEBUG if of_connection else logging.WARNING, "broker error", extra={"reason": reason})

    async def _on_closed(self) -> None:
        self.closed.set()

    async def _on_disconnected(self) -> None:
        """End what waits for the server, and forget what was not sent."""
        self.outages += 1
        self._denied = None  # not in `_on_reconnected`: before that, the server may deny permissions again
        for notify in self.on_lost:
            notify()
        self.client.discard_unsent()
        if not self._closing:
            self._outage.record_failure(self.last_error or "connection lost")

    async def _on_reconnected(self) -> None:
        self.last_error = ""
        self._outage.record_success()


def _read_credentials(path: Path) -> RawCredentials:
    """Return the credentials in a file. Raises `StartError` if it has none: the driver would search forever."""
    name = "TIMER_NATS_CREDENTIALS"
    try:
        text = path.read_text("utf-8")
        lines = text.splitlines()
        if not any("BEGIN NATS USER JWT" in line for line in lines):
            raise StartError(f"{name}: holds no user JWT")
        (begin,) = (index for index, line in enumerate(lines) if "BEGIN USER NKEY SEED" in line)
        seed = lines[begin + 1]
    except OSError as error:
        raise StartError(f"{name}: cannot read the file: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise StartError(f"{name}: holds no nkey seed of a user") from error
    _check_seed(seed, name)
    return RawCredentials(text)


def _check_seed(seed: str, name: str) -> None:
    """Raise `StartError` if a seed cannot be used. `name`: the setting that has it."""
    try:
        import nkeys  # noqa: PLC0415 - optional
    except ImportError as error:
        raise StartError(f"{name} needs the package nkeys: pip install 'timer-service[nkeys]'") from error
    try:
        nkeys.from_seed(bytearray(seed.strip().encode())).wipe()
    except Exception as error:
        raise StartError(f"{name}: holds no valid nkey seed") from error
