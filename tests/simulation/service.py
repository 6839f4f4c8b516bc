"""All slices of the service, on one SQLite database, an in-memory broker and a stepped event loop.

The reader and the relays of the first instance work as on SQLite, and those of the second one as on PostgreSQL.
The test decides when each step happens. After a crash, every await of the process raises. This rolls back its open
transaction, and a new process starts on the same database. `tests.simulation.timer_system` tests that the database
files survive a crash.
"""

import itertools
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from tests.harness.builders import command_address
from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.memory_folder import memory_folder
from tests.harness.metrics import RecordingMetrics
from tests.harness.stores import open_sqlite
from tests.harness.wiring import make_parts
from tests.simulation.faults import (
    EXPECTED_ERRORS,
    BrokerObserver,
    Crash,
    Fault,
    FaultKind,
    FaultyBroker,
    FaultyDatabase,
    FaultyRequests,
    InjectedError,
    Process,
)
from tests.simulation.log_ledger import Applied, LogChange, LogLedger, Stored, change_log, read_postponed, read_stored
from tests.simulation.request_server import AppliedRequests, RequestServer
from tests.simulation.small_intake import small_intake
from tests.simulation.stepped_loop import SteppedLoop, sqlite_without_threads
from tests.simulation.stepped_reader import GatedTask, SteppedReader, ignore_crashes, wake, wake_outbox
from timer_service import workflows
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES, build_workers
from timer_service.core.due.loop import Pass, Worker
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.intake.route import CommandResult, Handle, Route
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.broker import QueryReply, Request
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.service.slice import Slice
from timer_service.core.values.address import kebab
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.message import Command
from timer_service.runs import events as run_events
from timer_service.schedules import room
from timer_service.schedules.backfill import transaction as backfill_pass
from timer_service.workflows.tasks import dispatcher
from timer_service.workflows.tasks.requests import POLL_TASKS

INSTANCES = 2
ROWS_AT_ONCE = 3
MAX_ATTEMPTS = 3
VISIBILITY_TIMEOUT = timedelta(seconds=30)
_SETTLING_ROUNDS = 200
_READING_ROUNDS = 400
_LEASE_MS = 4000
_MILLISECOND = 999_999
"""Less than one in nanoseconds. The time of a command is rounded up to the next one."""

_SLICE_OF = {payload.type: each.name for each in SLICES for payload in each.commands}
_RELAYS = {"timers", OUTBOX.name, "dead-letters"}

Row = Mapping[str, Any]


class SentCommand(NamedTuple):
    """A command of a history."""

    type: str
    tenant: str
    fields: Mapping[str, Any]
    fails: bool = False
    """Whether its handler fails each time."""

    @property
    def payload(self) -> dict[str, Any]:
        return {"tenantId": self.tenant, **self.fields}


def first_only(handle: Handle) -> Handle:
    """Return a handler that has room for one command."""

    async def apply_first(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        return await handle(tx, commands[:1], now)

    return apply_first


class Handled(NamedTuple):
    """A handled command and its outcome."""

    command: Command
    outcome: str
    at: int
    """When the handler applied it."""


class CommitObserver:
    """An observer of the commits of the service."""

    def commands_committed(self, handled: Sequence[Handled], now: int) -> None:
        """Observe a commit of a reader. `handled` has the order in which the handlers applied the commands."""

    def worker_committed(self, worker: str, now: int, began_at: int) -> None:
        """Observe a commit of a worker, in a pass that began at an instant."""

    def requests_committed(self, applied: AppliedRequests) -> None:
        """Observe a commit of requests of workers."""

    def backlog_is_handled(self) -> None:
        """Observe that an instance lets waits of workflows reach their timeouts."""

    def started(self) -> None:
        """Observe the start of a process, or the end of an outage of the broker."""


class Instance:
    """A reader of the log and the workers of every slice, composed as in `timer_service.app`."""

    def __init__(self, service: "Service", database: SqliteDatabase, process: Process, *, alone: bool) -> None:
        """`alone`: the reader and the relays work as if this were the only instance."""
        self._service = service
        self._handled: list[Handled] = []
        self._tx: Transaction | None = None
        self.metrics = RecordingMetrics()
        self.reader_task = GatedTask(process, service.counts)
        faulty = partial(FaultyDatabase, database, exclusive=False, failed=service.errors.append)
        self._broker = FaultyBroker(service.broker, self.reader_task.gate, service)
        parts = partial(make_parts, clock=service.clock, metrics=self.metrics, max_attempts=MAX_ATTEMPTS)
        reader_database = faulty(self.reader_task.gate, exclusive=alone, committed=self._commands_committed)
        tasks = GatedTask(process, service.counts)
        self.requests_task = GatedTask(process, service.counts)
        self.server = RequestServer(
            parts(faulty(self.requests_task.gate, committed=self._requests_committed), self._broker),
            parts(faulty(tasks.gate, committed=partial(self._worker_committed, dispatcher.LOOP)), self._broker),
            FaultyRequests(service.broker, self.requests_task.gate, service.pass_reply),
            FaultyRequests(service.broker, tasks.gate, service.pass_reply),
            lambda: service.notify(lambda observer: observer.backlog_is_handled()),
        )
        offer = self.server.dispatcher.offer
        self.workers: dict[str, tuple[GatedTask, Worker]] = {}
        self.slice_of: dict[str, Slice] = {}
        self.began_at: dict[str, int] = {}
        """When the last pass of each worker began."""
        for each in SLICES:
            for name in each.workers:
                task = GatedTask(process, service.counts)
                committed = partial(self._worker_committed, name)
                database_of_worker = faulty(task.gate, exclusive=alone and name in _RELAYS, committed=committed)
                broker = FaultyBroker(service.broker, task.gate, service)
                parts_of_worker = parts(database_of_worker, broker, batch_size=ROWS_AT_ONCE)
                worker = build_workers(each, parts_of_worker)[name]
                self.workers[name] = task, worker
                self.slice_of[name] = each
        self.workers[dispatcher.LOOP] = tasks, self.server.dispatcher
        self.slice_of[dispatcher.LOOP] = workflows.SLICE
        routes = [Route(each.commands, partial(self._handle, each), wake, offer) for each in SLICES]
        reader_parts = parts(reader_database, self._broker)
        self.reader = SteppedReader(partial(reader_parts.reader, routes, wake_outbox), service.ledger)

    @property
    def tasks(self) -> list[GatedTask]:
        return [self.reader_task, self.requests_task, *(task for task, _ in self.workers.values())]

    async def _handle(
        self, slice_: Slice, tx: Transaction, commands: Sequence[Command], now: int
    ) -> Sequence[CommandResult]:
        if self._tx is not tx:
            self._tx, self._handled = tx, []
        if any(command.id in self._service.failing for command in commands):
            raise InjectedError("the handler fails")
        results = await self._service.handler(slice_)(tx, commands, now)
        self._handled += [Handled(*each, now) for each in zip(commands, (each.name for each in results), strict=False)]
        return results

    def _commands_committed(self, tx: Transaction) -> None:
        now = self._service.clock.now()
        handled = self._handled if self._tx is tx else []  # else the transaction has applied no command
        self._service.notify(lambda _: self._service.record_commit(handled))
        self._service.notify(lambda observer: observer.commands_committed(handled, now))

    def _requests_committed(self, _tx: Transaction) -> None:
        if (applied := self.server.applied) is not None:
            self._service.notify(lambda observer: observer.requests_committed(applied))

    def _worker_committed(self, name: str, _tx: Transaction) -> None:
        now = self._service.clock.now()
        self._service.notify(lambda observer: observer.worker_committed(name, now, self.began_at[name]))


class Service(BrokerObserver):
    """The simulated service. One database serves many histories: `begin` empties it."""

    def __init__(self, path: Path) -> None:
        self.loop = SteppedLoop()
        self.loop.set_exception_handler(ignore_crashes)
        self.database = self.loop.run_to_completion(_open(path))
        self._reader = sqlite3.connect(path, isolation_level=None)
        self._reader.row_factory = sqlite3.Row
        self._tables = [row["name"] for row in self._reader.execute(_TABLES)]
        self.counts: Counter[str] = Counter()
        self.instances: list[Instance] = []
        """Whether transactions hand rows to workers of their process. If not, all rows wait for passes."""
        self.begin(CommitObserver())

    def begin(self, observer: CommitObserver, at: int = NOW) -> None:
        """Begin a history at an instant, with empty tables."""
        for each in self.instances:
            each.server.end()
        self.loop.settle()
        self.loop.elapsed += 1  # the pauses after hints
        self.loop.settle()
        self.loop.cancel_timers()
        self.loop.elapsed, self.loop.has_timers = 0.0, False
        deletes = "".join(f"DELETE FROM {table};" for table in self._tables)
        self._reader.executescript(f"BEGIN; {deletes} COMMIT;")
        self.observer = observer
        self.clock: ManualClock = ManualClock(at)
        self.broker: MemoryBroker = MemoryBroker()
        self.ledger = LogLedger()
        self._numbers = itertools.count(1)
        self.failing: set[str] = set()
        """The commands whose handler fails each time."""
        self.postponed: set[str] = set()
        """The tenants of which a command was tried later, because it had failed or was blocked."""
        self.most_commands, self.is_crowded = BrokerObserver.most_commands, False
        self.has_crashed = False
        """Whether a process has ended in this history. Rows that it had claimed are available after their leases."""
        self._errors_before = self.counts[FaultKind.ERROR]
        self.disabled: set[str] = set()
        """The names of the disabled slices."""
        self.defers = False
        """Whether handlers defer as many commands as they can."""
        self.answer: Callable[[Request, QueryReply], None] = _forget
        """What gets the replies to the requests of workers."""
        self.errors: list[Exception] = []
        """The failed assertions of the observer and the errors of transactions. No history may cause one."""
        self._start()

    def close(self) -> None:
        self._reader.close()
        self.loop.run_to_completion(self.database.close())
        self.loop.close()

    # The process

    def _start(self) -> None:
        self._process = Process(lambda: None)
        self.instances = [Instance(self, self.database, self._process, alone=not number) for number in range(INSTANCES)]
        self.observer.started()

    def crash(self) -> None:
        """Crash the process and start a new one."""
        self.has_crashed = True
        self._process.end()
        for each in self._tasks():
            each.gate.resume()
        for instance in self.instances:
            instance.server.end()
        self.loop.settle()
        assert all(each.task is None or each.task.done() for each in self._tasks()), "a task survived the crash"
        self._start()

    def handler(self, slice_: Slice) -> Handle:
        handle = slice_.handle_when_off if slice_.name in self.disabled and slice_.handle_when_off else slice_.handle
        apply = partial(handle, quotas=Quotas())
        return first_only(apply) if self.defers else apply

    def _tasks(self) -> list[GatedTask]:
        return [task for each in self.instances for task in each.tasks]

    # Steps

    def send(self, history: Sequence[SentCommand]) -> list[str]:
        """Append commands to the log and return their ids."""
        return [self._send(each) for each in history]

    def _send(self, sent: SentCommand) -> str:
        number = next(self._numbers)
        command, stored_at = f"command-{number}", self.clock.now() * 1_000_000 - _MILLISECOND + number
        body = json.dumps({"type": sent.type, "tenantId": sent.tenant, "payload": sent.payload}).encode()
        headers = {REPLY_TO: "_INBOX.sender"}
        address = command_address(sent.tenant, kebab(sent.type))
        self.broker.send(address, body, headers, command, stored_at=stored_at)
        self.ledger.send(command, sent.tenant, stored_at, fails=sent.fails)
        self.failing |= {command} if sent.fails else set()
        return command

    def change_log(self, change: LogChange) -> None:
        """Change the log. The commands that are removed and not read are lost."""
        change_log(self.broker.stored, change)
        self.ledger.lose_unread(self._in_log())

    def _in_log(self) -> set[str]:
        """Return the commands in the log."""
        return {each.message_id for each in self.broker.stored.commands}

    def read(self, instance: int = 0, fault: Fault | None = None) -> bool:
        """Let the reader of an instance take one step, if it is idle. Return whether it had anything to do."""
        one = self.instances[instance]
        return one.reader_task.task is None and bool(self._begin(one.reader_task, one.reader.read(), fault))

    def stop_reader(self, instance: int, fault: Fault | None = None) -> None:
        """Let the reader of an instance stop in order, if it is idle."""
        one = self.instances[instance]
        if one.reader_task.task is None:
            self._begin(one.reader_task, one.reader.stop(), fault)

    def catch_up(self, instance: int = 0) -> None:
        """Let only one instance read, until the log has no more, and nothing waits that may be applied now."""
        for other in set(range(INSTANCES)) - {instance}:
            self.stop_reader(other)
        while self.read(instance) or self.read(instance):  # it may have to open the log again
            pass

    def read_all(self) -> None:
        """Let the first instance read until each command has ended. Time passes if commands must wait.

        If several commands fail, their handlers work from now on. They could be tried a hundred times otherwise.
        """
        self.resume()
        if len(self.failing) > 1:
            self.failing.clear()
        for _ in range(_READING_ROUNDS):
            self.catch_up()
            if not self.ledger.unapplied:
                self.ledger.check_finished(self._stored(), self._in_log())
                return
            (at,) = self._reader.execute("SELECT MIN(available_at) FROM waiting_commands").fetchone()
            now = self.clock.now()
            self.clock.set(at if at is not None and now < at < now + _LEASE_MS else now + _LEASE_MS)
        raise AssertionError(f"{self.ledger.unapplied} were not applied")

    def ask(self, requests: Sequence[Request], instance: int = 0, fault: Fault | None = None) -> None:
        """Pass requests of workers to an instance. If it is busy with others, only polls reach it."""
        one = self.instances[instance]
        if polls := [each for each in requests if each.name == POLL_TASKS.name]:
            self._begin(GatedTask(self._process, self.counts), one.server.hold(polls), None)
        others = [each for each in requests if each.name != POLL_TASKS.name]
        if others and one.requests_task.task is None:
            self._begin(one.requests_task, one.server.apply(others), fault)

    def pass_reply(self, request: Request, reply: QueryReply) -> None:
        """Pass a reply to the network of the workers."""
        self.answer(request, reply)

    def tick(self, worker: str, instance: int = 0, fault: Fault | None = None) -> Pass | None:
        """Run one pass of a worker and return it. Return None if the pass did not finish.

        Do nothing if the worker is busy or its slice is disabled.
        """
        one = self.instances[instance]
        task, instance_worker = one.workers[worker]
        if task.task is not None or one.slice_of[worker].name in self.disabled:
            return None
        now = one.began_at[worker] = self.clock.now()
        done: Pass | None = self._begin(task, instance_worker.tick(now), fault)
        return done

    def resume(self) -> None:
        """Continue all paused tasks."""
        for each in self._tasks():
            each.gate.resume()
        self.run()

    def stop_broker(self) -> None:
        """Let an outage of the broker begin."""
        self.broker.health = Health.down("the broker is unavailable")
        self.broker.stored.away = self.broker.health.reason

    def start_broker(self) -> None:
        """Let the outage of the broker end, if there is one."""
        if not self.broker.health.usable:
            self.broker.health, self.broker.stored.away = HEALTHY, None
            self.observer.started()

    def _begin(self, gated: GatedTask, work: Coroutine[Any, Any, Any], fault: Fault | None) -> Any:
        gated.gate.arm(fault)
        task = gated.task = self.loop.create_task(work)
        self.run()
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None

    def run(self) -> None:
        """Run until no task can continue."""
        self.loop.settle()
        if self.errors:
            raise self.errors[0]
        for each in self._tasks():
            each.gate.arm(None)
            if each.task is not None and each.task.done():
                error = each.task.exception()
                each.task = None
                if error is not None and not isinstance(error, (Crash, *EXPECTED_ERRORS)):
                    raise error
        if self._process.ended:
            self.crash()

    def settle(self, *workers: str) -> None:
        """Run some workers, or all of them, until nothing is due."""
        self.resume()
        for _ in range(_SETTLING_ROUNDS):
            if not sum(self._settle_worker(name) for name in workers or self.instances[0].workers):
                return
        raise AssertionError("the workers do not finish")

    def _settle_worker(self, name: str) -> bool:
        done = self.tick(name)
        return done is not None and done.done > 0

    def next_at(self) -> int | None:
        """Run one pass of every worker. Return the earliest time at which a worker wants its next pass.

        Schedules are left out, because most of them have slots for ever.
        """
        passes = [self.tick(name) for name in self.instances[0].workers if name != "schedules"]
        return min((each.next_at for each in passes if each is not None and each.next_at is not None), default=None)

    # Observation

    def record_commit(self, handled: Sequence[Handled]) -> None:
        """Compare a commit of a reader with the ledger."""
        self.postponed |= read_postponed(self._reader, self.clock.now())
        self.ledger.errors = self.counts[FaultKind.ERROR] - self._errors_before
        applied = [Applied(each.command.id, _SLICE_OF[each.command.payload.type]) for each in handled]
        self.ledger.committed(applied, self._stored())

    def _stored(self) -> Stored:
        return read_stored(self._reader, self.broker.dead_letters)

    def backlog(self) -> frozenset[str]:
        """Return the commands that workers must wait for: those that have had no effect, if none is tried later."""
        unapplied = self.ledger.unapplied
        return unapplied - self.ledger.of_tenants(unapplied, self.postponed)

    def notify(self, call: Callable[[CommitObserver], None]) -> None:
        """Call the observer. Its failed assertion is raised in the step of the test, not inside the service."""
        try:
            call(self.observer)
        except AssertionError as error:
            self.errors.append(error)

    def rows(self, table: str) -> list[Row]:
        return [dict(row) for row in self._reader.execute(f"SELECT * FROM {table}")]

    def snapshot(self) -> dict[str, list[Row]]:
        """Return the rows of every table. Every instant is replaced by the same text."""
        return {table: _sorted(map(_without_times, self.rows(table))) for table in self._tables}

    def events(self) -> list[dict[str, Any]]:
        """Return the published events. Each that is published under its type has the topic of its address."""
        found = [(json.loads(message.body), message.address) for message in self.broker.events]
        own = [(body.get("topic"), address.topic) for body, address in found if kebab(body["type"]) == address.message]
        assert all(topic == wanted for topic, wanted in own)
        return [body for body, _ in found]

    def delete_settled(self) -> None:
        """Run the retention of every slice until it has deleted all settled rows."""

        async def delete(slice_: Slice) -> None:
            assert slice_.delete_settled is not None
            for _ in range(_SETTLING_ROUNDS):
                async with self.database.transaction() as tx:
                    if not await slice_.delete_settled(tx, self.clock.now() + 1, 500):
                        return
            raise AssertionError(f"the retention of {slice_.name} does not finish")

        for each in SLICES:
            if each.delete_settled is not None:
                self.loop.run_to_completion(delete(each))


_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%migration%' AND name NOT LIKE 'sqlite_%'"
)


def _without_times(row: Row) -> Row:
    return {name: _without_time(name, value) for name, value in row.items()}


def _without_time(name: str, value: Any) -> Any:
    return "some time" if name.endswith("_at") and value is not None else value


def _sorted(rows: Iterator[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: json.dumps(row, default=str))


def _forget(_request: Request, _reply: QueryReply) -> None:
    """Do nothing with a reply for which no worker waits."""


async def _open(path: Path) -> SqliteDatabase:
    async with open_sqlite(path):
        pass
    return await SqliteDatabase.open(path)


@contextmanager
def small_passes() -> Iterator[None]:
    """Let a pass fire few slots, however long computing them takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "MOST_SLOTS", 20)
        patch.setattr(room, "MOST_SLOTS_OF_SCHEDULE", 7)
        patch.setattr(room, "MOST_COMPUTING_SECONDS", math.inf)
        patch.setattr(backfill_pass, "COSTLY", 6)  # a portion of a backfill has three slots
        patch.setattr(run_events, "MOST_BYTES", 3_000)  # one or two of them
        yield


@contextmanager
def running_service() -> Iterator[Service]:
    """Yield a service for many histories."""
    with ExitStack() as opened:
        opened.enter_context(sqlite_without_threads())
        opened.enter_context(small_passes())
        folder = opened.enter_context(TemporaryDirectory(dir=memory_folder()))
        service = opened.enter_context(closing(Service(Path(folder) / "service.db")))
        opened.enter_context(small_intake(lambda: (service.clock.now() + service.clock.set_back_ms) / 1000))
        yield service
