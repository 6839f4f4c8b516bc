"""The exchanges, streams and queues of the service: created or only checked, at the start and later."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from aiormq.abc import AbstractChannel
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelClosed,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from timer_service.adapters.rabbitmq.connection import Connection
from timer_service.adapters.rabbitmq.names import Names
from timer_service.cancellation import own_cancellation
from timer_service.core.due.loop import Pass
from timer_service.core.ports.health import HEALTHY, Health, OutageLog
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Kind
from timer_service.core.values.errors import StartError
from timer_service.rabbit_client import ANSWER_SECONDS, ERRORS, reason_of

log = logging.getLogger(__name__)

_MAX_AGE = {Kind.COMMAND: "7D", Kind.EVENT: "7D", Kind.DEAD_LETTER: "30D"}
_REQUESTS = {"x-message-ttl": 10_000, "x-max-length": 10_000}
"""The settings of a queue of requests. A client does not wait longer."""
AWAY = "home node"
"""What RabbitMQ says about a queue for some time after its start, although the queue is there.

It says so for ever if it was killed in the second after it had created the queue.
"""
_TYPES = "arg 'type'", "arg 'x-queue-type'"
"""What RabbitMQ says of an exchange or a queue that exists with another type."""
_AGAIN_MS = 1000
_START_SECONDS = 30
"""How long a start waits for streams. After its own start, the broker opens them one by one."""
_WAIT_SECONDS = 0.2
_OTHER_DATABASE = (
    "a service with another database handles the commands of stream {stream}. If both shall run, set another "
    "TIMER_SUBJECT_PREFIX for one of them. If this database replaces the other one, stop the other service and delete "
    "the queue {owner}: then this service handles every command that the stream still has"
)


class SetUp:
    """Creates what is missing if it may, and checks it otherwise."""

    def __init__(self, connection: Connection, names: Names, *, manage: bool) -> None:
        self._connection = connection
        self._names = names
        self._manage = manage
        self.hint_queue = ""
        """The queue of hints on the connection as it is now."""

    async def prepare(self) -> None:
        """Prepare all streams, at the start. Raises `StartError`, after some time if the broker does not answer.

        The size is checked last: with an alarm, the broker reads nothing behind the first message.
        """
        give_up_at = asyncio.get_running_loop().time() + _START_SECONDS
        while True:
            try:
                for kind in _MAX_AGE:
                    await self.prepare_stream(kind)
                await self._check_size()
            except ERRORS as error:
                if isinstance(error, ChannelAccessRefused) or asyncio.get_running_loop().time() > give_up_at:
                    raise StartError(f"RabbitMQ cannot be used: {reason_of(error)}") from error
                await asyncio.sleep(_WAIT_SECONDS)
            else:
                return

    async def prepare_stream(self, kind: Kind) -> bool:
        """Prepare the exchange and the stream of a kind. Return whether the stream was created.

        Raises `StartError` with what is wrong, or one of `ERRORS` if the broker does not answer.
        """
        arguments = {"x-queue-type": "stream", "x-max-age": _MAX_AGE[kind]}
        return await self._prepare(self._names.exchange(kind), "topic", self._names.stream(kind), arguments)

    async def prepare_requests(self, kind: Kind) -> str:
        """Prepare the exchange and the queue of queries, or of requests of workers. Return the name of the queue."""
        name = self._names.exchange(kind)
        await self._prepare(name, "topic", name, _REQUESTS)
        return name

    async def prepare_hints(self) -> None:
        """Prepare the exchange of hints, and bind the queue to it: an exchange is deleted with its bindings."""
        await self._prepare(self._names.hints, "fanout")
        async with self._channel() as channel:
            await channel.queue_bind(self.hint_queue, self._names.hints, timeout=ANSWER_SECONDS)

    async def claim(self, owner: str) -> None:
        """Claim the log of commands for a database, with a queue that has its identity as a setting.

        Raises `StartError` if the log belongs to another database, or one of `ERRORS`. Without a permission to create
        that queue, nothing is claimed.
        """
        settings: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": owner}
        async with self._channel() as channel:
            try:
                await channel.queue_declare(self._names.owner, durable=True, arguments=settings, timeout=ANSWER_SECONDS)
            except ChannelPreconditionFailed as error:
                names = {"stream": self._names.stream(Kind.COMMAND), "owner": self._names.owner}
                raise StartError(_OTHER_DATABASE.format(**names)) from error
            except ChannelAccessRefused as error:
                log.warning("the log of commands is not claimed for this database", extra={"reason": str(error)})

    async def _check_size(self) -> None:
        """Raise `StartError` if the broker refuses the largest event, by a message that no queue gets.

        While the broker blocks publishers, it does not say.
        """
        async with self._channel(confirms=True) as channel:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await channel.basic_publish(bytes(MAX_MESSAGE_BYTES), routing_key=f"{self._names.prefix}.nobody")
            except ChannelPreconditionFailed as error:
                raise StartError(f"{error}: set max_message_size of RabbitMQ to {MAX_MESSAGE_BYTES} or more") from error
            except TimeoutError:
                if not self._connection.blocked:
                    raise

    async def _prepare(self, exchange: str, kind: str, queue: str = "", settings: dict[str, Any] | None = None) -> bool:
        """Prepare an exchange of a kind, and a queue bound to it. Return whether the queue was created."""
        created = False
        try:
            await self._create(lambda each, how: each.exchange_declare(exchange, exchange_type=kind, **how))
            if queue:
                created = await self._create(lambda each, how: each.queue_declare(queue, arguments=settings, **how))
                if self._manage:
                    async with self._channel() as channel:
                        await channel.queue_bind(queue, exchange, "#", timeout=ANSWER_SECONDS)
        except (ChannelAccessRefused, ChannelPreconditionFailed, ChannelLockedResource) as error:
            raise StartError(f"{queue or exchange} cannot be set up: {error}") from error
        return created

    async def _create(self, declare: Callable[[AbstractChannel, dict[str, Any]], Awaitable[object]]) -> bool:
        """Create an exchange or a queue, unless it exists. Return whether it was created.

        Raises `StartError` if it does not exist and may not be created, or if it is of another type. It may have other
        settings.
        """
        try:
            async with self._channel() as channel:
                await declare(channel, {"passive": True, "timeout": ANSWER_SECONDS})
            exists = True
        except ChannelNotFoundEntity as error:
            if AWAY in str(error):
                raise ConnectionError(str(error)) from error
            if not self._manage:
                raise StartError(f"{error}: create it, or set TIMER_MANAGE_STREAMS=true") from None
            exists = False
        try:
            async with self._channel() as channel:
                await declare(channel, {"durable": True, "timeout": ANSWER_SECONDS})
        except ChannelAccessRefused:
            if not exists:
                raise
        except ChannelPreconditionFailed as error:
            if is_of_another_type(error):
                raise
        return not exists

    @asynccontextmanager
    async def _channel(self, *, confirms: bool = False) -> AsyncIterator[AbstractChannel]:
        """Open a channel for one step. An error of the broker closes it."""
        channel = await self._connection.channel(confirms=confirms)
        try:
            with own_cancellation():
                yield channel
        finally:
            with suppress(ChannelClosed, *ERRORS), own_cancellation():
                await channel.close()


def is_of_another_type(error: ChannelPreconditionFailed) -> bool:
    """Return whether an exchange or a queue could not be created because it exists with another type."""
    return any(each in str(error) for each in _TYPES)


class StreamUpkeep:
    """A worker that checks the streams again, as at the start: it creates them, or only reports them.

    A missing stream is created empty. The messages that it had are lost.
    """

    keeps_events_for = timedelta(days=7)
    """How long a stream of events keeps them that this service has created. The broker tells nobody."""

    def __init__(self, connection: Connection, names: Names, set_up: SetUp) -> None:
        self._connection = connection
        self._names = names
        self._set_up = set_up
        self._outages = {kind: OutageLog(part=f"stream {names.stream(kind)}", quiet_seconds=0) for kind in _MAX_AGE}
        self._requests = OutageLog(part="the set-up of requests and hints", quiet_seconds=0)
        self._checked = dict.fromkeys(_MAX_AGE, HEALTHY)

    @property
    def health(self) -> Mapping[Kind, Health]:
        """The health of each stream at the last check. While the broker blocks publishers, none can send commands."""
        if self._connection.blocked:
            return {**self._checked, Kind.COMMAND: self._connection.health}
        return self._checked

    def name(self, kind: Kind) -> str:
        """Return the name of the stream that stores a kind."""
        return self._names.stream(kind)

    async def tick(self, now: int) -> Pass:
        """Check every stream once, if the broker answers. Check again soon while one has a problem."""
        if self._connection.health.usable:
            checked = await asyncio.gather(*map(self._check, _MAX_AGE))
            await self._restore_requests()
            if self._connection.health.usable:  # otherwise a check without an answer shows nothing about the stream
                self._checked = dict(zip(_MAX_AGE, checked, strict=True))
        for kind, health in self.health.items():
            if health.reason is None:
                self._outages[kind].record_success()
            else:
                self._outages[kind].record_failure(health.reason)
        well = all(health.reason is None for health in self.health.values())
        return Pass(0, None if well else now + _AGAIN_MS)

    async def _restore_requests(self) -> None:
        """Create the exchanges and queues of requests and hints again if they were deleted."""
        try:
            for kind in (Kind.QUERY, Kind.REQUEST):
                await self._set_up.prepare_requests(kind)
            await self._set_up.prepare_hints()
        except (StartError, *ERRORS) as error:
            self._requests.record_failure(reason_of(error))
        else:
            self._requests.record_success()

    async def _check(self, kind: Kind) -> Health:
        """Prepare one stream as at the start, and return its health."""
        name = self._names.stream(kind)
        try:
            if await self._set_up.prepare_stream(kind):
                about = {"stream": name}
                log.warning("a stream was created again; messages that only the old one had are lost", extra=about)
        except StartError as error:
            return Health.down(str(error))
        except ERRORS as error:
            return Health.down(f"stream {name} cannot be checked: {reason_of(error)}")
        return HEALTHY
