"""The size of batches follows the time that they take."""

from collections.abc import Callable

import pytest

from timer_service.core.intake.batch_size import BatchSize


def handle(size: BatchSize, seconds: Callable[[int], float], batches: int) -> list[int]:
    """Handle full batches, which take `seconds` for a number of commands. Return their sizes."""
    sizes = []
    for _ in range(batches):
        sizes.append(size.limit)
        size.record(size.limit, seconds(size.limit))
    return sizes


def test_fast_commands() -> None:
    """Fast commands are handled in the largest batches."""
    assert handle(BatchSize(1000), lambda count: count * 0.0001, 5) == [1000] * 5


def test_slow_commands() -> None:
    """Slow commands make small batches, at once. Batches grow again when the commands are fast."""
    size = BatchSize(1000)
    assert handle(size, lambda count: count * 0.001, 3) == [1000, 150, 150]
    assert handle(size, lambda count: count * 0.0001, 4) == [150, 300, 600, 1000]


@pytest.mark.parametrize("fixed", [0.16, 0.2, 0.5, 5.0])
def test_distant_database(fixed: float) -> None:
    """If each batch takes long whatever its size, most batches are large."""
    sizes = handle(BatchSize(1000), lambda count: fixed + count * 0.0001, 200)
    assert sum(sizes) > 0.65 * 1000 * 200


@pytest.mark.parametrize("most", [1, 10, 1000])
def test_limits(most: int) -> None:
    """No batch is larger than the setting, and none is smaller than 50 commands or the setting."""
    sizes = handle(BatchSize(most), lambda count: count * 10.0, 30)
    assert max(sizes) <= most
    assert min(sizes) == min(most, 50)


def test_cut_batches() -> None:
    """If commands of a batch were put back, the next batches are small, however often that happens."""
    size = BatchSize(1000)
    limits = []
    for _ in range(20):
        size.record(1, 0.5, cut=True)
        limits.append(size.limit)
    assert limits == [50] * 20
    assert handle(size, lambda count: count * 0.0001, 6) == [50, 100, 200, 400, 800, 800]


SLOW_OF_ANY_SIZE = ((1000, 0.2), (400, 0.19), (100, 0.19))
"""Batches that hardly become faster when they are smaller."""


def test_a_fast_batch_ends_the_comparison() -> None:
    """Smaller batches that did not help count against small batches only until a batch is fast."""
    size = BatchSize(1000)
    for count, seconds in (*SLOW_OF_ANY_SIZE[:2], (300, 0.1), *SLOW_OF_ANY_SIZE[1:]):
        size.record(count, seconds)
    assert size.limit == 78


def test_a_cut_batch_ends_the_comparison() -> None:
    """A batch that was cut shows that the time comes from the commands, so earlier batches are not compared."""
    size = BatchSize(1000)
    size.record(*SLOW_OF_ANY_SIZE[0])
    size.record(10, 0.5, cut=True)
    for each in SLOW_OF_ANY_SIZE[1:]:
        size.record(*each)
    assert size.limit == 78


def test_large_batches_for_a_while() -> None:
    """After smaller batches did not help, five batches are large, whatever time they take."""
    size = BatchSize(1000)
    limits = []
    for each in (*SLOW_OF_ANY_SIZE, *[(1000, 0.3)] * 6):
        size.record(*each)
        limits.append(size.limit)
    assert limits == [750, 315, 1000, 1000, 1000, 1000, 1000, 1000, 500]
