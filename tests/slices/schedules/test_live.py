"""Schedules in the real service, over a real broker."""

import asyncio

from tests.harness.live_service import PATIENCE_SECONDS
from tests.harness.schedules import LiveSchedules
from timer_service.core.values.instant import parse_instant


async def test_put_fires_events(live_schedules: LiveSchedules) -> None:
    """A PutSchedule leads to events at its slots, never early. A trigger fires at once."""
    assert await live_schedules.put("ticker", every="PT1S", data={"n": 1}) == "created"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(await live_schedules.fired("ticker")) < 2:
            await asyncio.sleep(0.1)
    assert await live_schedules.about("Trigger", "ticker", data=None) == "triggered"
    assert await live_schedules.about("Delete", "ticker") == "deleted"
    events = [each["payload"] for each in await live_schedules.events_of("ScheduleFired", "ticker")]
    slots = [parse_instant(each["slotAt"]) for each in events if each["cause"] == "slot"]
    assert all(parse_instant(each["firedAt"]) >= parse_instant(each["slotAt"]) for each in events)
    assert slots == [slots[0] + 1000 * number for number in range(len(slots))]
    assert [each["data"] for each in events if each["cause"] == "trigger"] == [None]
