"""The turns of the reader: what it reads, what goes into one transaction, and how a process goes on after another."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness.builders import cancel_timer, command_address, raw_command
from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.memory_log import MemoryLog
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.waiting import until
from tests.harness.wiring import BATCH, make_parts
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake import cursor, waiting_rows
from timer_service.core.intake.cursor import LostCursorError
from timer_service.core.intake.reader import LogReader
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY
from timer_service.core.ports.log import LogBatch, LogCursor, LogUnavailableError
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.address import Address
from timer_service.core.values.budget import DEFAULT_BUDGET
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.errors import DatabaseSetupError, DatabaseUnavailableError, StartError
from timer_service.core.values.message import Command, Position
from timer_service.timers import SLICE


async def stop(reader: LogReader) -> None:
    """Stop a reader that does not run, so that another one may read."""
    await reader.stop()
    await reader.run()


def address_of(tenant: str) -> Address:
    return command_address(tenant, "cancel-timer")


class Site:
    """A log and a database with one reader, or several. Commands have the tenants as names, and only record that."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.broker = MemoryBroker()
        self.clock = ManualClock()
        self.metrics = RecordingMetrics()
        self.applied: list[str] = []
        """The tenants of each transaction, behind `W` if its commands waited, and `L` if they come from the log."""
        self.positions: list[Position] = []
        self.room = BATCH
        """How many commands a transaction may apply."""
        self.failing: set[str] = set()
        """The tenants whose commands fail."""
        self.seconds = 1000.0
        """The time of the machine. Each transaction takes a second."""
        self.outbox_wakes = self.sent = 0
        self.rejected: list[tuple[str, int]] = []
        """The tenants of rejected commands, and when they were rejected."""
        self.done: list[tuple[int, int]] = []
        """How many commands each transaction has ended, and when it began, in Unix nanoseconds."""

    def reader(self, *, batch_size: int = BATCH, from_now: bool = False) -> LogReader:
        parts = replace(
            make_parts(self.database, self.broker, self.clock, self.metrics, batch_size=batch_size),
            on_done=lambda done, began: self.done.append((done.number, began)),
            on_rejected=lambda each, now: self.rejected.append((each.raw.address.tenant, now)),
        )
        return parts.reader([Route(SLICE.commands, self._handle, self._wake)], self._wake_outbox, from_now=from_now)

    async def begin(self, *, batch_size: int = BATCH) -> LogReader:
        reader = self.reader(batch_size=batch_size)
        assert await reader.begin()
        return reader

    def send(self, tenants: str) -> None:
        """Store a command for each letter."""
        for tenant in tenants:
            self.sent += 1
            self.broker.send(address_of(tenant), cancel_timer(tenant=tenant), stored_at=self.sent)

    async def store(self, tenants: str) -> None:
        """Store commands that wait."""
        raws = [
            raw_command(cancel_timer(tenant=tenant), address=address_of(tenant), position=Position(0, number))
            for number, tenant in enumerate(tenants, 1)
        ]
        await in_transaction(self.database, lambda tx: waiting_rows.add(tx, waiting_rows.rows_of(raws)))

    async def waiting(self) -> int:
        found = await waiting_rows.find_all(self.database.reader)
        return sum(each.number for each in found.values())

    async def _handle(self, tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        tenants = "".join(each.tenant for each in commands)
        if self.failing.intersection(tenants):
            raise KeyError("a secret")
        done = commands[: self.room]
        waited = await waiting_rows.find_tenants(tx, [commands[0].tenant])
        self.applied.append(("W" if waited else "L") + tenants[: len(done)])
        self.positions += [each.position for each in done]
        self.seconds += 1
        return [CommandResult("cancelled")] * len(done)

    async def _wake(self, *_: object) -> None:
        """Wake no loop."""

    async def _wake_outbox(self) -> None:
        self.outbox_wakes += 1


@pytest.fixture
def site(sqlite: SqliteDatabase) -> Site:
    return Site(sqlite)


@pytest.fixture
def machine(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a site whose readers measure times with its own clock."""
    monkeypatch.setattr("timer_service.core.intake.reader.time", SimpleNamespace(monotonic=lambda: site.seconds))
    return site


# What is read


@pytest.mark.parametrize("before", ["", "aa"])
async def test_commands_from_now(site: Site, before: str) -> None:
    """A new database can skip what is in the log. After that, no command is skipped, also not over a restart."""
    site.send(before)
    for number in range(3):
        reader = site.reader(from_now=True)
        await catch_up(reader)
        await stop(reader)
        assert site.applied == ["Lb"] * number
        read = len(before) + number
        assert await cursor.find(site.database.reader) == LogCursor("1", 1, read, read)
        site.send("b")


async def test_another_log(site: Site) -> None:
    """A reader whose log was replaced begins again. The commands of the new log have a new epoch, which is kept."""
    reader = site.reader()
    running = asyncio.create_task(reader.run())
    site.send("a")
    await until(lambda: len(site.applied) == 1)
    site.broker.stored.recreate(7)
    site.send("b")
    await until(lambda: len(site.applied) == 2)
    assert (reader.health, site.positions) == (HEALTHY, [Position(1, 1), Position(7, 1)])
    await reader.stop()
    await running
    assert await cursor.find(site.database.reader) == LogCursor("7", 7, 1, 2)


async def test_waiting_for_commands(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader waits for commands as long as it may, but not beyond the instant when a waiting one is tried again."""
    waits: list[float] = []

    async def read(_log: MemoryLog, _limit: int, _most_bytes: int, seconds: float) -> LogBatch:
        waits.append(seconds)
        return LogBatch((), 0)

    await site.store("a")
    site.failing = {"a"}
    reader = await site.begin()
    await reader.turn()
    monkeypatch.setattr(MemoryLog, "read", read)
    with monkeypatch.context() as patch:  # it waits as long if it must not read
        patch.setattr("timer_service.core.intake.reader.MOST_BYTES", 0)
        began = time.monotonic()
        await reader.turn(0.05)
        assert time.monotonic() - began > 0.04
    for milliseconds in (0, 400, 600):
        site.clock.advance(milliseconds=milliseconds)
        site.failing.clear()
        await reader.turn(5)
    await reader.turn(5)
    assert waits == [1.0, 0.6, 0.0, 5]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DatabaseSetupError("no table"), "commands cannot be handled: no table"),
        (ValueError("secret"), "commands cannot be applied: ValueError"),
        (LogUnavailableError("no leader"), "the command log cannot be read: no leader"),
        (StartError("another database"), "another database"),
    ],
)
async def test_health_after_errors(site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    """The health says why no command can be applied."""

    async def fail(*_: object) -> LogBatch:
        raise error

    reader = site.reader()
    with monkeypatch.context() as patch:
        patch.setattr(MemoryLog, "read", fail)
        running = asyncio.create_task(reader.run())
        await until(lambda: reader.health.reason == reason)
    await reader.stop()
    await running


async def test_commands_that_were_removed(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The log of the service says so if the broker has removed commands before they were read."""
    site.send("a")
    reader = await site.begin()
    await catch_up(reader)
    await stop(reader)
    site.send("bc")
    site.broker.stored.remove(Position(1, 2))
    await catch_up(await site.begin())
    assert (site.applied, "commands were removed from the log" in caplog.text) == (["La", "Lc"], True)


async def test_a_reader_that_has_nothing_to_do(store: Database) -> None:
    """It keeps its lease. A second process on the database is healthy, and does not read."""
    site = Site(store)
    first = await site.begin()
    site.clock.advance(seconds=2)
    await first.turn()
    site.clock.advance(seconds=2)
    assert await site.reader().begin() is store.exclusive  # only one process can have it then
    second = site.reader()
    running = asyncio.create_task(second.run())
    await until(lambda: second.health == HEALTHY)
    async with asyncio.timeout(4):  # it does not wait for commands any more
        await second.stop()
        await running


@pytest.mark.parametrize("has_applied", [False, True])
async def test_another_process_has_taken_over(
    site: Site, caplog: pytest.LogCaptureFixture, *, has_applied: bool
) -> None:
    """A process that lost the cursor applies no waiting command, and counts none as failed."""
    await site.store("ab")
    slow = await site.begin()
    second = await site.begin()
    if has_applied:
        await catch_up(second)
    with pytest.raises(LostCursorError):
        await slow.turn()
    assert "failed" not in caplog.text
    await catch_up(await site.begin())
    assert site.positions[-2:] == [Position(0, 1), Position(0, 2)]
    assert await site.waiting() == 0


async def test_a_file_that_is_gone(site: Site, tmp_path: Path) -> None:
    """No command is applied in a file that the next process would not find."""
    path = tmp_path / "timers.db"
    reader = await site.begin()
    site.send("a")
    elsewhere = path.rename(tmp_path / "elsewhere")
    with pytest.raises(DatabaseUnavailableError, match="was deleted or replaced"):
        await reader.turn()
    elsewhere.rename(path)
    found = await cursor.find(site.database.reader)
    assert found is not None
    assert found.sequence == 0


# Turns and transactions


async def test_turns_of_log_and_waiting(machine: Site) -> None:
    """While the log has more, it has three times as much time as the waiting commands. Their tenants take turns."""
    await machine.store("abcde")
    machine.send("x" * 10)
    await catch_up(await machine.begin(batch_size=1))
    turns = ["Lx Wa", "Lx Lx Lx Wb", "Lx Lx Lx Wc", "Lx Lx Lx Wd", "We"]
    assert " ".join(machine.applied) == " ".join(turns)


@pytest.mark.parametrize(
    ("first", "then", "applied"),
    [
        ("a" * 12, "", "Laaaa Laaaa Laaaa"),
        ("a" * 8 + "b" * 4, "", "Waaaa Lbbbb Waaaa"),
        ("a" * 8, "b" * 4, "Laaaa Waaaa Lbbbb"),
    ],
    ids=["no other tenant", "another tenant", "another tenant that is new"],
)
async def test_far_behind(machine: Site, monkeypatch: pytest.MonkeyPatch, first: str, then: str, applied: str) -> None:
    """The commands of a tenant with a long backlog wait only if the log has others. The log is asked again later."""
    for module in ("reader", "waiting"):
        monkeypatch.setattr(f"timer_service.core.intake.{module}.FAR_BEHIND", 3)
    machine.send(first)
    reader = await machine.begin(batch_size=4)
    await reader.turn()
    machine.send(then)
    await catch_up(reader)
    assert " ".join(machine.applied) == applied


async def test_transactions_are_bounded(site: Site) -> None:
    """A transaction has the waiting commands of several tenants, but not more than a batch."""
    await site.store("aaabbbc")
    await catch_up(await site.begin(batch_size=4))
    assert site.applied == ["Waaa", "Wbbbc"]


async def test_a_command_that_has_failed_is_tried_alone(site: Site) -> None:
    """The transaction of other tenants' waiting commands does not have it."""
    await site.store("bc")
    site.failing = {"b", "c"}
    reader = await site.begin()
    await catch_up(reader)
    await stop(reader)
    site.failing.clear()
    await site.store("ad")
    site.clock.advance(seconds=1)
    await catch_up(await site.begin())
    assert sorted(site.applied) == ["Wad", "Wb", "Wc"]


async def test_a_command_that_fails(site: Site) -> None:
    """The others are applied at once. It is rejected when it has failed twice, with the type of the error only."""
    site.failing = {"b"}
    site.send("a")
    site.broker.send(address_of("b"), cancel_timer(tenant="b"), {REPLY_TO: "_INBOX.b"})
    reader = await site.begin()
    await reader.turn()
    assert site.applied == ["Wa"]
    await catch_up(reader)
    site.clock.advance(seconds=1)
    await catch_up(reader)
    (reply,) = site.broker.replies
    assert json.loads(reply.body)["error"]["message"] == "failed 2 times: KeyError"


async def test_commands_without_room_wait_in_order(site: Site) -> None:
    """What a transaction has no room for waits before the later commands of its tenant, also before very large ones."""
    site.send("aa")
    site.broker.send(address_of("a"), cancel_timer(tenant="a") + b" " * DEFAULT_BUDGET.part)
    site.room = 1
    reader = await site.begin()
    for _ in range(5):
        await reader.turn()
    assert [each.sequence for each in site.positions] == [1, 2, 3]


async def test_a_batch_that_fails(site: Site) -> None:
    """No command of a batch is lost if it fails, also not one that waits because of an older one."""
    await site.store("a")
    site.failing = {"b"}
    site.send("abc")
    reader = await site.begin()
    await catch_up(reader)
    site.failing.clear()
    site.clock.advance(seconds=1)
    await catch_up(reader)
    assert sorted("".join(each[1:] for each in site.applied)) == ["a", "a", "b", "c"]


async def test_full_until_a_row_is_applied(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a row take room until all are applied. The log is not read meanwhile, and the health says so."""
    monkeypatch.setattr("timer_service.core.intake.reader.MOST_BYTES", 1)
    await site.store("aaa")
    site.send("b")
    site.room = 1
    reader = await site.begin()
    reasons = []
    for _ in range(4):
        reasons.append(reader.health.reason)
        await reader.turn()
    full = "{} commands wait to be applied; the log is read when fewer wait"
    assert reasons == [*map(full.format, (3, 2, 1)), None]
    assert site.applied == ["Wa"] * 3 + ["Lb"]


# Dead letters


async def test_rejected_commands(site: Site) -> None:
    """Of several rejected commands, each is shown with the time. The outbox is woken."""
    for tenant in "ab":
        site.broker.send(command_address(tenant), b"{", {REPLY_TO: f"_INBOX.{tenant}"})
    await catch_up(await site.begin())
    assert (site.rejected, site.outbox_wakes) == ([("a", NOW), ("b", NOW)], 1)
    assert [reply.to for reply in site.broker.replies] == ["_INBOX.a", "_INBOX.b"]
    assert {json.loads(reply.body)["error"]["code"] for reply in site.broker.replies} == {"INVALID_JSON"}


async def test_replies_to_no_inbox(site: Site) -> None:
    """No reply is sent to a subject that is no inbox, whatever became of the command."""
    for body in (b"{", cancel_timer(tenant="a")):
        site.broker.send(address_of("a"), body, {REPLY_TO: "timer.evt.v1.a.due-time-reached"})
    began = time.time_ns()
    await catch_up(await site.begin())
    assert (site.broker.replies, [number for number, _ in site.done]) == ([], [2])
    assert began <= site.done[0][1] <= time.time_ns()


async def test_a_dead_letter_that_cannot_be_stored(site: Site) -> None:
    """A rejected command is tried until its dead letter is stored."""
    async with site.database.transaction() as tx:
        await tx.execute("CREATE UNIQUE INDEX forced ON dead_letters (state)")
    for _ in range(2):
        site.broker.send(command_address("a"), b"{")
    reader = await site.begin()
    for _ in range(5):
        await catch_up(reader)
        site.clock.advance(minutes=1)
    assert (await site.waiting(), len(site.rejected)) == (1, 1)
    async with site.database.transaction() as tx:
        await tx.execute("DROP INDEX forced")
    await catch_up(reader)
    assert (await site.waiting(), site.metrics.dead_letters) == (0, {"INVALID_JSON": 2})
