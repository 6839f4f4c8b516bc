"""The client itself."""

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from timer_service.client.arguments import check_call, check_state, check_tenant, wire_instant, write_json
from timer_service.client.asking import ask
from timer_service.client.errors import NoAnswerError, QueryError
from timer_service.client.sending import Command, Ended, Sender
from timer_service.client.views import UNSET, Counts, NewTimer, Outcome, Timer

_NOT_FOUND = "NOT_FOUND"
_ENVELOPE_ALLOWANCE = 1024  # the headers of a command


class TimerClient:
    """Speaks the contracts over one NATS connection. Make one with `TimerClient.connect`.

    Whatever it is given is checked before anything is sent: ValueError names the argument that can't be used. Each
    command and query raises `NoAnswerError` when no answer comes within `timeout_seconds`. A command may be handled
    later then; giving it again does no harm.
    """

    def __init__(self, connection: Client, subject_prefix: str) -> None:
        self._connection = connection
        self._prefix = subject_prefix
        self._sender = Sender(connection)

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
        """Schedule a timer, or move it, and wait for the outcome.

        `due_at` must carry a timezone; `data` is any JSON value and comes back in the event. Raises `CommandError` when
        the service rejects it.
        """
        return await self._send(self._schedule_timer(NewTimer(tenant, call, due_at, data)), timeout_seconds)

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
        return await self._sender.send(commands, timeout_seconds)

    async def cancel(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel a timer that has not fired yet. Raises `CommandError` when the service rejects it."""
        return await self._send(self._about("CancelTimer", "cancel-timer", tenant, call), timeout_seconds)

    async def retry(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Outcome:
        """Put a Failed timer back, to fire at once. Raises `CommandError` when the service rejects it."""
        return await self._send(self._about("RetryTimer", "retry-timer", tenant, call), timeout_seconds)

    async def get(self, tenant: str, call: str, *, timeout_seconds: float = 10) -> Timer | None:
        """Return a timer, or None when there is none. Raises `QueryError` when the service can't tell."""
        check_call(call)
        try:
            return Timer.read(await self._ask(tenant, "get-timer", {"serviceCallId": call}, timeout_seconds))
        except QueryError as error:
            if error.code == _NOT_FOUND:
                return None
            raise

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
        return self._pages(tenant, question, timeout_seconds)

    async def count(self, tenant: str, *, timeout_seconds: float = 10) -> Counts:
        """Count a tenant's timers. Raises `QueryError` when the service can't tell."""
        return Counts.read(await self._ask(tenant, "count-timers", {}, timeout_seconds))

    def watch(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Iterate over the `DueTimeReached` events of a tenant (default: all) as they are published from now on.

        "Now" is when the iteration begins. An event is given as contracts/README.md has it. One that is published
        while nobody watches is not seen here; a JetStream consumer on TIMER_EVT sees them all. Raises `NoAnswerError`
        when the connection ends.
        """
        if tenant != "*":
            check_tenant(tenant)
        return self._events(f"{self._prefix}.evt.v1.{tenant}.due-time-reached")

    async def _events(self, subject: str) -> AsyncIterator[dict[str, Any]]:
        subscription = await self._connection.subscribe(subject)
        try:
            # The driver sends a flush ahead of what it holds back: only the second one follows the subscription.
            await self._connection.flush()
            await self._connection.flush()
            async for message in subscription.messages:
                event: dict[str, Any] = json.loads(message.data)
                yield event
        finally:
            if not self._connection.is_closed:
                await subscription.unsubscribe()
        raise NoAnswerError("the connection to the broker has ended")

    async def _pages(self, tenant: str, question: dict[str, Any], timeout_seconds: float) -> AsyncIterator[Timer]:
        while True:
            page = await self._ask(tenant, "list-timers", question, timeout_seconds)
            for view in page["timers"]:
                yield Timer.read(view)
            if "cursor" not in page:
                return
            question = {**question, "cursor": page["cursor"]}

    async def _ask(self, tenant: str, query: str, question: Mapping[str, Any], timeout_seconds: float) -> Any:
        subject = f"{self._prefix}.qry.v1.{check_tenant(tenant)}.{query}"
        return await ask(self._connection, subject, question, timeout_seconds)

    async def _send(self, command: Command, timeout_seconds: float) -> Outcome:
        (ended,) = await self._sender.send([command], timeout_seconds)
        if isinstance(ended, Outcome):
            return ended
        raise ended

    def _schedule_timer(self, timer: NewTimer) -> Command:
        fields = {"dueAt": wire_instant("due_at", timer.due_at)}
        if timer.data is not UNSET:
            fields["data"] = timer.data
        return self._about("ScheduleTimer", "schedule-timer", timer.tenant, timer.call, fields)

    def _about(
        self, message_type: str, message: str, tenant: str, call: str, fields: Mapping[str, Any] | None = None
    ) -> Command:
        check_tenant(tenant)
        payload = {"tenantId": tenant, "serviceCallId": check_call(call), **(fields or {})}
        command_id = secrets.token_hex(16)
        body = write_json({"id": command_id, "type": message_type, "tenantId": tenant, "payload": payload})
        if len(body) + _ENVELOPE_ALLOWANCE > self._connection.max_payload:
            raise ValueError(f"data must be smaller: the command has {len(body)} bytes, more than the broker takes")
        return Command(command_id, f"{self._prefix}.cmd.v1.{tenant}.{message}", body)


async def _ignore(_: Exception) -> None:
    """Errors reach the caller through what it awaits."""
