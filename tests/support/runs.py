"""The needs slice and its outbox between a broker in memory and a store, driven by hand."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from tests.support.builders import command, command_address
from tests.support.clock import ManualClock
from tests.support.instruments import RecordingInstruments
from tests.support.timers import bodies
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.broker import Subscription
from timer_service.core.consumer import Consumer, Route
from timer_service.core.database import Database, Row
from timer_service.core.lease import Lease
from timer_service.core.message import Position, kebab
from timer_service.core.outbox import OUTBOX, stored_message
from timer_service.core.query import Queries
from timer_service.core.relay import Relay
from timer_service.needs import handler
from timer_service.needs.queries import QUERIES
from timer_service.needs.sweep import Sweep

Graph = Mapping[str, Sequence[Any]]
"""Job -> what it needs."""


def run_of(needs: str) -> dict[str, str]:
    """Return a need that any end of the job admits."""
    return {"job": needs, "ifFailed": "run"}


def jobs(graph: Graph, **fields: Any) -> list[dict[str, Any]]:
    """Write jobs as on the wire; `fields` are of each."""
    return [{"name": name, "needs": needs, **fields} for name, needs in graph.items()]


class Runs:
    """Consumer, sweep and outbox; nothing moves unless a test says so."""

    def __init__(
        self, database: Database, broker: MemoryBroker, clock: ManualClock, *, evaluating: bool = True
    ) -> None:
        self.database = database
        self.broker = broker
        self.clock = clock
        self.instruments = RecordingInstruments()
        self.wakes: list[int] = []
        self.consumer = Consumer(
            database=database,
            broker=broker,
            routes=[Route(handler.PAYLOADS, partial(handler.handle, evaluating=evaluating), self._woken)],
            clock=clock,
            instruments=self.instruments,
            batch_size=1000,
            reply_prefix="_INBOX.",
        )
        self.sweep = Sweep(database, self.wakes.append)
        self.relay = Relay(
            database=database,
            broker=broker,
            lease=Lease(OUTBOX, timedelta(seconds=30)),
            encode=stored_message,
            clock=clock,
            instruments=self.instruments,
            batch_size=1000,
            max_attempts=3,
        )
        self.queries = Queries(database, clock, QUERIES)
        self._subscription: Subscription | None = None

    async def _woken(self, at: int) -> None:
        self.wakes.append(at)

    def send(
        self,
        message_type: str,
        *,
        tenant: str = "acme",
        headers: Mapping[str, str] | None = None,
        envelope: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Position:
        """Send a command as a user."""
        body = command(
            message_type, {"tenantId": tenant, "runId": "run-1", **payload}, tenant=tenant, envelope=envelope
        )
        return self.broker.send(command_address(tenant, kebab(message_type)), body, headers)

    async def consume(self, batch_size: int = 1000) -> None:
        """Handle the waiting commands, batch after batch, each a millisecond later."""
        if self._subscription is None:
            self._subscription = await self.broker.subscribe()
        while self.broker.waiting:
            self.clock.advance(milliseconds=1)
            await self.consumer.handle(self._subscription, await self._subscription.next_batch(batch_size))

    async def tell(self, message_type: str, **fields: Any) -> Position:
        """Send one command and handle it."""
        position = self.send(message_type, **fields)
        await self.consume()
        return position

    async def start(self, graph: Graph, *groups: str, **fields: Any) -> Position:
        """Start a run."""
        return await self.tell("StartRun", jobs=jobs(graph), groups=groups, **fields)

    async def resolve(self, group: str, graph: Graph, **fields: Any) -> Position:
        """Name the jobs of a group."""
        return await self.tell("ResolveGroup", groupName=group, jobs=jobs(graph), **fields)

    async def report(self, status: str, *names: str, **fields: Any) -> Position:
        """Report the status of jobs, all in one batch; return where the last report stands."""
        *_, last = [self.send("ReportJobStatus", jobName=name, status=status, **fields) for name in names]
        await self.consume()
        return last

    async def publish(self) -> None:
        """Publish what the outbox holds."""
        while await self.relay.tick(self.clock.now()):
            pass

    async def told(self, message_type: str) -> list[Any]:
        """Return the events of a type that were published, in order of their instants, then of their jobs."""
        await self.publish()
        told = [each for each in bodies(self.broker.events) if each["type"] == message_type]
        return sorted(told, key=lambda event: (event["timestampMs"], event["payload"].get("jobName", "")))

    async def ready(self) -> list[str]:
        """Return the jobs that were let go, in order."""
        return [each["payload"]["jobName"] for each in await self.told("JobReady")]

    async def skipped(self) -> dict[str, str]:
        """Return the jobs that were skipped, and why."""
        return {each["payload"]["jobName"]: each["payload"]["reason"] for each in await self.told("JobSkipped")}

    async def completed(self) -> list[str]:
        """Return how runs have ended, in order."""
        return [each["payload"]["status"] for each in await self.told("RunCompleted")]

    def outcomes(self) -> list[str]:
        """Return the outcomes that commands had, each as often as it was had."""
        return sorted(outcome for _, outcome in self.instruments.commands.elements())

    async def ask(self, name: str, *, tenant: str = "acme", **question: Any) -> Any:
        """Ask a query; return its answer, or its error."""
        return json.loads((await self.queries.answer(name, tenant, json.dumps(question).encode())).body)

    async def statuses(self, run: str = "run-1") -> dict[str, str]:
        """Return where each job of a run stands."""
        return {job["name"]: job["status"] for job in (await self.ask("get-run", runId=run))["jobs"]}

    async def sql(self, statement: str) -> None:
        """Do to the database what no command can."""
        async with self.database.transaction() as tx:
            await tx.execute(statement)

    async def rows(self, table: str) -> list[Row]:
        """Read a table."""
        return list(await self.database.reader.fetch(f"SELECT * FROM {table} ORDER BY 1, 2, 3"))
