"""The signals slice and its outbox between a broker in memory and a store, driven by hand."""

import json
import random
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from tests.support.builders import command, command_address
from tests.support.clock import ManualClock
from tests.support.instruments import RecordingInstruments
from tests.support.timers import bodies
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.broker import Broker, Subscription
from timer_service.core.consumer import Consumer, Route
from timer_service.core.database import Database, Row
from timer_service.core.lease import Lease
from timer_service.core.message import Position, kebab
from timer_service.core.outbox import OUTBOX, stored_message
from timer_service.core.query import Queries
from timer_service.core.relay import Relay
from timer_service.signals import handler
from timer_service.signals.evaluation import Evaluation
from timer_service.signals.firings import FIRINGS
from timer_service.signals.queries import QUERIES
from timer_service.signals.worker import Firings

MAX_ATTEMPTS = 3
VISIBILITY_TIMEOUT = timedelta(seconds=30)
BLOCKED = {"kind": "work_item.status.transition", "to": ["blocked"]}


class Signals:
    """Consumer, evaluation, firings and outbox; nothing moves unless a test says so."""

    def __init__(
        self,
        database: Database,
        broker: MemoryBroker,
        clock: ManualClock,
        *,
        evaluating: bool = True,
        through: Broker | None = None,
    ) -> None:
        """`through`: what the service sees of the broker, if not the broker itself."""
        through = through or broker
        self.database = database
        self.broker = broker
        self.clock = clock
        self.instruments = RecordingInstruments()
        self.wakes: list[int] = []
        self.consumer = Consumer(
            database=database,
            broker=through,
            routes=[Route(handler.PAYLOADS, partial(handler.handle, evaluating=evaluating), self._woken)],
            clock=clock,
            instruments=self.instruments,
            batch_size=1000,
            reply_prefix="_INBOX.",
        )
        self.lease = Lease(FIRINGS, VISIBILITY_TIMEOUT)
        self.evaluation = Evaluation(database, self.wakes.append)
        self.outbox_wakes: list[int] = []
        self.firings = Firings(
            database=database,
            lease=self.lease,
            clock=clock,
            instruments=self.instruments,
            batch_size=1000,
            max_attempts=MAX_ATTEMPTS,
            wake=self.outbox_wakes.append,
            rng=random.Random(0),
        )
        self.relay = Relay(
            database=database,
            broker=through,
            lease=Lease(OUTBOX, VISIBILITY_TIMEOUT),
            encode=stored_message,
            clock=clock,
            instruments=self.instruments,
            batch_size=1000,
            max_attempts=MAX_ATTEMPTS,
            rng=random.Random(0),
        )
        self.queries = Queries(database, clock, QUERIES)
        self._through = through
        self._subscription: Subscription | None = None

    async def _woken(self, at: int) -> None:
        self.wakes.append(at)

    def send(
        self,
        message_type: str,
        *,
        tenant: str = "acme",
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        envelope: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Position:
        """Send a command as a user; `from_` is the payload's `from`."""
        fields = {"tenantId": tenant, **{name.rstrip("_"): value for name, value in payload.items()}}
        body = command(message_type, fields, tenant=tenant, envelope=envelope)
        return self.broker.send(command_address(tenant, kebab(message_type)), body, headers, message_id)

    async def consume(self) -> None:
        """Handle the waiting commands, batch after batch."""
        if self._subscription is None:
            self._subscription = await self._through.subscribe()
        while self.broker.waiting:
            await self.consumer.handle(self._subscription, await self._subscription.next_batch(1000))

    async def tell(self, message_type: str, **fields: Any) -> Position:
        """Send one command and handle it."""
        position = self.send(message_type, **fields)
        await self.consume()
        return position

    async def create(self, signal: str = "signal-1", item: str | None = "item-1", **fields: Any) -> Position:
        """Create a signal that waits for its work item to be blocked, unless `triggerSpec` says otherwise."""
        wanted = {"triggerKind": "event", "triggerSpec": BLOCKED, **({"workItemId": item} if item else {}), **fields}
        return await self.tell("CreateWorkSignal", signalId=signal, **wanted)

    async def remind(self, at: str, signal: str = "signal-1", **fields: Any) -> Position:
        """Create a signal that waits for an instant."""
        spec = {"kind": "time.at", "at": at}
        return await self.create(signal, None, triggerKind="time", triggerSpec=spec, **fields)

    async def transition(self, to: str = "blocked", item: str = "item-1", **fields: Any) -> Position:
        """Have a work item come to a status."""
        return await self.tell("TransitionWorkItem", workItemId=item, to=to, **fields)

    async def about(self, verb: str, signal: str = "signal-1", **fields: Any) -> Position:
        """Pause, Activate, Cancel or Resolve a signal."""
        return await self.tell(f"{verb}WorkSignal", signalId=signal, **fields)

    async def run(self) -> None:
        """Let everything go as far as it can at the clock's time."""
        for worker in (self.evaluation, self.firings, self.relay):
            while await worker.tick(self.clock.now()):
                pass

    def outcomes(self) -> list[str]:
        """Return the outcomes that commands had, each as often as it was had."""
        return sorted(outcome for _, outcome in self.instruments.commands.elements())

    def told(self, message_type: str = "work.signal.fired") -> list[Any]:
        """Return the events of a type that were published, in order."""
        return [each for each in bodies(self.broker.events) if each["type"] == message_type]

    def fired(self) -> list[str]:
        """Return which signals have fired, in order."""
        return [each["payload"]["signalId"] for each in self.told()]

    async def ask(self, name: str, *, tenant: str = "acme", **question: Any) -> Any:
        """Ask a query; return its answer, or its error."""
        return json.loads((await self.queries.answer(name, tenant, json.dumps(question).encode())).body)

    async def status(self, signal: str = "signal-1") -> str:
        """Return where a signal stands."""
        found: str = (await self.ask("get-signal", signalId=signal))["status"]
        return found

    async def sql(self, statement: str) -> None:
        """Do to the database what no command can."""
        async with self.database.transaction() as tx:
            await tx.execute(statement)

    async def rows(self, table: str) -> list[Row]:
        """Read a table."""
        return list(await self.database.reader.fetch(f"SELECT * FROM {table} ORDER BY 1, 2, 3"))
