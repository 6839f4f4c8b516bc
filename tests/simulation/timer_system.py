"""The timers slice on an in-memory broker, SQLite files and a manual clock, with faults.

After a crash, a new process starts on a copy of the database files as they were at the instant of the crash.
"""

import asyncio
import json
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
from unittest.mock import patch

from tests.harness.builders import command_address
from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker, Predicate, never
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
    FaultyTransaction,
    InjectedError,
    Process,
)
from tests.simulation.log_ledger import Applied, LogChange, LogLedger, change_log, read_stored
from tests.simulation.small_intake import small_intake
from tests.simulation.stepped_loop import SteppedLoop, sqlite_without_threads
from tests.simulation.stepped_reader import GatedTask, SteppedReader, ignore_crashes, wake, wake_outbox
from tests.simulation.timer_model import EXPIRED, FAILED, REACHED, Fire, Row, Rows, TimerCommand, TimerName, TimersModel
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import build_workers
from timer_service.core.due.lease import Lease, take_over_claims
from timer_service.core.due.loop import Pass
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.address import Kind
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.instant import parse_instant
from timer_service.core.values.message import Command, Message, Position
from timer_service.timers import SLICE, cancellation_worker, handler
from timer_service.timers.store import TIMERS

COMMANDS_AT_ONCE = 3
FIRED_AT_ONCE = 3  # so that one tick has two claims in flight when four timers are due
MAX_ATTEMPTS = 2
VISIBILITY_TIMEOUT = timedelta(seconds=30)
INSTANCES = 2

_ROWS = """
SELECT timers.tenant_id, service_call_id, position_epoch, position_sequence, state, due_at, COALESCE(data, text),
    event_id, available_at, lease_token, attempt, expires_at, topic, COALESCE(reached_at, expired_at)
FROM timer_schedules AS timers LEFT JOIN long_texts ON owner = 'timer_schedules' AND text_id = event_id
"""
_MOST_WAITING_BYTES = 800
"""Some five commands."""
_LEASE = timedelta(seconds=4)
_UNFINISHED = "SELECT position_epoch, position_sequence FROM timer_cancellations"
_REJECTED = """
SELECT json_extract(body, '$.payload.commandId') FROM outbox WHERE message = 'command-rejected'
"""
_STATES = {"DueTimeReached": (REACHED, "reachedAt"), "TimerExpired": (EXPIRED, "expiredAt")}
"""What each type of event announces: the state of its timer, and the field with the instant."""
_TURNS_OF_ONE = 4
_FINISHING_ROUNDS = 200
_TIMERS_OF_A_PAGE = 2
_MILLISECOND = 999_999
"""Less than one in nanoseconds. The time of a command is rounded up to the next one."""


class BrokerMode(StrEnum):
    """How the broker behaves."""

    NORMAL = "normal"
    UNAVAILABLE = "unavailable"
    LOSES_ACKS = "stores messages, but loses their acknowledgements"
    LOSES_ACKS_OF_A = "stores messages, but loses the acknowledgements of events whose call begins with xa"
    REFUSES_A = "refuses the events whose call begins with xa"
    REFUSES_EVENTS = "refuses every event"


class Instance:
    """A reader of the log and the workers of timers, composed as in `timer_service.app`."""

    def __init__(self, system: "TimerSystem", database: SqliteDatabase, process: Process, *, exclusive: bool) -> None:
        """`exclusive`: the reader does not look whether another one reads, and the old claims are taken over."""
        self.reader_task, self.relay_task = GatedTask(process, system.counts), GatedTask(process, system.counts)
        self.cancellation_task = GatedTask(process, system.counts)
        self.decided: list[tuple[Command, CommandResult]] = []
        self.decided_in: Transaction | None = None
        self.metrics = RecordingMetrics()
        self._system = system
        faulty = partial(FaultyDatabase, database, exclusive=exclusive, failed=system.failed_transactions.append)
        parts = partial(make_parts, clock=system.clock, metrics=self.metrics, max_attempts=MAX_ATTEMPTS)
        reader_database = faulty(self.reader_task.gate, committed=partial(system.commands_committed, self))
        reader_broker = FaultyBroker(system.broker, self.reader_task.gate, system)
        reader_parts = parts(reader_database, reader_broker, batch_size=COMMANDS_AT_ONCE)
        route = Route(SLICE.commands, self._handle, wake)
        self.reader = SteppedReader(partial(reader_parts.reader, [route], wake_outbox), system.ledger)
        self._relay_database = faulty(self.relay_task.gate, committed=system.leases_committed)
        self._clock = system.clock
        self._lease = Lease(TIMERS, VISIBILITY_TIMEOUT)
        relay_broker = FaultyBroker(system.broker, self.relay_task.gate, system)
        relay_parts = parts(self._relay_database, relay_broker, batch_size=FIRED_AT_ONCE)
        self.relay = build_workers(SLICE, relay_parts)["timers"]
        cancellation_database = faulty(
            self.cancellation_task.gate, committed=lambda _: system.cancellations_committed()
        )
        cancellation_parts = parts(cancellation_database, relay_broker, batch_size=FIRED_AT_ONCE)
        self.cancellations = build_workers(SLICE, cancellation_parts)["cancellations"]

    async def _handle(self, tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        self.decided, self.decided_in = [], tx
        if any(each.id in self._system.failing for each in commands):
            raise InjectedError("the handler fails")
        if self._system.defers:
            commands = commands[:1]
        outcomes = await handler.handle(tx, commands, now, quotas=Quotas())
        self.decided = list(zip(commands, outcomes, strict=False))
        return outcomes

    async def recover(self) -> None:
        """Take over the claims of the previous process, if this process has the database to itself."""
        await take_over_claims(self._relay_database, self._lease, self._clock.now())


class TimerSystem(BrokerObserver):
    """The simulated system. It compares every commit and every publish with the model."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._open.enter_context(sqlite_without_threads())
        self._open.enter_context(patch.object(cancellation_worker, "MOST_TIMERS", _TIMERS_OF_A_PAGE))
        self._open.enter_context(small_intake(lambda: self.clock.now() / 1000, most_bytes=_MOST_WAITING_BYTES))
        self.loop = self._open.enter_context(closing(SteppedLoop()))
        self.loop.set_exception_handler(ignore_crashes)
        self.loop.has_timers = True  # a reader waits for room in the database; `_settle` ends the wait
        self._folder = Path(self._open.enter_context(TemporaryDirectory(dir=memory_folder())))
        self._crashes = 0
        self._file().write_bytes(_empty_database())
        self.clock = ManualClock()
        self.broker = MemoryBroker()
        self.model = TimersModel(MAX_ATTEMPTS)
        self.sent: dict[str, TimerCommand] = {}
        """The commands by their ids."""
        self.failing: set[str] = set()
        """The commands whose handler fails each time."""
        self.defers = False
        """Whether the handler defers as many commands as it can."""
        self.ledger = LogLedger()
        self.instances: list[Instance] = []
        self.failed_transactions: list[Exception] = []
        """The errors of transactions that no fault has caused. The reader would set the command aside."""
        self.counts: Counter[str] = Counter()
        self._rows: Rows = {}
        self._finished: set[Position] = set()
        self._recovering = False
        self._last_pass = Pass(0)
        self._has_read = False
        self._process = Process(self._copy_files)
        self._process.ended = True
        self._database: SqliteDatabase | None = None
        self._reader: sqlite3.Connection | None = None

    # The process

    @property
    def is_running(self) -> bool:
        return not self._process.ended

    def start(self, *, exclusive: bool, fault: Fault | None = None) -> None:
        """Start a process on the files of the previous process.

        If `exclusive` is set, its first instance has the database to itself and takes over the old claims.
        """
        self._process = Process(self._copy_files)
        self._database = self.loop.run_to_completion(SqliteDatabase.open(self._file()))
        self._reader = sqlite3.connect(self._file(), isolation_level=None)
        assert self._read_rows() == self._rows, "the rows after the crash differ from the committed rows"
        self.instances = [
            Instance(self, self._database, self._process, exclusive=exclusive and not index)
            for index in range(INSTANCES)
        ]
        self._recovering = True
        self._begin(self.instances[0].relay_task, self.instances[0].recover(), fault)
        self._recovering = False

    def _copy_files(self) -> None:
        """Copy the database files for the next process, even in the middle of a transaction."""
        old = self._file()
        self._crashes += 1
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{old}{suffix}", f"{self._file()}{suffix}")

    def _clean_up(self) -> None:
        """End the tasks of the crashed process and close its database."""
        for each in self._tasks():
            each.gate.resume()
        try:
            self.loop.settle()
        finally:
            survivors = [each for each in self._tasks() if each.task is not None and not each.task.done()]
            self.counts["leases lost"] += sum(each.metrics.lost for each in self.instances)
            self.instances = []
            assert self._reader is not None
            assert self._database is not None
            self._reader.close()
            self.loop.run_to_completion(self._database.close())
        assert not survivors, "a task survived the crash"

    def _file(self) -> Path:
        return self._folder / f"timers-{self._crashes}.db"

    def _tasks(self) -> list[GatedTask]:
        return [task for each in self.instances for task in (each.reader_task, each.relay_task, each.cancellation_task)]

    # Steps of the process

    @property
    def idle_readers(self) -> list[Instance]:
        """The instances with an idle reader."""
        return [each for each in self.instances if each.reader_task.task is None]

    @property
    def idle_relays(self) -> list[Instance]:
        """The instances with an idle relay."""
        return [each for each in self.instances if each.relay_task.task is None]

    @property
    def idle_cancellations(self) -> list[Instance]:
        """The instances whose worker of cancellations is idle."""
        return [each for each in self.instances if each.cancellation_task.task is None]

    def read(self, instance: Instance, fault: Fault | None = None) -> bool:
        """Let a reader take one step. Return whether it had anything to do."""
        self._has_read = False
        self._begin(instance.reader_task, instance.reader.read(), fault)
        return self._has_read

    def stop_reader(self, instance: Instance, fault: Fault | None = None) -> None:
        self._begin(instance.reader_task, instance.reader.stop(), fault)

    def tick(self, instance: Instance, fault: Fault | None = None) -> None:
        self.counts["ticks"] += 1
        self._begin(instance.relay_task, instance.relay.tick(self.clock.now()), fault)

    def pass_cancellations(self, instance: Instance, fault: Fault | None = None) -> None:
        self._begin(instance.cancellation_task, instance.cancellations.tick(self.clock.now()), fault)

    def resume(self, gated: GatedTask, fault: Fault | None = None) -> None:
        gated.gate.arm(fault)
        gated.gate.resume()
        self._run()

    @property
    def paused(self) -> list[GatedTask]:
        return [each for each in self._tasks() if each.task is not None]

    def _begin(self, gated: GatedTask, work: Coroutine[Any, Any, Any], fault: Fault | None) -> None:
        assert gated.task is None
        gated.gate.arm(fault)
        gated.task = self.loop.create_task(work)
        self._run()

    def _run(self) -> None:
        self._settle()
        for error in self.failed_transactions:
            raise error
        for each in self._tasks():
            each.gate.arm(None)
            if each.task is not None and each.task.done():
                self._read_result(each.task)
                each.task = None
            assert each.gate.is_paused or each.task is None or not self.is_running, "a task waits forever"
        if not self.is_running:
            self._clean_up()

    def _settle(self) -> None:
        """Run until no task can continue. A reader that waits for room in the database is not left waiting."""
        self.loop.settle()
        while (at := self.loop.next_timer) is not None:
            self.loop.elapsed = at
            self.loop.settle()

    def _read_result(self, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        if error is not None and not isinstance(error, (Crash, *EXPECTED_ERRORS)):
            raise error
        if error is None and isinstance(done := task.result(), Pass):
            self._last_pass = done
        if error is None and isinstance(done, bool):
            self._has_read = done

    # Users and the broker

    def send(self, sent: TimerCommand, address: str, tenant: str, *, fails: bool = False) -> None:
        """Publish a command. `fails`: its handler fails each time."""
        number = len(self.sent) + 1
        command, stored_at = f"command-{number}", self.clock.now() * 1_000_000 - _MILLISECOND + number
        headers = {REPLY_TO: "_INBOX.sender"}
        self.broker.send(command_address(tenant, address), sent.body, headers, command, stored_at=stored_at)
        self.sent[command] = sent
        self.failing |= {command} if fails else set()
        self.ledger.send(command, tenant, stored_at, fails=fails or sent.name is None)

    def set_broker_mode(self, mode: BrokerMode) -> None:
        broker = self.broker
        broker.health = Health.down("unavailable") if mode is BrokerMode.UNAVAILABLE else HEALTHY
        broker.stored.away = broker.health.reason
        broker.loses_acknowledgement_of = _LOSES.get(mode, never)
        broker.refuses = _REFUSES.get(mode, never)

    def change_log(self, change: LogChange) -> None:
        """Change the log. The commands that are removed and not read are lost."""
        self.counts[change] += 1
        change_log(self.broker.stored, change)
        self.ledger.lose_unread(self._in_log())

    def _in_log(self) -> set[str]:
        """Return the commands in the log."""
        return {each.message_id for each in self.broker.stored.commands}

    @property
    def failed(self) -> list[TimerName]:
        return [name for name, row in self._rows.items() if row.state == FAILED]

    def reached(self, name: TimerName) -> bool:
        return name in self._rows and self._rows[name].state == REACHED

    # Observation

    def published(self) -> None:
        for message in self.broker.events[self.counts["events"] :]:
            self.counts["events"] += 1
            body = json.loads(message.body)
            if body["type"] in _STATES:
                state, instant = _STATES[body["type"]]
                self.counts["fired" if state == REACHED else "expired"] += 1
                assert body["id"] == message.id
                at = parse_instant(body["payload"][instant])
                self.model.record_event(message.id, _read_fire(message, body), state, at, self.clock.now())

    def commands_committed(self, instance: Instance, tx: Transaction) -> None:
        decided = instance.decided if instance.decided_in is tx else ()
        for command, outcome in decided:
            sent = self.sent[command.id]
            wanted = self.model.command(sent, command.id, command.position)
            assert outcome.name == wanted, f"{sent}, {command.position}: {outcome.name}, not {wanted}"
        assert self._reader is not None
        stored = read_stored(self._reader, ())
        self.counts["commits with waiting commands"] += stored.waiting > 0
        self.counts["commits with too many waiting"] += stored.waiting > 5
        self.ledger.errors = self.counts[FaultKind.ERROR]
        self.ledger.committed([Applied(command.id, SLICE.name) for command, _ in decided], stored)
        before, self._rows = self._rows, self._read_rows()
        self.model.check_commands(before, self._rows)

    def leases_committed(self, tx: FaultyTransaction) -> None:
        before, self._rows = self._rows, self._read_rows()
        if self._recovering:
            self.model.check_recovery(before, self._rows, self.clock.now())
        else:
            self.model.apply_relay_commit(before, self._rows, tx.tokens, self.clock.now())

    def cancellations_committed(self) -> None:
        before, self._rows = self._rows, self._read_rows()
        self.counts["cancelled by prefix"] += before != self._rows
        assert self._reader is not None
        unfinished = {Position(*row) for row in self._reader.execute(_UNFINISHED)}
        finished = self.model.cancellations.keys() - unfinished
        self.model.apply_cancellation_commit(before, self._rows, finished - self._finished)
        self._finished = finished

    def _announced(self) -> dict[str, tuple[int, int]]:
        """Return by command id how many events announce a cancellation, and how many timers the last one names."""
        assert self._reader is not None
        found: dict[str, tuple[int, int]] = {}
        for (body,) in self._reader.execute("SELECT body FROM outbox WHERE message = 'timers-cancelled'"):
            payload = json.loads(body)["payload"]
            times, _ = found.get(payload["commandId"], (0, 0))
            found[payload["commandId"]] = times + 1, payload["count"]
        return found

    def _read_rows(self) -> Rows:
        assert self._reader is not None
        return dict(_timer(*row) for row in self._reader.execute(_ROWS))

    def check(self) -> None:
        """Assert the invariants that hold after every step."""
        if self.is_running:
            assert self._read_rows() == self._rows, "the database changed outside a transaction"
        self.model.check_rows(self._rows)

    # The end

    def finish(self) -> None:
        """Remove all faults and do all remaining work, then assert that the result is complete."""
        self.set_broker_mode(BrokerMode.NORMAL)
        if not self.is_running:
            self.start(exclusive=False)
        while self.paused:
            self.resume(self.paused[0])
        if len(self.failing) > 1:  # then all commands of the handler may have failed, and each is tried very often
            self.failing.clear()
        for turn in range(_FINISHING_ROUNDS):
            # Later, each does some in a row: what was near a crash waits for seconds after an instance has taken over.
            number = turn if turn < _FINISHING_ROUNDS // 2 else turn // _TURNS_OF_ONE
            if not self._do_more(self.instances[number % INSTANCES]):
                break
        assert self._reader is not None
        self.ledger.check_finished(read_stored(self._reader, ()), self._in_log())
        invalid = {command for command, sent in self.sent.items() if sent.name is None}
        assert invalid.isdisjoint(self.ledger.applied), "an invalid command was applied"
        self.counts.update({"takeovers": self.ledger.takeovers, "dead letters": len(self.ledger.letters)})
        rejected = Counter(command for (command,) in self._reader.execute(_REJECTED))
        assert rejected == Counter(self.ledger.letters.keys()), "there is not one event for each dead letter"
        self.model.check_finished(self._rows)
        self.model.check_cancellations(self._announced())

    def _do_more(self, instance: Instance) -> bool:
        while self.read(instance) or self.read(instance):  # it may have to open the log again
            pass
        times = self._times_of_waiting()
        for step in (self.tick, self.pass_cancellations):
            self._last_pass = Pass(0)
            step(instance)
            if (at := self._last_pass.next_at) is not None:
                times.append(at)
        if times:
            self.clock.set(max(self.clock.now(), min(times)))
        return bool(times)

    def _times_of_waiting(self) -> list[int]:
        """Return when the readers can go on that have left commands: after the lease of another one, or a delay."""
        assert self._reader is not None
        now = self.clock.now()
        (at,) = self._reader.execute("SELECT MIN(available_at) FROM waiting_commands").fetchone()
        if at is None and not self.ledger.unapplied:
            return []
        lease_ends_at = now + _LEASE // timedelta(milliseconds=1)
        return [lease_ends_at, int(at)] if at is not None and at > now else [lease_ends_at]

    def close(self) -> None:
        """End the process, and close everything, also if a defect keeps the process from ending."""
        try:
            if self.is_running:
                self._process.end()
                self._clean_up()
        finally:
            self._open.close()


def _timer(tenant: str, call: str, epoch: int, sequence: int, *others: Any) -> tuple[TimerName, Row]:
    return TimerName(tenant, call), Row(Position(epoch, sequence), *others)


def _fires_call(message: Message, prefix: str) -> bool:
    body = json.loads(message.body)
    return bool(body["type"] in _STATES and body["payload"]["serviceCallId"].startswith(prefix))


def _always(_message: Message) -> bool:
    return True


def _is_event(message: Message) -> bool:
    return message.address.kind is Kind.EVENT


def _is_event_of_a(message: Message) -> bool:
    return _is_event(message) and _fires_call(message, "xa")


_LOSES: dict[BrokerMode, Predicate] = {BrokerMode.LOSES_ACKS: _always, BrokerMode.LOSES_ACKS_OF_A: _is_event_of_a}
_REFUSES: dict[BrokerMode, Predicate] = {
    BrokerMode.REFUSES_A: _is_event_of_a,
    BrokerMode.REFUSES_EVENTS: _is_event,
}


def _read_fire(message: Message, body: Any) -> Fire:
    payload, topic = body["payload"], message.address.topic
    assert body.get("topic") == topic
    assert payload["tenantId"] == body["tenantId"]
    data = json.dumps(payload["data"]) if "data" in payload else None
    return Fire(TimerName(payload["tenantId"], payload["serviceCallId"]), parse_instant(payload["dueAt"]), data, topic)


@cache
def _empty_database() -> bytes:
    """Return the content of a database file that has the schema and no rows."""

    async def make(path: Path) -> None:
        async with open_sqlite(path):
            pass

    with TemporaryDirectory(dir=memory_folder()) as folder, sqlite_without_threads(), closing(SteppedLoop()) as loop:
        path = Path(folder) / "timers.db"
        loop.run_to_completion(make(path))
        return path.read_bytes()
