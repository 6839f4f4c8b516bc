"""The client: connecting, and the methods for timers."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from timer_service.client.checks import (
    check_choice,
    check_identifier,
    check_list,
    check_mapping,
    check_query,
    check_seconds,
    check_text,
    check_topic,
    check_type,
    given,
    optional,
    wire_duration,
    wire_instant,
)
from timer_service.client.commands import Command, Ended
from timer_service.client.connection import Connection, open_connection, with_topics
from timer_service.client.dead_letters import DeadLetters, Events
from timer_service.client.events import DueTimeReached, Event, TimerExpired, TimersCancelled
from timer_service.client.models import UNSET, Counts, NewTimer, Outcome, Timer
from timer_service.client.names import TimerState
from timer_service.client.receive.delivery import Delivery
from timer_service.client.receive.filters import Filter, check_consumer
from timer_service.client.receive.subscription import Subscription
from timer_service.client.resource import Resource
from timer_service.client.runs import Runs
from timer_service.client.schedules import Schedules
from timer_service.client.signals import Signals
from timer_service.client.workflows import Workflows

_READ_AHEAD = 10
"""How many deliveries `consume` keeps for a program that has not taken them."""


class TimerClient(Resource):
    """A client of the service over one NATS connection. Create it with `TimerClient.connect`.

    Every method checks its arguments first and raises ValueError with the name of a wrong argument. A command or query
    raises `NoAnswerError` if there is no answer within `timeout_seconds`. The service may still handle the command
    later. Sending the command again is safe, with two exceptions: `schedules.trigger` fires again, and `due_in` counts
    from the new command.

    The client reconnects by itself. While it is disconnected, commands and queries raise `NoAnswerError`.
    """

    _id = ("serviceCallId", "call")

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
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

        `url` may be several URLs with commas between them. Without it, the client uses the broker that `find_broker`
        returns, and no other one in its place. `options` go to `nats.connect`: `user` and `password`,
        `token`, `nkeys_seed_str`, `user_credentials`, `tls`. Raises `NoAnswerError` if no server answers.
        """
        optional(check_text, "url", url)
        options["inbox_prefix"] = check_text("inbox_prefix", inbox_prefix)
        check_text("subject_prefix", subject_prefix)
        async with open_connection(url, "timer-client", subject_prefix, options) as connection:
            yield cls(connection)

    async def schedule(
        self,
        tenant: str,
        call: str,
        due_at: datetime | None = None,
        *,
        due_in: timedelta | None = None,
        expires_at: datetime | None = None,
        late_by: timedelta | None = None,
        topic: str | None = None,
        data: Any = UNSET,
        correlation_id: str | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Schedule a timer, or change its due time, topic and data.

        Give either `due_at`, which must have a timezone, or `due_in`, which counts from when the broker has stored the
        command. If the timer fires at `expires_at` or later, or `late_by` after its due time or later, it expires: its
        event is `TimerExpired`. The event returns `data`, which is any JSON value, and `correlation_id`. `topic` is the
        last token of its subject, by which consumers choose events. A call without one of these, or without an expiry,
        removes that of an earlier call. Raises `CommandError` if the service rejects the command.
        """
        check_seconds("timeout_seconds", timeout_seconds)
        timer = NewTimer(tenant, call, due_at, data, due_in, expires_at, late_by, correlation_id, topic)
        return await self._connection.send_command(self._schedule_command(timer), timeout_seconds)

    async def schedule_many(
        self,
        timers: Sequence[NewTimer],
        *,
        progress: Callable[[int], object] | None = None,
        timeout_seconds: float = 60,
    ) -> Sequence[Ended]:
        """Schedule many timers in batches, which is much faster than one by one.

        Returns for each timer, in order, its `Outcome`, or the `CommandError` or `NoAnswerError` that `schedule` would
        raise. An error of one timer does not affect the others. A wrong argument raises ValueError with the index of
        the timer; nothing is sent then. `progress` is called with the number of results so far.
        """
        check_seconds("timeout_seconds", timeout_seconds)
        optional(check_type, "progress", progress, Callable, "a function")
        commands = []
        for index, timer in enumerate(check_list("timers", timers)):
            check_type(f"timers[{index}]", timer, NewTimer, "a NewTimer")
            try:
                commands.append(self._schedule_command(timer))
            except ValueError as error:
                raise ValueError(f"timers[{index}].{error}") from error
        return await self._connection.send_many(commands, timeout_seconds, progress)

    async def cancel(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel a timer that has not fired. Raises `CommandError` if the service rejects the command."""
        return await self._send("CancelTimer", tenant, call, timeout_seconds)

    async def cancel_prefix(self, tenant: str, prefix: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel all timers of a tenant that have not fired and whose ids begin with `prefix`.

        The outcome `cancelling` comes at once. The service then cancels the timers, and publishes a `TimersCancelled`
        with the id of the command and the number of timers. Raises `CommandError` if the service rejects the command.
        """
        fields = {"prefix": check_identifier("prefix", prefix)}
        return await self._connection.send("CancelTimers", tenant, fields, timeout_seconds)

    async def retry(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Outcome:
        """Fire a Failed timer now. Raises `CommandError` if the service rejects the command."""
        return await self._send("RetryTimer", tenant, call, timeout_seconds)

    async def get(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Timer | None:
        """Return a timer, or None if it does not exist. Raises `QueryError` if the service cannot answer."""
        return await self._find("get-timer", Timer, tenant, call, timeout_seconds)

    def list(
        self,
        tenant: str,
        *,
        state: TimerState | None = None,
        topic: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        timeout_seconds: float = 10,
    ) -> AsyncIterator[Timer]:
        """Iterate over the timers of a tenant in order of due time, page by page.

        `topic`: only timers with it. `due_after` is inclusive, `due_before` exclusive. `timeout_seconds` applies to
        each page. Raises `QueryError` if the service cannot answer.
        """
        filters = {
            "state": optional(check_choice, "state", state, TimerState),
            "topic": optional(check_topic, "topic", topic),
            "dueBefore": optional(wire_instant, "due_before", due_before),
            "dueAfter": optional(wire_instant, "due_after", due_after),
        }
        return self._list("list-timers", "timers", Timer, tenant, timeout_seconds, **filters)

    async def count(self, tenant: str, *, timeout_seconds: float = 10) -> Counts:
        """Count the timers of a tenant by state. Raises `QueryError` if the service cannot answer."""
        return Counts.read(await self._connection.ask(tenant, "count-timers", {}, timeout_seconds))

    async def query(self, tenant: str, name: str, request: Mapping[str, Any], *, timeout_seconds: float = 10) -> Any:
        """Return the reply to any query, in the form of contracts/README.md. Raises `QueryError`."""
        question = check_mapping("request", request)
        return await self._connection.ask(tenant, check_query("name", name), question, timeout_seconds)

    def watch(self, tenant: str = "*") -> AsyncIterator[DueTimeReached | TimerExpired | TimersCancelled]:
        """Iterate over the `DueTimeReached`, `TimerExpired` and `TimersCancelled` events of a tenant, or of all.

        Starts with the events published after the iteration has begun. `event.raw` has the form of contracts/README.md.
        Raises `NoAnswerError` when the connection is lost, or when more than 128 MiB of events wait to be read, because
        events may be missing after that. To miss no event, use `consume` or `TimerApp` instead.
        """
        return self._connection.events(tenant, *with_topics("due-time-reached", "timer-expired"), "timers-cancelled")

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
        with the events from now on, or with `from_start` with all that are stored. `stream` is the stream that an
        operator has made for the tenant; it has the events that the operator chose.

        Goes on after a lost connection. Raises `NoAnswerError` at the start if the stream or a permission is missing.
        """
        consumer = check_consumer(tenant, name, events, stream=stream, from_start=from_start, ack_wait=ack_wait)
        return self._consume(Subscription(self._connection, consumer, _READ_AHEAD))

    async def _consume(self, subscription: Subscription) -> AsyncGenerator[Delivery, None]:
        await subscription.open()
        try:
            while True:
                yield await subscription.next()
        finally:
            await subscription.close()

    def _schedule_command(self, timer: NewTimer) -> Command:
        if (timer.due_at is None) == (timer.due_in is None):
            raise ValueError("due_at or due_in must be given, and not both")
        fields = given(
            **self._key(timer.call),
            dueAt=optional(wire_instant, "due_at", timer.due_at),
            expiresAt=optional(wire_instant, "expires_at", timer.expires_at),
            dueIn=optional(wire_duration, "due_in", timer.due_in),
            lateBy=optional(wire_duration, "late_by", timer.late_by),
            topic=optional(check_topic, "topic", timer.topic),
        )
        correlation_id = optional(check_identifier, "correlation_id", timer.correlation_id)
        if timer.data is not UNSET:
            fields["data"] = timer.data
        return self._connection.command("ScheduleTimer", timer.tenant, fields, correlation_id)
