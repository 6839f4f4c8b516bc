"""The subscription: pulls commands from the durable consumer, one batch ahead."""

import asyncio
import json
import logging
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Interest
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.buffer import Buffer
from timer_service.adapters.nats.durable import DURABLE, DurableConsumer
from timer_service.adapters.nats.express_lane import ExpressLane
from timer_service.adapters.nats.pulls import PULL_SECONDS, Phase, Pulls
from timer_service.adapters.nats.redelivery import Redelivery
from timer_service.adapters.nats.returned import Returned
from timer_service.adapters.nats.stored import ACKNOWLEDGEMENT, StoredMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.broker import Delivery, History
from timer_service.core.epochs import Epochs, Received
from timer_service.core.errors import ConflictError, DatabaseUnavailableError, StartError
from timer_service.core.health import HEALTHY, Health
from timer_service.core.message import Kind

log = logging.getLogger(__name__)

_LINGER_SECONDS = 0.002  # commands that arrive together are then committed together
_REJOIN_SECONDS = 0.5
_SETTLE_SECONDS = 5
"""How long a settlement waits for the subscription to join again. After that the commands are delivered again."""
_SETTLED_AT_ONCE = 1000
_OUTAGES = (nats.errors.Error, JetStreamError, OSError, DatabaseUnavailableError, ConflictError, ValueError, KeyError)
"""What joining may raise while the broker or the database cannot be used, or answers with nonsense."""


class _Handle(NamedTuple):
    """How to settle a delivery: the reply subject, and for which stay in the stream it is valid."""

    reply: str
    stay: int


class NatsSubscription:
    """A subscriber of the durable consumer `timer-service`. `pulls` has the table of its states.

    While the caller handles one batch, the next one arrives. One pull is outstanding whenever less than a batch is
    buffered. A pull brings at most the bytes of one batch, so less than two batches are buffered.

    Commands that the caller puts back are handed out before the buffer. Only the express lane hands out commands of
    other tenants before them. While they wait, the server is told every 5 s that they are in progress, so that it does
    not deliver them again.

    A stay is the time in one stream with one epoch. It begins when the subscription joins, and goes on after a
    reconnect to the same stream. Commands of an earlier stay are not handed out and not settled: their sequences may
    stand for other commands now. So nothing is settled after a reconnect before the stream is recognized.

    If it is opened with `alone`, each join shortens `ack_wait` of the consumer, so that commands come again soon that a
    dead instance or a lost connection has not settled. It is restored when all have come, after 5 s, or on `close`.
    """

    def __init__(
        self,
        client: Client,
        subjects: Subjects,
        consumer: DurableConsumer,
        history: History,
        *,
        messages: Collection[str],
        batch_bytes: int,
    ) -> None:
        """`messages`: the types of commands that may overtake a backlog. `batch_bytes`: the most bytes of a batch."""
        self._client = client
        self._subjects = subjects
        self._consumer = consumer
        self._history = history
        self._messages = messages
        self._batch_bytes = batch_bytes
        self._inbox = client.new_inbox()
        self._interest: Interest | None = None
        self._buffer = Buffer(batch_bytes)
        self._returned = Returned(batch_bytes)
        self._read_ahead = False
        """Whether the express lane handed out the last batch."""
        self._waiting = 0
        """How many commands the consumer had not delivered yet when it delivered the newest one."""
        self._arrived = asyncio.Event()
        self._pulls = Pulls()
        self._closed = False
        self._alone = False
        self._epochs: Epochs
        self._stay = 0
        self._lane: ExpressLane
        self._join_lock = asyncio.Lock()
        self._joined_at = 0.0
        self._why_lost = ""
        self._redelivery: Redelivery | None = None

    @property
    def health(self) -> Health:
        """Down while no commands can be delivered."""
        if self._pulls.phase is Phase.LOST:
            return Health.down(f"not subscribed to the commands: {self._why_lost or 'joining'}")
        if self._pulls.refusal is not None:
            return Health.down(f"the broker refuses to deliver commands: {self._pulls.refusal}")
        return HEALTHY

    async def open(self, *, alone: bool) -> None:
        """Join the consumer and subscribe. `alone`: no other instance can hold commands."""
        self._alone = alone
        await self._join()
        # No limits in the client: it would drop messages above them. The pulls limit the buffer already.
        self._interest = await self._client.subscribe(
            f"{self._inbox}.*", cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        """Wait for commands. Return 1 to `limit` of them, or none if the subscription is closed."""
        while not self._closed:
            await self._keep_pulling(limit)
            if self._pulls.phase is not Phase.LOST:
                await self._renew()
                if ahead := self._take_ahead(limit):
                    return ahead
                if (self._returned or self._buffer) and (batch := await self._take(limit)):
                    await self._keep_pulling(limit)
                    return batch
            if not (self._returned or self._buffer) or self._pulls.phase is Phase.LOST:
                await self._wait()
        return []

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as handled."""
        await self._settle_for_good(deliveries, b"+ACK")

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Settle deliveries that were not handled: the server delivers them again after `delay`."""
        self._lane.retry([delivery for delivery in deliveries if delivery.handle is None], delay)
        await self._settle(deliveries, b'-NAK {"delay": %d}' % (delay // timedelta(microseconds=1) * 1000))

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as never to be handled."""
        await self._settle_for_good(deliveries, b"+TERM")

    async def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Take back deliveries that were not handled yet. They come again before the buffer."""
        if not self._read_ahead:
            self._lane.observe_rest(len(deliveries))
        if self._closed:
            await self._settle(deliveries, b"-NAK")
        else:
            self._returned.put([delivery for delivery in deliveries if self._is_of_this_stay(delivery)])

    async def close(self) -> None:
        """Wait for the pull to end, and return the commands that were not handed out to the server.

        Otherwise the broker could still send commands, and would deliver them again only after `ack_wait`.
        """
        self._closed = True
        self._arrived.set()
        self._lane.close()
        if self._interest is None or self._client.is_closed:
            return
        while self._pulls.at(time.monotonic()).outstanding and self._client.is_connected:
            await self._wait()
        await self._interest.unsubscribe()
        if self._pulls.phase is not Phase.LOST:
            await self._settle(self._returned.take(len(self._returned)), b"-NAK")
            while messages := self._buffer.take(_SETTLED_AT_ONCE):
                await self._publish_each([message.reply for message in messages], b"-NAK")
        if self._redelivery is not None:
            await self._restore_ack_wait()

    def stream_changed(self) -> None:
        """Join again: the database knows a newer part of the stream's history."""
        self._lose("another instance has met another command stream")
        self._joined_at = 0.0

    def connection_lost(self) -> None:
        """Stop handing out and settling commands until the stream is recognized again."""
        self._lose("connection lost")

    def connection_restored(self) -> None:
        """Join at once."""
        self._joined_at = 0.0
        self._arrived.set()

    # Joining

    def _lose(self, reason: str) -> None:
        self._pulls = self._pulls.lost()
        self._why_lost = reason
        self._arrived.set()

    async def _join(self) -> None:
        """Join the consumer. Begin a new stay unless the stream and the epoch are the same."""
        newest = self._buffer.newest
        received = newest and Received(self._epochs.newest.epoch, newest)
        epochs = await self._consumer.join(self._history, received, alone=self._alone)
        if not self._stay or epochs.newest[:3] != self._epochs.newest[:3]:
            self._stay += 1
            if self._stay > 1:
                self._lane.close()
                log.warning("the command stream is another one now", extra={"epoch": epochs.newest.epoch})
            self._buffer, self._returned = Buffer(self._batch_bytes), Returned(self._batch_bytes)
            self._lane = ExpressLane(
                self._consumer,
                self._subjects,
                epochs,
                self._messages,
                self._arrived,
                batch_bytes=self._batch_bytes,
                returned=self._returned,
            )
            self._lane.start()
        self._epochs = epochs
        in_flight = await self._consumer.shorten_ack_wait() if self._alone else None
        self._redelivery = in_flight and Redelivery(in_flight)
        self._buffer.last_delivery = 0  # another leader may count from an earlier one
        self._pulls = self._pulls.joined()

    async def _rejoin(self) -> None:
        """Try to join again, at most twice a second."""
        async with self._join_lock:
            if self._pulls.phase is not Phase.LOST or not self._client.is_connected:
                return
            if time.monotonic() < self._joined_at + _REJOIN_SECONDS:
                return
            self._joined_at = time.monotonic()
            try:
                await self._join()
            except StartError as error:  # the consumer belongs to another database
                self._report(str(error))
            except NotFoundError:
                self._report(f"stream {self._subjects.stream(Kind.COMMAND)} is missing")
            except nats.errors.TimeoutError:
                self._report("JetStream does not answer")
            except _OUTAGES as error:
                self._report(repr(error))

    def _report(self, reason: str) -> None:
        if reason != self._why_lost:
            log.warning("cannot join the consumer of commands; trying again", extra={"reason": reason})
        self._lose(reason)

    # Pulling

    async def _keep_pulling(self, limit: int) -> None:
        if self._closed or not self._client.is_connected:
            return
        if self._pulls.phase is Phase.LOST:
            await self._rejoin()
        if self._redelivery is not None and self._redelivery.is_over():
            await self._restore_ack_wait()
        self._pulls = self._pulls.at(time.monotonic())
        if self._pulls.phase is Phase.IDLE and not self._buffer.fills_batch(limit):
            await self._pull(limit)

    async def _pull(self, limit: int) -> None:
        request = {"batch": limit, "expires": PULL_SECONDS * 1_000_000_000, "max_bytes": self._batch_bytes}
        if self._pulls.wants_one:
            request["batch"] = 1
            del request["max_bytes"]
        self._pulls = self._pulls.sent(request["batch"], time.monotonic())
        stream = self._subjects.stream(Kind.COMMAND)
        await self._client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{DURABLE}",
            json.dumps(request).encode(),
            reply=f"{self._inbox}.{self._pulls.number}",
        )

    async def _receive(self, message: Msg) -> None:
        """Take a message of the inbox. Only the server can send one with the subject of a command there."""
        if message.subject.startswith(self._inbox):
            self._receive_status(message)
        elif message.reply.startswith(ACKNOWLEDGEMENT):
            reader_is_awake = bool(self._buffer)
            await self._receive_command(message)
            if self._pulls.outstanding and reader_is_awake:
                return
        self._arrived.set()

    async def _receive_command(self, message: Msg) -> None:
        """Buffer a command. If the deliveries are counted again, another consumer delivers, perhaps another stream."""
        try:
            stored = StoredMessage.delivered(message)
        except ValueError:
            log.warning("ignored a message that the consumer did not deliver", extra={"subject": message.subject})
            return
        if stored.receipt.delivery <= self._buffer.last_delivery:
            self._lose("the consumer was created again")
        if self._pulls.phase is Phase.LOST:  # the command comes again, perhaps with another epoch
            await self._publish_each([message.reply], b"-NAK")
            return
        self._buffer.append(stored)
        self._pulls = self._pulls.command()

    def _receive_status(self, message: Msg) -> None:
        headers = message.headers
        code = headers and headers.get("Status")
        number = message.subject.rpartition(".")[2]
        if not headers or not code or not number.isdecimal():
            log.debug("ignored a message in the inbox of pulls", extra={"subject": message.subject})
            return
        before = self._pulls
        description = headers.get("Description") or ""
        self._pulls = before.status(int(number), code, description, time.monotonic())
        if self._pulls.phase is Phase.LOST and before.phase is not Phase.LOST:
            self._lose(f"{code} {description}".strip())
        if self._pulls.refusal is not None and self._pulls.refusal != before.refusal:
            log.warning("the broker refuses to deliver commands", extra={"reason": self._pulls.refusal})

    def _take_ahead(self, limit: int) -> list[Delivery]:
        """Take commands that were read ahead, but not twice in a row while others wait that were put back."""
        self._read_ahead = not (self._returned and (self._read_ahead or self._returned.is_full))
        ahead = self._lane.take(limit) if self._read_ahead else []
        self._read_ahead = bool(ahead)
        return ahead

    async def _take(self, limit: int) -> list[Delivery]:
        """Take a batch: first commands that were put back, then commands from the buffer.

        Commands that were handled ahead are acknowledged and left out.
        """
        if not self._returned and not self._buffer.fills_batch(limit):
            await asyncio.sleep(_LINGER_SECONDS)
        # From here to the end without an await: a rejoin may begin another stay.
        batch = self._returned.take(limit)
        again = {delivery.position.sequence: delivery for delivery in batch}
        done: list[Delivery] = []
        used = sum(delivery.size for delivery in batch)
        for stored in () if self._returned else self._buffer.take(limit - len(batch), used=used):
            self._waiting = stored.receipt.waiting
            sequence = stored.receipt.sequence
            delivery = stored.delivery(self._epochs, self._subjects, _Handle(stored.reply, self._stay))
            if sequence in again:  # it was read ahead, or the server delivered it again
                again[sequence].handle = delivery.handle
            else:
                (done if self._lane.forget_handled(sequence) else batch).append(delivery)
        self._lane.observe(batch, behind=self._waiting + len(self._buffer) + len(self._returned))
        if self._redelivery is not None:
            self._redelivery.count([*batch, *done])
        stay = self._stay
        if done:
            await self._settle(done, b"+ACK")
        return batch if stay == self._stay else []

    async def _wait(self) -> None:
        self._arrived.clear()
        wait_seconds = _REJOIN_SECONDS if self._pulls.phase in {Phase.LOST, Phase.PAUSED} else PULL_SECONDS
        try:
            async with asyncio.timeout(wait_seconds):
                await self._arrived.wait()
        except TimeoutError:
            return

    # Settling

    async def _settle_for_good(self, deliveries: Sequence[Delivery], reply_body: bytes) -> None:
        self._lane.record_handled([delivery for delivery in deliveries if delivery.handle is None])
        await self._settle(deliveries, reply_body)

    async def _settle(self, deliveries: Sequence[Delivery], reply_body: bytes) -> None:
        """Settle the deliveries of this stay. A delivery that was read ahead of the consumer needs no settlement."""
        handles = [delivery.handle for delivery in deliveries if delivery.handle is not None]
        if not handles or not await self._is_joined():
            return
        await self._publish_each([handle.reply for handle in handles if handle.stay == self._stay], reply_body)

    async def _renew(self) -> None:
        """Tell the server from time to time that the commands in this process are in progress."""
        if self._returned.must_renew(soon=self._redelivery is not None):
            await self._settle(self._returned.deliveries, b"+WPI")
            await self._publish_each(self._buffer.replies, b"+WPI")

    def _is_of_this_stay(self, delivery: Delivery) -> bool:
        if delivery.handle is None:  # it was read ahead
            return self._epochs.position(delivery.position.sequence) == delivery.position
        stay: int = delivery.handle.stay
        return stay == self._stay

    async def _is_joined(self) -> bool:
        """Return whether the stream is recognized. Wait for that for some seconds."""
        give_up_at = time.monotonic() + _SETTLE_SECONDS
        while self._pulls.phase is Phase.LOST and time.monotonic() < give_up_at and not self._client.is_closed:
            await self._rejoin()
            if self._pulls.phase is Phase.LOST:
                await self._wait()
        return self._pulls.phase is not Phase.LOST

    async def _publish_each(self, replies: Collection[str], body: bytes) -> None:
        try:
            for reply in replies:
                await self._client.publish(reply, body)
        except nats.errors.Error:
            # The server delivers them again. The handler recognizes commands that are already handled.
            log.warning("could not settle deliveries", exc_info=True, extra={"count": len(replies)})

    async def _restore_ack_wait(self) -> None:
        try:
            await self._consumer.restore_ack_wait()
        except (nats.errors.Error, JetStreamError, OSError) as error:
            log.warning("could not restore the ack_wait of the consumer", extra={"reason": repr(error)})
            return
        self._redelivery = None
