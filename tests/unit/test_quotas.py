"""When the rows of a tenant are counted, and how much it may still add."""

from collections.abc import Sequence
from typing import Any

import pytest

from timer_service.core.limits import Limits, TenantLimits
from timer_service.core.quotas import Excess, Quotas, Usage

TIMERS = Usage("pending_timers", "the statement")
RUNS = Usage("open_runs", "another statement")


class Rows:
    """The rows of each tenant. To count them takes some time."""

    def __init__(self) -> None:
        self.used = 0
        self.counts: list[str] = []
        self.now = 0.0
        self.seconds = 0.0

    async def fetch(self, _sql: str, parameters: Any = None, /) -> Sequence[Any]:
        self.counts.append(parameters["tenant_id"])
        self.now += self.seconds
        return [{"used": min(self.used, parameters["most"])}]

    async def fetch_each(self, sql: str, many: Sequence[Any], /) -> Sequence[Any]:
        raise NotImplementedError

    def quotas(self, *, most: int = 10, alone: bool = True) -> Quotas:
        limits = TenantLimits(tenants={"acme": Limits(pending_timers=most, open_runs=1)})
        return Quotas(limits, alone=alone, monotonic=lambda: self.now)


async def add(quotas: Quotas, rows: Rows, amounts: Sequence[int]) -> list[bool]:
    """Add rows in one transaction. Return which amounts were admitted."""
    admission = quotas.admission(rows)
    assert admission is not None
    admitted = [await admission.exceeds("acme", {TIMERS: amount}) is None for amount in amounts]
    rows.used += sum(amount for amount, fits in zip(amounts, admitted, strict=True) if fits)
    return admitted


async def test_rows_are_counted_once() -> None:
    """While there is room, nothing is counted again."""
    rows = Rows()
    quotas = rows.quotas()
    assert [await add(quotas, rows, [1, 2]), await add(quotas, rows, [3]), await add(quotas, rows, [4])] == [
        [True, True],
        [True],
        [True],
    ]
    assert rows.counts == ["acme"]
    assert await add(quotas, rows, [1]) == [False]
    assert rows.counts == ["acme"] * 2


async def test_rows_of_the_same_transaction() -> None:
    """A count does not have the rows that its own transaction is about to write. They are subtracted."""
    rows = Rows()
    quotas = rows.quotas()
    assert await add(quotas, rows, [4, 4, 4, 2, 1]) == [True, True, False, True, False]
    rows.used = 9
    assert await add(quotas, rows, [2, 1, 1]) == [False, True, False]


async def test_count_after_rows_were_admitted() -> None:
    """Rows that took the room of an earlier transaction's count are subtracted from the next count too."""
    rows = Rows()
    quotas = rows.quotas()
    assert await add(quotas, rows, [1]) == [True]
    rows.used = 0  # the timer fires
    assert await add(quotas, rows, [9, 1, 1]) == [True, True, False]
    assert rows.counts == ["acme"] * 2


async def test_slow_count_of_a_tenant_without_room() -> None:
    """After a slow count, the next one waits 20 times as long. Until then the tenant stays refused."""
    rows = Rows()
    quotas = rows.quotas()
    rows.used, rows.seconds = 10, 0.5
    assert [await add(quotas, rows, [1]) for _ in range(3)] == [[False]] * 3
    rows.used = 0
    rows.now += 9.9
    assert (await add(quotas, rows, [1]), rows.counts) == ([False], ["acme"])
    rows.now += 0.1
    assert (await add(quotas, rows, [1]), rows.counts) == ([True], ["acme"] * 2)


@pytest.mark.parametrize("alone", [True, False])
async def test_slow_count_of_a_tenant_with_room(*, alone: bool) -> None:
    """A tenant that had room is not refused because its rows cannot be counted yet, whatever the count took."""
    rows = Rows()
    quotas = rows.quotas(alone=alone)
    rows.used, rows.seconds = 5, 1.0
    found = []
    for _ in range(19):
        found += await add(quotas, rows, [1])
        rows.used = 5  # as many timers fire
        rows.now += 1
    assert (found, rows.counts) == ([True] * 19, ["acme"])
    rows.used = 10
    rows.now += 10
    assert await add(quotas, rows, [1]) == [False]


async def test_flood_of_a_tenant_at_its_limit() -> None:
    """The rows of a tenant are counted at most once in a transaction, however many commands it refuses."""
    rows = Rows()
    quotas = rows.quotas()
    rows.used = 10
    assert await add(quotas, rows, [1] * 1000) == [False] * 1000
    assert rows.counts == ["acme"]


async def test_no_limit_and_a_replay() -> None:
    """Without a limit, and during a replay, nothing is counted and nothing is refused."""
    rows = Rows()
    rows.used = 10
    quotas = rows.quotas()
    admission = quotas.admission(rows)
    assert admission is not None
    assert await admission.exceeds("globex", {TIMERS: 10**9}) is None
    quotas.suspended = True
    assert (quotas.admission(rows), Quotas().admission(rows), rows.counts) == (None, None, [])


async def test_other_instances_add_rows_too() -> None:
    """In a fleet, a count is valid for ten seconds."""
    rows = Rows()
    quotas = rows.quotas(alone=False)
    assert await add(quotas, rows, [1]) == [True]
    rows.used = 10
    rows.now = 9.9
    assert await add(quotas, rows, [1]) == [True]
    rows.now = 10.0
    assert await add(quotas, rows, [1]) == [False]


async def test_a_command_that_exceeds_one_limit_takes_no_room() -> None:
    """If one of two limits is exceeded, the command is refused by name, and takes nothing of the other."""
    rows = Rows()
    quotas = rows.quotas()
    admission = quotas.admission(rows)
    assert admission is not None
    assert await admission.exceeds("acme", {RUNS: 1, TIMERS: 10}) is None
    assert await admission.exceeds("acme", {TIMERS: 0, RUNS: 1}) == Excess("open_runs", 1)


async def test_limit_of_nothing() -> None:
    """A tenant whose limit is 0 may add nothing."""
    rows = Rows()
    assert await add(rows.quotas(most=0), rows, [1]) == [False]
