"""Due schedules of several tenants take turns, and so do the schedules of one tenant."""

import json
import math
from collections import Counter

import pytest

from tests.harness.schedules import Schedules
from timer_service.core.due.due_rows import DueRows
from timer_service.schedules import room
from timer_service.schedules.store import SCHEDULES

PASS = 1000
MOST_OF_SCHEDULE = 100
CATCH_UP = {"policy": "all", "limit": 1000}


@pytest.fixture(autouse=True)
def _passes_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the slots bound a pass, however slow the machine is."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", math.inf)


async def put(schedules: Schedules, tenant: str, count: int, *, every: str) -> None:
    for number in range(count):
        schedules.send("PutSchedule", tenant=tenant, scheduleId=f"s-{number:04}", every=every, catchUp=CATCH_UP)
    await schedules.consume()


async def run_pass(schedules: Schedules, passes: int = 1) -> Counter[tuple[str, str]]:
    """Run passes. Return how many slots of each tenant and schedule are in the outbox."""
    for _ in range(passes):
        await schedules.worker.tick(schedules.clock.now())
    events = [json.loads(row["body"]) for row in await schedules.rows("outbox")]
    return Counter((event["tenantId"], event["payload"]["scheduleId"]) for event in events)


def of_tenants(fired: Counter[tuple[str, str]]) -> Counter[str]:
    counts = Counter[str]()
    for (tenant, _), count in fired.items():
        counts[tenant] += count
    return counts


async def test_tenant_with_a_large_catch_up_delays_nobody(schedules: Schedules) -> None:
    """The youngest slots of a small tenant fire in the first pass, beside older ones that fill many passes."""
    await put(schedules, "hog", 20, every="PT1S")
    await put(schedules, "small", 3, every="PT15M")
    schedules.clock.advance(minutes=15)
    fired = of_tenants(await run_pass(schedules))
    assert (fired["small"], fired["hog"] <= PASS) == (3, True)


async def test_tenants_without_due_schedules_delay_nobody(schedules: Schedules) -> None:
    """A pass finds a due schedule, however many tenants whose schedules are not due come before its tenant."""
    await put(schedules, "hog", 50, every="PT1S")
    for number in range(120):
        schedules.send("PutSchedule", tenant=f"idle-{number:03}", scheduleId="s", every="P1D")
    await put(schedules, "small", 1, every="PT15M")
    schedules.worker._limit = 10
    schedules.clock.advance(minutes=15)
    assert of_tenants(await run_pass(schedules))["small"] == 1


async def test_schedules_that_wait_for_their_jitter_are_not_read(schedules: Schedules) -> None:
    """Schedules whose slots have come, and which wait for their jitter, do not take the places of due ones."""
    for number in range(60):
        schedules.send("PutSchedule", tenant="acme", scheduleId=f"w-{number:02}", every="P1D", jitter="P1D")
    await put(schedules, "acme", 20, every="P1D")
    await put(schedules, "other", 20, every="P1D")
    schedules.clock.advance(days=1)
    async with schedules.database.transaction() as tx:
        rows = await DueRows(SCHEDULES).select(tx, schedules.clock.now(), 10)
    assert Counter(row["tenant_id"] for row in rows) == {"acme": 5, "other": 5}


async def test_shares_of_a_pass(schedules: Schedules) -> None:
    """A tenant that needs less than its share gets all of it. The others share the rest equally."""
    await put(schedules, "hog-1", 20, every="PT1S")
    await put(schedules, "hog-2", 20, every="PT1S")
    await put(schedules, "many", 300, every="PT15M")
    schedules.clock.advance(minutes=15)
    fired = of_tenants(await run_pass(schedules))
    assert fired["many"] == 300
    assert abs(fired["hog-1"] - fired["hog-2"]) <= MOST_OF_SCHEDULE


async def test_tenants_beyond_a_pass_come_first_in_the_next(schedules: Schedules) -> None:
    """If a pass does not reach every tenant, the others come first in the next pass."""
    for number in range(25):
        await put(schedules, f"tenant-{number:02}", 2, every="PT1S")
    schedules.clock.advance(minutes=15)
    fired = of_tenants(await run_pass(schedules, passes=3))
    assert len(fired) == 25
    assert max(fired.values()) - min(fired.values()) <= MOST_OF_SCHEDULE


async def test_schedule_with_a_rest_goes_behind_the_others(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule fires a part of its slots and then waits for the others, also if more are due than are selected."""
    monkeypatch.setattr(room, "MOST_SLOTS", 20)
    monkeypatch.setattr(room, "MOST_SLOTS_OF_SCHEDULE", 10)
    await put(schedules, "acme", 120, every="PT1S")
    schedules.send("PutSchedule", tenant="acme", scheduleId="young", every="PT2M")
    await schedules.consume()
    schedules.clock.advance(minutes=2)
    for _ in range(59):
        await schedules.worker.tick(schedules.clock.now())
        schedules.clock.advance(milliseconds=1)
    fired = await run_pass(schedules)
    assert (len(fired), set(fired.values())) == (120, {10})
    fired = await run_pass(schedules)
    assert fired["acme", "young"] == 1


async def test_slots_of_a_schedule_stay_in_order(schedules: Schedules) -> None:
    """The events of one schedule are added in the order of their slots, whatever turns it took."""
    for tenant in ("one", "two"):
        await put(schedules, tenant, 7, every="PT1S")
    schedules.clock.advance(minutes=5)
    await run_pass(schedules, passes=10)
    rows = await schedules.database.reader.fetch("SELECT body FROM outbox ORDER BY ordinal")
    slots: dict[tuple[str, str], list[str]] = {}
    for event in (json.loads(row["body"]) for row in rows):
        slots.setdefault((event["tenantId"], event["payload"]["scheduleId"]), []).append(event["payload"]["slotAt"])
    assert {len(each) for each in slots.values()} == {300}
    assert all(each == sorted(each) for each in slots.values())
