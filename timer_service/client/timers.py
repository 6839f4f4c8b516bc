"""The methods of the client for timers."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from timer_service.client.checks import (
    check_choice,
    check_identifier,
    check_list,
    check_seconds,
    check_topic,
    check_type,
    given,
    optional,
    wire_duration,
    wire_instant,
)
from timer_service.client.commands import Command, Ended
from timer_service.client.events import DueTimeReached, TimerExpired, TimersCancelled
from timer_service.client.models import UNSET, Counts, NewTimer, Outcome, Timer
from timer_service.client.names import TimerState
from timer_service.client.resource import Resource


class Timers(Resource):
    """Methods for timers, as `TimerClient.timers`. They raise the same exceptions as `TimerClient`."""

    _id = ("serviceCallId", "timer_id")

    async def schedule(
        self,
        tenant: str,
        timer_id: str,
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
        last token of its subject, by which consumers choose events. What is not given, and was given before, is
        removed. Raises `CommandError` if the service rejects the command.
        """
        check_seconds("timeout_seconds", timeout_seconds)
        timer = NewTimer(tenant, timer_id, due_at, data, due_in, expires_at, late_by, correlation_id, topic)
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

    async def cancel(self, tenant: str, timer_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel a timer that has not fired. Raises `CommandError` if the service rejects the command."""
        return await self._send("CancelTimer", tenant, timer_id, timeout_seconds)

    async def cancel_prefix(self, tenant: str, prefix: str, *, timeout_seconds: float = 10) -> Outcome:
        """Cancel all timers of a tenant that have not fired and whose ids begin with `prefix`.

        The outcome `cancelling` comes at once. The service then cancels the timers, and publishes a `TimersCancelled`
        with the id of the command and the number of timers. Raises `CommandError` if the service rejects the command.
        """
        fields = {"prefix": check_identifier("prefix", prefix)}
        return await self._connection.send("CancelTimers", tenant, fields, timeout_seconds)

    async def retry(self, tenant: str, timer_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Fire a Failed timer now. Raises `CommandError` if the service rejects the command."""
        return await self._send("RetryTimer", tenant, timer_id, timeout_seconds)

    async def get(self, tenant: str, timer_id: str, *, timeout_seconds: float = 10) -> Timer | None:
        """Return a timer, or None if it does not exist. Raises `QueryError` if the service cannot answer."""
        return await self._find("get-timer", Timer, tenant, timer_id, timeout_seconds)

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
        """Iterate over the timers of a tenant, page by page.

        Scheduled timers are first, the next one first, and then the others, the latest due time first. One that fires
        meanwhile can be in both parts.
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

    def watch(self, tenant: str = "*") -> AsyncIterator[DueTimeReached | TimerExpired | TimersCancelled]:
        """Iterate over the `DueTimeReached`, `TimerExpired` and `TimersCancelled` events of a tenant, or of all.

        Starts with the events published after the iteration has begun. `event.raw` has the form of contracts/README.md.
        Raises `NoAnswerError` when the connection is lost, or when more than 128 MiB of events wait to be read, because
        events may be missing after that. To miss no event, use `TimerClient.consume` or `TimerApp` instead.
        """
        return self._connection.events(tenant, "due-time-reached", "timer-expired", "timers-cancelled")

    def _schedule_command(self, timer: NewTimer) -> Command:
        """Return the command of a timer. Raises ValueError with the name of a wrong argument."""
        if (timer.due_at is None) == (timer.due_in is None):
            raise ValueError("due_at or due_in must be given, and not both")
        fields = given(
            **self._key(timer.timer_id),
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
