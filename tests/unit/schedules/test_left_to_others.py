"""For how long an instance leaves due schedules to other instances."""

import pytest

from timer_service.core.ports.database import Row
from timer_service.schedules.firing.left_to_others import Left, LeftToOthers
from timer_service.schedules.store import key_of

MET = 1_000_000


def due(count: int, tenant: str = "acme", at: int = MET) -> list[Row]:
    return [{"tenant_id": tenant, "schedule_id": f"s-{number}", "available_at": at} for number in range(count)]


def left(rows: list[Row]) -> LeftToOthers:
    to_others = LeftToOthers(exclusive=False)
    to_others.record([Left(key_of(row), MET, "no such zone") for row in rows], MET)
    return to_others


@pytest.mark.parametrize(("count", "milliseconds"), [(1, 10_000), (99, 10_000), (100, 2000)])
def test_how_long_schedules_are_left(count: int, milliseconds: int) -> None:
    """A schedule is left for ten seconds, and for two if the pass has 100 of its tenant."""
    rows = due(count)
    to_others = left(rows)
    assert to_others.own(rows, MET + milliseconds - 1) == []
    assert to_others.own(rows, MET + milliseconds) == rows


def test_many_schedules_of_one_tenant() -> None:
    """Those of another tenant are left for ten seconds all the same."""
    many, other = due(100), due(1, "other")
    assert left([*many, *other]).own([*many, *other], MET + 2000) == many


def test_schedules_that_are_due_again() -> None:
    """A schedule that another instance has fired meanwhile is no longer left, and does not count."""
    rows = due(100)
    to_others = left(rows)
    again = due(1, at=MET + 1000)
    assert to_others.own([*again, *rows[1:]], MET + 2000) == again
