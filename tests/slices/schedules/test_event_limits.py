"""Schedules of a tenant that has used its limit of events wait. Those of other tenants do not notice it."""

from typing import Any

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import Schedules
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database

LIMITS = TenantLimits(tenants={"heavy": Limits(published_events=4_000)})
DATA = {"text": "x" * 5_000}


@pytest.fixture
async def schedules(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Schedules:
    """Return the slice after the tenant `heavy` has used its limit with two slots."""
    schedules = Schedules(store, memory_broker, clock, limits=LIMITS)
    schedules.send("PutSchedule", tenant="heavy", scheduleId="often", every="PT1M", data=DATA)
    schedules.send("PutSchedule", tenant="heavy", scheduleId="also", every="PT1M", data=DATA)
    await schedules.put()
    await schedules.advance(minutes=1)
    return schedules


async def heavy(schedules: Schedules) -> int:
    return len(await schedules.fired("often", "heavy")) + len(await schedules.fired("also", "heavy"))


async def test_tenant_over_its_limit(schedules: Schedules) -> None:
    """Its schedules fire nothing until the limit has room, and do not make the loop spin. Those of others fire."""
    for _ in range(10):
        await schedules.advance(minutes=1)
    found = await schedules.worker.tick(schedules.clock.now() + 500)
    assert (found.done, found.next_at) == (0, schedules.clock.now() + 1500)
    assert await schedules.rows("outbox") == []
    assert (len(await schedules.fired()), await heavy(schedules)) == (11, 2)
    for _ in range(3):
        schedules.clock.advance(days=7)
        await schedules.publish()
        await schedules.fire()
    assert await heavy(schedules) >= 3


async def test_backfills_beside_a_waiting_tenant(schedules: Schedules) -> None:
    """A backfill of another tenant fires although events of a tenant wait. One of that tenant does not begin."""
    since, until = after(minutes=-10), after(minutes=-5)
    span: dict[str, Any] = {"from": iso(since), "to": iso(until)}
    schedules.send("BackfillSchedule", tenant="heavy", scheduleId="often", **span)
    await schedules.backfill(since, until)
    for _ in range(10):
        await schedules.backfill_worker.tick(schedules.clock.now())
        await schedules.publish()
    assert len(await schedules.backfilled()) == 5
    assert await schedules.backfilled("often", "heavy") == []
