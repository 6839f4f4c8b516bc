import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.clock import NOW, MachineClocks
from timer_service.clock import SteadyTime, SystemClock

HOUR = 3600
JUMPS = [HOUR, -HOUR, 0.2, -0.2]


def clock_of(machine: MachineClocks) -> SystemClock:
    clock = SystemClock(monotonic=machine.monotonic, system=machine.system)
    clock.now()
    return clock


def jumps_logged(caplog: pytest.LogCaptureFixture) -> list[float]:
    return [record.__dict__["seconds"] for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("jump", JUMPS)
def test_one_wrong_reading(jump: float, caplog: pytest.LogCaptureFixture) -> None:
    """One wrong reading, ahead or behind, changes nothing: neither then nor later."""
    machine = MachineClocks()
    clock = clock_of(machine)
    machine.advance(1)
    machine.jump(jump)
    wrong = clock.now()
    machine.jump(-jump)
    machine.advance(5)
    assert (wrong, clock.now()) == (NOW + 1000, NOW + 6000)
    machine.jump(jump)
    assert clock.now() == NOW + 6000, "the second wrong reading is a new jump"
    assert jumps_logged(caplog) == []


@pytest.mark.parametrize("jump", JUMPS)
def test_jump_is_followed_after_a_second(jump: float, caplog: pytest.LogCaptureFixture) -> None:
    """A jump is followed when it has lasted a second, forward or backward, with one warning that says by how much."""
    machine = MachineClocks()
    clock = clock_of(machine)
    machine.jump(jump)
    first = clock.now()
    machine.advance(0.999)
    before = clock.now()
    machine.advance(0.001)
    after = [clock.now(), clock.now()]
    machine.advance(1)
    assert (first, before) == (NOW, NOW + 999), "until then, the time runs on"
    assert after == [NOW + 1000 + round(jump * 1000)] * 2
    assert clock.now() == after[0] + 1000
    assert jumps_logged(caplog) == [jump]


def test_two_different_wrong_readings() -> None:
    """A reading of another jump does not confirm the first one, also a second later."""
    machine = MachineClocks()
    clock = clock_of(machine)
    machine.jump(HOUR)
    clock.now()
    machine.advance(1)
    machine.jump(HOUR)
    assert clock.now() == NOW + 1000


def test_clocks_that_drift_apart() -> None:
    """A deviation that the drift since the last reading explains is accepted at once."""
    time = SteadyTime()
    time.observe(0, 0)
    time.observe(150_000, 10**9, slack=50_000)
    assert (time.jumping, time.offset) == (False, 150_000)
    time.observe(0, 2 * 10**9, slack=49_999)
    assert (time.jumping, time.offset) == (True, 150_000)


def test_small_correction() -> None:
    """A correction of at most 0.1 s is followed at once. If it is backward, the time stands still until then."""
    machine = MachineClocks()
    clock = clock_of(machine)
    machine.jump(0.1)
    forward = clock.now()
    machine.jump(-0.1)
    back = clock.now()
    machine.advance(0.1)
    caught_up = clock.now()
    machine.advance(0.1)
    assert [forward, back, caught_up, clock.now()] == [NOW + 100, NOW + 100, NOW + 100, NOW + 200]


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(-2 * HOUR, 2 * HOUR)), max_size=30))
def test_never_frozen_and_never_early(steps: list[tuple[float, float]]) -> None:
    """With any jumps, the time is that of the system clock a second after the last jump. Single jumps do not show."""
    machine = MachineClocks()
    clock = clock_of(machine)
    for seconds, jump in steps:
        machine.advance(seconds)
        before = clock.now()
        machine.jump(jump)
        assert abs(clock.now() - before) <= 101
    for _ in range(3):
        machine.advance(1)
        clock.now()
    assert abs(clock.now() - machine.system() // 1000) <= 101


def test_how_far_the_clock_was_set_back() -> None:
    """The clock counts the jumps backward that it has followed. Wrong readings and jumps forward do not count."""
    machine = MachineClocks()
    clock = clock_of(machine)
    found = []
    for jump in (HOUR, -HOUR, -0.05, -2):
        machine.jump(jump)
        clock.now()
        machine.advance(1)
        clock.now()
        found.append(clock.set_back_ms)
    machine.jump(-HOUR)
    clock.now()
    machine.jump(HOUR)
    clock.now()
    assert [*found, clock.set_back_ms] == [0, HOUR * 1000, HOUR * 1000, HOUR * 1000 + 2000, HOUR * 1000 + 2000]
