"""The subscription: hands out the commands of the durable consumer in batches, and settles them."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

from timer_service.adapters.nats.intake_client import IntakeClient
from timer_service.adapters.nats.membership import Membership
from timer_service.adapters.nats.settle import HANDLED, IN_PROGRESS, NEVER, RETURNED, returned_for, settle
from timer_service.adapters.nats.stay import Stay
from timer_service.core.ports.health import Health
from timer_service.core.values.delivery import Delivery

_LINGER_SECONDS = 0.002
"""How long to wait for commands that follow, so that they are committed together."""
_SETTLE_SECONDS = 5
"""How long a settlement waits for the subscription to join again. After that the commands are delivered again."""
# How long ago this process must have been seen to have the commands. A pull looks every second while nothing arrives,
# so that a command need not wait for a look before it is handed out.
_PULL_WITHIN = 0.5
_HAND_OUT_WITHIN = 2.5
_SETTLE_WITHIN = 0.25
_HOLD_SECONDS = 30
"""How long nothing is read ahead if commands were in flight at the start: perhaps a command ended the last process.

The broker counts only the deliveries of the consumer, so a command that is read ahead never becomes a suspect.
"""


class NatsSubscription:
    """A subscriber of the durable consumer `timer-service`.

    Its parts:

    ============  =================================================================================
    `membership`  joins the consumer, recognizes the stream, and notices a take-over
    `puller`      asks the server for commands and receives them; `pulls` has the table of states
    `stay`        the commands that have arrived and are not handed out, and the express lane
    `settle`      settles deliveries at the server
    ============  =================================================================================

    While the caller handles one batch, the next one arrives. One pull is outstanding whenever less than a batch is
    buffered. A pull brings at most the bytes of one batch, so less than two batches are buffered.

    Commands that the caller puts back are handed out before the buffer. Only small commands of other tenants overtake
    them, and those of the express lane. While they wait, the server gets a message every 5 s that they are in progress,
    so that it does not deliver them again.

    Nothing is handed out or settled after a reconnect before the stream is recognized. If it is another stream, or was
    rolled back, a new stay begins, and nothing of the last one is settled.

    If it is opened with `alone`, it looks from time to time, and before it settles, whether another process has taken
    over the commands. From then on it hands out nothing, and gives back the commands that it has not settled.
    """

    def __init__(self, client: IntakeClient, membership: Membership) -> None:
        self._client = client
        self._membership = membership
        self._puller = membership.puller
        self._closed = False
        self._gave_up_after = 0
        """After how many joins a settlement has given up waiting for the next one."""

    @property
    def _stay(self) -> Stay:
        return self._membership.stay

    @property
    def health(self) -> Health:
        """Down while no commands can be delivered."""
        return self._membership.health

    async def open(self, *, alone: bool) -> None:
        """Join the consumer and subscribe. `alone`: no other instance can hold commands."""
        if await self._membership.open(alone=alone):
            self._stay.lane.hold(_HOLD_SECONDS)

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        """Wait for commands. Return 1 to `limit` of them, or none if the subscription is closed."""
        others_may_wait = not self._closed and self._stay.observe_end()
        while not self._closed:
            await self._keep_pulling(limit)
            if await self._membership.confirm(_HAND_OUT_WITHIN):
                await self._renew()
                if self._stay.returned or others_may_wait:
                    await self._stay.lane.finish_round()  # the next command may take as long as the last one
                others_may_wait = False
                if ahead := self._stay.take_ahead(limit):
                    return ahead
                if self._stay.has_commands:
                    if batch := await self._take(limit):
                        await self._keep_pulling(limit)
                        self._membership.look_ahead()
                        return batch
                    continue  # all were handled ahead, and perhaps the pull has ended: the next one is due
            if not self._stay.has_commands or self._puller.is_lost:
                arrived = await self._wait()
                if not arrived and not self._puller.is_lost:
                    self._stay.lane.observe_silence()
        return []

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as handled."""
        self._stay.record_handled(deliveries)
        await self._settle(deliveries, HANDLED)

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Settle deliveries that were not handled: the server delivers them again after `delay`."""
        self._stay.retry(deliveries, delay)
        await self._settle(deliveries, returned_for(delay))

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as never to be handled."""
        self._stay.record_handled(deliveries)
        await self._settle(deliveries, NEVER)

    async def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Take back deliveries that were not handled yet. They come again before the buffer."""
        if self._closed:
            await self._settle(deliveries, RETURNED)
        else:
            self._stay.put_back(deliveries)

    async def close(self) -> None:
        """Wait for the pull to end, and return the commands that were not handed out to the server.

        Otherwise the broker could still send commands, and would deliver them again only after `ack_wait`.
        """
        self._closed = True
        self._puller.arrived.set()
        self._membership.stop()
        if not self._puller.is_open or self._client.is_closed:
            return
        while self._puller.may_receive() and self._client.is_connected:
            await self._wait()
        await self._puller.close()
        if not self._puller.is_lost or self._membership.is_taken_over:
            await self._settle(self._stay.returned.deliveries, RETURNED)
            await settle(self._client, self._stay.buffer.replies, RETURNED)
        if not self._membership.is_taken_over:
            await self._membership.end_redelivery(at_once=True)

    def stream_changed(self) -> None:
        """Join again: the database knows a newer part of the stream's history."""
        self._membership.lose("another instance has met another command stream")
        self._membership.rejoin_soon()

    def connection_lost(self) -> None:
        """Stop handing out and settling commands until the stream is recognized again."""
        self._membership.lose("connection lost")

    def connection_restored(self) -> None:
        """Join at once."""
        self._membership.rejoin_soon()

    async def _keep_pulling(self, limit: int) -> None:
        if self._closed or not self._client.is_connected:
            return
        if self._puller.is_lost:
            await self._membership.rejoin()
        await self._membership.end_redelivery()
        if self._puller.must_pull(limit):
            await self._puller.prepare()
            if await self._membership.confirm(_PULL_WITHIN):
                await self._puller.pull(limit)

    async def _wait(self) -> bool:
        """Wait until something arrives, but not for long. Return whether it did."""
        return await self._puller.wait(soon=self._stay.lane.awaits_retries)

    async def _take(self, limit: int) -> list[Delivery]:
        """Take a batch. Commands that were handled ahead are acknowledged and left out.

        If the server has more commands, wait for them. Otherwise do not wait: commands that come while this batch is
        handled are the next batch.
        """
        buffer = self._stay.buffer
        if buffer.waiting and not self._stay.returned and not buffer.fills_batch(limit):
            await asyncio.sleep(_LINGER_SECONDS)
        stay = self._stay
        batch, done = stay.take(limit)
        if self._membership.redelivery is not None:
            self._membership.redelivery.count([*batch, *done])
        if done:
            await self._settle(done, HANDLED)
        return batch if stay is self._stay else []

    async def _settle(self, deliveries: Sequence[Delivery], body: bytes) -> None:
        """Settle the deliveries of this stay. A delivery that was read ahead of the consumer needs no settlement.

        If another process has taken over the commands, give them back, so that it gets them soon.
        """
        handles = [delivery.handle for delivery in deliveries if delivery.handle is not None]
        if not handles:
            return
        if not await self._is_joined():
            if not self._membership.is_taken_over:
                return
            body = RETURNED
        number = self._stay.number
        await settle(self._client, [handle.reply for handle in handles if handle.stay == number], body)

    async def _renew(self) -> None:
        """Tell the server from time to time that the commands in this process are in progress."""
        if self._stay.returned.must_renew(soon=self._membership.redelivery is not None):
            await self._settle(self._stay.returned.deliveries, IN_PROGRESS)
            await settle(self._client, self._stay.buffer.replies, IN_PROGRESS)

    async def _is_joined(self) -> bool:
        """Return whether the stream is recognized. Wait for that for some seconds, but only once in an outage."""
        gave_up = self._gave_up_after == self._membership.joins
        give_up_at = time.monotonic() + (0 if gave_up else _SETTLE_SECONDS)
        while not (joined := await self._membership.confirm(_SETTLE_WITHIN)):
            if self._membership.is_taken_over or self._client.is_closed or time.monotonic() >= give_up_at:
                break
            await self._membership.rejoin()
            if self._puller.is_lost:
                await self._wait()
        self._gave_up_after = 0 if joined else self._membership.joins
        return joined
