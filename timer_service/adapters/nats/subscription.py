"""The subscription: pulls commands from the durable consumer, one batch ahead."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Sequence
from datetime import timedelta

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Interest
from nats.js.errors import Error as JetStreamError

from timer_service.adapters.nats.buffer import Buffer
from timer_service.adapters.nats.durable import DURABLE, DurableConsumer, InFlight
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.broker import BATCH_BYTES, Delivery
from timer_service.core.health import HEALTHY, Health
from timer_service.core.message import IDENTIFIER_PATTERN, Kind, Position

log = logging.getLogger(__name__)

# Short: `close` waits for the pull to end. Commands wait for it too if a restarted server has forgotten the pull.
_PULL_SECONDS = 1
_PULL_GRACE_SECONDS = 0.5
_LINGER_SECONDS = 0.002  # commands that arrive together are then committed together
_REJOIN_SECONDS = 0.5
_PAUSE_SECONDS = 1
_SETTLED_AT_ONCE = 1000
_REDELIVERY_SECONDS = 5
_STATUS = "Status"
_ACKNOWLEDGEMENT = "$JS.ACK."
_TOKENS_WITHOUT_DOMAIN = 9
_GONE = {"503": "", "409": "Consumer Deleted"}
"""Status codes that mean that the consumer does not exist, with the text that their description must contain."""
_EXPIRED = {"404", "408"}
_TOO_LARGE = "Message Size Exceeds MaxBytes"


class _Redelivery:
    """The time after a crash in which commands that were in flight are delivered again."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._seen: set[int] = set()
        self._ends_at = time.monotonic() + _REDELIVERY_SECONDS

    def count(self, batch: Sequence[Delivery]) -> None:
        sequences = (delivery.position.sequence for delivery in batch)
        self._seen.update(sequence for sequence in sequences if sequence <= self._in_flight.last)

    def is_over(self) -> bool:
        """Return whether all commands have come or the time is over. A deleted command never comes."""
        return len(self._seen) >= self._in_flight.number or time.monotonic() >= self._ends_at


class NatsSubscription:
    """A subscriber of the durable consumer `timer-service`.

    While the caller handles one batch, the next one arrives. One pull is outstanding whenever less than a batch is
    buffered. A pull brings at most the bytes of one batch, so less than two batches are buffered. The server ends a
    pull if the next command does not fit. If that happens before any command came, this command is larger than a batch.
    The next pull then asks for this command alone.

    States:

    ========  =======================================================================
    Idle      joined, no pull outstanding
    Pulling   a pull is outstanding: `_outstanding` > 0, until 1.5 s after it was sent
    Paused    the server refused a pull; `_paused_until` is in the future
    Gone      `_joined` is false: the consumer does not exist
    Closed    `_closed` is true
    ========  =======================================================================

    Transitions. A pull is sent and a rejoin is tried only inside `next_batch`, and only while connected:

    ========  ==================================================  ===================================
    state     event                                               next state
    ========  ==================================================  ===================================
    (new)     `open` joins the consumer                           Idle
    Idle      less than a batch is buffered                       Pulling: send a pull
    Pulling   the last command that the pull asked for arrives    Idle
    Pulling   status 404 or 408: the pull expired                 Idle
    Pulling   1.5 s passed without a status                       Idle
    Pulling   status 503, or 409 "Consumer Deleted"               Gone
    Pulling   another status, after at least one command          Idle
    Pulling   status "Message Size Exceeds MaxBytes", no command  Idle: the next pull asks for one
    Pulling   another status, no command                          Paused for 1 s
    Paused    1 s passed                                          Idle
    Gone      a rejoin succeeds; it is tried every 0.5 s          Idle: a new epoch clears the buffer
    Paused    `connection_restored`                               Idle
    Pulling   `connection_restored`: the pull may be forgotten    Idle
    any       `close`                                             Closed: waits for the pull to end
    ========  ==================================================  ===================================

    Messages do not name their pull. A late command or status of an earlier pull counts for the current pull.

    After `open(alone=True)`, `ack_wait` of the consumer is shortened so that commands of a dead instance come again. It
    is restored when all of them have come, after 5 s, on a rejoin or on `close`.
    """

    def __init__(self, client: Client, subjects: Subjects, consumer: DurableConsumer) -> None:
        self._client = client
        self._subjects = subjects
        self._consumer = consumer
        self._inbox = client.new_inbox()
        self._interest: Interest | None = None
        self._buffer = Buffer()
        self._arrived = asyncio.Event()
        self._epoch = 0
        self._joined = False
        self._closed = False
        self._outstanding = 0
        self._pull_ends_at = 0.0
        self._received = 0
        self._next_is_large = False
        self._paused_until = 0.0
        self._redelivery: _Redelivery | None = None

    @property
    def health(self) -> Health:
        """Down while the consumer does not exist."""
        return HEALTHY if self._joined else Health.down("the consumer of commands does not exist")

    async def open(self, *, alone: bool) -> None:
        """Join the consumer and subscribe. `alone`: unsettled commands of a dead instance come again soon."""
        self._epoch = await self._consumer.join()
        self._joined = True
        in_flight = await self._consumer.shorten_ack_wait() if alone else None
        self._redelivery = in_flight and _Redelivery(in_flight)
        # No limits in the client: it would drop messages above them. The pulls limit the buffer already.
        self._interest = await self._client.subscribe(
            self._inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        """Wait for commands. Return 1 to `limit` of them, or none if the subscription is closed."""
        while not self._closed:
            await self._keep_pulling(limit)
            if self._buffer:
                if not self._buffer.fills_batch(limit):
                    await asyncio.sleep(_LINGER_SECONDS)
                # Before the next await: a rejoin may change the epoch, and these messages have the old one.
                batch = [self._delivery(message) for message in self._buffer.take(limit)]
                if self._redelivery is not None:
                    self._redelivery.count(batch)
                await self._keep_pulling(limit)
                return batch
            await self._wait()
        return []

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as handled."""
        await self._settle(deliveries, b"+ACK")

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Settle deliveries: the server delivers them again after `delay`."""
        await self._settle(deliveries, b'-NAK {"delay": %d}' % (delay // timedelta(microseconds=1) * 1000))

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as never to be handled."""
        await self._settle(deliveries, b"+TERM")

    async def close(self) -> None:
        """Wait for the pull to end, and return the buffered commands to the server.

        Otherwise the broker could still send commands, and would deliver them again only after `ack_wait`.
        """
        self._closed = True
        self._arrived.set()
        if self._interest is None:
            return
        while self._pulling() and self._client.is_connected:
            await self._wait()
        await self._interest.unsubscribe()
        while messages := self._buffer.take(_SETTLED_AT_ONCE):
            await self._settle_replies([message.reply for message in messages], b"-NAK")
        if self._redelivery is not None:
            await self._restore_ack_wait()

    def connection_restored(self) -> None:
        """Forget the outstanding pull, because the server may have forgotten it."""
        self._outstanding = 0
        self._paused_until = 0.0
        self._arrived.set()

    async def _settle(self, deliveries: Sequence[Delivery], reply_body: bytes) -> None:
        await self._settle_replies([delivery.handle for delivery in deliveries], reply_body)

    async def _settle_replies(self, replies: Sequence[str], reply_body: bytes) -> None:
        try:
            for reply in replies:
                await self._client.publish(reply, reply_body)
        except nats.errors.Error:
            # The server delivers them again. The handler recognizes commands that are already handled.
            log.warning("could not settle deliveries", exc_info=True, extra={"count": len(replies)})

    async def _keep_pulling(self, limit: int) -> None:
        if self._closed or not self._client.is_connected:
            return
        if self._redelivery is not None and self._redelivery.is_over():
            await self._restore_ack_wait()
        if self._buffer.fills_batch(limit) or time.monotonic() < self._paused_until:
            return
        if not self._joined and not await self._try_to_rejoin():
            return
        if not self._pulling():
            await self._pull(limit)

    async def _pull(self, limit: int) -> None:
        pull: dict[str, int] = {"batch": 1 if self._next_is_large else limit, "expires": _PULL_SECONDS * 1_000_000_000}
        if not self._next_is_large:
            pull["max_bytes"] = BATCH_BYTES
        self._next_is_large = False
        self._received = 0
        self._outstanding = pull["batch"]
        self._pull_ends_at = time.monotonic() + _PULL_SECONDS
        stream = self._subjects.stream(Kind.COMMAND)
        await self._client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{DURABLE}", json.dumps(pull).encode(), reply=self._inbox
        )

    def _pulling(self) -> bool:
        return self._outstanding > 0 and time.monotonic() < self._pull_ends_at + _PULL_GRACE_SECONDS

    async def _restore_ack_wait(self) -> None:
        try:
            await self._consumer.restore_ack_wait()
        except (nats.errors.Error, JetStreamError, OSError) as error:
            log.warning("could not restore the ack_wait of the consumer", extra={"reason": repr(error)})
            return
        self._redelivery = None

    async def _try_to_rejoin(self) -> bool:
        try:
            epoch = await self._consumer.join()
        except (nats.errors.Error, JetStreamError, OSError) as error:
            log.warning("the consumer of commands does not exist, trying to rejoin", extra={"reason": repr(error)})
            return False
        if epoch != self._epoch:
            # Commands of the old stream cannot be settled any more, and would get positions of the new stream.
            self._buffer = Buffer()
        self._epoch = epoch
        self._joined = True
        self._redelivery = None
        return True

    async def _wait(self) -> None:
        self._arrived.clear()
        may_pull = self._joined and time.monotonic() >= self._paused_until
        wait_seconds = _PULL_SECONDS + _PULL_GRACE_SECONDS if may_pull else _REJOIN_SECONDS
        try:
            async with asyncio.timeout(wait_seconds):
                await self._arrived.wait()
        except TimeoutError:
            return

    async def _receive(self, message: Msg) -> None:
        if message.reply.startswith(_ACKNOWLEDGEMENT):
            reader_is_awake = bool(self._buffer)
            self._buffer.append(message)
            self._received += 1
            self._outstanding -= 1
            if self._outstanding > 0 and reader_is_awake:
                return
        elif message.headers and _STATUS in message.headers:
            self._end_pull(message.headers[_STATUS], message.headers.get("Description", ""))
        self._arrived.set()

    def _end_pull(self, status: str, description: str) -> None:
        """Enter the next state after a status message. Every status ends the pull."""
        self._outstanding = 0
        if status in _GONE and _GONE[status] in description:
            self._joined = False
        elif self._received == 0 and status not in _EXPIRED:
            if description == _TOO_LARGE:
                self._next_is_large = True
            else:
                log.warning("the broker refuses to deliver commands", extra={"reason": f"{status} {description}"})
                self._paused_until = time.monotonic() + _PAUSE_SECONDS

    def _delivery(self, message: Msg) -> Delivery:
        attempt, sequence = _attempt_and_sequence(message.reply)
        headers = message.headers or {}
        position = Position(self._epoch, sequence)
        return Delivery(
            address=self._subjects.address(Kind.COMMAND, message.subject),
            source=message.subject,
            message_id=_identifier(headers.get("Nats-Msg-Id", "")) or f"{position.epoch}-{position.sequence}",
            body=message.data,
            headers=headers,
            position=position,
            attempt=attempt,
            handle=message.reply,
        )


def _identifier(text: str) -> str | None:
    return text if re.fullmatch(IDENTIFIER_PATTERN, text) else None


def _attempt_and_sequence(reply: str) -> tuple[int, int]:
    """Parse `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<sequence>...`.

    The driver's `Msg.metadata` parses all tokens, which takes a tenth of the time that a command may take.
    """
    tokens = reply.split(".")
    first = 4 if len(tokens) == _TOKENS_WITHOUT_DOMAIN else 6
    return int(tokens[first]), int(tokens[first + 1])
