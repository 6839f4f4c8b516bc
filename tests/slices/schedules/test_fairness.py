"""Due schedules of several tenants take turns, and so do the schedules of one tenant."""

import json
import math
from collections import Counter
from typing import Any

import pytest

from tests.harness.schedules import Schedules
from timer_service.schedules import room

MOST_OF_SCHEDULE = 100


@pytest.fixture(autouse=True)
def _passes_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the slots bound a pass, however slow the machine is."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", math.inf)


async def put(schedules: Schedules, tenant: str, count: int, *, every: str) -> None:
    catch_up = {"policy": "all", "limit": 1000}
    for number in range(count):
        schedules.send("PutSchedule", tenant=tenant, scheduleId=f"s-{number:04}", every=every, catchUp=catch_up)
    await schedules.consume()


async def run_pass(schedules: Schedules, passes: int = 1) -> Counter[str]:
    """Run passes. Return how many slots of each tenant are in the outbox."""
    for _ in range(passes):
        await schedules.worker.tick(schedules.clock.now())
    return Counter(row["tenant_id"] for row in await schedules.rows("outbox"))


async def test_shares_of_a_pass(schedules: Schedules) -> None:
    """A tenant that needs less than its share gets all of it, however young. The others share the rest equally."""
    await put(schedules, "hog-1", 20, every="PT1S")
    await put(schedules, "hog-2", 20, every="PT1S")
    await put(schedules, "many", 300, every="PT15M")
    schedules.clock.advance(minutes=15)
    fired = await run_pass(schedules)
    assert (fired["many"], sum(fired.values())) == (300, 1000)
    assert abs(fired["hog-1"] - fired["hog-2"]) <= MOST_OF_SCHEDULE


async def test_more_schedules_than_a_pass_selects(schedules: Schedules) -> None:
    """A tenant with one due schedule gets a turn beside a tenant with more than a pass selects, and idle ones."""
    await put(schedules, "large", 1200, every="PT14M")
    for number in range(60):
        schedules.send("PutSchedule", tenant=f"idle-{number:03}", scheduleId="s", every="P1D")
    await put(schedules, "small", 1, every="PT15M")
    schedules.clock.advance(minutes=15)
    assert (await run_pass(schedules))["small"] == 1
    assert (await run_pass(schedules, passes=2))["large"] == 1200


async def test_tenants_beyond_a_pass_come_first_in_the_next(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a pass does not reach every tenant, the others come first in the next pass."""
    monkeypatch.setattr(room, "MOST_DATA", 50_000)
    for number in range(25):
        fields: dict[str, Any] = {"every": "PT1S", "catchUp": {"policy": "all"}, "data": "x" * 10_000}
        schedules.send("PutSchedule", tenant=f"tenant-{number:02}", scheduleId="s", **fields)
    await schedules.consume()
    schedules.clock.advance(minutes=1)
    fired = Counter[str]()
    for _ in range(5):
        fired = await run_pass(schedules)
        schedules.clock.advance(milliseconds=1)
    assert (len(fired), set(fired.values())) == (25, {1})


async def test_schedule_with_a_rest_goes_behind_the_others(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule fires a part of its slots and then waits for the others of its tenant. Its slots stay in order."""
    monkeypatch.setattr(room, "MOST_SLOTS", 10)
    await put(schedules, "acme", 5, every="PT1S")
    schedules.send("PutSchedule", tenant="acme", scheduleId="young", every="PT1M")
    await schedules.consume()
    schedules.clock.advance(seconds=61)
    slots: dict[str, list[str]] = {}
    for passes in (6, 30):
        for _ in range(passes):
            await schedules.worker.tick(schedules.clock.now())
            schedules.clock.advance(milliseconds=1)
        rows = await schedules.database.reader.fetch("SELECT body FROM outbox ORDER BY ordinal")
        slots = {}
        for event in (json.loads(row["body"]) for row in rows):
            slots.setdefault(event["payload"]["scheduleId"], []).append(event["payload"]["slotAt"])
        assert len(slots["young"]) == 1
    assert Counter(len(each) for each in slots.values()) == {61: 5, 1: 1}
    assert all(each == sorted(each) for each in slots.values())
