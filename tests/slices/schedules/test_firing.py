"""Slots fire when they are due, each once."""

from tests.harness.clock import NOW, after, iso
from tests.harness.schedules import Schedules


async def test_put_and_fire(schedules: Schedules) -> None:
    """Each slot fires when it is due, with the data and the cause of the PutSchedule."""
    reply = await schedules.request(
        "PutSchedule", every="PT1M", data={"report": 7}, envelope={"id": "put-1", "correlationId": "corr"}
    )
    assert (reply["outcome"], reply["schedule"]["nextSlotAt"]) == ("created", iso(after(minutes=1)))
    await schedules.advance(milliseconds=59_999)
    assert await schedules.fired() == []
    await schedules.advance(milliseconds=1)
    await schedules.advance(minutes=1)
    first, second = await schedules.events_of("ScheduleFired")
    assert first["payload"] == {
        "tenantId": "acme",
        "scheduleId": "daily",
        "slotAt": iso(after(minutes=1)),
        "firedAt": iso(after(minutes=1)),
        "cause": "slot",
        "data": {"report": 7},
    }
    assert (first["correlationId"], first["causationId"]) == ("corr", "put-1")
    assert second["payload"]["slotAt"] == iso(after(minutes=2))
    assert first["id"] != second["id"]
    row = await schedules.row()
    assert (row["after_at"], row["slot_at"], row["fired_count"]) == (after(minutes=2), after(minutes=3), 2)
    assert row["after_at"] > NOW
