"""The deliveries of a durable consumer of JetStream, over one connection after the other."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Interest

from timer_service.client.errors import NoAnswerError
from timer_service.client.nats.durable import DurableConsumer, nanoseconds
from timer_service.client.nats.link import NatsLink
from timer_service.client.receive.delivery import Delivery
from timer_service.client.receive.filters import Consumer
from timer_service.client.receive.reading import read_delivered

log = logging.getLogger(__name__)

_PULL_BYTES = 8 * 1024 * 1024
"""The most of one pull. Two can be open: a server of several tenants closes a connection for which 32 MB wait."""
_PULL_SECONDS = 30
HEARTBEAT_SECONDS = 5.0
"""While a pull waits for events, the server says so often that it still knows the pull."""
LOOK_SECONDS = 1.0
_PLACE_SECONDS = 10.0
"""How often the place of the consumer is read."""
_REQUEST_SECONDS = 5.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
_SECOND = 1_000_000_000
_CLOSED = "the connection to the broker is closed"


class _Place(NamedTuple):
    """A message in the stream, from the reply subject of its delivery."""

    sequence: int
    delivered: int
    stored_at: int
    """In Unix nanoseconds."""


def read_reply(reply: str) -> _Place:
    """Return where a delivered message is. A reply subject with a domain has two parts more before the stream."""
    parts = reply.split(".")
    first = 2 if len(parts) == 9 else 4  # noqa: PLR2004 - $JS.ACK and seven parts
    _stream, _consumer, delivered, sequence, _number, stored_at, *_ = parts[first:]
    return _Place(int(sequence), int(delivered), int(stored_at))


class _Receipt:
    """The delivery of a message over one connection. A later delivery of the same message can replace it."""

    __slots__ = ("event_id", "reply", "sequence", "session", "subscription")

    def __init__(
        self, subscription: "PullSubscription", sequence: int, event_id: str, *, session: int, reply: str
    ) -> None:
        self.subscription = subscription
        self.sequence = sequence
        self.event_id = event_id
        self.session = session
        self.reply = reply

    async def ack(self) -> None:
        await self.subscription.settle(self, b"+ACK")

    async def retry(self, delay: timedelta) -> None:
        answer = b'-NAK {"delay": %d}' % nanoseconds(delay) if delay else b"-NAK"
        await self.subscription.settle(self, answer)

    async def renew(self) -> None:
        await self.subscription.send(self, b"+WPI")


class PullSubscription:
    """The deliveries of a consumer. It survives lost connections, restarts of the server and a deleted consumer.

    `ahead` is how many deliveries wait here at most until `next` takes them.
    """

    def __init__(self, link: NatsLink, consumer: Consumer, ahead: int) -> None:
        self._link = link
        self._consumer = consumer
        self._ahead = ahead
        self._durable = DurableConsumer(link, consumer)
        self.addresses = self._durable.subjects
        self._waiting: deque[tuple[_Receipt, Delivery]] = deque()
        """They stay when the connection is lost, so that no newer event comes before them."""
        self._arrived = asyncio.Event()
        self._held: dict[int, _Receipt] = {}
        """The messages that are not settled, by their sequence."""
        self._interest: Interest | None = None
        self._inbox = ""
        self._expected = 0
        """How many messages the open pulls may still bring."""
        self._heard = asyncio.Event()
        self._heard_at = 0.0
        self._session = 0
        """The number of the connection to the consumer. A delivery can be settled only in its session."""
        self._broken = asyncio.Event()
        self._is_closed = False
        self._tasks: list[asyncio.Task[None]] = []

    def __str__(self) -> str:
        return str(self._durable)

    async def open(self) -> None:
        """Find or create the consumer, and begin to receive. Raises `NoAnswerError` that says what to do."""
        await self._begin()
        self._link.on_lost.append(self._broken.set)
        self._tasks = [asyncio.create_task(each) for each in (self._repair(), self._look(), self._renew())]

    async def stop(self) -> None:
        """Stop to receive, and give back the deliveries that wait here. Others can still be settled."""
        for task in self._tasks:
            task.cancel()
        await self._leave()
        while (delivery := self.next_waiting()) is not None:
            await delivery.retry()

    async def close(self) -> None:
        """Stop, and send what was not sent. After it no delivery can be settled."""
        await self.stop()
        with suppress(NoAnswerError, nats.errors.Error):
            await self._link.run(self._link.client.flush())
        if self._broken.set in self._link.on_lost:
            self._link.on_lost.remove(self._broken.set)
        self._broken.set()

    async def next(self) -> Delivery:
        """Wait for the next delivery. Raises `NoAnswerError` when the connection is closed for good."""
        while not self._is_closed:
            if self._room() * 2 >= self._ahead:
                await self._pull()
            delivery = self.next_waiting()
            if delivery is not None:  # nothing is awaited after it was taken: it would be lost at a cancellation
                return delivery
            self._arrived.clear()
            await self._arrived.wait()
        raise NoAnswerError(_CLOSED)

    def next_waiting(self) -> Delivery | None:
        """Return the next delivery that waits here, or None."""
        return self._waiting.popleft()[1] if self._waiting else None

    async def settle(self, receipt: _Receipt, answer: bytes) -> None:
        """Send the last answer to a delivery. A second one, and one after a lost connection, has no effect."""
        if self._held.get(receipt.sequence) is receipt:
            del self._held[receipt.sequence]
            await self.send(receipt, answer)

    async def send(self, receipt: _Receipt, answer: bytes) -> None:
        """Send an answer to a delivery, if it belongs to this session.

        Later the same reply subject could mean another message: the server can come back with another stream.
        """
        client = self._link.client
        if receipt.session == self._session and client.is_connected and not self._broken.is_set():
            with suppress(nats.errors.Error):  # the message is delivered again
                await client.publish(receipt.reply, answer)

    async def _begin(self) -> None:
        """Find or create the consumer, subscribe to a new inbox, and pull."""
        await self._leave()
        self._session += 1
        self._broken.clear()
        client = self._link.client
        self._link.check()
        await self._durable.ensure()
        self._inbox = client.new_inbox()
        self._expected = 0
        # Without limits of the driver: it would drop messages, and no more arrive than were asked for.
        try:
            self._interest = await client.subscribe(
                self._inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except nats.errors.ConnectionClosedError as error:
            raise NoAnswerError(_CLOSED) from error
        if not self._durable.is_managed and self._session == 1:
            await self._try()
        await self._pull()

    async def _leave(self) -> None:
        """Unsubscribe from the inbox."""
        if self._interest is not None:
            with suppress(nats.errors.Error):
                await self._interest.unsubscribe()
            self._interest = None

    async def _try(self) -> None:
        """Pull without waiting: the only way to ask a consumer of the operator. Raises `NoAnswerError`."""
        await self._request({"batch": 1, "no_wait": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                await self._heard.wait()
        if not self._heard.is_set() or self._broken.is_set():
            await self._leave()
            raise self._durable.unanswered()

    async def _receive(self, message: Msg) -> None:
        """Take a message of a pull: an event, or the status of a pull."""
        self._heard_at = time.monotonic()
        self._heard.set()
        if message.reply:
            self._expected = max(0, self._expected - 1)
            self._add(message)
        else:
            self._note(message.headers or {})
        if self._room() * 2 >= self._ahead:
            await self._pull()

    def _add(self, message: Msg) -> None:
        """Let a delivery wait for `next`. One of an event that is in progress here only gives it a valid receipt."""
        sequence, delivered, stored_at = read_reply(message.reply)
        message_id = (message.headers or {}).get("Nats-Msg-Id")
        at = datetime.fromtimestamp(stored_at / _SECOND, UTC)
        event, problem = read_delivered(message.data, message_id, at, self._consumer.tenant)
        held = self._held.get(sequence)
        if held is not None and held.event_id == event.id:
            held.session, held.reply = self._session, message.reply
            return
        receipt = _Receipt(self, sequence, event.id, session=self._session, reply=message.reply)
        self._held[sequence] = receipt
        delivery = Delivery(event, delivered, receipt, size=len(message.data), problem=problem)
        self._waiting.append((receipt, delivery))
        self._arrived.set()

    def _note(self, headers: Mapping[str, str]) -> None:
        """Note the status of a pull: it goes on, it has ended, or there is no consumer."""
        code, text = headers.get("Status", ""), headers.get("Description", "")
        left = headers.get("Nats-Pending-Messages", "")
        if code == "100" or text == "Batch Completed":  # a heartbeat; or the pull has brought all that it asked for
            return
        if left.isdigit():
            self._expected = max(0, self._expected - int(left))
        elif code == "404":  # the pull of `_try` found no event
            self._expected = max(0, self._expected - 1)
        else:
            reason = "the consumer does not exist" if code == "503" else f"{code} {text}"
            log.warning("%s: %s", self._durable, reason)
            self._broken.set()

    def _room(self) -> int:
        """Return how many more deliveries can wait here. Half of it is worth a pull."""
        return self._ahead - len(self._waiting) - self._expected

    async def _pull(self) -> None:
        """Ask for as many deliveries as there is room for."""
        if self._interest is None or self._broken.is_set():
            return
        heartbeat = int(HEARTBEAT_SECONDS * _SECOND)
        limits = {"max_bytes": _PULL_BYTES, "expires": _PULL_SECONDS * _SECOND, "idle_heartbeat": heartbeat}
        await self._request({"batch": self._room(), **limits})

    async def _request(self, pull: Mapping[str, Any]) -> None:
        """Send a pull, and expect as many messages as it asks for."""
        if not self._expected:
            self._heard_at = time.monotonic()
        self._expected += pull["batch"]
        body = json.dumps(pull).encode()
        try:
            await self._link.client.publish(self._durable.pull_subject, body, reply=self._inbox)
        except nats.errors.Error:
            self._broken.set()

    async def _repair(self) -> None:
        """Begin again whenever the session is broken. Ends when the connection is closed for good."""
        pause = _FIRST_PAUSE
        while True:
            await self._broken.wait()
            try:
                await self._begin()
            except NoAnswerError as error:
                self._broken.set()
                if self._link.client.is_closed:
                    self._is_closed = True
                    self._arrived.set()
                    return
                is_connected = self._link.client.is_connected
                if is_connected:
                    log.warning("%s; trying again", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE if is_connected else LOOK_SECONDS)
            else:
                log.info("%s: receiving again", self._durable)
                pause = _FIRST_PAUSE

    async def _look(self) -> None:
        """Pull again if the server has forgotten the pulls, and remember the place of the consumer. Never ends."""
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if self._expected and now - self._heard_at > 2.5 * HEARTBEAT_SECONDS and not self._broken.is_set():
                log.warning("%s: no answer to a pull; pulling again", self._durable)
                self._expected = 0  # without a new inbox: the server may still answer the old pulls
                await self._pull()
            elif now - looked_at > _PLACE_SECONDS:
                looked_at = now
                await self._durable.remember_place()

    async def _renew(self) -> None:
        """Renew the deliveries that wait here. Never ends."""
        while True:
            await asyncio.sleep(self._consumer.ack_wait.total_seconds() / 3)
            for receipt, _ in list(self._waiting):
                await receipt.renew()
