"""The NATS connection behind the broker port."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.backlog import Backlog
from timer_service.adapters.nats.connection import Connection
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.holding import TakenOverError
from timer_service.adapters.nats.intake_client import IntakeClient
from timer_service.adapters.nats.login import Login
from timer_service.adapters.nats.membership import Membership
from timer_service.adapters.nats.publisher import Publisher
from timer_service.adapters.nats.query_connection import QueryConnection
from timer_service.adapters.nats.request_connection import RequestConnection
from timer_service.adapters.nats.storage import Storage
from timer_service.adapters.nats.stream_upkeep import StreamUpkeep
from timer_service.adapters.nats.streams import prepare_streams
from timer_service.adapters.nats.subjects import Subjects
from timer_service.adapters.nats.subscription import NatsSubscription
from timer_service.core.intake.installation import Replay
from timer_service.core.ports.broker import (
    BrokerFeatures,
    History,
    PublishResult,
    PublishStatus,
    QueryFilter,
    QueryHandler,
    ReceiveRequest,
    Reply,
    read_all,
)
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.budget import DEFAULT_BUDGET
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import ConflictError, DatabaseUnavailableError, StartError
from timer_service.core.values.message import Message

log = logging.getLogger(__name__)

_FIRST_JOIN = timedelta(seconds=10)  # a busy server may answer late
_CONFIRM_WITHIN = 2.5
"""How long ago this process must have been seen to have the commands, when it publishes. A pull looks every second."""
_CONFIRM_SECONDS = 0.5
_HINT_DIGITS = 15
_ANONYMOUS = Login()
_PASSING = (nats.errors.TimeoutError, NotFoundError, ConflictError, DatabaseUnavailableError)
"""Errors of joining that may pass: a busy server or database, or another instance that is creating the consumer."""


class NatsBroker:
    """`core.broker.Broker` on NATS JetStream."""

    def __init__(self, subjects: Subjects, reply_prefix: str) -> None:
        self._connection = Connection(harmless=subjects.hint(""))
        self._subjects = subjects
        self._consumer: DurableConsumer
        self._backlog: Backlog
        self._storage: Storage
        self._publisher: Publisher
        self._confirm_at = 0.0
        self.streams: StreamUpkeep
        """A worker that checks the streams, and their health."""
        self._reply_prefix = reply_prefix
        self._queries: QueryConnection | None = None
        self._requests: RequestConnection | None = None
        self._urls = ""
        self._login: Mapping[str, Any] = {}

    @classmethod
    async def connect(
        cls,
        urls: str,
        subject_prefix: str,
        *,
        login: Login = _ANONYMOUS,
        reply_prefix: str,
        manage_streams: bool,
        retention: timedelta | None = None,
    ) -> "NatsBroker":
        """Connect, and prepare the streams. `urls` is comma-separated.

        `retention`: how long the database keeps settled rows. The broker must not keep commands for longer. None: for
        ever.

        Raises `StartError` at once if the login is refused or a stream is wrong. Raises it after ten seconds, with the
        last reason, if no server answers.
        """
        broker = cls(Subjects(subject_prefix), reply_prefix)
        broker._urls, broker._login = urls, login.options()
        await broker._connection.open(broker._urls, broker._login)
        try:
            found = await prepare_streams(broker._client, broker._subjects, manage=manage_streams, retention=retention)
        except nats.errors.Error as error:
            await broker._client.close()
            raise StartError(f"JetStream does not answer: {error}") from error
        except StartError:
            await broker._client.close()
            raise
        broker._consumer = DurableConsumer(broker._client, broker._subjects)
        broker._storage = Storage(broker._client)
        broker.streams = StreamUpkeep(
            broker._client,
            broker._subjects,
            broker._consumer,
            broker._storage,
            found,
            manage=manage_streams,
            retention=retention,
        )
        atomic = {kind for kind, stream in found.items() if stream["config"].get("allow_atomic")}
        broker._backlog = Backlog(broker._consumer)
        broker._publisher = Publisher(
            broker._client, broker._subjects, atomic=atomic, on_answers=broker._storage.record
        )
        broker._connection.tolerates = broker._storage.denied
        broker._connection.on_lost += [
            broker._publisher.connection_lost,
            broker._storage.connection_lost,
            broker._begin_backlog,
        ]
        return broker

    @property
    def _client(self) -> IntakeClient:
        return self._connection.client

    def _begin_backlog(self) -> None:
        self._backlog = Backlog(self._consumer)

    @property
    def features(self) -> BrokerFeatures:
        """The features of this broker."""
        return BrokerFeatures(deduplicates=True, max_message_bytes=self._client.max_payload)

    @property
    def health(self) -> Health:
        """Down without a connection. Otherwise usable, with a reason if the server denied a permission."""
        return self._connection.health

    @property
    def outages(self) -> int:
        """How many times the connection was lost."""
        return self._connection.outages

    @property
    def keeps_events_for(self) -> timedelta | None:
        """How long stored events stay; None: for ever."""
        return self.streams.keeps_events_for

    @property
    def query_health(self) -> Health:
        """Whether queries arrive: their connection is down, or healthy."""
        return HEALTHY if self._queries is None else self._queries.health

    @property
    def request_health(self) -> Health:
        """Whether requests of workers arrive: their connection is down, or healthy."""
        return HEALTHY if self._requests is None else self._requests.health

    @property
    def reading(self) -> bool:
        """Whether the connections are read, or are being restored."""
        others = all(each is None or each.reading for each in (self._queries, self._requests))
        return others and self._connection.reading

    async def subscribe(
        self,
        history: History,
        *,
        messages: Collection[str] = (),
        alone: bool = False,
        batch_bytes: int = DEFAULT_BUDGET.batch,
    ) -> NatsSubscription:
        """Subscribe to the commands of every tenant. Raises `StartError` if the consumer cannot be joined."""
        membership = Membership(
            self._client, self._subjects, self._consumer, history, messages=messages, batch_bytes=batch_bytes
        )
        subscription = NatsSubscription(self._client, membership)
        # Before the first join: if the connection is lost meanwhile, the stream may be another one afterwards.
        self._connection.on_lost.append(subscription.connection_lost)
        self._connection.on_restored.append(subscription.connection_restored)
        deadline = time.monotonic() + _FIRST_JOIN.total_seconds()
        while True:
            try:
                await subscription.open(alone=alone)
                break
            except (nats.errors.Error, JetStreamError, ConflictError, DatabaseUnavailableError) as error:
                may_pass = isinstance(error, _PASSING) and not self._connection.denies
                if not may_pass or time.monotonic() > deadline:
                    raise StartError(
                        f"cannot join the command consumer: {error_text(error)}; "
                        "`timer-service doctor` names every missing permission"
                    ) from error
        return subscription

    async def check_database(self, history: History) -> None:
        """Check that the commands belong to this database. Raises `StartError` if another one has them."""
        try:
            await self._consumer.check_database(await history.installation())
        except (nats.errors.Error, JetStreamError) as error:
            raise StartError(f"cannot look up the command consumer: {error_text(error)}") from error

    async def caught_up(self, *, restart: bool = False) -> bool:
        """Return whether the backlog is settled, according to JetStream."""
        backlog = self._backlog
        if not self.health.usable or not await backlog.is_settled(restart=restart):
            return False
        return backlog is self._backlog and self.health.usable

    async def oldest_unsettled(self) -> int | None:
        """Return when the broker stored the oldest command that is not settled, in ms; None if all are settled.

        Raises `OSError` if JetStream does not answer.
        """
        try:
            return await self._consumer.oldest_unsettled()
        except (nats.errors.Error, JetStreamError) as error:
            raise OSError("JetStream does not answer") from error

    async def replayed(self, replay: Replay) -> bool:
        """Return whether the commands of a replay are handled again; False if JetStream does not answer."""
        try:
            return await self._consumer.replays(replay) and await self.caught_up()
        except (nats.errors.Error, JetStreamError, OSError) as error:
            log.debug("cannot check the replay", extra={"reason": error_text(error)})
            return False

    async def forget_replay(self) -> None:
        """Make the consumer forget a replay that has ended. If that fails, the next start does it."""
        try:
            await self._consumer.forget_replay()
        except (nats.errors.Error, JetStreamError, OSError, TakenOverError) as error:
            log.debug("the consumer still has the mark of a replay", extra={"reason": error_text(error)})

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages in their streams. Return one result each."""
        if not self.health.usable:
            return [PublishResult(PublishStatus.UNAVAILABLE, self.health.reason or "")] * len(messages)
        if await self._is_taken_over():
            return [PublishResult(PublishStatus.UNAVAILABLE, self._consumer.holding.reason)] * len(messages)
        return await self._publisher.publish(messages)

    async def _is_taken_over(self) -> bool:
        """Return whether another process is known to have the commands. Look if that is not known since a pause.

        Timers of this database may be cancelled in the other one. Without an answer, events are published.
        """
        if not self._consumer.holding.is_confirmed(_CONFIRM_WITHIN) and time.monotonic() >= self._confirm_at:
            self._confirm_at = time.monotonic() + _CONFIRM_WITHIN
            with suppress(nats.errors.Error, JetStreamError, OSError, TakenOverError):
                await self._consumer.confirm(_CONFIRM_WITHIN, seconds=_CONFIRM_SECONDS)
        return self._consumer.holding.taken_over.is_set()

    async def serve_queries(self, names: Sequence[str], answer: QueryHandler, refuse: QueryFilter = read_all) -> None:
        """Answer queries on a connection of their own. Raises `StartError` if it cannot be opened."""
        self._queries = QueryConnection(
            self._subjects, self._reply_prefix, refuse, self._connection.record_error, self._connection.end
        )
        await self._queries.open(self._urls, self._login, names, answer)

    async def serve_requests(self, names: Sequence[str], receive: ReceiveRequest) -> RequestConnection:
        """Receive requests on a connection of their own. Raises `StartError` if it cannot be opened."""
        self._requests = RequestConnection(
            self._subjects, self._reply_prefix, receive, self._connection.record_error, self._connection.end
        )
        await self._requests.open(self._urls, self._login, names)
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
        """Wait until the connection is closed for good. Return the reason."""
        return await self._connection.wait_closed()

    async def wait_taken_over(self) -> str:
        """Wait until a service with a copy of the database has taken over the commands. Return what to do."""
        await self._consumer.holding.taken_over.wait()
        return self._consumer.holding.reason

    async def close(self) -> None:
        """Send what is buffered, such as acknowledgements, and disconnect."""
        self._connection.begin_to_close()
        if self._requests is not None:
            await self._requests.disconnect()
        if self._queries is not None:
            await self._queries.close()
        await self._connection.close()
