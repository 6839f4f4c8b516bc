"""When the rows of a tenant are counted, and how much it may still add."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from timer_service.core.limits.quotas import Admission, Excess, Quotas, Usage
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Transaction

TIMERS = Usage("pending_timers", "the statement")
RUNS = Usage("open_runs", "another statement")
NOW = 5


class Rows:
    """The rows of each tenant, as the transactions see them. To count them takes some time."""

    def __init__(self) -> None:
        self.used = 0
        self.counts: list[str] = []
        self.now = 0.0
        self.seconds = 0.0
        self.commit: Callable[[], None]
        """Commits the newest transaction."""

    async def fetch(self, _sql: str, parameters: Any = None, /) -> Sequence[Any]:
        assert parameters["now"] == NOW
        self.counts.append(parameters["tenant_id"])
        self.now += self.seconds
        return [{"used": min(self.used, parameters["most"])}]

    def on_commit(self, then: Callable[[], None], /) -> None:
        self.commit = then

    def quotas(self, *, most: int = 10, alone: bool = True) -> Quotas:
        limited = Limits(pending_timers=most, open_runs=1)
        tenants = {"acme": limited, **{f"tenant-{number}": limited for number in range(100)}}
        return Quotas(TenantLimits(tenants=tenants), alone=alone, monotonic=lambda: self.now)


def begin(quotas: Quotas, rows: Rows) -> Admission:
    admission = quotas.admission(cast("Transaction", rows), NOW)
    assert admission is not None
    return admission


async def add(quotas: Quotas, rows: Rows, amounts: Sequence[int], tenant: str = "acme") -> list[bool]:
    """Add rows in one transaction. Return which amounts were admitted."""
    admission = begin(quotas, rows)
    admitted = [await admission.exceeds(tenant, {TIMERS: amount}) is None for amount in amounts]
    rows.used += sum(amount for amount, fits in zip(amounts, admitted, strict=True) if fits)
    rows.commit()
    return admitted


async def test_a_transaction_that_is_not_committed() -> None:
    """It takes no room, and what it has removed makes none."""
    rows = Rows()
    quotas = rows.quotas()
    assert await begin(quotas, rows).exceeds("acme", {TIMERS: 8}) is None
    assert await add(quotas, rows, [10]) == [True]
    assert await begin(quotas, rows).exceeds("acme", {TIMERS: -5}) is None
    assert rows.counts == ["acme"]
    assert await add(quotas, rows, [1]) == [False]


@pytest.mark.parametrize(("seconds", "pause"), [(0.001, 0.02), (0.1, 2), (3, 10)])
async def test_time_until_the_next_count(seconds: float, pause: float) -> None:
    """The next count waits 20 times as long as the last one took, at most 10 s. Until then the tenant is refused."""
    rows = Rows()
    quotas = rows.quotas()
    rows.used, rows.seconds = 10, seconds
    assert [await add(quotas, rows, [1]) for _ in range(3)] == [[False]] * 3
    rows.used = 0
    rows.now += pause - 0.001
    assert (await add(quotas, rows, [1]), rows.counts) == ([False], ["acme"])
    rows.now += 0.002
    assert (await add(quotas, rows, [1]), rows.counts) == ([True], ["acme"] * 2)


async def test_flood_of_a_tenant_at_its_limit() -> None:
    """The rows of a tenant are counted at most once in a transaction, however many commands it refuses."""
    rows = Rows()
    quotas = rows.quotas()
    rows.used = 10
    assert await add(quotas, rows, [1] * 1000) == [False] * 1000
    assert rows.counts == ["acme"]


async def test_removed_rows_make_room() -> None:
    """What is removed makes room without another count, also within a transaction of a tenant beyond its limit."""
    rows = Rows()
    quotas = rows.quotas()
    rows.used, rows.seconds = 11, 1
    assert await add(quotas, rows, [1, -1, 1, 1]) == [False, True, True, False]
    assert [await add(quotas, rows, [amount]) for amount in (-4, 3, 1)] == [[True], [True], [False]]
    assert rows.counts == ["acme"]


async def test_a_change_that_is_refused() -> None:
    """It takes no room: neither of the limit that it would exceed nor of the others."""
    rows = Rows()
    admission = begin(rows.quotas(), rows)
    assert await admission.exceeds("acme", {TIMERS: 5, RUNS: 2}) == Excess("open_runs", 1)
    assert await admission.exceeds("acme", {TIMERS: 10, RUNS: 1}) is None


async def add_first(rows: Rows, admission: Admission, most: int, written: int) -> bool:
    """Write rows first that are `most` at most. Return whether there was room for them."""
    if not await admission.may_write({"acme": {TIMERS: most}}):
        return False
    rows.used += written
    admission.wrote({"acme": {TIMERS: written}})
    return True


async def test_rows_that_are_written_first() -> None:
    """Only what was written takes room from the rest of the transaction, and from the next ones."""
    rows = Rows()
    quotas = rows.quotas()
    admission = begin(quotas, rows)
    assert await add_first(rows, admission, 8, 3)
    assert await admission.exceeds("acme", {TIMERS: 2}) is None
    rows.used += 2
    rows.commit()
    assert (await add(quotas, rows, [5]), rows.counts) == ([True], ["acme"])
    assert await add(quotas, rows, [1]) == [False]


@pytest.mark.parametrize("used", [0, 3])
async def test_a_count_after_rows_were_written_first(used: int) -> None:
    """A count in the same transaction finds the rows that were written first. They do not count twice."""
    rows = Rows()
    quotas = rows.quotas()
    assert await add(quotas, rows, [6]) == [True]
    rows.used = used  # timers fire
    admission = begin(quotas, rows)
    assert await add_first(rows, admission, 4, 3)
    found = [await admission.exceeds("acme", {TIMERS: amount}) is None for amount in (7 - used, 1)]
    assert (found, rows.counts) == ([True, False], ["acme"] * 2)


async def test_too_many_rows_to_be_written_first() -> None:
    """If there may be too little room for one tenant, nothing is admitted, and the commands are admitted one by one."""
    rows = Rows()
    quotas = rows.quotas()
    admission = begin(quotas, rows)
    assert not await admission.may_write({"tenant-1": {TIMERS: 10}, "acme": {TIMERS: 10, RUNS: 2}})
    assert [await admission.exceeds(tenant, {TIMERS: 10}) for tenant in ("tenant-1", "acme")] == [None, None]
    assert rows.counts == ["tenant-1", "acme", "acme"]
    assert await admission.exceeds("tenant-1", {TIMERS: 1}) == Excess("pending_timers", 10)


@pytest.mark.parametrize(
    ("alone", "grows_alone", "valid"), [(True, False, True), (False, False, False), (True, True, False)]
)
async def test_how_long_a_count_is_valid(*, alone: bool, grows_alone: bool, valid: bool) -> None:
    """If other instances add rows, or rows are added without a command, a count is valid for ten seconds."""
    rows = Rows()
    quotas = rows.quotas(alone=alone)
    timers = TIMERS._replace(grows_alone=grows_alone)
    admitted = []
    for rows.now, rows.used in ((0.0, 1), (9.9, 10), (10.0, 10)):
        admitted.append(await begin(quotas, rows).exceeds("acme", {timers: 1}) is None)
    assert admitted == [True, True, valid]
