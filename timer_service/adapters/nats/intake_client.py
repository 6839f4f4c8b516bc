"""The NATS client that receives commands: it hands them over when it reads them.

The driver would queue each message, and wake a task for it. Without that, receiving a command takes a tenth less.
"""

# ruff: noqa: SLF001 - the driver has no public way to receive messages at once

from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from timer_service.adapters.nats.driver import GuardedClient

Receive = Callable[[Msg], Awaitable[None]]


class IntakeClient(GuardedClient):
    """A client with some subscriptions whose messages are not queued."""

    def __init__(self) -> None:
        super().__init__()
        self._receivers: dict[int, Receive] = {}

    async def subscribe_at_once(self, subject: str, receive: Receive) -> Subscription:
        """Subscribe. `receive` gets each message while it is read, so it must be quick."""
        # No limits in the client: it would drop messages above them. The pulls limit the buffer already.
        interest = await self.subscribe(subject, cb=receive, pending_msgs_limit=0, pending_bytes_limit=0)
        self._receivers[interest._id] = receive
        return interest

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        receive = self._receivers.get(sid)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            await receive(self._build_message(sid, subject, reply, data, await self._process_headers(headers)))

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._receivers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)
