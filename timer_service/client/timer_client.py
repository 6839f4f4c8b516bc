"""The client itself."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from timer_service.client.arguments import check_identifier, check_state, check_tenant, wire_instant
from timer_service.client.errors import NoAnswerError
from timer_service.client.events import Events
from timer_service.client.link import Link
from timer_service.client.runs import Runs
from timer_service.client.sending import Command, Ended
from timer_service.client.signals import Signals
from timer_service.client.views import UNSET, Counts, NewTimer, Outcome, Timer


class TimerClient:
    """Speaks the contracts over one NATS connection. Make one with `TimerClient.connect`.

    Whatever it is given is checked before anything is sent: ValueError names the argument that can't be used. Each
    command and query raises `NoAnswerError` when no answer comes within `timeout_seconds`. A command may be handled
    later then; giving it again does no harm.
    """

    def __init__(self, connection: Client, subject_prefix: str) -> None:
        self._connection = connection
        self._link = Link(connection, subject_prefix)
        self.signals = Signals(self._link)
        """The same for work signals."""
        self.runs = Runs(self._link)
        """The same for runs of job graphs."""
        self.events = Events(self._link)
        """The same for events that could not be published."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str = "nats://localhost:4222",
        *,
        subject_prefix: str = "timer",
        inbox_prefix: str = "_INBOX",
        **options: Any,
    ) -> AsyncIterator["TimerClient"]:
        """Connect for the length of a block. Raises `NoAnswerError` when no server answers.

        `options` go to `nats.connect`: `user` and `password`, `token`, `nkeys_seed_str`, `user_credentials`, `tls`.
        """
        try:
            connection = await nats.connect(
                url.split(","),
                name="timer-client",
                allow_reconnect=False,
                connect_timeout=5,
                max_reconnect_attempts=1,  # or a first connect is tried for two minutes
                reconnect_time_wait=0,
                error_cb=_ignore,
                inbox_prefix=inbox_prefix,
                **options,
            )
        except (nats.errors.Error, OSError) as error:
            raise NoAnswerError(f"can't connect to the broker: {str(error) or type(error).__name__}") from error
        try:
            yield cls(connection, subject_prefix)
        finally:
            await connection.close()

    async def schedule(
        self, tenant: str, call: str, due_at: datetime, *, data: Any = UNSET, timeout_seconds: float = 10
    ) -> Outcome:
        """Schedule a timer, or change its due time or data, and wait for the outcome.

        `due_at` must carry a timezone; `data` is any JSON value and comes back in the event. Without `data` the event
        has none, whatever an earlier call gave. Raises `CommandError` when the service rejects the command.
        """
        return await self._link.send(self._schedule_timer(NewTimer(tenant, call, due_at, data)), timeout_seconds)

    async def schedule_many(self, timers: Sequence[NewTimer], *, timeout_seconds: float = 60) -> Sequence[Ended]:
        """Schedule many timers at once, much faster than one by one.

        Returns for each timer, in order, its outcome or the `CommandError` or `NoAnswerError` that `schedule` would
        have raised: what is wrong with one costs only that one. A ValueError names the timer, and nothing is sent.
        """
        commands = []
        for index, timer in enumerate(timers):
            try:
                commands.append(self._schedule_timer(timer))
            except ValueError as error:
                raise ValueError(f"timers[{index}].{error}") from error
        return await self._link.sender.send(commands, timeout_seconds)

    async def cancel(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel a timer that has not fired yet. Raises `CommandError` when the service rejects it."""
        return await self._link.send(self._about("CancelTimer", tenant, call), timeout_seconds)

    async def retry(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Outcome:
        """Fire a Failed timer at once. Raises `CommandError` when the service rejects it."""
        return await self._link.send(self._about("RetryTimer", tenant, call), timeout_seconds)

    async def get(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Timer | None:
        """Return a timer, or None when there is none. Raises `QueryError` when the service can't tell."""
        question = {"serviceCallId": check_identifier("call", call)}
        view = await self._link.find(tenant, "get-timer", question, timeout_seconds)
        return None if view is None else Timer.read(view)

    def list(
        self,
        tenant: str,
        *,
        state: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        timeout_seconds: float = 10,
    ) -> AsyncIterator[Timer]:
        """Iterate over a tenant's timers in order of due time, asking for page after page.

        Those of one `state` only, those due before `due_before` only, those due at `due_after` or later only.
        `timeout_seconds` is for each page. Raises `QueryError` when the service can't tell.
        """
        check_tenant(tenant)
        question: dict[str, Any] = {}
        if state is not None:
            question["state"] = check_state(state)
        if due_before is not None:
            question["dueBefore"] = wire_instant("due_before", due_before)
        if due_after is not None:
            question["dueAfter"] = wire_instant("due_after", due_after)
        views = self._link.pages(tenant, "list-timers", question, "timers", timeout_seconds)
        return (Timer.read(view) async for view in views)

    async def count(self, tenant: str, *, timeout_seconds: float = 10) -> Counts:
        """Count a tenant's timers. Raises `QueryError` when the service can't tell."""
        return Counts.read(await self._link.ask(tenant, "count-timers", {}, timeout_seconds))

    async def query(self, tenant: str, name: str, request: Mapping[str, Any], *, timeout_seconds: float = 10) -> Any:
        """Return the reply to a query, both as on the wire (contracts/README.md). Raises `QueryError`."""
        return await self._link.ask(tenant, name, request, timeout_seconds)

    def watch(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Iterate over the `DueTimeReached` events of a tenant (default: all) as they are published from now on.

        "Now" is when the iteration begins. An event is given as contracts/README.md has it. One that is published
        while nobody watches is not seen here; a JetStream consumer on TIMER_EVT sees them all. Raises `NoAnswerError`
        when the connection ends.
        """
        if tenant != "*":
            check_tenant(tenant)
        return self._link.events(tenant, "due-time-reached")

    def _schedule_timer(self, timer: NewTimer) -> Command:
        fields = {"dueAt": wire_instant("due_at", timer.due_at)}
        if timer.data is not UNSET:
            fields["data"] = timer.data
        return self._about("ScheduleTimer", timer.tenant, timer.call, fields)

    def _about(self, message_type: str, tenant: str, call: str, fields: Mapping[str, Any] | None = None) -> Command:
        check_tenant(tenant)
        named = {"serviceCallId": check_identifier("call", call)}
        return self._link.command(message_type, tenant, {**named, **(fields or {})})


async def _ignore(_: Exception) -> None:
    """Errors reach the caller through what it awaits."""
