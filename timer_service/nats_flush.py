"""The NATS client of the service and of users, which survives a flush that was given up."""

import asyncio

from nats.aio.client import Client


class FlushingClient(Client):
    """A client whose flush may be cancelled. nats-py 2.16 would stop reading when the answer comes."""

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()
