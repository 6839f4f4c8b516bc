"""Retention while the clock is wrong. What it deletes is tested with each slice."""

from datetime import timedelta
from unittest.mock import patch

import pytest

from tests.harness.clock import NOW, MachineClocks
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.clock import SystemClock
from timer_service.core.service.retention import Retention

YEAR = 365 * 24 * 3600
DAY = 24 * 3600


class Retained:
    """A retention of a day by the clock of a machine. It records the instants before which it deletes."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.machine = MachineClocks()
        self._clock = SystemClock(monotonic=self.machine.monotonic, system=self.machine.system)
        self._deleted_before: list[int] = []
        self._retention = Retention(
            database, timedelta(days=1), self._delete, monotonic=lambda: self.machine.monotonic() / 1_000_000
        )

    async def _delete(self, _tx: object, before: int, _limit: int) -> int:
        self._deleted_before.append(before)
        return 0

    async def deletes(self) -> bool:
        """Run a pass, some seconds after the last one. Return whether it deleted."""
        before = len(self._deleted_before)
        for _ in range(2):
            self._clock.now()
            self.machine.advance(1)
        now = self._clock.now()
        await self._retention.tick(now)
        assert self._deleted_before[before:] in ([], [now - DAY * 1000])
        return len(self._deleted_before) > before


@pytest.fixture
def retained(sqlite: SqliteDatabase) -> Retained:
    return Retained(sqlite)


async def test_jump_forward(retained: Retained) -> None:
    """After a jump forward nothing is deleted for an hour. Then the time counts as right."""
    found = [await retained.deletes()]
    retained.machine.jump(YEAR)
    found.append(await retained.deletes())
    for minutes in (30, 29, 1):
        retained.machine.advance(minutes * 60)
        found.append(await retained.deletes())
    assert found == [True, False, False, False, True]


async def test_jump_forward_and_back(retained: Retained) -> None:
    """If the clock is set back, retention goes on at once. The next jump forward stops it again."""
    found = []
    for jump in (0, YEAR, -YEAR, YEAR):
        retained.machine.jump(jump)
        found.append(await retained.deletes())
    assert found == [True, False, True, False]


async def test_another_jump_while_the_clock_is_ahead(retained: Retained) -> None:
    """Each jump starts the hour again, also one backward that leaves the clock ahead."""
    found = [await retained.deletes()]
    for jump in (YEAR, YEAR, -YEAR):
        retained.machine.jump(jump)
        found.append(await retained.deletes())
        retained.machine.advance(3500)
        found.append(await retained.deletes())
    retained.machine.advance(100)
    found.append(await retained.deletes())
    assert found == [True, *[False] * 6, True]


@pytest.mark.parametrize(("jump", "deletes"), [(59, True), (61, False), (-YEAR, True)])
async def test_which_jumps_count(retained: Retained, jump: int, *, deletes: bool) -> None:
    """Only a jump forward by more than a minute counts."""
    await retained.deletes()
    retained.machine.jump(jump)
    assert await retained.deletes() is deletes


async def test_long_pause_between_two_passes(retained: Retained) -> None:
    """Time that passes is no jump, however long a pass waits."""
    await retained.deletes()
    retained.machine.advance(YEAR)
    assert await retained.deletes()


async def test_first_pass(retained: Retained) -> None:
    """A process that starts with a wrong clock cannot know that, so its first pass deletes."""
    retained.machine.jump(YEAR)
    assert retained._clock.now() == NOW + YEAR * 1000
    assert await retained.deletes()


async def test_the_same_jump_again(retained: Retained) -> None:
    """A jump starts the hour, also if the clock was ahead by as much before and was set back."""
    found = []
    for jump in (0, YEAR, -YEAR, YEAR):
        retained.machine.jump(jump)
        found.append(await retained.deletes())
        retained.machine.advance(1800)
    found.append(await retained.deletes())
    assert found == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("deleted", "seconds", "next_at"), [(0, 1, None), (499, 1, None), (500, 0, 5), (501, 0.003, 8), (500, 0.4, 800)]
)
async def test_next_batch(sqlite: SqliteDatabase, deleted: int, seconds: float, next_at: int | None) -> None:
    """A batch has at most 500 rows of a kind. After a full one, the pause is as long as it took, at least 5 ms."""
    limits: list[int] = []
    elapsed = 0.0

    async def delete(_tx: object, _before: int, limit: int) -> int:
        nonlocal elapsed
        elapsed += seconds
        limits.append(limit)
        return deleted

    found = await Retention(sqlite, timedelta(days=1), delete, monotonic=lambda: elapsed).tick(NOW)
    assert (found.done, found.next_at, limits) == (deleted, None if next_at is None else NOW + next_at, [500])


async def test_size_of_batches(sqlite: SqliteDatabase) -> None:
    """After a batch that takes long, because its rows are large, the next one is smaller; after a short one, larger."""
    limits: list[int] = []
    elapsed = 0.0
    row_seconds = 0.001

    async def delete(_tx: object, _before: int, limit: int) -> int:
        nonlocal elapsed
        elapsed += limit * row_seconds
        limits.append(limit)
        return limit

    retention = Retention(sqlite, timedelta(days=1), delete, monotonic=lambda: elapsed)
    for seconds in (0.001, 0.01, 0.00001):
        row_seconds = seconds
        for _ in range(5):
            await retention.tick(NOW)
    assert limits == [500, 250, 125, 62, 31, 62, 31, 30, 30, 30, 30, 60, 120, 240, 480]


@pytest.mark.parametrize(("alone", "expected"), [(True, [500, 250, 125]), (False, [500, 500, 500])])
async def test_batches_of_a_shared_database(sqlite: SqliteDatabase, alone: bool, expected: list[int]) -> None:  # noqa: FBT001
    """With a shared database, batches stay large, however long their round trips take: no other write waits."""
    limits: list[int] = []
    elapsed = 0.0

    async def delete(_tx: object, _before: int, limit: int) -> int:
        nonlocal elapsed
        elapsed += 1
        limits.append(limit)
        return limit

    retention = Retention(sqlite, timedelta(days=1), delete, monotonic=lambda: elapsed)
    with patch.object(type(sqlite), "exclusive", alone):
        for _ in range(3):
            await retention.tick(NOW)
    assert limits == expected
