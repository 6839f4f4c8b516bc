"""The statements that find tenants, on each database."""

import pytest

from tests.harness.builders import in_state, scheduled
from tests.harness.timers import put_timers
from timer_service.core.ports.database import Database
from timer_service.timers.messages import State
from timer_service.ui import tenants
from timer_service.ui.tenants import Rows

TIMERS = Rows("timer_schedules")
FAILED = Rows("timer_schedules", "state = 'Failed'")


async def put(database: Database) -> None:
    """Add tenants `t0` to `t6` with three timers each. In every other one they were given up."""
    timers = [scheduled(f"call-{call}", tenant=f"t{number}") for number in range(7) for call in range(3)]
    failed = [in_state(State.FAILED, each) if each.key.tenant_id in {"t1", "t3", "t5"} else each for each in timers]
    async with database.transaction() as tx:
        await put_timers(tx, failed)


async def test_tenants(store: Database) -> None:
    """Each tenant with such rows is found once, in order of the names, page by page."""
    await put(store)
    reader = store.queries
    assert await tenants.page(reader, TIMERS, "", 3) == (["t0", "t1", "t2"], "t2")
    assert await tenants.page(reader, TIMERS, "t2", 4) == (["t3", "t4", "t5", "t6"], None)
    assert await tenants.page(reader, FAILED, "") == (["t1", "t3", "t5"], None)
    assert await tenants.page(reader, FAILED, "t5") == ([], None)


async def test_statements_stop(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement finds no more tenants and counts no more rows than its limit."""
    await put(store)
    assert len(await store.queries.fetch(TIMERS.sql("page"), {"after": "", "limit": 3})) == 3
    assert await tenants.count(store.queries, FAILED, ["t0", "t1", "t3"]) == {"t0": 0, "t1": 3, "t3": 3}
    monkeypatch.setattr("timer_service.ui.tenants.MOST_COUNTED", 2)
    assert await tenants.count(store.queries, FAILED, ["t1"]) == {"t1": 2}
