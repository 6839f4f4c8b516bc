"""A connection of AMQP 0.9.1 that connects again for ever after it was lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import aiormq
from aiormq import spec
from aiormq.exceptions import ProbableAuthenticationError

from timer_service.adapters.rabbitmq.server import Server
from timer_service.cancellation import own_cancellation
from timer_service.core.ports.health import HEALTHY, Health, OutageLog, log_waiting
from timer_service.core.values.errors import StartError
from timer_service.rabbit_client import ANSWER_SECONDS, ERRORS, reason_of

_OPEN_SECONDS = 10
_RECONNECT_SECONDS = 0.2  # bounds how late timers fire after an outage
_LOOK_SECONDS = 0.1

log = logging.getLogger(__name__)


class Connection:
    """A connection to a server. It opens channels, and knows whether the broker blocks it."""

    def __init__(self, server: Server, name: str, part: str = "the broker") -> None:
        """`name`: for the server. `part`: for messages."""
        self._server = server
        self._name = name
        self._part = part
        self._connection: aiormq.Connection | None = None
        self._is_prepared = False
        self._prepare: Callable[[], Awaitable[None]] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._outage = OutageLog(part=part, quiet_seconds=0)
        self.outages = 0
        """How many times the connection was lost."""
        self.blocked = False
        """Whether the broker takes no messages from this connection, because it has no memory or no disk left."""
        self.last_error = ""

    @property
    def health(self) -> Health:
        """Down without a connection, and while the broker blocks it."""
        if not self._is_prepared:
            return Health.down(f"not connected to {self._part}: {self.last_error or 'connection lost'}")
        if self.blocked:
            return Health.down("RabbitMQ blocks publishers: it has an alarm, as its memory or its disk is nearly full")
        return HEALTHY

    async def open(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Connect, and keep connected. `prepare` is called after each connect. If it fails, that is repeated.

        Raises `StartError` at once if the login is refused or `prepare` raises it, and after ten seconds.
        """
        self._prepare = prepare
        give_up_at = asyncio.get_running_loop().time() + _OPEN_SECONDS
        with log_waiting(f"{self._part} (TIMER_BROKER_URL)", lambda: self.last_error):
            while not await self._connect():
                if asyncio.get_running_loop().time() >= give_up_at:
                    raise StartError(f"cannot connect to the broker (TIMER_BROKER_URL): {self.last_error}")
                await asyncio.sleep(_RECONNECT_SECONDS)
        self._keeping = asyncio.create_task(self._keep(), name=self._name)

    async def channel(self, *, confirms: bool = False) -> aiormq.Channel:
        """Open a channel. Raises one of `ERRORS`."""
        if self._connection is None:
            raise ConnectionError(self.last_error or "connection lost")
        with own_cancellation():
            opened = await self._connection.channel(publisher_confirms=confirms, timeout=ANSWER_SECONDS)
        return cast(aiormq.Channel, opened)

    async def renew(self, _frame: object = None) -> None:
        """Disconnect, to connect again. So a queue is created again whose consumer the broker has ended."""
        if self._connection is not None:
            await self._connection.close()

    async def close(self) -> None:
        """Disconnect."""
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        await self.renew()

    async def _connect(self) -> bool:
        """Connect and prepare, once. Return whether that succeeded. Raises `StartError`."""
        try:
            with own_cancellation():
                self._connection = await self._server.connect(self._name)
                if self._prepare is not None:
                    await self._prepare()
        except Exception as error:
            self.last_error = reason_of(error)
            await self.renew()
            self._connection = None
            if isinstance(error, ProbableAuthenticationError):
                raise StartError(f"the broker refuses the login (TIMER_BROKER_...): {error}") from error
            if isinstance(error, ERRORS):
                return False
            raise
        self.last_error, self._is_prepared = "", True
        return True

    async def _keep(self) -> None:
        """Watch the connection, and connect again when it is lost."""
        while True:
            if self._connection is not None:
                await self._watch(self._connection)
                self._connection, self._is_prepared, self.blocked = None, False, False
                self.outages += 1
                self._outage.record_failure(self.last_error)
            try:
                is_connected = await self._connect()
            except Exception as error:  # noqa: BLE001 - whatever it is, only another attempt helps
                self.last_error = reason_of(error)
                is_connected = False
            if is_connected:
                self._outage.record_success()
            else:
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def _watch(self, connection: aiormq.Connection) -> None:
        """Return when a connection is lost. Meanwhile look whether the broker blocks it."""
        closing = connection.closing
        while not closing.done():
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await connection.ready()  # at once, unless the broker blocks it
                self.blocked = False
            except TimeoutError:
                self.blocked = True
            await asyncio.wait([closing], timeout=_LOOK_SECONDS)
        self.last_error = why_closed(connection) or "connection lost"


def why_closed(closed: aiormq.Connection | aiormq.Channel) -> str | None:
    """Return what the server said when it closed a connection or a channel."""
    closing = closed.closing
    error = closing.exception() if closing.done() and not closing.cancelled() else None
    return None if error is None else str(error) or None


class Sender:
    """A channel for messages that are not confirmed. The next message opens it again if the broker has closed it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel: aiormq.Channel | None = None
        self._opening = asyncio.Lock()

    async def send(self, body: bytes, key: str, *, exchange: str = "", correlation_id: str | None = None) -> None:
        """Send a message. Raises one of `ERRORS`; the message can also be lost later."""
        if not self._connection.health.usable:
            raise ConnectionError(self._connection.health.reason)
        async with self._opening:
            if (channel := self._channel) is None or channel.is_closed:
                if channel is not None and (refusal := why_closed(channel)) is not None:
                    log.warning("messages may be lost", extra={"reason": refusal})
                channel = self._channel = await self._connection.channel()
        properties = spec.Basic.Properties(correlation_id=correlation_id)
        with own_cancellation():
            async with asyncio.timeout(ANSWER_SECONDS):  # at an alarm, it waits
                await channel.basic_publish(body, exchange=exchange, routing_key=key, properties=properties)
