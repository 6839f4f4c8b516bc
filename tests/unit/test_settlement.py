"""How a settlement is divided when it cannot be written as a whole."""

from typing import Any

import pytest

from timer_service.core.due.lease import Failure
from timer_service.core.events.settlement import Settlement


def settlement(complete: int, release: int, retry: int, bury: int) -> tuple[Settlement, list[Any]]:
    """Return a settlement with so many rows of each kind, and its rows in order."""
    rows: list[Any] = [{"number": number} for number in range(complete + release + retry + bury)]
    rest = iter(rows)
    found = Settlement(7, whole=True)
    found.complete = [next(rest) for _ in range(complete)]
    found.release = [next(rest) for _ in range(release)]
    found.retry = [Failure(next(rest), "error", 8) for _ in range(retry)]
    found.bury = [Failure(next(rest), "error", 9) for _ in range(bury)]
    return found, rows


@pytest.mark.parametrize("counts", [(2, 0, 0, 0), (3, 4, 0, 0), (5, 1, 1, 1), (1, 1, 1, 5), (0, 3, 0, 2)])
def test_halves_keep_the_order(counts: tuple[int, int, int, int]) -> None:
    """The first half has the first rows, the second half the others. Both settle them at the same instant."""
    whole, rows = settlement(*counts)
    first, second = whole.halves()
    middle = len(rows) // 2
    assert (first.rows, second.rows) == (rows[:middle], rows[middle:])
    assert (first.at, second.at, first.all_completed, second.all_completed) == (7, 7, False, False)


def test_each_row_keeps_its_kind() -> None:
    """A row is settled in a half as it would have been in the whole."""
    whole, rows = settlement(3, 1, 1, 1)
    first, second = whole.halves()
    assert (first.complete, second.complete, second.release) == (rows[:3], [], rows[3:4])
    assert ([each.row for each in second.retry], [each.row for each in second.bury]) == (rows[4:5], rows[5:])


def test_part_of_some_rows() -> None:
    """A part has the rows that are given, by identity: two rows may be equal."""
    whole, rows = settlement(2, 1, 1, 1)
    equal: Any = dict(rows[0])
    part = whole.part([rows[0], rows[2], rows[3], rows[4], equal])
    assert (part.rows, part.whole, part.at) == ([rows[0], *rows[2:]], False, 7)
