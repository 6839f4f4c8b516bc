"""The subscription: pulls commands from the durable consumer, one batch ahead."""

import asyncio
import json
import logging
import time
from collections.abc import Collection, Sequence
from datetime import timedelta

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.driver import GuardedClient
from timer_service.adapters.nats.durable import DURABLE, DurableConsumer
from timer_service.adapters.nats.holding import TakenOverError
from timer_service.adapters.nats.inbox import PullInbox
from timer_service.adapters.nats.lost_answers import LostAnswers
from timer_service.adapters.nats.pulls import PULL_SECONDS, Phase, Pulls
from timer_service.adapters.nats.recovery import Recovery
from timer_service.adapters.nats.redelivery import Redelivery
from timer_service.adapters.nats.stay import Stay
from timer_service.adapters.nats.stored import ACKNOWLEDGEMENT, StoredMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.broker import Delivery, History
from timer_service.core.epochs import Epochs
from timer_service.core.error_text import error_text
from timer_service.core.errors import ConflictError, DatabaseUnavailableError, StartError
from timer_service.core.health import HEALTHY, Health
from timer_service.core.message import Kind

log = logging.getLogger(__name__)

_LINGER_SECONDS = 0.002  # commands that arrive together are then committed together
_REJOIN_SECONDS = 0.5
_SHORT_WAIT_SECONDS = 0.3
_SETTLE_SECONDS = 5
"""How long a settlement waits for the subscription to join again. After that the commands are delivered again."""
_SETTLED_AT_ONCE = 1000
# How long ago this process must have been seen to have the commands. A pull looks every second while nothing arrives,
# so that a command need not wait for a look before it is handed out.
_PULL_WITHIN = 0.5
_HAND_OUT_WITHIN = 2.5
_SETTLE_WITHIN = 0.25
_LOOK_AHEAD_AFTER = 0.1
"""How old a look may be when a batch is handed out: it must still be new enough when the batch is settled."""
_BUSY_SECONDS = 5
"""For how long a look may stay without an answer: a broker under load answers late."""
_HOLD_SECONDS = 30
"""How long nothing is read ahead if commands were in flight at the start: perhaps a command ended the last process.

The broker counts only the deliveries of the consumer, so a command that is read ahead never becomes a suspect.
"""
_NAK_LATER = b'-NAK {"delay": 2000000000}'  # longer than a pull, which would bring the command again at once
_OUTAGES = (nats.errors.Error, JetStreamError, OSError, DatabaseUnavailableError, ConflictError, ValueError, KeyError)
"""What joining may raise while the broker or the database cannot be used, or answers with nonsense."""


class NatsSubscription:
    """A subscriber of the durable consumer `timer-service`. `pulls` has the table of its states.

    While the caller handles one batch, the next one arrives. One pull is outstanding whenever less than a batch is
    buffered. A pull brings at most the bytes of one batch, so less than two batches are buffered.

    Commands that the caller puts back are handed out before the buffer. Only the express lane hands out commands of
    other tenants before them. While they wait, the server is told every 5 s that they are in progress, so that it does
    not deliver them again.

    After an empty command, commands may be lost on their way from the server. They are found and come again, see
    `lost_answers`.

    Nothing is handed out or settled after a reconnect before the stream is recognized. If it is another stream, or was
    rolled back, a new stay begins.

    If it is opened with `alone`, each join shortens `ack_wait` of the consumer, so that commands come again soon that a
    dead instance or a lost connection has not settled. It is restored when all have come, after 5 s, or on `close`.
    It also looks from time to time, and before it settles, whether another process has taken over the commands. From
    then on it hands out nothing, and gives back what it has not settled.
    """

    def __init__(
        self,
        client: GuardedClient,
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
        self._inbox = PullInbox(client, self._receive)
        self._arrived = asyncio.Event()
        self._pulls = Pulls()
        self._closed = False
        self._alone = False
        self._stay: Stay
        self._join_lock = asyncio.Lock()
        self._joined_at = 0.0
        self._why_lost = ""
        self._redelivery: Redelivery | None = None
        self._look_ahead: asyncio.Task[bool] | None = None
        self._recovery = Recovery(
            client,
            consumer,
            self._inbox,
            give_back=lambda replies: self._publish_each(replies, b"-NAK"),
            is_joined=lambda: self._pulls.phase is not Phase.LOST,
            on_found=self._end_cut,
        )
        self._gave_up_settling = False

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
        await self._join(None)
        if (await self._consumer.info())["num_ack_pending"]:
            self._stay.lane.hold(_HOLD_SECONDS)
        await self._inbox.open()

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        """Wait for commands. Return 1 to `limit` of them, or none if the subscription is closed."""
        while not self._closed:
            await self._keep_pulling(limit)
            if self._pulls.phase is not Phase.LOST and await self._has_commands(_HAND_OUT_WITHIN):
                if self._stay.returned:
                    await self._renew()
                    await self._stay.lane.finish_round()  # the next command that was put back may take long
                if ahead := self._stay.take_ahead(limit):
                    return ahead
                if self._stay.has_commands and (batch := await self._take(limit)):
                    await self._keep_pulling(limit)
                    self._start_to_look_ahead()
                    return batch
            if not self._stay.has_commands or self._pulls.phase is Phase.LOST:
                arrived = await self._wait()
                if not arrived and self._pulls.phase is not Phase.LOST:
                    self._stay.lane.observe_silence()
        return []

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as handled."""
        await self._settle_for_good(deliveries, b"+ACK")

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Settle deliveries that were not handled: the server delivers them again after `delay`."""
        self._stay.retry(deliveries, delay)
        await self._settle(deliveries, b'-NAK {"delay": %d}' % (delay // timedelta(microseconds=1) * 1000))

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as never to be handled."""
        await self._settle_for_good(deliveries, b"+TERM")

    async def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Take back deliveries that were not handled yet. They come again before the buffer."""
        if self._closed:
            await self._settle(deliveries, b"-NAK")
        else:
            self._stay.put_back(deliveries)

    async def close(self) -> None:
        """Wait for the pull to end, and return the commands that were not handed out to the server.

        Otherwise the broker could still send commands, and would deliver them again only after `ack_wait`.
        """
        self._closed = True
        self._arrived.set()
        self._stay.lane.close()
        if self._look_ahead is not None:
            self._look_ahead.cancel()
        if not self._inbox.is_open or self._client.is_closed:
            return
        while self._may_receive() and self._client.is_connected:
            await self._wait()
        self._recovery.cancel()
        await self._inbox.close()
        if self._pulls.phase is not Phase.LOST or self._is_taken_over:
            while returned := self._stay.returned.take(_SETTLED_AT_ONCE):
                await self._settle(returned, b"-NAK")
            while messages := self._stay.buffer.take(_SETTLED_AT_ONCE):
                await self._publish_each([message.reply for message in messages], b"-NAK")
        if self._redelivery is not None and not self._is_taken_over:
            await self._restore_ack_wait()

    def _may_receive(self) -> bool:
        self._pulls = self._pulls.at(time.monotonic())
        return self._pulls.phase in {Phase.PULLING, Phase.CUT}

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

    async def _join(self, before: Stay | None) -> None:
        """Join the consumer. Begin a new stay unless the stream and the epoch are the same as before."""
        epochs = await self._consumer.join(self._history, before.newest if before else None, alone=self._alone)
        if before is None:
            self._begin_stay(1, epochs)
        elif epochs.newest[:3] != before.epochs.newest[:3]:
            before.lane.close()
            log.warning("the command stream is another one now", extra={"epoch": epochs.newest.epoch})
            await self._inbox.replace()  # commands of the last stream that are on their way must not get the new epoch
            self._begin_stay(before.number + 1, epochs)
        in_flight = await self._consumer.shorten_ack_wait() if self._alone else None
        self._redelivery = in_flight and Redelivery(in_flight)
        self._stay.buffer.last_delivery = 0  # another leader may count from an earlier one
        self._pulls = self._pulls.joined()
        self._gave_up_settling = False

    def _begin_stay(self, number: int, epochs: Epochs) -> None:
        self._recovery.forget()
        self._stay = Stay(
            number,
            epochs,
            self._consumer,
            self._subjects,
            messages=self._messages,
            batch_bytes=self._batch_bytes,
            ready=self._arrived,
        )
        self._stay.lane.start()

    @property
    def _is_taken_over(self) -> bool:
        return self._consumer.holding.taken_over.is_set()

    async def _has_commands(self, within: float) -> bool:
        """Return whether the commands are still those of this process, as seen in the last `within` seconds."""
        try:
            if await self._consumer.confirm(within):
                return self._pulls.phase is not Phase.LOST
            self._lose("the metadata of the consumer was changed")
        except TakenOverError as error:
            self._report(str(error))
        except NotFoundError:
            self._lose("the consumer is gone")
        except nats.errors.TimeoutError:
            if self._consumer.holding.is_confirmed(_BUSY_SECONDS):
                return self._pulls.phase is not Phase.LOST
            self._lose("JetStream does not answer")
        except _OUTAGES as error:
            self._lose(error_text(error))
        return False

    def _start_to_look_ahead(self) -> None:
        """Look while the caller handles a batch, so that to settle the batch need not wait for a look."""
        looks = self._look_ahead is not None and not self._look_ahead.done()
        if not looks and not self._consumer.holding.is_confirmed(_LOOK_AHEAD_AFTER):
            self._look_ahead = asyncio.create_task(self._has_commands(_LOOK_AHEAD_AFTER), name="look-ahead")

    async def _rejoin(self) -> None:
        """Try to join again, at most twice a second."""
        async with self._join_lock:
            if self._pulls.phase is not Phase.LOST or not self._client.is_connected or self._is_taken_over:
                return
            if time.monotonic() < self._joined_at + _REJOIN_SECONDS:
                return
            self._joined_at = time.monotonic()
            try:
                await self._join(self._stay)
            except StartError as error:  # the consumer belongs to another database
                self._report(str(error))
            except NotFoundError:
                self._report(f"stream {self._subjects.stream(Kind.COMMAND)} is missing")
            except nats.errors.TimeoutError:
                self._report("JetStream does not answer")
            except _OUTAGES as error:
                self._report(error_text(error))

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
        if self._pulls.phase is not Phase.IDLE or self._stay.buffer.fills_batch(limit):
            return
        if self._inbox.must_be_replaced:
            await self._inbox.replace()
        if await self._has_commands(_PULL_WITHIN) and self._pulls.phase is Phase.IDLE:
            await self._pull(limit)

    async def _pull(self, limit: int) -> None:
        demand = self._pulls.demand(limit, self._batch_bytes, time.monotonic())
        request: dict[str, int] = {"batch": demand.batch, "expires": PULL_SECONDS * 1_000_000_000}
        if demand.max_bytes is not None:
            request["max_bytes"] = demand.max_bytes
        self._pulls = self._pulls.sent(demand, time.monotonic())
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._subjects.stream(Kind.COMMAND)}.{DURABLE}"
        body = json.dumps(request).encode()
        await self._inbox.request(subject, body, pull=self._pulls.number, times=demand.requests)

    async def _receive(self, message: Msg) -> None:
        """Take a message of the inbox. Only the server can send one with the subject of a command there."""
        if self._inbox.contains(message.subject):
            self._receive_status(message)
        elif message.reply.startswith(ACKNOWLEDGEMENT):
            reader_is_awake = bool(self._stay.buffer)
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
        if stored.receipt.delivery <= self._stay.buffer.last_delivery:
            self._lose("the consumer was created again")
        if self._pulls.phase is Phase.LOST:  # the command comes again, perhaps with another epoch
            await self._publish_each([message.reply], _NAK_LATER)
            return
        self._stay.buffer.append(stored)
        self._pulls = self._pulls.command()
        if message.headers is None and not message.data:
            self._receive_empty(stored)
        self._recovery.arrive(stored.receipt)

    def _receive_empty(self, stored: StoredMessage) -> None:
        """Receive a command without headers and body. The server may have dropped the rest of the pull's answer."""
        before = self._pulls.phase
        self._pulls = self._pulls.empty(time.monotonic())
        if self._pulls.phase is Phase.CUT and before is not Phase.CUT:
            newest = self._stay.buffer.newest
            self._recovery.begin(LostAnswers(stored, newest.sequence if newest else 0, self._pulls.missing))

    def _end_cut(self) -> None:
        self._pulls = self._pulls.found()
        self._arrived.set()

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

    async def _take(self, limit: int) -> list[Delivery]:
        """Take a batch. Commands that were handled ahead are acknowledged and left out."""
        if not self._stay.returned and not self._stay.buffer.fills_batch(limit):
            await asyncio.sleep(_LINGER_SECONDS)
        stay = self._stay
        batch, done = stay.take(limit)
        if self._redelivery is not None:
            self._redelivery.count([*batch, *done])
        if done:
            await self._settle(done, b"+ACK")
        return batch if stay is self._stay else []

    async def _wait(self) -> bool:
        """Wait until something arrives, but not for long. Return whether it did."""
        self._arrived.clear()
        is_short = self._pulls.phase in {Phase.LOST, Phase.PAUSED} or self._stay.lane.awaits_retries
        try:
            async with asyncio.timeout(_SHORT_WAIT_SECONDS if is_short else PULL_SECONDS):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    # Settling

    async def _settle_for_good(self, deliveries: Sequence[Delivery], reply_body: bytes) -> None:
        self._stay.record_handled(deliveries)
        await self._settle(deliveries, reply_body)

    async def _settle(self, deliveries: Sequence[Delivery], reply_body: bytes) -> None:
        """Settle the deliveries of this stay. A delivery that was read ahead of the consumer needs no settlement.

        If another process has taken over the commands, give them back, so that it gets them soon.
        """
        handles = [delivery.handle for delivery in deliveries if delivery.handle is not None]
        if not handles:
            return
        if not await self._is_joined():
            if not self._is_taken_over:
                return
            reply_body = b"-NAK"
        await self._publish_each([handle.reply for handle in handles if handle.stay == self._stay.number], reply_body)

    async def _renew(self) -> None:
        """Tell the server from time to time that the commands in this process are in progress."""
        if self._stay.returned.must_renew(soon=self._redelivery is not None):
            await self._settle(self._stay.returned.deliveries, b"+WPI")
            await self._publish_each(self._stay.buffer.replies, b"+WPI")

    async def _is_joined(self) -> bool:
        """Return whether the stream is recognized. Wait for that for some seconds, but only once in an outage."""
        give_up_at = time.monotonic() + (0 if self._gave_up_settling else _SETTLE_SECONDS)
        while not (joined := self._pulls.phase is not Phase.LOST and await self._has_commands(_SETTLE_WITHIN)):
            if self._is_taken_over or self._client.is_closed or time.monotonic() >= give_up_at:
                break
            await self._rejoin()
            if self._pulls.phase is Phase.LOST:
                await self._wait()
        self._gave_up_settling = not joined
        return joined

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
        except (nats.errors.Error, JetStreamError, OSError, TakenOverError) as error:
            log.warning("could not restore the ack_wait of the consumer", extra={"reason": error_text(error)})
            return
        self._redelivery = None
