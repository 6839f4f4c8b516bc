"""The NATS client of the service and of users: only the program closes its connection."""

import asyncio
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client, RawCredentials, Srv
from nats.aio.transport import TcpTransport
from nats.protocol.parser import PERMISSIONS_ERR

from timer_service.secret_source import SecretSource

Login = Mapping[str, Any]
"""The options of `nats.connect` that are a login, such as `user` and `password`, and `tls`."""
ReadLogin = Callable[[], Login]

LOGIN_REFUSED = "the broker refuses the login"
_REFUSED = re.compile("authorization|authentication|SSL.* alert ", re.IGNORECASE)
"""What the reasons of a server have that refuses a login. An alert of TLS says that it refuses a certificate."""
_OF_CONNECTIONS = (OSError, TimeoutError, nats.errors.Error)
_LOGIN_OPTIONS = {"user", "password", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str", "tls"}
_WEB_SOCKETS = ("ws", "wss")
_CONNECT = b"CONNECT "

UNREADABLE_ANSWER = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What the driver and its users raise if an answer of JetStream has another form. They do not check it."""


class LoginRefusedError(nats.errors.Error):
    """The server has refused the login, or the encryption could not begin. The message says which, and the reason."""


class LastingClient(Client):
    """A client that survives errors of the server, and a flush that was given up. It says why a login was refused."""

    def __init__(self, *, server_name: str | None = None) -> None:
        """Refuse servers with another name than `server_name`, before a login is sent; None: any server may answer."""
        super().__init__()
        self._server_name = server_name
        self._secrets = SecretSource[Login | None](lambda: None, "the login at the broker")

    async def connect(self, *servers: Any, login: ReadLogin | None = None, **options: Any) -> None:
        """Connect. `login` is called for each attempt, also after an outage, in a thread: it can read files again.

        The other arguments are those of the driver. Raises the error of the first call of `login`, and ValueError if it
        returns another option.
        """
        if login is not None:
            self._secrets = SecretSource(lambda: _check_login(login()), "the login at the broker")
        await super().connect(*servers, **options)

    async def _connect_to_server(self, s: Srv) -> None:
        """Connect to a server, over a `_LoginTransport` if the driver would use its own TCP connection."""
        with self._login_errors():
            self._use_login(await self._secrets.read())
        if not self._transport and s.uri.scheme not in _WEB_SOCKETS and not self.options["verbose"]:
            self._transport = _LoginTransport()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    def _use_login(self, login: Login | None) -> None:
        """Let the driver use a login for its next attempt; None: the one in its own options."""
        if login is not None:
            options: dict[str, Any] = self.options
            options.update({name: login.get(name) for name in ("user", "password", "token")})
            options.update({"tls": login["tls"]} if "tls" in login else {})
            self._user_credentials = login.get("user_credentials")
            self._nkeys_seed, self._nkeys_seed_str = login.get("nkeys_seed"), login.get("nkeys_seed_str")
            self._user_jwt_cb = self._signature_cb = self._public_nkey = None
            self._auth_configured = True
        if self._user_credentials or self._nkeys_seed or self._nkeys_seed_str:
            self._setup_nkeys_connect()  # otherwise the driver would always send the public key of the first seed

    def _setup_nkeys_jwt_connect(self) -> None:
        """Read a file with credentials once. The driver would search forever in one that is not written to its end."""
        file = self._user_credentials
        if isinstance(file, str | Path):
            text = Path(file).read_text("utf-8")
            if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
                raise nats.errors.InvalidUserCredentialsError
            self._user_credentials = RawCredentials(text)
        super()._setup_nkeys_jwt_connect()
        self._user_credentials = file

    async def _process_connect_init(self) -> None:
        """Log in, and record whether the server accepts the login."""
        with self._login_errors():
            await super()._process_connect_init()
        if self.is_connected:
            self._secrets.accepted()

    @contextmanager
    def _login_errors(self) -> Iterator[None]:
        """Raise `LoginRefusedError` if a login cannot be used or is refused.

        After an error that is not of a type of its own, the driver would not try to connect again.
        """
        try:
            yield
        except Exception as error:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # the driver would only forget it
            reason = _login_error(error)
            if isinstance(error, ConnectionError) and self._secrets.refusal:
                reason = self._secrets.refusal  # a server that refuses a certificate can also reset the connection
            if reason is None:
                raise
            raise LoginRefusedError(self._secrets.refused(reason)) from error

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002
        """Process what a server says about itself. The first time, refuse one that may not answer."""
        if initial_connection and self._server_name not in {None, info.get("server_name")}:
            raise nats.errors.Error("another nats-server listens there")
        await super()._process_info(info, initial_connection)

    def discard_unsent(self) -> None:
        """Forget what was not sent before the connection was lost. The driver would send it to the next server.

        An acknowledgement could settle another command there.
        """
        self._pending = []
        self._pending_data_size = 0

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002 - as in the driver
        """Close the connection. If it is lost meanwhile, the driver raises an error half-way, and is called again."""
        try:
            await super()._close(status, do_cbs)
        except OSError:
            # Otherwise the driver would write to the lost connection again, or do nothing, because it is "closed".
            self.discard_unsent()
            self._status = Client.DISCONNECTED
            await super()._close(status, do_cbs)

    async def _process_err(self, err_msg: str) -> None:
        """Connect again after an error of the server. The driver itself would close the connection for good."""
        if self.is_connecting or PERMISSIONS_ERR in err_msg:
            await super()._process_err(err_msg)
            return
        error = nats.errors.Error(f"nats: {err_msg.strip(chr(39))}")
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _process_pong(self) -> None:
        """Process the answer to a flush. If the flush was cancelled, nats-py 2.16 would stop reading now."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()


class _LoginTransport(TcpTransport):
    """A TCP connection that sends the driver's CONNECT together with the PING that follows it.

    nats-py 2.16 sends them one after the other. A server that refuses the login may end the connection in between.
    Then the PING meets a connection that was reset, and asyncio drops the reason, which has arrived but was not read.
    """

    _login = b""

    def __bool__(self) -> bool:
        return True  # the driver replaces a transport that is false, as others are until they are connected

    def write(self, payload: bytes) -> None:
        """Send data. Keep a CONNECT until the next data."""
        if payload.startswith(_CONNECT):
            self._login = payload
            return
        super().write(self._login + payload)  # type: ignore[no-untyped-call]
        self._login = b""

    async def wait_closed(self) -> None:
        """Wait until the connection is closed.

        A cancellation, as of a reconnect when the client is closed, does not reach the others that wait for it.
        """
        await asyncio.shield(super().wait_closed())  # type: ignore[no-untyped-call]

    async def connect_tls(self, *arguments: Any) -> None:
        """Begin TLS. If it fails, asyncio would never report the end of the connection, so nothing waits for it."""
        try:
            await super().connect_tls(*arguments)
        except BaseException:
            if self._io_writer is not None:
                self._io_writer.transport.abort()
            self._io_reader = self._io_writer = None
            raise


def _login_error(error: Exception) -> str | None:
    """Return why a login failed; None if the error is another one."""
    reason = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    if _REFUSED.search(reason):
        return f"{LOGIN_REFUSED}: {reason}"
    if isinstance(error, ssl.SSLError):
        return f"TLS with the broker has failed: {reason}"
    return None if isinstance(error, _OF_CONNECTIONS) else f"cannot log in at the broker: {reason}"


def _check_login(login: object) -> Login:
    """Return a login. Raises ValueError if it is something else."""
    if not isinstance(login, Mapping) or login.keys() - _LOGIN_OPTIONS:
        raise ValueError(f"login must return a dictionary with options among {', '.join(sorted(_LOGIN_OPTIONS))}")
    return login
