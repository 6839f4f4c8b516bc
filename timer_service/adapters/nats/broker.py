"""The NATS connection behind the broker port."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import nats.errors
from nats.aio.msg import Msg

from timer_service.adapters.nats.connection import Connection
from timer_service.adapters.nats.log import NatsLog
from timer_service.adapters.nats.publisher import Publisher
from timer_service.adapters.nats.requests import TenantRequests
from timer_service.adapters.nats.streams import STORED_KINDS, StreamUpkeep, prepare_stream
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.ports.broker import PublishResult, ReceiveRequest, Reply
from timer_service.core.ports.health import Health
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Message
from timer_service.nats_client import ReadLogin

log = logging.getLogger(__name__)

_HINT_DIGITS = 15
_OVERLAP = timedelta(minutes=1)
_UNSENT_BYTES = 64 * 1024 * 1024  # the client writes a whole batch at once


class NatsBroker:
    """`core.broker.Broker` on NATS JetStream."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        streams: StreamUpkeep,
        *,
        reply_prefix: str,
        overlap: timedelta,
        connect_requests: Callable[[], Awaitable[TenantRequests]],
    ) -> None:
        self.reply_prefixes = (reply_prefix,)
        """How the subjects begin to which replies may be sent."""
        self._connection = connection
        self._client = connection.client
        self._subjects = subjects
        self.streams = streams
        """A worker that checks the streams, and their health."""
        self.log = NatsLog(connection, subjects, overlap)
        """The log of the commands."""
        self._publisher = Publisher(self._client, subjects, atomic=streams.atomic, on_answers=streams.record)
        connection.on_lost.append(self._publisher.connection_lost)
        self._connect_requests = connect_requests
        self._requests: TenantRequests | None = None

    @classmethod
    async def connect(
        cls,
        urls: str,
        subject_prefix: str,
        *,
        login: ReadLogin = dict,
        reply_prefix: str,
        manage_streams: bool,
        overlap: timedelta = _OVERLAP,
    ) -> "NatsBroker":
        """Connect, and prepare the streams. `urls` is comma-separated. `login` is called for each connect.

        `overlap`: another log is read from the time of the last command, and this much earlier, as clocks may differ.

        Raises `StartError` at once if the login is refused or a stream is wrong. Raises it after ten seconds, with the
        last reason, if no server answers.
        """
        subjects = Subjects(subject_prefix)
        # Without a permission for hints, other instances only see new work later.
        connection = Connection("timer-service", unsent_bytes=_UNSENT_BYTES, harmless=subjects.hint(""))
        await connection.open(urls, login)
        client = connection.client
        try:
            found = {kind: await prepare_stream(client, subjects, kind, manage=manage_streams) for kind in STORED_KINDS}
        except (nats.errors.Error, StartError) as error:
            await client.close()
            if isinstance(error, StartError):
                raise
            raise StartError(f"JetStream does not answer: {error}") from error
        streams = StreamUpkeep(client, subjects, found, manage=manage_streams)

        async def connect_requests() -> TenantRequests:
            requests = TenantRequests(subjects, reply_prefix)
            await requests.connection.open(urls, login)
            return requests

        return cls(
            connection,
            subjects,
            streams,
            reply_prefix=reply_prefix,
            overlap=overlap,
            connect_requests=connect_requests,
        )

    @property
    def max_message_bytes(self) -> int:
        """The largest body that the server accepts."""
        return self._client.max_payload

    @property
    def health(self) -> Health:
        """Down without a connection. Otherwise usable, with a reason if the server denied a permission."""
        return self._connection.health

    @property
    def outages(self) -> int:
        """How many times the connection was lost."""
        return self._connection.outages

    @property
    def reading(self) -> bool:
        """Whether the connections are read, or are being restored."""
        return all(each.reading for each in self.connections)

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages in their streams. Return one result each."""
        return await self._publisher.publish(messages)

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> TenantRequests:
        """Receive queries or requests, on another connection. Raises `StartError` if it cannot be opened."""
        if self._requests is None:
            self._requests = await self._connect_requests()
        await self._requests.serve(kind, names, receive)
        return self._requests

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send replies over core NATS."""
        try:
            for reply in replies:
                await self._client.publish(reply.to, reply.body)
        except nats.errors.Error:
            log.warning("could not send replies", exc_info=True, extra={"count": len(replies)})

    async def hint(self, loop: str, at: int) -> None:
        """Send a wake-up hint to every instance over core NATS."""
        if self._client.is_connected:  # otherwise the client would send it after the outage, when it is useless
            await self._client.publish(self._subjects.hint(loop), b"%d" % at)

    async def subscribe_hints(self, on_hint: Callable[[str, int], None]) -> None:
        """Call `on_hint` for every hint of every instance. Messages that are no hints are ignored."""

        async def receive(message: Msg) -> None:
            if message.data.isdigit() and len(message.data) <= _HINT_DIGITS:
                on_hint(message.subject.rpartition(".")[2], int(message.data))

        await self._client.subscribe(self._subjects.hint(), cb=receive)

    async def wait_lost(self) -> str:
        """Wait until a connection is closed for good. Return the reason."""
        waiting = {asyncio.create_task(each.closed.wait()): each for each in self.connections}
        try:
            ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        return waiting[ended.pop()].last_error

    async def close(self) -> None:
        """Send what is buffered, such as replies, and disconnect."""
        if self._requests is not None:
            await self._requests.disconnect()
        await self._connection.close()

    @property
    def connections(self) -> Sequence[Connection]:
        """The connections: that of commands and events, and that of queries and requests if it was opened."""
        return [self._connection, *([] if self._requests is None else [self._requests.connection])]
