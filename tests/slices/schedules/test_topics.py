"""The topic of a schedule: a part of the address of its ScheduleFired events."""

import json
from typing import Any

import pytest

from tests.harness.clock import after
from tests.harness.schedules import Schedules, StartingSchedules


async def fired_topics(schedules: Schedules) -> list[tuple[str, str | None]]:
    """Return the cause and the topic of each ScheduleFired. No other event has a topic."""
    found = []
    for event in await schedules.stored():
        body = json.loads(event.body)
        assert body.get("topic") == event.address.topic
        if event.address.message == "schedule-fired":
            found.append((body["payload"]["cause"], event.address.topic))
        else:
            assert event.address.topic is None
    return found


async def test_topic_of_each_cause(schedules: Schedules) -> None:
    """Slots, triggers and backfills have the topic. The event of the end has none."""
    assert await schedules.put(maxCount=1, topic="report") == "created"
    assert await schedules.about("Trigger", data=1) == "triggered"
    assert await schedules.backfill(after(minutes=-1), after()) == "backfilling"
    await schedules.fire_backfills()
    await schedules.advance(minutes=1)
    assert await fired_topics(schedules) == [("trigger", "report"), ("backfill", "report"), ("slot", "report")]
    assert (await schedules.view())["topic"] == "report"


@pytest.mark.parametrize(
    ("second", "outcome", "topic"),
    [
        ({"topic": "b"}, "updated", "b"),
        ({}, "updated", None),
        ({"topic": None}, "updated", None),
        ({"topic": "a"}, "unchanged", "a"),
    ],
)
async def test_another_topic(schedules: Schedules, second: dict[str, Any], outcome: str, topic: str | None) -> None:
    """A PutSchedule replaces the topic and does not start the schedule again. A backfill keeps the old one."""
    await schedules.put(topic="a")
    await schedules.advance(minutes=1)
    await schedules.backfill(after(minutes=-1), after())
    assert await schedules.put(**second) == outcome
    await schedules.fire_backfills()
    await schedules.advance(minutes=1)
    assert await fired_topics(schedules) == [("slot", "a"), ("backfill", "a"), ("slot", topic)]
    view = await schedules.view()
    assert (view["firedCount"], view.get("topic")) == (2, topic)


async def test_deleted_topic(schedules: Schedules) -> None:
    """A schedule that is put again after it was deleted has no topic of the old one."""
    await schedules.put(topic="a")
    await schedules.about("Delete")
    await schedules.put()
    await schedules.advance(minutes=1)
    assert await fired_topics(schedules) == [("slot", None)]


async def test_topic_of_workflows(starting: StartingSchedules) -> None:
    """A schedule that starts workflows publishes no ScheduleFired, so a topic is rejected. Null is none."""
    fields = {"scheduleId": "daily", "every": "PT1M", "start": {"type": "order"}}
    error = (await starting.request("PutSchedule", **fields, topic="a"))["error"]
    assert (error["code"], [each["path"] for each in error["errors"]]) == ("INVALID_PAYLOAD", ["payload.topic"])
    assert (await starting.request("PutSchedule", **fields, topic=None))["outcome"] == "created"


async def test_list_of_a_topic(schedules: Schedules) -> None:
    """A list can be limited to a topic, in every status and page by page."""
    for name, topic in (("a", "x"), ("b", "y"), ("c", "x"), ("d", None), ("e", "x")):
        await schedules.put(name, topic=topic)
    await schedules.about("Pause", "c")

    async def names(**question: Any) -> str:
        return "".join(each["scheduleId"] for each in (await schedules.ask("list-schedules", **question))["schedules"])

    assert [await names(topic=topic) for topic in ("x", "y", "z", None)] == ["aec", "b", "", "abdec"]
    assert [await names(topic="x", status=status) for status in ("active", "paused", "ended")] == ["ae", "c", ""]
    page = await schedules.ask("list-schedules", topic="x", limit=2)
    assert await names(topic="x", cursor=page["cursor"]) == "c"
