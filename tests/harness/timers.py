"""The timers slice in this process, on an in-memory broker and a store. A test takes every step."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from tests.harness.builders import cancel_timer, cancel_timers, command_address, retry_timer, schedule_timer
from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker, Predicate, never
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.wiring import BATCH, MAX_ATTEMPTS, VISIBILITY_TIMEOUT, make_parts
from timer_service import events
from timer_service.app.slices import build_workers
from timer_service.core.due.lease import Lease
from timer_service.core.intake.reader import LogReader
from timer_service.core.intake.route import Handle, Route
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, TenantLimits
from timer_service.core.ports.database import Database, Row, Transaction
from timer_service.core.values.address import Kind
from timer_service.core.values.message import Message, Position
from timer_service.timers import SLICE, store
from timer_service.timers.rules import Timer
from timer_service.timers.store import TIMERS


class Timers:
    """The reader and the relay of timers."""

    reader: LogReader

    def __init__(
        self,
        database: Database,
        broker: MemoryBroker,
        clock: ManualClock,
        *,
        batch_size: int = BATCH,
        limits: TenantLimits = DEFAULT_LIMITS,
    ) -> None:
        self.database = database
        self.broker = broker
        self.clock = clock
        self.metrics = RecordingMetrics()
        self.wakes: list[int] = []
        self.cancellation_wakes: list[int] = []
        parts = self.parts = make_parts(database, broker, clock, self.metrics, batch_size=batch_size)
        self.handle: Handle = partial(SLICE.handle, quotas=Quotas(limits))
        """How the slice applies commands."""
        self.read_with(self.handle)
        self.outbox, self.letters = (events.SLICE.workers[name](parts) for name in ("outbox", "dead-letters"))
        self.publishing = parts.publishing
        self.lease = Lease(TIMERS, VISIBILITY_TIMEOUT)
        workers = build_workers(SLICE, parts)
        self.relay, self.cancellation_worker = workers["timers"], workers["cancellations"]
        self.queries = parts.queries(SLICE.queries)

    async def stop_reading(self) -> None:
        """Stop the reader in order, so that another one may read at once."""
        await self.reader.stop()
        await self.reader.run()  # it ends at once

    def read_with(self, handle: Handle) -> None:
        """Replace the reader by that of another process, which applies commands with `handle`."""
        self.read_for(Route(SLICE.commands, handle, self.wake))

    def read_for(self, *routes: Route) -> None:
        """Replace the reader by one that has other routes."""
        self.reader = self.parts.reader(routes, self._wake_outbox)

    async def _wake_outbox(self) -> None:
        """Do nothing: a test publishes with `publish`."""

    async def wake(self, at: int, loop: str | None) -> None:
        """Record that a command wakes the loop of the timers, or another one."""
        (self.wakes if loop is None else self.cancellation_wakes).append(at)

    def send(
        self,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        *,
        tenant: str = "acme",
        message: str = "schedule-timer",
    ) -> Position:
        """Send a command and return its position."""
        stored_at = self.clock.now() * 1_000_000
        return self.broker.send(command_address(tenant, message), body, headers, message_id, stored_at=stored_at)

    async def consume(self) -> None:
        """Handle all commands in the log, and publish their dead letters."""
        await catch_up(self.reader)
        await self.publish()

    async def publish(self) -> None:
        """Publish what is in the outbox, and the dead letters."""
        for relay in (self.outbox, self.letters):
            while (await relay.tick(self.clock.now())).done:
                pass

    async def schedule(self, call: str = "call-1", due_at: int | None = None, **fields: Any) -> Position:
        """Send one ScheduleTimer and handle it. By default, it is due now."""
        due = self.clock.now() if due_at is None else due_at
        position = self.send(schedule_timer(call, due, **fields), tenant=fields.get("tenant", "acme"))
        await self.consume()
        return position

    async def cancel(self, call: str = "call-1", *, tenant: str = "acme") -> Position:
        """Send one CancelTimer and handle it."""
        position = self.send(cancel_timer(call, tenant=tenant), tenant=tenant, message="cancel-timer")
        await self.consume()
        return position

    async def cancel_many(self, prefix: str, *, tenant: str = "acme") -> Position:
        """Send one CancelTimers and handle it."""
        position = self.send(cancel_timers(prefix, tenant=tenant), tenant=tenant, message="cancel-timers")
        await self.consume()
        return position

    def interrupt(self, step: Callable[[], Awaitable[object]]) -> None:
        """Run `step` once, before the next batch is published."""

        async def take(_: Sequence[Message]) -> None:
            self.broker.before_publishing = no_hook
            await step()

        self.broker.before_publishing = take

    async def pass_cancellations(self) -> int:
        """Run passes of the worker of cancellations until no page is due. Return how many pages there were."""
        pages = 0
        while done := (await self.cancellation_worker.tick(self.clock.now())).done:
            pages += done
        return pages

    async def retry(self, call: str = "call-1", *, tenant: str = "acme") -> Position:
        """Send one RetryTimer and handle it."""
        position = self.send(retry_timer(call, tenant=tenant), tenant=tenant, message="retry-timer")
        await self.consume()
        return position

    async def fail(self, *calls: str) -> None:
        """Schedule timers, one after the other, and let the broker refuse the event of each until it is buried."""
        for call in calls:
            await self.schedule(call)
            self.broker.refuses = fires(call)
            for _ in range(MAX_ATTEMPTS):
                await self.tick()
                self.clock.advance(minutes=10)
        self.broker.refuses = never

    async def ask(self, name: str, question: Any = None, *, tenant: str = "acme") -> Any:
        """Send a query and return the reply, or the error."""
        body = b"" if question is None else json.dumps(question).encode()
        return json.loads((await self.queries.answer(name, tenant, body)).body)

    async def tick(self) -> int:
        """Run one pass of the relay and return the number of handled rows."""
        return (await self.relay.tick(self.clock.now())).done

    async def next_at(self) -> int | None:
        """Run one pass of the relay and return when it wants the next pass."""
        return (await self.relay.tick(self.clock.now())).next_at

    def outcomes(self) -> dict[str, int]:
        """Return the number of commands by outcome."""
        counts: Counter[str] = Counter()
        for (_, outcome), count in self.metrics.commands.items():
            counts[outcome] += count
        return counts

    def fired(self) -> list[str]:
        """Return the calls whose timers fired, in order of publication."""
        events = bodies(self.broker.events)
        return [each["payload"]["serviceCallId"] for each in events if each["type"] == "DueTimeReached"]

    async def row(self, call: str = "call-1", tenant: str = "acme") -> Row:
        """Return the row of a timer."""
        (row,) = await self.database.reader.fetch(
            "SELECT * FROM timer_schedules WHERE tenant_id = :tenant AND service_call_id = :call",
            {"tenant": tenant, "call": call},
        )
        return row

    async def sql(self, statement: str) -> None:
        """Execute a statement."""
        async with self.database.transaction() as tx:
            await tx.execute(statement)


async def put_timers(tx: Transaction, timers: Collection[Timer]) -> None:
    """Write timers, like a command that changes them."""
    await store.save(tx, {}, {timer.key: timer for timer in timers})


def bodies(messages: Sequence[Message]) -> list[Any]:
    """Return the decoded bodies of messages."""
    return [json.loads(message.body) for message in messages]


def fires(call: str) -> Predicate:
    """Return a predicate that is true for the event of the call's timer."""

    def holds(message: Message) -> bool:
        if message.address.kind is not Kind.EVENT:
            return False
        body = json.loads(message.body)
        return bool(body["type"] == "DueTimeReached" and body["payload"]["serviceCallId"] == call)

    return holds


async def no_hook(_: Sequence[Message]) -> None:
    """Do nothing before messages are published."""


def always(_message: Message) -> bool:
    """Return true for every message."""
    return True
