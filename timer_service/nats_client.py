"""The NATS client of the service and of users: only the program closes its connection."""

import asyncio

import nats.errors
from nats.aio.client import Client
from nats.protocol.parser import PERMISSIONS_ERR


class LastingClient(Client):
    """A client that survives errors of the server, and a flush that was given up."""

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
