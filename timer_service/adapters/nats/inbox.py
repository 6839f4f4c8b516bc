"""The inbox of the pulls: where the server sends commands and the status of each pull."""

import asyncio
import logging

import nats.errors
from nats.aio.subscription import Subscription as Interest

from timer_service.adapters.nats.intake_client import IntakeClient, Receive
from timer_service.core.values.error_text import error_text

log = logging.getLogger(__name__)

_REPLACE_SECONDS = 2
_MOST_REQUESTS = 5_000


class PullInbox:
    """An inbox that can be replaced. Then the server forgets the pulls that name it, and delivers nothing for them."""

    def __init__(self, client: IntakeClient, receive: Receive) -> None:
        """`receive` gets each message."""
        self._client = client
        self._receive = receive
        self._name = client.new_inbox()
        self._requests = 0
        self._interest: Interest | None = None
        self._replacing = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self._interest is not None

    @property
    def must_be_replaced(self) -> bool:
        """Whether the server remembers many requests.

        Between accounts, it remembers where to send answers for 2 minutes, or until the inbox is closed.
        """
        return self._requests >= _MOST_REQUESTS

    async def open(self) -> None:
        """Subscribe."""
        self._interest = await self._client.subscribe_at_once(f"{self._name}.*", self._receive)

    def contains(self, subject: bytes) -> bool:
        """Return whether a message was sent to the inbox itself, as the status of a pull is."""
        return subject.startswith(self._name.encode())

    async def request(self, subject: str, body: bytes, *, pull: int, times: int) -> None:
        """Send the requests of a pull."""
        self._requests += times
        for _ in range(times):
            await self._client.publish(subject, body, reply=f"{self._name}.{pull}")

    async def replace(self) -> None:
        """Open another inbox, and close this one. Return when all messages were received that the server had sent.

        If the server does not answer, the last inbox may still be open there. The other inbox is open too.
        """
        async with self._replacing:
            old = self._interest
            self._name, self._requests = self._client.new_inbox(), 0
            try:
                await self.open()
                if old is not None:
                    async with asyncio.timeout(_REPLACE_SECONDS):
                        await self._client.drain_subscription(old)
            except (nats.errors.Error, OSError) as error:
                log.debug("the last inbox of the pulls may still be open", extra={"reason": error_text(error)})

    async def close(self) -> None:
        """Unsubscribe."""
        if self._interest is not None:
            await self._interest.unsubscribe()
