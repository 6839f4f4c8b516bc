"""Processes that die while they apply commands, and how the next ones find the command that kills them."""

from collections.abc import Sequence

import pytest

from tests.harness.builders import cancel_timer, command_address
from tests.harness.clock import ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.wiring import BATCH, make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake import cursor, waiting_rows
from timer_service.core.intake.reader import LogReader
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.intake.waiting_rows import rows_of
from timer_service.core.ports.database import Transaction
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Command
from timer_service.timers import SLICE


class KilledError(BaseException):
    """The process was killed. No code of the service handles it."""


class Processes:
    """Processes that apply commands, one process after the other."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.database = database
        self.broker = MemoryBroker()
        self.metrics = RecordingMetrics()
        self.clock = ManualClock()
        self.deadly: set[int] = set()
        """The commands that kill the process each time, by their numbers."""
        self.kills_from_outside = 0
        """How many of the next transactions end with a kill, whatever they apply."""
        self.outages = 0
        """How many of the next transactions fail because the database is away."""
        self.tried: list[list[list[int]]] = []
        """For each process, the commands of each of its transactions."""
        self.applied: list[int] = []

    def send(self, *numbers: int) -> None:
        """Store commands in the log."""
        for number in numbers:
            body = cancel_timer(f"call-{number}", envelope={"id": f"{number}"})
            self.broker.send(command_address(message="cancel-timer"), body)

    async def store_waiting(self) -> None:
        """Let the commands of the log wait in the database, as if a process before had read them."""
        reader = self._reader([])
        assert await reader.begin()
        raws = self.broker.stored.commands
        async with self.database.transaction() as tx:
            await waiting_rows.add(tx, rows_of(raws))
            last = raws[-1]
            end = {"sequence": last.position.sequence, "stored_at": last.stored_at}
            await tx.execute("UPDATE command_log SET sequence = :sequence, stored_at = :stored_at", end)
        await self._stop()

    async def run(self) -> bool:
        """Run a process until it is killed, or stops in order. Return whether it was not killed.

        It stops when it has handled all commands, or after a second outage that nothing was applied between.
        """
        self.tried.append([])
        reader = self._reader([Route(SLICE.commands, self._handle, _wake)])
        try:
            for _ in range(2):
                try:
                    await catch_up(reader)
                except DatabaseUnavailableError:
                    await catch_up(reader)
                self.clock.advance(seconds=6)  # what was near a death is tried then
        except KilledError:
            return False
        except DatabaseUnavailableError:
            pass
        await self._stop()
        return True

    async def run_all(self) -> list[list[list[int]]]:
        """Run processes until one stops. Return the commands of the transactions of each."""
        while not await self.run():
            assert len(self.tried) < 10
        return self.tried

    def rejected(self) -> dict[str, int]:
        return dict(self.metrics.dead_letters)

    async def _stop(self) -> None:
        (row,) = await self.database.reader.fetch("SELECT reader FROM command_log")
        await cursor.release(self.database, row["reader"])

    def _reader(self, routes: list[Route]) -> LogReader:
        return make_parts(self.database, self.broker, self.clock, self.metrics).reader(routes, _wake_nothing)

    async def _handle(self, tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        numbers = [int(each.id) for each in commands]
        self.tried[-1].append(numbers)
        if self.kills_from_outside:
            self.kills_from_outside -= 1
            raise KilledError
        if self.outages:
            self.outages -= 1
            raise DatabaseUnavailableError("away")
        if self.deadly.intersection(numbers):
            raise KilledError
        tx.on_commit(lambda: self.applied.extend(numbers))
        return [CommandResult("cancelled")] * len(commands)


async def _wake_nothing() -> None:
    """Wake no loop."""


async def _wake(_at: int, _loop: str | None) -> None:
    """Wake no loop."""


@pytest.fixture
def processes(sqlite: SqliteDatabase) -> Processes:
    return Processes(sqlite)


def alone(*numbers: int) -> list[list[int]]:
    return [[number] for number in numbers]


@pytest.mark.parametrize("stored", [False, True], ids=["in the log", "waiting"])
async def test_a_deadly_command_among_few(processes: Processes, *, stored: bool) -> None:
    """After a crash, few commands are applied one by one. One that kills three processes becomes a dead letter."""
    processes.send(1, 2, 3, 4)
    if stored:
        await processes.store_waiting()
    processes.deadly = {3}
    assert await processes.run_all() == [[[1, 2, 3, 4]], alone(1, 2, 3), alone(3), alone(4)]
    assert (processes.applied, processes.rejected()) == ([1, 2, 4], {"INTERNAL": 1})


@pytest.mark.parametrize("stored", [False, True], ids=["in the log", "waiting"])
async def test_a_deadly_command_among_many(processes: Processes, *, stored: bool) -> None:
    """Many commands are applied in groups of 32, and then the group that was not survived one by one."""
    processes.send(*range(1, 101))
    if stored:
        await processes.store_waiting()
    processes.deadly = {40}
    first, second, third, fourth, fifth = await processes.run_all()
    groups = [list(range(1, 33)), list(range(33, 65))]
    assert (first, second) == ([list(range(1, 101))], groups)
    assert (third, fourth) == (alone(*range(33, 41)), alone(40))
    assert [number for each in fifth for number in each] == list(range(41, 101))
    assert max(map(len, fifth)) <= 32
    assert processes.applied == [number for number in range(1, 101) if number != 40]
    assert processes.rejected() == {"INTERNAL": 1}


@pytest.mark.parametrize("stored", [False, True], ids=["in the log", "waiting"])
async def test_two_deadly_commands(processes: Processes, *, stored: bool) -> None:
    """Each command needs its own deaths: those of the one before it do not count against it."""
    processes.send(1, 2, 3)
    if stored:
        await processes.store_waiting()
    processes.deadly = {1, 2}
    found = await processes.run_all()
    assert found == [[[1, 2, 3]], alone(1), alone(1), alone(2), alone(2), alone(3)]
    assert (processes.applied, processes.rejected()) == ([3], {"INTERNAL": 2})


@pytest.mark.parametrize("stored", [False, True], ids=["in the log", "waiting"])
async def test_kills_from_outside(processes: Processes, *, stored: bool) -> None:
    """If processes are killed for another reason, no command is blamed, and all are applied once."""
    processes.send(1, 2, 3)
    if stored:
        await processes.store_waiting()
    processes.kills_from_outside = 2
    assert await processes.run_all() == [[[1, 2, 3]], alone(1), alone(1, 2, 3)]
    assert (processes.applied, processes.rejected()) == ([1, 2, 3], {})


@pytest.mark.parametrize("stored", [False, True], ids=["in the log", "waiting"])
async def test_outages_after_a_crash(processes: Processes, *, stored: bool) -> None:
    """A process that begins again after an outage has not died, so no command is blamed."""
    processes.send(1)
    if stored:
        await processes.store_waiting()
    processes.kills_from_outside = 2
    assert [await processes.run(), await processes.run()] == [False, False]
    processes.outages = 1
    assert await processes.run()
    assert (processes.tried[2:], processes.applied, processes.rejected()) == ([alone(1, 1)], [1], {})


async def test_other_tenants_after_a_crash(processes: Processes) -> None:
    """A waiting command that kills the process keeps another tenant's waiting commands from nothing."""
    processes.send(1, 2)
    body = cancel_timer("call-3", tenant="globex", envelope={"id": "3"})
    processes.broker.send(command_address("globex", "cancel-timer"), body)
    await processes.store_waiting()
    processes.deadly = {1}
    await processes.run_all()
    assert (sorted(processes.applied), processes.rejected()) == ([2, 3], {"INTERNAL": 1})


@pytest.mark.parametrize("stored", [False, True], ids=["in the log", "waiting"])
async def test_an_orderly_stop(processes: Processes, *, stored: bool) -> None:
    """After an orderly stop, commands are applied together, and nothing is marked."""
    assert await processes.run()
    processes.send(1, 2, 3)
    if stored:
        await processes.store_waiting()
    assert await processes.run()
    assert processes.tried == [[], [[1, 2, 3]]]


async def test_care_ends(processes: Processes) -> None:
    """When as many commands were applied as a transaction has at most, the next ones are applied together again."""
    processes.send(*range(1, BATCH + 101))
    processes.kills_from_outside = 1
    _, found = await processes.run_all()
    sizes = [len(each) for each in found]
    assert (sum(sizes), sizes[: BATCH // 32]) == (BATCH + 100, [32] * (BATCH // 32))
    assert sizes[-1] > 32
