"""A user who publishes commands and reads events while the broker and the service are disturbed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, NamedTuple, Self

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from tests.harness.nats_client import ignore
from tests.harness.processes import body
from timer_service.core.values.address import kebab
from timer_service.core.values.codec import REPLY_TO

AWAY = (nats.errors.Error, JetStreamError, OSError, TimeoutError)
"""The errors of a connection whose broker is away or slow. The request may have succeeded."""
_PAUSE_SECONDS = 0.05
_REQUEST_SECONDS = 2


def now_ms() -> float:
    """Return the time of this machine in epoch milliseconds."""
    return time.time() * 1000


class Reply(NamedTuple):
    """A reply to a command."""

    outcome: str
    """`rejected` if the reply is an error."""
    at_ms: float


@dataclass
class Sent:
    """A published command."""

    type: str
    payload: Mapping[str, Any]
    begun_ms: float
    """When the first attempt to publish it began."""
    stored_ms: float = 0
    """When the broker had acknowledged it."""
    sequence: int = 0
    replies: list[Reply] = field(default_factory=list)
    replied: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def outcomes(self) -> list[str]:
        """The outcomes in its replies, in order of arrival."""
        return [each.outcome for each in self.replies]


class SeenEvent(NamedTuple):
    """An event in the stream."""

    id: str
    type: str
    payload: Mapping[str, Any]
    stored_ms: float


class LoadUser:
    """A user of one tenant. It publishes each command until the broker has stored it, always with the same id."""

    def __init__(self, connection: Client, tenant: str) -> None:
        self._connection = connection
        self.tenant = tenant
        self.sent: list[Sent] = []
        self.events: list[SeenEvent] = []
        self.on_event: Callable[[SeenEvent], None] = lambda _: None
        self._inbox = f"_INBOX.{token_hex(8)}"
        self._prefix = token_hex(4)
        self._next = 1
        self._stream_created: Any = None
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def connect(cls, urls: str | Sequence[str], tenant: str) -> AsyncIterator[Self]:
        """Connect, and read the events of the tenant in the background."""
        options: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1, "error_cb": ignore}
        servers = [urls] if isinstance(urls, str) else list(urls)
        async with await nats.connect(servers, ping_interval=1, connect_timeout=1, **options) as connection:
            user = cls(connection, tenant)
            await connection.subscribe(f"{user._inbox}.*", cb=user._receive_reply)
            reading = asyncio.create_task(user._read_events())
            try:
                yield user
            finally:
                user.close()
                reading.cancel()
                await asyncio.wait([reading])

    def close(self) -> None:
        """Publish and read nothing more. The driver can lose a cancellation, so a flag ends the loops."""
        self._closed = True

    @property
    def js(self) -> JetStreamContext:
        return self._connection.jetstream(timeout=_REQUEST_SECONDS)

    async def publish(self, message_type: str, **payload: Any) -> Sent:
        """Publish a command until the broker has stored it."""
        sent = Sent(message_type, payload, now_ms())
        number = len(self.sent)
        self.sent.append(sent)
        headers = {"Nats-Msg-Id": f"{self._prefix}-{number}", REPLY_TO: f"{self._inbox}.{number}"}
        data = body(message_type, self.tenant, {"tenantId": self.tenant, **payload})
        while True:
            try:
                subject = f"timer.cmd.v1.{self.tenant}.{kebab(message_type)}"
                acknowledgement = await self.js.publish(subject, data, headers=dict(headers))
            except AWAY:
                await self._pause()
            else:
                sent.stored_ms, sent.sequence = now_ms(), acknowledgement.seq
                return sent

    async def request(self, message_type: str, *, seconds: float = 5, **payload: Any) -> Sent:
        """Publish a command and wait for its reply, at most `seconds`. A reply that was lost never comes."""
        sent = await self.publish(message_type, **payload)
        try:
            async with asyncio.timeout(seconds):
                await sent.replied.wait()
        except TimeoutError:
            pass
        return sent

    @property
    def unanswered(self) -> int:
        """How many commands are stored and have no reply yet."""
        return sum(each.sequence > 0 and not each.replies for each in self.sent)

    async def until_handled(self, *, seconds: float = 60) -> None:
        """Wait until the service has handled every command of the tenant: it replies to one that comes after them.

        A reply is lost if the service is killed or a connection is cut, so the command is repeated.
        """
        async with asyncio.timeout(seconds):
            while not (await self.request("RetryTimer", seconds=2, serviceCallId="nothing")).replies:
                pass

    async def count_dead_letters(self) -> int:
        """Return the number of dead letters of the tenant."""
        filter_ = f"timer.dlq.v1.{self.tenant}.*"
        subjects = (await self.js.stream_info("TIMER_DLQ", subjects_filter=filter_)).state.subjects
        return sum((subjects or {}).values())

    async def ask(self, query: str, **question: Any) -> Any:
        """Send a query until it is answered, and return the reply."""
        subject = f"timer.qry.v1.{self.tenant}.{query}"
        while True:
            try:
                reply = await self._connection.request(subject, json.dumps(question).encode(), timeout=_REQUEST_SECONDS)
                return json.loads(reply.data)
            except AWAY:
                await self._pause()

    async def _pause(self) -> None:
        if self._closed:
            raise asyncio.CancelledError
        await asyncio.sleep(_PAUSE_SECONDS)

    async def _receive_reply(self, message: Msg) -> None:
        reply = json.loads(message.data)
        sent = self.sent[int(message.subject.rpartition(".")[2])]
        sent.replies.append(Reply(reply.get("outcome", "rejected"), now_ms()))
        sent.replied.set()

    async def _read_events(self) -> None:
        """Read the event stream in order. After an outage, continue where the reading ended."""
        while not self._closed:
            try:
                await self._read_from_next()
            except AWAY:
                await self._pause()

    async def _read_from_next(self) -> None:
        info = await self.js.stream_info("TIMER_EVT")
        if info.created != self._stream_created:
            self._stream_created, self._next = info.created, 1
        self._next = min(self._next, info.state.last_seq + 1)  # a stream that was rolled back uses sequences again
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=self._next
        )
        pattern = f"timer.evt.v1.{self.tenant}.>"
        subscription = await self.js.pull_subscribe(pattern, stream="TIMER_EVT", config=config)
        expected = 1
        try:
            while not self._closed:
                for message in await _fetch(subscription):
                    if message.metadata.sequence.consumer != expected:
                        return  # a delivery was lost: read again from the event after the last one
                    expected += 1
                    self._see(message)
                if not subscription.pending_msgs:
                    await subscription.consumer_info()  # raises if the consumer was lost
                    if (await self.js.stream_info("TIMER_EVT")).created != self._stream_created:
                        return
        finally:
            await _unsubscribe(subscription)

    def _see(self, message: Msg) -> None:
        self._next = message.metadata.sequence.stream + 1
        event = json.loads(message.data)
        seen = SeenEvent(event["id"], event["type"], event["payload"], message.metadata.timestamp.timestamp() * 1000)
        self.events.append(seen)
        self.on_event(seen)


async def _fetch(subscription: Any) -> list[Msg]:
    try:
        messages: list[Msg] = await subscription.fetch(500, timeout=0.5)
    except nats.errors.TimeoutError:
        return []
    except NotFoundError:
        raise ConnectionError from None
    return messages


async def _unsubscribe(subscription: Any) -> None:
    try:
        await subscription.unsubscribe()
    except AWAY:
        return
