"""The service on a broker in memory, a SQLite file and a clock that stands still, and everything that can befall it."""

import asyncio
import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.harness.builders import command_address
from tests.harness.clock import ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.stores import open_sqlite
from tests.simulation.faults import Crash, Fault, FaultyBroker, FaultyDatabase, Gate, Life, Witness
from tests.simulation.model import FAILED, REACHED, Fire, Model, Name, Row, Rows, Sent
from tests.simulation.stepping import SteppedLoop, sqlite_in_place
from timer_service.adapters.memory import MemoryBroker, Predicate, never
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.broker import Delivery, Subscription
from timer_service.core.codec import REPLY_TO
from timer_service.core.consumer import CommandResult, Consumer, Route
from timer_service.core.database import Transaction
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.health import HEALTHY, Health
from timer_service.core.instant import parse_instant
from timer_service.core.lease import Lease
from timer_service.core.loop import Pass
from timer_service.core.message import Command, Kind, Message, Position
from timer_service.core.recovery import take_over_claims
from timer_service.core.relay import Relay
from timer_service.timers import SLICE, events, handler
from timer_service.timers.store import TIMERS

COMMANDS_AT_ONCE = 3
FIRED_AT_ONCE = 3  # so that four due timers are two claims, of which one tick has both in flight
MAX_ATTEMPTS = 2
VISIBILITY_TIMEOUT = timedelta(seconds=30)
INSTANCES = 2

_ROWS = """
SELECT tenant_id, service_call_id, position_epoch, position_sequence, state, due_at, data, event_id, available_at,
    lease_token, attempt
FROM timer_schedules
"""
_HEALING_ROUNDS = 200


class Weather(StrEnum):
    """What the broker is up to."""

    WELL = "well"
    AWAY = "away"
    DEAF = "stores, but its acknowledgements are lost"
    DEAF_TO_A = "the same for the calls named a"
    REFUSES_A = "refuses the events of the calls named a"
    REFUSES_EVENTS = "refuses every event"
    REFUSES_LETTERS = "refuses dead letters"


async def _wake(_at: int) -> None:
    """Nothing sleeps here."""


class Actor:
    """One consumer or relay: its gate, and what it is doing."""

    def __init__(self, life: Life, counts: Counter[str]) -> None:
        self.gate = Gate(life, counts)
        self.task: asyncio.Task[Any] | None = None


class Instance:
    """Consumer and relay, composed as `timer_service.app` does."""

    def __init__(self, world: "World", database: SqliteDatabase, life: Life, *, exclusive: bool) -> None:
        self.consuming, self.relaying = Actor(life, world.counts), Actor(life, world.counts)
        self.decided: list[tuple[Command, CommandResult]] = []
        self.metrics = RecordingMetrics()
        seen = partial(FaultyDatabase, database, exclusive=exclusive, failed=world.failed_transactions.append)
        self.consumer = Consumer(
            database=seen(self.consuming.gate, committed=lambda _: world.commands_committed(self)),
            broker=FaultyBroker(world.broker, self.consuming.gate, world),
            routes=[Route(SLICE.commands, self._handle, _wake)],
            clock=world.clock,
            metrics=self.metrics,
            batch_size=COMMANDS_AT_ONCE,
            reply_prefix="_INBOX.",
        )
        self._relayed = seen(self.relaying.gate, committed=world.leases_committed)
        self._clock = world.clock
        self._lease = Lease(TIMERS, VISIBILITY_TIMEOUT)
        self.relay = Relay(
            database=self._relayed,
            broker=FaultyBroker(world.broker, self.relaying.gate, world),
            lease=self._lease,
            encode=events.due_time_reached,
            clock=world.clock,
            metrics=self.metrics,
            batch_size=FIRED_AT_ONCE,
            max_attempts=MAX_ATTEMPTS,
            rng=random.Random(0),
        )
        self._broker = FaultyBroker(world.broker, self.consuming.gate, world)
        self._subscription: Subscription | None = None

    async def _handle(self, tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        self.decided = []
        outcomes = await handler.handle(tx, commands, now)
        self.decided = list(zip(commands, outcomes, strict=True))
        return outcomes

    async def recover(self) -> None:
        """Take over the claims of the process before, if this one may know itself alone."""
        await take_over_claims(self._relayed, self._lease, self._clock.now())

    async def consume(self) -> None:
        """Handle the next batch."""
        if self._subscription is None:
            self._subscription = await self._broker.subscribe()
        batch = await self._subscription.next_batch(COMMANDS_AT_ONCE)
        await self.consumer.handle(self._subscription, batch)


class World(Witness):
    """Everything there is; checks what it sees happen against the model as it happens."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._open.enter_context(sqlite_in_place())
        self.loop = self._open.enter_context(closing(SteppedLoop()))
        self.loop.set_exception_handler(_let_the_dead_rest)
        self._folder = Path(self._open.enter_context(TemporaryDirectory()))
        self._lives = 0
        self._file().write_bytes(_empty_database())
        self.clock = ManualClock()
        self.broker = MemoryBroker()
        self.model = Model(MAX_ATTEMPTS)
        self.sent: dict[Position, Sent] = {}
        self.handled: set[Position] = set()
        self.settled: set[Position] = set()
        self.instances: list[Instance] = []
        self.failed_transactions: list[Exception] = []
        """Why transactions failed, if the database was there: the consumer would take each for a command's fault."""
        self.counts: Counter[str] = Counter()
        self._rows: Rows = {}
        self._recovering = False
        self._last_pass = Pass(0)
        self._life = Life(self._leave_files)
        self._life.over = True
        self._database: SqliteDatabase | None = None
        self._eyes: sqlite3.Connection | None = None

    # The process

    @property
    def runs(self) -> bool:
        return not self._life.over

    def start(self, *, exclusive: bool, fault: Fault | None = None) -> None:
        """Start a process on the files the last one left; `exclusive` tells whether it may know itself alone."""
        self._life = Life(self._leave_files)
        self._database = self.loop.complete(SqliteDatabase.open(self._file()))
        self.loop.complete(self._database._writer.control("PRAGMA synchronous = OFF"))
        self._eyes = sqlite3.connect(self._file(), isolation_level=None)
        assert self._look() == self._rows, "what was committed is not what was found after the crash"
        self.instances = [
            Instance(self, self._database, self._life, exclusive=exclusive and not index) for index in range(INSTANCES)
        ]
        self._recovering = True
        self._begin(self.instances[0].relaying, self.instances[0].recover(), fault)
        self._recovering = False

    def _leave_files(self) -> None:
        """Copy what is in the files at this very moment, an open transaction and all, for the next process."""
        old = self._file()
        self._lives += 1
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{old}{suffix}", f"{self._file()}{suffix}")

    def _bury(self) -> None:
        for actor in self._actors():
            actor.gate.let_on()
        self.loop.settle()
        for actor in self._actors():
            assert actor.task is None or actor.task.done(), "it survived"
        self._forget()
        assert self._eyes is not None
        assert self._database is not None
        self._eyes.close()
        self.loop.complete(self._database.close())

    def _forget(self) -> None:
        self.counts["leases lost"] += sum(each.metrics.lost for each in self.instances)
        self.instances = []

    def _file(self) -> Path:
        return self._folder / f"timers-{self._lives}.db"

    def _actors(self) -> list[Actor]:
        return [actor for each in self.instances for actor in (each.consuming, each.relaying)]

    # What it does

    @property
    def may_consume(self) -> list[Instance]:
        """Who could handle commands now, if there are any."""
        return [each for each in self.instances if each.consuming.task is None] if self.broker.waiting else []

    @property
    def may_tick(self) -> list[Instance]:
        return [each for each in self.instances if each.relaying.task is None]

    def consume(self, one: Instance, fault: Fault | None = None) -> None:
        self._begin(one.consuming, one.consume(), fault)

    def tick(self, one: Instance, fault: Fault | None = None) -> None:
        self.counts["ticks"] += 1
        self._begin(one.relaying, one.relay.tick(self.clock.now()), fault)

    def let_on(self, actor: Actor, fault: Fault | None = None) -> None:
        actor.gate.arm(fault)
        actor.gate.let_on()
        self._go()

    @property
    def held(self) -> list[Actor]:
        return [actor for actor in self._actors() if actor.task is not None]

    def _begin(self, actor: Actor, work: Coroutine[Any, Any, Any], fault: Fault | None) -> None:
        assert actor.task is None
        actor.gate.arm(fault)
        actor.task = self.loop.create_task(work)
        self._go()

    def _go(self) -> None:
        self.loop.settle()
        for error in self.failed_transactions:
            raise error
        for actor in self._actors():
            actor.gate.arm(None)
            if actor.task is not None and actor.task.done():
                self._end(actor.task)
                actor.task = None
            assert actor.gate.holds or actor.task is None or not self.runs, "it waits for something that never comes"
        if not self.runs:
            self._bury()

    def _end(self, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        if error is not None and not isinstance(error, Crash | DatabaseUnavailableError):
            raise error
        if error is None and isinstance(done := task.result(), Pass):
            self._last_pass = done

    # What users and the broker do

    def send(self, sent: Sent, address: str, tenant: str) -> None:
        position = self.broker.send(command_address(tenant, address), sent.body, {REPLY_TO: "_INBOX.sender"})
        self.sent[position] = sent

    def weather(self, weather: Weather) -> None:
        broker = self.broker
        broker.health = Health.down("away") if weather is Weather.AWAY else HEALTHY
        broker.loses_acknowledgement_of = _LOSES.get(weather, never)
        broker.refuses = _REFUSES.get(weather, never)

    @property
    def failed(self) -> list[Name]:
        return [name for name, row in self._rows.items() if row.state == FAILED]

    def reached(self, name: Name) -> bool:
        return name in self._rows and self._rows[name].state == REACHED

    # What is seen to happen

    def published(self) -> None:
        for message in self.broker.events[self.counts["events"] :]:
            self.counts["events"] += 1
            body = json.loads(message.body)
            if body["type"] == "DueTimeReached":
                self.counts["fired"] += 1
                assert body["id"] == message.id
                self.model.event(message.id, _fire(body), self.clock.now())

    def acknowledged(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.position in self.handled, f"{self.sent[delivery.position]} was acknowledged, not committed"
            self.settled.add(delivery.position)

    def terminated(self, deliveries: Sequence[Delivery]) -> None:
        letters = {(letter.id, letter.body) for letter in self.broker.dead_letters}
        for delivery in deliveries:
            kept = (f"dlq-{delivery.position.epoch}-{delivery.position.sequence}", delivery.body)
            assert self.sent[delivery.position].name is None, f"{self.sent[delivery.position]} was rejected"
            assert kept in letters, f"{self.sent[delivery.position]} was thrown away"
            self.settled.add(delivery.position)

    def commands_committed(self, instance: Instance) -> None:
        for command, outcome in instance.decided:
            sent = self.sent[command.position]
            wanted = self.model.command(sent, command.position)
            assert outcome.name == wanted, f"{sent}, {command.position}: {outcome.name}, not {wanted}"
            self.handled.add(command.position)
        before, self._rows = self._rows, self._look()
        self.model.commands_committed(before, self._rows)

    def leases_committed(self, tokens: set[str]) -> None:
        before, self._rows = self._rows, self._look()
        if self._recovering:
            self.model.recovered(before, self._rows, self.clock.now())
        else:
            self.model.leases_committed(before, self._rows, tokens, self.clock.now())

    def _look(self) -> Rows:
        assert self._eyes is not None
        return dict(_timer(*row) for row in self._eyes.execute(_ROWS))

    def check(self) -> None:
        """Check what must be so at every moment."""
        if self.runs:
            assert self._look() == self._rows, "the database was changed by no transaction"
        self.model.agrees(self._rows)

    # The end

    def heal(self) -> None:
        """Let everything be well, and all that is left to do be done; then nothing may be missing."""
        self.weather(Weather.WELL)
        if not self.runs:
            self.start(exclusive=False)
        while self.held:
            self.let_on(self.held[0])
        for turn in range(_HEALING_ROUNDS):
            if not self._heal_more(self.instances[turn % INSTANCES]):
                break
        assert self.settled == set(self.sent), "commands were lost"
        assert self.handled == {position for position, sent in self.sent.items() if sent.name}, "commands were lost"
        self.model.finished(self._rows)

    def _heal_more(self, instance: Instance) -> bool:
        self.broker.redeliver()
        while self.broker.waiting:
            self.consume(instance)
        self._last_pass = Pass(0)
        self.tick(instance)
        if (at := self._last_pass.next_at) is not None:
            self.clock.set(max(self.clock.now(), at))
        return at is not None

    def close(self) -> None:
        if self.runs:
            self._life.end()
            self._bury()
        self._open.close()


def _let_the_dead_rest(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Nobody asks how the tasks of a dead process ended."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)


def _timer(tenant: str, call: str, epoch: int, sequence: int, *others: Any) -> tuple[Name, Row]:
    return Name(tenant, call), Row(Position(epoch, sequence), *others)


def _calls(message: Message, call: str) -> bool:
    body = json.loads(message.body)
    return bool(body["type"] == "DueTimeReached" and body["payload"]["serviceCallId"].startswith(call))


def _always(_message: Message) -> bool:
    return True


def _event(message: Message) -> bool:
    return message.address.kind is Kind.EVENT


def _event_of_a(message: Message) -> bool:
    return _event(message) and _calls(message, "a")


def _letter(message: Message) -> bool:
    return message.address.kind is Kind.DEAD_LETTER


_LOSES: dict[Weather, Predicate] = {Weather.DEAF: _always, Weather.DEAF_TO_A: _event_of_a}
_REFUSES: dict[Weather, Predicate] = {
    Weather.REFUSES_A: _event_of_a,
    Weather.REFUSES_EVENTS: _event,
    Weather.REFUSES_LETTERS: _letter,
}


def _fire(body: Any) -> Fire:
    payload = body["payload"]
    assert payload["tenantId"] == body["tenantId"]
    data = json.dumps(payload["data"]) if "data" in payload else None
    return Fire(Name(payload["tenantId"], payload["serviceCallId"]), parse_instant(payload["dueAt"]), data)


@cache
def _empty_database() -> bytes:
    """Return the file of a database that has the whole schema and nothing else."""

    async def make(path: Path) -> None:
        async with open_sqlite(path):
            pass

    with TemporaryDirectory() as folder, sqlite_in_place(), closing(SteppedLoop()) as loop:
        path = Path(folder) / "timers.db"
        loop.complete(make(path))
        return path.read_bytes()
