"""Schedules of a tenant that has used its limit of events wait. Those of other tenants do not notice it."""

from typing import Any

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.schedules import Schedules
from timer_service.adapters.memory import MemoryBroker
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


async def waiting(schedules: Schedules) -> list[str]:
    """Return the tenants of the events in the outbox."""
    return [row["tenant_id"] for row in await schedules.rows("outbox")]


async def test_slots_of_a_tenant_over_its_limit_do_not_fill_the_outbox(schedules: Schedules) -> None:
    """While a tenant is over its limit, its schedules fire nothing, however long. The schedules of others fire."""
    for _ in range(10):
        await schedules.advance(minutes=1)
    assert await waiting(schedules) == []
    assert len(await schedules.fired()) == 11
    assert len(await schedules.fired("often", "heavy")) + len(await schedules.fired("also", "heavy")) == 2


async def test_next_pass_is_at_the_next_slot_of_others(schedules: Schedules) -> None:
    """The due schedules of a waiting tenant do not make the loop spin, and delay no slot of others."""
    schedules.clock.advance(milliseconds=59_500)
    found = await schedules.worker.tick(schedules.clock.now())
    assert (found.done, found.next_at) == (0, after(minutes=2))


async def test_schedules_go_on_when_the_limit_has_room(schedules: Schedules) -> None:
    """When enough is back, the schedules fire again by their policy."""
    for _ in range(3):
        schedules.clock.advance(days=7)
        await schedules.publish()
        await schedules.fire()
    assert len(await schedules.fired("often", "heavy")) + len(await schedules.fired("also", "heavy")) >= 3


async def test_backfills_beside_a_waiting_tenant(schedules: Schedules) -> None:
    """A backfill of another tenant fires although events of a tenant wait. One of that tenant does not begin."""
    await schedules.put("often", every="PT1M")
    since, until = after(minutes=-10), after(minutes=-5)
    schedules.send("PutSchedule", tenant="heavy", scheduleId="third", every="PT1M")
    span: dict[str, Any] = {"from": iso(since), "to": iso(until)}
    schedules.send("BackfillSchedule", tenant="heavy", scheduleId="third", **span)
    await schedules.consume()
    await schedules.backfill(since, until)
    for _ in range(10):
        await schedules.backfill_worker.tick(schedules.clock.now())
        await schedules.publish()
    assert len(await schedules.backfilled()) == 5
    assert await schedules.backfilled("third", "heavy") == []


async def test_slots_after_the_stream_was_full(schedules: Schedules) -> None:
    """After the stream was full, slots of all tenants wait for the events of then, but not for those of that tenant."""
    schedules.broker.has_no_room_for = lambda _message: True
    await schedules.advance(minutes=1)
    schedules.broker.has_no_room_for = lambda _message: False
    for _ in range(3):
        await schedules.advance(minutes=1)
    assert len(await schedules.fired()) >= 3
