"""Processes that die while they apply commands, and how the next ones find the command that kills them."""

from collections.abc import Sequence

import pytest

from tests.harness.builders import cancel_timer, command_address
from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.wiring import BATCH, make_parts
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake import cursor
from timer_service.core.intake.crash_care import SUSPECT_MS
from timer_service.core.intake.route import CommandResult, Route
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
        self._began = self.clock.now()
        self.deadly: set[int] = set()
        """The commands that kill the process each time, by their numbers."""
        self.kills_from_outside = 0
        """How many of the next transactions end with a kill, whatever they apply."""
        self.outages = 0
        """How many of the next transactions fail because the database is away."""
        self.tried: list[list[list[int]]] = []
        """For each process, the commands of each of its transactions."""
        self.ages: list[list[int]] = []
        """For each process, how old it was at each of its transactions, in ms."""
        self.applied: list[int] = []

    def send(self, *numbers: int) -> None:
        """Store commands in the log."""
        for number in numbers:
            body = cancel_timer(f"call-{number}", envelope={"id": f"{number}"})
            self.broker.send(command_address(message="cancel-timer"), body)

    async def run(self) -> bool:
        """Run a process until it is killed, or stops in order. Return whether it was not killed.

        It stops when it has handled all commands, or after a second outage that nothing was applied between.
        """
        self.tried.append([])
        self.ages.append([])
        self._began = self.clock.now()
        parts = make_parts(self.database, self.broker, self.clock, self.metrics)
        reader = parts.reader([Route(SLICE.commands, self._handle, _wake_nothing)], _wake_nothing)
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
        (row,) = await self.database.reader.fetch("SELECT reader FROM command_log")
        await cursor.release(self.database, row["reader"])
        return True

    async def run_all(self) -> list[list[list[int]]]:
        """Run processes until one stops. Return the commands of the transactions of each."""
        while not await self.run():
            assert len(self.tried) < 10
        return self.tried

    def rejected(self) -> dict[str, int]:
        return dict(self.metrics.dead_letters)

    async def _handle(self, tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        numbers = [int(each.id) for each in commands]
        self.tried[-1].append(numbers)
        self.ages[-1].append(self.clock.now() - self._began)
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


async def _wake_nothing(*_: object) -> None:
    """Wake no loop."""


@pytest.fixture
def processes(sqlite: SqliteDatabase) -> Processes:
    return Processes(sqlite)


def alone(*numbers: int) -> list[list[int]]:
    return [[number] for number in numbers]


def numbers(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


GROUPS = [numbers(1, 32), numbers(33, 64)]


@pytest.mark.parametrize(
    ("count", "deadly", "tried"),
    [
        (4, {3}, [[[1, 2, 3, 4]], alone(1, 2, 3), alone(3), alone(4)]),
        (3, {1, 2}, [[[1, 2, 3]], alone(1), alone(1), alone(2), alone(2), alone(3)]),
        (
            72,
            {40},
            [[numbers(1, 72)], GROUPS, alone(*range(33, 41)), alone(40), [numbers(41, 72)]],
        ),
        (72, {33}, [[numbers(1, 72)], GROUPS, alone(33), alone(33), [numbers(34, 65), *alone(*range(66, 73))]]),
    ],
    ids=["one of few", "two of few", "one of many", "the first of a group"],
)
async def test_deadly_commands(
    processes: Processes, count: int, deadly: set[int], tried: list[list[list[int]]]
) -> None:
    """After a crash, few commands are applied one by one, and many in groups of 32.

    A command that kills a process each time becomes a dead letter. The deaths of another one do not count against it.
    """
    processes.send(*range(1, count + 1))
    processes.deadly = deadly
    assert await processes.run_all() == tried
    assert processes.applied == [number for number in range(1, count + 1) if number not in deadly]
    assert processes.rejected() == {"INTERNAL": len(deadly)}


async def test_kills_from_outside(processes: Processes) -> None:
    """If processes are killed for another reason, no command is blamed, and all are applied once.

    A command that was near a death is tried a second after the start, and the others at once.
    """
    processes.send(1, 2, 3)
    processes.kills_from_outside = 2
    assert await processes.run_all() == [[[1, 2, 3]], alone(1), alone(1, 2, 3)]
    assert (processes.ages[1], [age > SUSPECT_MS for age in processes.ages[2]]) == ([0], [True] * 3)
    assert (processes.applied, processes.rejected()) == ([1, 2, 3], {})


async def test_outages_after_a_crash(processes: Processes) -> None:
    """A process that begins again after an outage has not died, so no command is blamed."""
    processes.send(1)
    processes.kills_from_outside = 2
    assert [await processes.run(), await processes.run()] == [False, False]
    processes.outages = 1
    assert await processes.run()
    assert (processes.tried[2:], processes.applied, processes.rejected()) == ([alone(1, 1)], [1], {})


async def test_care_ends(processes: Processes) -> None:
    """After an orderly stop, commands are applied together. After a crash, they are again after a whole transaction."""
    assert await processes.run()
    processes.send(*range(1, BATCH + 101))
    processes.kills_from_outside = 1
    _, first, found = await processes.run_all()
    sizes = [len(each) for each in found]
    assert ([len(each) for each in first], sum(sizes)) == ([BATCH], BATCH + 100)
    assert (sizes[: BATCH // 32], sizes[-1] > 32) == ([32] * (BATCH // 32), True)
