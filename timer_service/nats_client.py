"""The NATS client of the service and of users: only the program closes its connection."""

import asyncio
from typing import Any

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.transport import TcpTransport
from nats.protocol.parser import PERMISSIONS_ERR

_WEB_SOCKETS = ("ws", "wss")
_CONNECT = b"CONNECT "

UNREADABLE_ANSWER = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What the driver and its users raise if an answer of JetStream has another form. They do not check it."""


class LastingClient(Client):
    """A client that survives errors of the server, and a flush that was given up. It says why a login was refused."""

    def __init__(self, *, server_name: str | None = None) -> None:
        """Refuse servers with another name than `server_name`, before a login is sent; None: any server may answer."""
        super().__init__()
        self._server_name = server_name

    async def _connect_to_server(self, s: Srv) -> None:
        """Connect to a server, over a `_LoginTransport` if the driver would use its own TCP connection."""
        if not self._transport and s.uri.scheme not in _WEB_SOCKETS and not self.options["verbose"]:
            self._transport = _LoginTransport()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002
        """Process what a server says about itself. The first time, refuse one that may not answer."""
        if initial_connection and self._server_name not in {None, info.get("server_name")}:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # the driver would only forget it
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
