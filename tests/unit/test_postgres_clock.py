from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_service.adapters.postgres.clock import PostgresClock, Sample, compute_offset
from timer_service.core.due.loop import Pass

SECOND = 1_000_000
LATENCIES = st.integers(0, 30_000)


class Machine:
    """The clocks of a machine and of the database, in microseconds. A request to the database takes time."""

    def __init__(self, ahead: int, latencies: Iterator[tuple[int, int]]) -> None:
        self.elapsed = 0
        self.system_at = 1_795_000_000 * SECOND
        self.database_at = self.system_at + ahead
        self._latencies = latencies

    def monotonic(self) -> int:
        return 77 * SECOND + self.elapsed

    def system(self) -> int:
        return self.system_at

    def advance(self, microseconds: int) -> None:
        self.elapsed += microseconds
        self.system_at += microseconds
        self.database_at += microseconds

    async def clock_at(self) -> int:
        there, back = next(self._latencies)
        self.advance(there)
        read = self.database_at
        self.advance(back)
        return read


def repeat(there: int, back: int) -> Iterator[tuple[int, int]]:
    while True:
        yield there, back


def clock_of(machine: Machine, offsets: list[float]) -> PostgresClock:
    return PostgresClock(machine.clock_at, offsets.append, monotonic=machine.monotonic, system=machine.system)


@pytest.mark.parametrize("ahead", [0, 5 * SECOND, -5 * SECOND])
async def test_follows_the_clock_of_the_database(ahead: int) -> None:
    """The time is that of the database minus the time of its response, however this machine's clock is set."""
    offsets: list[float] = []
    machine = Machine(ahead, repeat(300, 200))
    clock = clock_of(machine, offsets)
    await clock.measure()
    assert clock.now() == (machine.database_at - 200) // 1000
    assert offsets == [pytest.approx((ahead - 200) / SECOND)]
    machine.system_at += 3600 * SECOND
    machine.advance(2 * SECOND)
    assert clock.now() == (machine.database_at - 200 - 400) // 1000, "this machine's clock was changed in between"


@given(
    st.lists(st.tuples(LATENCIES, LATENCIES), min_size=50, max_size=50),
    st.lists(st.integers(0, 10 * SECOND), min_size=10, max_size=10),
    st.integers(-5 * SECOND, 5 * SECOND),
)
async def test_never_ahead_of_the_database(latencies: list[tuple[int, int]], pauses: list[int], ahead: int) -> None:
    """With any latency, the time is never ahead of the database's clock, nor far behind it."""
    machine = Machine(ahead, iter(latencies))
    clock = clock_of(machine, [])
    for number, pause in enumerate(pauses):
        await clock.measure()
        best = min(back for _, back in latencies[5 * number : 5 * number + 5])
        for step in (0, pause):
            machine.advance(step)
            assert 0 <= machine.database_at - clock.now() * 1000 <= best + 1000 + step // 5000 + 1


async def test_slow_measurement_does_not_replace_a_better_one() -> None:
    """A slow measurement does not replace a better one."""
    latencies = [*[(100, 100)] * 5, *[(40_000, 40_000)] * 5]
    machine = Machine(0, iter(latencies))
    clock = clock_of(machine, [])
    await clock.measure()
    machine.advance(5 * SECOND)
    await clock.measure()
    assert machine.database_at - clock.now() * 1000 <= 100 + 1200 + 1000


@pytest.mark.parametrize("jump", [-3 * SECOND, 3 * SECOND])
async def test_jump_of_the_database(jump: int) -> None:
    """After a failover to another clock, the time runs on for a second, and then it is that of the new clock."""
    machine = Machine(0, repeat(100, 100))
    clock = clock_of(machine, [])
    await clock.measure()
    start = clock.now()
    machine.database_at += jump
    passes = [await clock.tick(0)]
    seen = [clock.now() - start]
    while passes[-1].next_at is not None:
        machine.advance((passes[-1].next_at - clock.now()) * 1000)
        passes.append(await clock.tick(0))
        seen.append(clock.now() - start)
    assert seen[:-1] == pytest.approx([0, 250, 500, 750], abs=10)
    assert seen[-1] == pytest.approx(1000 + jump / 1000, abs=10)
    assert 0 <= machine.database_at - clock.now() * 1000 <= 100 + 1000
    assert clock.set_back_ms == pytest.approx(max(-jump / 1000, 0), abs=10)


async def test_one_wrong_reading_of_the_database() -> None:
    """One measurement that is an hour ahead changes nothing."""
    machine = Machine(0, repeat(100, 100))
    clock = clock_of(machine, [])
    await clock.measure()
    start = clock.now()
    machine.database_at += 3600 * SECOND
    await clock.measure()
    wrong = clock.now()
    machine.database_at -= 3600 * SECOND
    machine.advance(2 * SECOND)
    assert await clock.tick(0) == Pass(0)
    assert [wrong - start, clock.now() - start] == pytest.approx([0, 2000], abs=10)


@pytest.mark.parametrize("drift", [-15_000, 15_000])
async def test_drift_between_two_measurements(drift: int) -> None:
    """Two clocks that drift apart for long have not jumped, and a wrong reading does not put the time ahead."""
    machine = Machine(0, repeat(100, 100))
    clock = clock_of(machine, [])
    await clock.measure()
    machine.advance(100 * SECOND)
    machine.elapsed += drift
    machine.database_at += 3600 * SECOND
    await clock.measure()
    machine.database_at -= 3600 * SECOND
    assert clock.now() * 1000 <= machine.database_at
    machine.advance(900 * SECOND)
    machine.elapsed += 9 * drift
    assert await clock.tick(0) == Pass(0)


def test_an_old_sample_counts_less_and_less() -> None:
    """The bound of an earlier measurement holds after the possible drift of the clocks since then is subtracted."""
    samples = [Sample(0, 2000, 1900)]
    assert [compute_offset(970, seconds * SECOND, samples) for seconds in (0, 1, 10)] == [970, 770, 100]


def test_one_fast_sample_shows_a_set_back() -> None:
    """The offset is never above the lowest upper bound, however slow the other samples of the measurement are."""
    assert compute_offset(100, 0, [Sample(0, 50, 10), Sample(0, 500, 480)]) == 40
