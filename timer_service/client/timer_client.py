"""The client: connecting, the methods for each kind of thing, any query, and a durable consumer."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from timer_service.client.checks import check_mapping, check_query
from timer_service.client.connection import Connection, connector
from timer_service.client.dead_letters import DeadLetters, Events
from timer_service.client.errors import ShortTraceback
from timer_service.client.events import Event
from timer_service.client.link import Subscription
from timer_service.client.receive.delivery import Delivery
from timer_service.client.receive.filters import Filter, check_consumer
from timer_service.client.runs import Runs
from timer_service.client.schedules import Schedules
from timer_service.client.signals import Signals
from timer_service.client.timers import Timers
from timer_service.client.workflows import Workflows

_READ_AHEAD = 10
"""How many deliveries `consume` keeps for a program that has not taken them."""


class TimerClient:
    """A client of the service over a connection to its broker. Create it with `TimerClient.connect`.

    Every method checks its arguments first and raises ValueError with the name of a wrong argument. A command or query
    raises `NoAnswerError` if there is no answer within `timeout_seconds`. The service may still handle the command
    later. Sending the command again is safe, with two exceptions: `schedules.trigger` fires again, and `due_in` counts
    from the new command.

    The client reconnects by itself. While it is disconnected, commands and queries raise `NoAnswerError`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.timers = Timers(connection)
        """The methods for timers."""
        self.signals = Signals(connection)
        """The methods for work signals."""
        self.schedules = Schedules(connection)
        """The methods for schedules, which are recurring timers."""
        self.runs = Runs(connection)
        """The methods for runs."""
        self.workflows = Workflows(connection)
        """The methods for workflows, which are durable functions."""
        self.events = Events(connection)
        """The methods for buried events and parked events."""
        self.dead_letters = DeadLetters(connection)
        """The methods for dead letters, which are rejected commands. They are for operators."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str | None = None,
        *,
        subject_prefix: str = "timer",
        inbox_prefix: str = "_INBOX",
        **options: Any,
    ) -> AsyncIterator["TimerClient"]:
        """Connect to a broker, and close the connection at the end of the block.

        Its scheme names the broker; several URLs of NATS may have commas between them. Without `url`, the client uses
        the broker that `find_broker` returns, and no other one in its place. `options` of every broker are `user` and
        `password`, or `login`: a function that returns a dictionary of them. It is called in a thread at each connect,
        so it can read files again. NATS also has `token`, `nkeys_seed_str`, `user_credentials`, `tls` and the other
        options of `nats.connect`, and Redis `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`. Raises `NoAnswerError` if
        no server answers.
        """
        async with AsyncExitStack() as stack:
            with ShortTraceback():
                opening = connector("timer-client", url, subject_prefix, inbox_prefix, options)()
                connection = await stack.enter_async_context(opening)
            yield cls(connection)

    async def query(self, tenant: str, name: str, request: Mapping[str, Any], *, timeout_seconds: float = 10) -> Any:
        """Return the reply to any query, in the form of contracts/README.md. Raises `QueryError`."""
        question = check_mapping("request", request)
        return await self._connection.ask(tenant, check_query("name", name), question, timeout_seconds)

    def consume(
        self,
        tenant: str,
        name: str,
        *events: type[Event] | Filter,
        stream: str | None = None,
        from_start: bool = False,
        ack_wait: timedelta = timedelta(seconds=30),
    ) -> AsyncGenerator[Delivery, None]:
        """Iterate over the deliveries of a durable consumer: every event, at least once. `TimerApp` is built on it.

        `name` is the consumer: it remembers its place while no program reads, and programs with the same name share its
        events. Acknowledge each delivery with `ack`, or give it back with `retry`; otherwise it comes again after
        `ack_wait`. `events` are classes, or a `Filter` for a topic; without them, every event. A new consumer begins
        with the events from now on, or with `from_start` with all that are stored. `stream`, only at NATS, is the
        stream that an operator has made for the tenant; it has the events that the operator chose.

        Goes on after a lost connection. Raises `NoAnswerError` at the start if the stream or a permission is missing.
        """
        consumer = check_consumer(tenant, name, events, stream=stream, from_start=from_start, ack_wait=ack_wait)
        return self._consume(self._connection.link.consume(consumer, _READ_AHEAD))

    async def _consume(self, source: Subscription) -> AsyncGenerator[Delivery, None]:
        with ShortTraceback():
            await source.open()
        try:
            while True:
                yield await source.next()
        finally:
            await source.close()
