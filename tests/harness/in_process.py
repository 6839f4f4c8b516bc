"""A slice and its outbox in this process, on an in-memory broker and a store. A test takes every step."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from tests.harness.clock import ManualClock
from tests.harness.conversation import Conversation
from tests.harness.memory_broker import MemoryBroker
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.wire import Stored
from tests.harness.wiring import BATCH, MAX_ATTEMPTS, make_parts
from timer_service.app.slices import handler
from timer_service.core.due.loop import Worker
from timer_service.core.events.outbox import DEAD_LETTERS, OUTBOX, stored_dead_letter, stored_message
from timer_service.core.intake.route import Lane, Route
from timer_service.core.limits.event_allowances import EventAllowances
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, TenantLimits
from timer_service.core.ports.broker import Broker
from timer_service.core.ports.database import Database
from timer_service.core.service.slice import Slice
from timer_service.core.values.address import Address
from timer_service.core.values.message import Position


async def exhaust(worker: Worker, now: int) -> None:
    """Run passes of a worker until nothing is due at `now`."""
    while (await worker.tick(now)).done:
        pass


async def next_at(worker: Worker, now: int) -> int | None:
    """Run one pass of a worker and return when it wants the next pass."""
    return (await worker.tick(now)).next_at


class Options(TypedDict, total=False):
    """How a slice is built otherwise than by default."""

    enabled: bool
    service_broker: Broker
    """The broker that the service uses. By default it is that of the test."""
    batch_size: int
    max_attempts: int
    limits: TenantLimits


class InProcess(Conversation):
    """Sends commands to a slice in this process. A test can also read and change the internals of the slice.

    Commands are stored at the time of the clock.
    """

    def __init__(
        self,
        database: Database,
        broker: MemoryBroker,
        clock: ManualClock,
        slice_: Slice,
        **options: Unpack[Options],
    ) -> None:
        super().__init__("acme")
        self.database = database
        self.broker = broker
        self.clock = clock
        self.metrics = RecordingMetrics()
        self.command_wakes: list[int] = []
        """The instants with which commands woke the loops of the slice."""
        self.worker_wakes: list[tuple[str, int]] = []
        """The loops that workers woke, with the instants."""
        self._service_broker = options.get("service_broker", broker)
        self.offers: list[tuple[Lane, int]] = []
        """The lanes that were offered to workers of users, with the instants."""
        quotas = Quotas(options.get("limits", DEFAULT_LIMITS), monotonic=lambda: 0.0)
        self.parts = make_parts(
            database,
            self._service_broker,
            clock,
            self.metrics,
            batch_size=options.get("batch_size", BATCH),
            max_attempts=options.get("max_attempts", MAX_ATTEMPTS),
            wake=lambda loop, at: self.worker_wakes.append((loop, at)),
            offer=lambda lane, at: self.offers.append((lane, at)),
            quotas=quotas,
            allowances=EventAllowances(options.get("limits", DEFAULT_LIMITS), metrics=self.metrics),
        )
        self.positions: list[Position] = []
        """The positions of the sent commands."""
        self._enabled = options.get("enabled", True)
        self.reader = self.parts.reader([self._route(slice_)], self._wake_outbox)
        self.queries = self.parts.queries(slice_.queries)
        self.relay = self.parts.relay(OUTBOX, stored_message)
        self._letters = self.parts.relay(DEAD_LETTERS, stored_dead_letter)

    def _route(self, slice_: Slice) -> Route:
        """Return the route of a slice's commands."""
        handle = handler(slice_, [slice_.name] if self._enabled else [], self.parts.quotas)
        return Route(slice_.commands, handle, self._woken, self.parts.offer)

    async def _wake_outbox(self) -> None:
        """Do nothing: a test publishes with `publish`."""

    async def consume(self) -> None:
        """Handle all commands in the log. Then another process may read it."""
        self._before_batch()
        await catch_up(self.reader)
        await self.sql("UPDATE command_log SET reader = NULL, reads_until = 0, revision = revision + 1")

    async def publish(self) -> None:
        """Publish the events of the outbox, and charge them, and the dead letters."""
        await exhaust(self.relay, self.clock.now())
        await self.parts.allowances.update(self.database, self.clock.now())
        await exhaust(self._letters, self.clock.now())

    def reply(self, number: int) -> Any:
        wanted = f"{self._inbox}.{number}"
        return next(json.loads(reply.body) for reply in reversed(self.broker.replies) if reply.to == wanted)

    def outcomes(self) -> list[str]:
        return sorted(outcome for _, outcome in self.metrics.commands.elements())

    async def stored(self, tenant: str | None = None) -> Sequence[Stored]:
        await self.publish()
        return [Stored(*each) for each in self.broker.events if each.address.tenant == (tenant or self.tenant)]

    async def dead_letters(self) -> Sequence[Stored]:
        await self.publish()
        return [Stored(*each) for each in self.broker.dead_letters]

    async def ask(self, name: str, *, tenant: str | None = None, **question: Any) -> Any:
        body = json.dumps(question).encode()
        return json.loads((await self.queries.answer(name, tenant or self.tenant, body)).body)

    async def sql(self, statement: str) -> None:
        """Execute a statement."""
        async with self.database.transaction() as tx:
            await tx.execute(statement)

    async def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, in order of the keys."""
        rows = await self.database.reader.fetch(f"SELECT * FROM {table} ORDER BY 1, 2, 3")
        return [{name: row[name] for name in row.keys()} for row in rows]  # type: ignore[attr-defined]  # noqa: SIM118

    async def only_row(self, table: str, **values: Any) -> dict[str, Any]:
        """Return the only row of a table that has these values."""
        (row,) = [each for each in await self.rows(table) if values.items() <= each.items()]
        return row

    async def _woken(self, at: int, _loop: str | None) -> None:
        self.command_wakes.append(at)

    def _before_batch(self) -> None:
        """Prepare the next batch. A subclass can override this."""

    def _post(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        stored_at = self.clock.now() * 1_000_000
        self.positions.append(self.broker.send(address, body, headers, message_id, stored_at=stored_at))
