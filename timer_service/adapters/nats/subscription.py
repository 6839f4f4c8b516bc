"""Commands from the durable consumer, pulled ahead by one batch."""

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
from timer_service.core.message import IDENTIFIER_PATTERN, Kind, Position

log = logging.getLogger(__name__)

_PULL_SECONDS = 1  # short: closing waits for it, and so do commands when a restarted server has forgotten a pull
_PULL_GRACE_SECONDS = 0.5
_LINGER_SECONDS = 0.002  # so that commands arriving together are committed together
_REJOIN_SECONDS = 0.5
_REST_SECONDS = 1
_SETTLED_AT_ONCE = 1000
_HURRY_SECONDS = 5
_STATUS = "Status"
_ACKNOWLEDGEMENT = "$JS.ACK."
_TOKENS_WITHOUT_DOMAIN = 9
_GONE = {"503": "", "409": "Consumer Deleted"}
"""Status -> description that means the consumer is not there (any more)."""
_EXPIRED = {"404", "408"}
_TOO_LARGE = "Message Size Exceeds MaxBytes"


class _Hurry:
    """The time in which commands that were in flight come again, each to be seen once."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._seen: set[int] = set()
        self._ends_at = time.monotonic() + _HURRY_SECONDS

    def note(self, batch: Sequence[Delivery]) -> None:
        sequences = (delivery.position.sequence for delivery in batch)
        self._seen.update(sequence for sequence in sequences if sequence <= self._in_flight.last)

    def over(self) -> bool:
        """All have come, or are not going to: those that the stream no longer has."""
        return len(self._seen) >= self._in_flight.number or time.monotonic() >= self._ends_at


class NatsSubscription:
    """A share of the durable consumer `timer-service`.

    While one batch is handled the next is on its way: one pull is outstanding whenever less than a batch is buffered. A
    pull brings no more bytes than a batch may have, so less than two batches are buffered. The server ends it when the
    next command does not fit; when that is so before any came, that command is larger than a batch and pulled alone.
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
        self._expected = 0
        self._pull_ends_at = 0.0
        self._brought = 0
        self._next_is_large = False
        self._rests_until = 0.0
        self._hurry: _Hurry | None = None

    async def open(self, *, alone: bool) -> None:
        """Join the consumer and start listening. `alone`: have what a dead instance left unsettled come soon."""
        self._epoch = await self._consumer.join()
        self._joined = True
        in_flight = await self._consumer.hurry() if alone else None
        self._hurry = in_flight and _Hurry(in_flight)
        # No limits of the client's own: it would drop what exceeds them, and pulls bound it already.
        self._interest = await self._client.subscribe(
            self._inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        """Wait for commands; return 1 to `limit` of them, or none once closed."""
        while not self._closed:
            await self._keep_pulling(limit)
            if self._buffer:
                if not self._buffer.fills_batch(limit):
                    await asyncio.sleep(_LINGER_SECONDS)
                # Read before anything is awaited: to rejoin another stream changes the epoch, not theirs.
                batch = [self._delivery(message) for message in self._buffer.take(limit)]
                if self._hurry is not None:
                    self._hurry.note(batch)
                await self._keep_pulling(limit)
                return batch
            await self._wait()
        return []

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Settle as handled."""
        await self._settle(deliveries, b"+ACK")

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Settle as to be delivered again after `delay`."""
        await self._settle(deliveries, b'-NAK {"delay": %d}' % (delay // timedelta(microseconds=1) * 1000))

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Settle as never to be delivered again."""
        await self._settle(deliveries, b"+TERM")

    async def close(self) -> None:
        """Let the pull end, and hand back at once what it brought: whatever missed us would wait for `ack_wait`."""
        self._closed = True
        self._arrived.set()
        if self._interest is None:
            return
        while self._pulling() and self._client.is_connected:
            await self._wait()
        await self._interest.unsubscribe()
        while messages := self._buffer.take(_SETTLED_AT_ONCE):
            await self._settle_replies([message.reply for message in messages], b"-NAK")
        if self._hurry is not None:
            await self._calm()

    def connection_restored(self) -> None:
        """Pull anew: the server may have forgotten the pull."""
        self._expected = 0
        self._rests_until = 0.0
        self._arrived.set()

    async def _settle(self, deliveries: Sequence[Delivery], verdict: bytes) -> None:
        await self._settle_replies([delivery.handle for delivery in deliveries], verdict)

    async def _settle_replies(self, replies: Sequence[str], verdict: bytes) -> None:
        try:
            for reply in replies:
                await self._client.publish(reply, verdict)
        except nats.errors.Error:
            # Then they are delivered again, and are found to have been handled.
            log.warning("could not settle deliveries", exc_info=True, extra={"count": len(replies)})

    async def _keep_pulling(self, limit: int) -> None:
        if self._closed or not self._client.is_connected:
            return
        if self._hurry is not None and self._hurry.over():
            await self._calm()
        if self._buffer.fills_batch(limit) or time.monotonic() < self._rests_until:
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
        self._brought = 0
        self._expected = pull["batch"]
        self._pull_ends_at = time.monotonic() + _PULL_SECONDS
        stream = self._subjects.stream(Kind.COMMAND)
        await self._client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{DURABLE}", json.dumps(pull).encode(), reply=self._inbox
        )

    def _pulling(self) -> bool:
        return self._expected > 0 and time.monotonic() < self._pull_ends_at + _PULL_GRACE_SECONDS

    async def _calm(self) -> None:
        try:
            await self._consumer.calm()
        except (nats.errors.Error, JetStreamError, OSError) as error:
            log.warning("could not set back how soon commands come again", extra={"reason": repr(error)})
            return
        self._hurry = None

    async def _try_to_rejoin(self) -> bool:
        try:
            epoch = await self._consumer.join()
        except (nats.errors.Error, JetStreamError, OSError) as error:
            log.warning("the consumer of commands is gone, trying to rejoin", extra={"reason": repr(error)})
            return False
        if epoch != self._epoch:
            self._buffer = Buffer()  # of another stream: they can't be settled, and would count as newer than they are
        self._epoch = epoch
        self._joined = True
        self._hurry = None
        return True

    async def _wait(self) -> None:
        self._arrived.clear()
        may_pull = self._joined and time.monotonic() >= self._rests_until
        patience = _PULL_SECONDS + _PULL_GRACE_SECONDS if may_pull else _REJOIN_SECONDS
        try:
            async with asyncio.timeout(patience):
                await self._arrived.wait()
        except TimeoutError:
            return

    async def _receive(self, message: Msg) -> None:
        if message.reply.startswith(_ACKNOWLEDGEMENT):
            somebody_knows = bool(self._buffer)
            self._buffer.append(message)
            self._brought += 1
            self._expected -= 1
            if self._expected > 0 and somebody_knows:
                return
        elif message.headers and _STATUS in message.headers:
            self._note(message.headers[_STATUS], message.headers.get("Description", ""))
        self._arrived.set()

    def _note(self, status: str, description: str) -> None:
        """A status ends the pull: expired, full, or nobody there to answer it."""
        self._expected = 0
        if status in _GONE and _GONE[status] in description:
            self._joined = False
        elif self._brought == 0 and status not in _EXPIRED:
            if description == _TOO_LARGE:
                self._next_is_large = True
            else:
                log.warning("the broker refuses to hand over commands", extra={"reason": f"{status} {description}"})
                self._rests_until = time.monotonic() + _REST_SECONDS

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
    """Read `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<sequence>...`.

    The driver's own `Msg.metadata` reads the rest as well, and takes a tenth of the time a command may take in all.
    """
    tokens = reply.split(".")
    first = 4 if len(tokens) == _TOKENS_WITHOUT_DOMAIN else 6
    return int(tokens[first]), int(tokens[first + 1])
