"""Every slice of the service on one SQLite database, a broker in memory and a stepped loop; a test takes each step.

A crash ends a life: every await of that process raises, so that an open transaction is rolled back, and the next life
begins on what was committed. That the files survive such an end is shown by `tests.simulation.world`.
"""

import asyncio
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.harness.builders import command_address
from tests.harness.clock import ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.stores import open_sqlite
from tests.simulation.faults import Crash, Fault, FaultyBroker, FaultyDatabase, Gate, Life, Witness
from tests.simulation.stepping import SteppedLoop, sqlite_in_place
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES
from timer_service.core.broker import Delivery, Subscription
from timer_service.core.codec import REPLY_TO
from timer_service.core.consumer import CommandResult, Consumer, Handle, Route
from timer_service.core.database import Transaction
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.loop import Pass, Worker
from timer_service.core.message import Command, Position, kebab
from timer_service.core.slice import Slice, WorkerParts

INSTANCES = 2
ROWS_AT_ONCE = 3
MAX_ATTEMPTS = 3
VISIBILITY_TIMEOUT = timedelta(seconds=30)
_SETTLING_ROUNDS = 200

Row = Mapping[str, Any]


class Sent(NamedTuple):
    """A command as its sender knows it; its position is its place in the history."""

    type: str
    tenant: str
    fields: Mapping[str, Any]

    @property
    def payload(self) -> dict[str, Any]:
        return {"tenantId": self.tenant, **self.fields}


class Handled(NamedTuple):
    """A command and how it ended, in the order in which the transaction had it."""

    command: Command
    outcome: str


class Observer:
    """Is told of what the service commits."""

    def commands_committed(self, handled: Sequence[Handled], now: int) -> None:
        """A batch of commands was committed."""

    def worker_committed(self, worker: str, now: int) -> None:
        """A worker committed a transaction."""


class Actor:
    """A consumer or a worker: the gate that its awaits pass, and what it is doing."""

    def __init__(self, name: str, life: Life, counts: Counter[str]) -> None:
        self.name = name
        self.gate = Gate(life, counts)
        self.task: asyncio.Task[Any] | None = None


class Instance:
    """A consumer and the workers of every slice, composed as `timer_service.app` does."""

    def __init__(self, service: "Service", database: SqliteDatabase, life: Life) -> None:
        self._service = service
        self._handled: list[Handled] = []
        self._tx: Transaction | None = None
        self.metrics = RecordingMetrics()
        self.consuming = Actor("consumer", life, service.counts)
        seen = partial(FaultyDatabase, database, exclusive=False, failed=service.faults.append)
        self._broker = FaultyBroker(service.broker, self.consuming.gate, service)
        self.consumer = Consumer(
            database=seen(self.consuming.gate, committed=self._commands_committed),
            broker=self._broker,
            routes=[Route(each.commands, partial(self._handle, each), _wake) for each in SLICES],
            clock=service.clock,
            metrics=self.metrics,
            batch_size=1000,
            reply_prefix="_INBOX.",
        )
        self.workers: dict[str, tuple[Actor, Worker]] = {}
        self.slice_of: dict[str, Slice] = {}
        for each in SLICES:
            for name, build in each.workers.items():
                actor = Actor(name, life, service.counts)
                parts = WorkerParts(
                    database=seen(actor.gate, committed=partial(self._worker_committed, name)),
                    broker=FaultyBroker(service.broker, actor.gate, service),
                    clock=service.clock,
                    metrics=self.metrics,
                    batch_size=ROWS_AT_ONCE,
                    max_attempts=MAX_ATTEMPTS,
                    visibility_timeout=VISIBILITY_TIMEOUT,
                    wake=lambda _loop, _at: None,
                    rng=random.Random(0),
                )
                self.workers[name] = actor, build(parts)
                self.slice_of[name] = each
        self._subscription: Subscription | None = None

    @property
    def actors(self) -> list[Actor]:
        return [self.consuming, *(actor for actor, _ in self.workers.values())]

    async def consume(self, limit: int) -> None:
        """Handle the next batch."""
        if self._subscription is None:
            self._subscription = await self._broker.subscribe()
        await self.consumer.handle(self._subscription, await self._subscription.next_batch(limit))

    async def _handle(
        self, slice_: Slice, tx: Transaction, commands: Sequence[Command], now: int
    ) -> Sequence[CommandResult]:
        if self._tx is not tx:
            self._tx, self._handled = tx, []
        results = await self._service.handler(slice_)(tx, commands, now)
        self._handled += [Handled(*each) for each in zip(commands, (result.name for result in results), strict=True)]
        return results

    def _commands_committed(self, _tokens: Collection[str]) -> None:
        now = self._service.clock.now()
        self._service.observe(lambda observer: observer.commands_committed(self._handled, now))

    def _worker_committed(self, name: str, _tokens: Collection[str]) -> None:
        now = self._service.clock.now()
        self._service.observe(lambda observer: observer.worker_committed(name, now))


class Service(Witness):
    """One database for many histories: `begin` empties it."""

    def __init__(self, path: Path) -> None:
        self.loop = SteppedLoop()
        self.loop.set_exception_handler(_ignore_crashes)
        self.database = self.loop.complete(_open(path))
        self.loop.complete(self.database._writer.control("PRAGMA synchronous = OFF"))
        self._eyes = sqlite3.connect(path, isolation_level=None)
        self._eyes.row_factory = sqlite3.Row
        self._tables = [row["name"] for row in self._eyes.execute(_TABLES)]
        self.counts: Counter[str] = Counter()
        self.begin(Observer())

    def begin(self, observer: Observer) -> None:
        """Begin a history, with nothing in the database."""
        for table in self._tables:
            self._eyes.execute(f"DELETE FROM {table}")
        self.observer = observer
        self.clock = ManualClock()
        self.broker = MemoryBroker()
        self.off: set[str] = set()
        """The slices that are switched off."""
        self.faults: list[Exception] = []
        """What the observer found, and why transactions failed: no history is a reason for that."""
        self._start()

    def close(self) -> None:
        self._eyes.close()
        self.loop.complete(self.database.close())
        self.loop.close()

    # The process

    def _start(self) -> None:
        self._life = Life(lambda: None)
        self.instances = [Instance(self, self.database, self._life) for _ in range(INSTANCES)]

    def crash(self) -> None:
        """End the process and start another one."""
        self._life.end()
        for actor in self._actors():
            actor.gate.let_on()
        self.loop.settle()
        assert all(actor.task is None or actor.task.done() for actor in self._actors()), "it survived"
        self._start()

    def handler(self, slice_: Slice) -> Handle:
        return slice_.handle_when_off if slice_.name in self.off and slice_.handle_when_off else slice_.handle

    def _actors(self) -> list[Actor]:
        return [actor for each in self.instances for actor in each.actors]

    # What it does

    def send(self, history: Sequence[Sent]) -> list[Position]:
        """Append commands to the stream; return their positions."""
        return [self._send(each) for each in history]

    def _send(self, sent: Sent) -> Position:
        body = json.dumps({"type": sent.type, "tenantId": sent.tenant, "payload": sent.payload}).encode()
        return self.broker.send(command_address(sent.tenant, kebab(sent.type)), body, {REPLY_TO: "_INBOX.sender"})

    def deliver(self, positions: Sequence[Position], instance: int = 0, fault: Fault | None = None) -> None:
        """Hand commands over as one batch, if that instance is not busy."""
        one = self.instances[instance]
        if one.consuming.task is None and positions:
            self.broker.deliver(*dict.fromkeys(positions))
            self._begin(one.consuming, one.consume(len(set(positions))), fault)

    def tick(self, worker: str, instance: int = 0, fault: Fault | None = None) -> Pass | None:
        """Let a worker make a pass, if it is not busy and its slice is on; return the pass if it came to its end."""
        one = self.instances[instance]
        actor, it = one.workers[worker]
        if actor.task is not None or one.slice_of[worker].name in self.off:
            return None
        done: Pass | None = self._begin(actor, it.tick(self.clock.now()), fault)
        return done

    def let_on(self) -> None:
        """Let everything go on that is held."""
        for actor in self._actors():
            actor.gate.let_on()
        self._go()

    def _begin(self, actor: Actor, work: Coroutine[Any, Any, Any], fault: Fault | None) -> Any:
        actor.gate.arm(fault)
        task = actor.task = self.loop.create_task(work)
        self._go()
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None

    def _go(self) -> None:
        self.loop.settle()
        if self.faults:
            raise self.faults[0]
        for actor in self._actors():
            actor.gate.arm(None)
            if actor.task is not None and actor.task.done():
                error = actor.task.exception()
                actor.task = None
                if error is not None and not isinstance(error, Crash | DatabaseUnavailableError):
                    raise error
        if self._life.over:
            self.crash()

    def settle(self) -> None:
        """Let everything that is due happen."""
        self.let_on()
        for _ in range(_SETTLING_ROUNDS):
            if not sum(self._settle_worker(name) for name in self.instances[0].workers):
                return
        raise AssertionError("the workers never come to rest")

    def _settle_worker(self, name: str) -> bool:
        done = self.tick(name)
        return done is not None and done.done > 0

    def next_at(self) -> int | None:
        """Return when the next worker has something to do."""
        passes = [self.tick(name) for name in self.instances[0].workers]
        return min((each.next_at for each in passes if each is not None and each.next_at is not None), default=None)

    # What is seen

    def observe(self, tell: Callable[[Observer], None]) -> None:
        """Tell the observer; what it finds is raised where the test took its step, and not into the service."""
        try:
            tell(self.observer)
        except AssertionError as error:
            self.faults.append(error)

    def rows(self, table: str) -> list[Row]:
        return [dict(row) for row in self._eyes.execute(f"SELECT * FROM {table}")]

    def snapshot(self) -> dict[str, list[Row]]:
        """Return every table without what depends on when things happened."""
        return {table: _sorted(map(_normalised, self.rows(table))) for table in self._tables}

    def events(self) -> list[dict[str, Any]]:
        """Return the events that were published."""
        return [json.loads(message.body) for message in self.broker.events]

    def delete_settled(self) -> None:
        """Let retention delete everything that has ended by now."""

        async def delete(slice_: Slice) -> None:
            assert slice_.delete_settled is not None
            for _ in range(_SETTLING_ROUNDS):
                async with self.database.transaction() as tx:
                    if not await slice_.delete_settled(tx, self.clock.now() + 1, 500):
                        return
            raise AssertionError(f"the retention of {slice_.name} never comes to rest")

        for each in SLICES:
            if each.delete_settled is not None:
                self.loop.complete(delete(each))

    def terminated(self, deliveries: Sequence[Delivery]) -> None:
        """Find fault: every command of a history is valid."""
        raise AssertionError(f"a valid command was rejected: {deliveries}")


_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%migration%' AND name NOT LIKE 'sqlite_%'"
)


def _normalised(row: Row) -> Row:
    return {name: _plain(name, value) for name, value in row.items()}


def _plain(name: str, value: Any) -> Any:
    return "some time" if name.endswith("_at") and value is not None else value


def _sorted(rows: Iterator[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: json.dumps(row, default=str))


async def _wake(_at: int) -> None:
    """Nothing sleeps here."""


async def _open(path: Path) -> SqliteDatabase:
    async with open_sqlite(path):
        pass
    return await SqliteDatabase.open(path)


def _ignore_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)


@contextmanager
def running_service() -> Iterator[Service]:
    """Give a service for as many histories as one likes."""
    with ExitStack() as opened:
        opened.enter_context(sqlite_in_place())
        folder = opened.enter_context(TemporaryDirectory())
        yield opened.enter_context(closing(Service(Path(folder) / "service.db")))
