"""A part of a settlement."""

from typing import Any

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


def test_part_of_some_rows() -> None:
    """A part has the rows that are given, by identity: two rows may be equal."""
    whole, rows = settlement(2, 1, 1, 1)
    equal: Any = dict(rows[0])
    part = whole.part([rows[0], rows[2], rows[3], rows[4], equal])
    assert (part.rows, part.whole, part.at) == ([rows[0], *rows[2:]], False, 7)
