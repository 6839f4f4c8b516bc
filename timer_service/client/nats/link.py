"""A connection to NATS, with the subjects of the contracts."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import nats.errors

from timer_service.cancellation import keep_cancellation
from timer_service.client.commands import Command, Exchange
from timer_service.client.errors import NoAnswerError
from timer_service.client.link import Link, Subscription, no_service
from timer_service.client.lookup import Broker, url_without_login
from timer_service.client.models import DeadLetter
from timer_service.client.nats.commands import Publisher
from timer_service.client.nats.dead_letters import DeadLetterStream
from timer_service.client.nats.watches import Watches
from timer_service.client.receive.filters import Consumer
from timer_service.client.watches import Watch
from timer_service.core.values.address import Kind
from timer_service.nats_client import LastingClient

log = logging.getLogger(__name__)


class NatsLink(Link):
    """A connection to NATS."""

    def __init__(self, client: LastingClient, prefix: str) -> None:
        super().__init__()
        self.client = client
        """The connection of the driver."""
        self._prefix = prefix
        self._publisher = Publisher(client, self.subject)
        self._watches = Watches(client, self.subject)
        self._dead_letters = DeadLetterStream(client, self.stream(Kind.DEAD_LETTER))
        self.on_lost.append(self._watches.end)

    @property
    def largest(self) -> int:
        """See `Link.largest`."""
        return self.client.max_payload

    @property
    def command_log(self) -> str:
        """See `Link.command_log`."""
        return f"the stream {self.stream(Kind.COMMAND)}"

    @property
    def problem(self) -> str | None:
        """Why the broker cannot be used now: the reason that the driver has met last; or None."""
        return None if self.client.is_connected else str(self.client.last_error or "")

    def subject(self, kind: Kind, tenant: str, message: str) -> str:
        """Return the subject of messages of a kind."""
        return f"{self._prefix}.{kind}.v1.{tenant}.{message}"

    def stream(self, kind: Kind) -> str:
        """Return the name of the stream of messages of a kind."""
        return f"{self._prefix}_{kind}".replace(".", "_").upper()

    async def close(self) -> None:
        """See `Link.close`."""
        self.is_closed = True
        self.lose()
        await self.client.close()

    async def exchange(self, exchange: Exchange) -> None:
        """See `Link.exchange`."""
        with _translated():
            await self._publisher.exchange(exchange)

    async def store(self, commands: Sequence[Command], endings: dict[str, str | None]) -> None:
        """See `Link.store`."""
        with _translated():
            await self._publisher.store(commands, endings)

    async def request(self, kind: Kind, tenant: str, name: str, body: bytes, timeout_seconds: float) -> bytes:
        """See `Link.request`."""
        with _translated():
            try:
                subject = self.subject(kind, tenant, name)
                return (await self.client.request(subject, body, timeout=timeout_seconds)).data
            except nats.errors.NoRespondersError as error:
                raise no_service(kind) from error
            except nats.errors.TimeoutError as error:
                raise NoAnswerError(f"no answer within {timeout_seconds} s") from error

    async def join(self, watch: Watch) -> None:
        """See `Link.join`."""
        with _translated():
            await self._watches.join(watch)

    async def leave(self, watch: Watch) -> None:
        """See `Link.leave`."""
        with _translated():
            await self._watches.leave(watch)

    async def dead_letters(self, tenant: str, limit: int, before: int | None) -> Sequence[DeadLetter]:
        """See `Link.dead_letters`."""
        return await self._dead_letters.list(self.subject(Kind.DEAD_LETTER, tenant, "*"), limit, before)

    async def dead_letter(self, sequence: int) -> DeadLetter | None:
        """See `Link.dead_letter`."""
        return await self._dead_letters.get(sequence)

    def consume(self, consumer: Consumer, ahead: int) -> Subscription:
        """See `Link.consume`."""
        from timer_service.client.nats.subscription import PullSubscription  # noqa: PLC0415 - it imports this module

        return PullSubscription(self, consumer, ahead)


async def connect(broker: Broker, name: str, prefix: str, options: Mapping[str, Any]) -> NatsLink:
    """Connect to NATS. `options` go to `nats.connect`. Raises `NoAnswerError`."""
    client = LastingClient(server_name=None if broker.dev is None else broker.dev.server_name)
    link = NatsLink(client, prefix)
    last_errors = deque[Exception](maxlen=1)  # the one that `connect` raises only says that all servers failed

    async def note(error: Exception) -> None:
        last_errors.append(error)
        if "permissions violation" in str(error).lower():  # nothing else says it: the broker sends no answer
            log.warning("the broker refuses this login: %s", error)

    async def lose() -> None:
        link.lose()

    try:
        with keep_cancellation():
            await client.connect(
                broker.url.split(","),
                name=name,
                connect_timeout=5,
                max_reconnect_attempts=1,  # of the first connect; with more it would take minutes to fail
                reconnect_time_wait=1,
                error_cb=note,
                disconnected_cb=lose,
                **options,
            )
    except asyncio.CancelledError:
        await client.close()
        raise
    except (nats.errors.Error, OSError) as error:
        why = last_errors[0] if last_errors else error
        reason = str(why) or type(why).__name__
        raise NoAnswerError(f"cannot connect to the broker at {url_without_login(broker.url)}: {reason}") from error
    client.options["max_reconnect_attempts"] = -1  # from now on without end
    return link


@contextmanager
def _translated() -> Iterator[None]:
    """Raise `NoAnswerError` in place of an error of the driver."""
    try:
        yield
    except nats.errors.Error as error:
        raise NoAnswerError(str(error) or type(error).__name__) from error
