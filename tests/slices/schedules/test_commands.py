"""Commands on schedules: replies, triggers, pauses, batches and rejections."""

import json
from typing import Any

from tests.harness.cases import case
from tests.harness.clock import NOW, after, iso
from tests.harness.schedules import Schedules

BERLIN = {"cron": "30 2 * * *", "zone": "Europe/Berlin"}
EVERYTHING: dict[str, Any] = {
    **BERLIN,
    "startAt": iso(after(days=1)),
    "endAt": iso(after(days=365)),
    "maxCount": 3,
    "jitter": "PT5M",
    "catchUp": {"policy": "all", "lateBy": 90_000, "limit": 1000},
    "data": {"n": [1, None]},
}


async def test_reply_shows_the_schedule(schedules: Schedules) -> None:
    """The reply and get-schedule show every field of the definition. Durations are ISO 8601."""
    reply = await schedules.request("PutSchedule", **EVERYTHING)
    assert reply["outcome"] == "created"
    assert reply["schedule"].pop("upcoming") == ["2026-11-23T01:30:00.000Z"]
    assert reply["schedule"] == {
        "tenantId": "acme",
        "scheduleId": "daily",
        "status": "active",
        "cron": "30 2 * * *",
        "zone": "Europe/Berlin",
        "startAt": EVERYTHING["startAt"],
        "endAt": EVERYTHING["endAt"],
        "maxCount": 3,
        "jitter": "PT5M",
        "catchUp": {"policy": "all", "lateBy": "PT1M30S", "limit": 1000},
        "createdAt": iso(NOW),
        "nextSlotAt": "2026-11-23T01:30:00.000Z",
        "firedCount": 0,
        "data": {"n": [1, None]},
    }
    assert await schedules.view() == reply["schedule"]
    every = (await schedules.request("PutSchedule", scheduleId="other", every="PT90S"))["schedule"]
    assert (every["every"], every.get("cron"), every.get("zone"), every["jitter"]) == ("PT1M30S", None, None, "PT0S")


async def test_outcomes_of_a_life(schedules: Schedules) -> None:
    """Commands in one batch see the effects of the earlier ones, and each has its outcome."""
    verbs = ["Pause", "Trigger", "Put", "Put", "Resume", "Trigger", "Pause", "Delete", "Delete", "Put", "Resume"]
    for verb in verbs:
        fields: dict[str, Any] = {"every": "PT1H"} if verb == "Put" else {}
        schedules.send(f"{verb}Schedule", **fields)
    await schedules.consume()
    assert [schedules.reply(number)["outcome"] for number in range(len(verbs))] == [
        *("not_found", "not_found", "created", "unchanged", "resumed", "triggered"),
        *("paused", "deleted", "unchanged", "created", "unchanged"),
    ]
    assert (await schedules.view())["status"] == "active"
    assert len(await schedules.events_of("ScheduleFired")) == 1


async def test_remembered_pause_holds_for_the_next_put(schedules: Schedules) -> None:
    """A PauseSchedule for an unknown schedule pauses the schedule that is put later. A Put never resumes it."""
    assert await schedules.about("Pause") == "not_found"
    assert "error" in await schedules.view()
    assert [await schedules.put(), await schedules.put(every="PT2M")] == ["created", "updated"]
    await schedules.advance(minutes=10)
    assert (await schedules.status(), await schedules.fired()) == ("paused", [])
    assert await schedules.about("Resume") == "resumed"
    await schedules.advance(minutes=2)
    assert await schedules.fired() == [iso(after(minutes=12))]


async def test_trigger(schedules: Schedules) -> None:
    """A trigger fires at once, with the data of the schedule or its own, and moves nothing."""
    await schedules.put(every="PT1H", data="own", maxCount=1)
    schedules.clock.advance(minutes=1)
    await schedules.about("Trigger", envelope={"id": "trigger-1", "correlationId": "corr"})
    await schedules.about("Trigger", data=None)
    await schedules.about("Pause")
    await schedules.about("Trigger", data={"n": 1})
    before = (await schedules.row())["fired_count"]
    events = await schedules.events_of("ScheduleFired")
    assert [each["payload"]["data"] for each in events] == ["own", None, {"n": 1}]
    assert {each["payload"]["cause"] for each in events} == {"trigger"}
    assert {each["payload"]["slotAt"] for each in events} == {iso(after(minutes=1))}
    assert len({each["id"] for each in events}) == 3
    assert (events[0]["causationId"], events[0]["correlationId"], before) == ("trigger-1", "corr", 0)
    assert schedules.command_wakes[-1] == schedules.clock.now()


async def test_ended_event(schedules: Schedules) -> None:
    """ScheduleEnded says once why a schedule ended, under an id of its definition."""
    await schedules.put("count", maxCount=1, envelope={"id": "put-1", "correlationId": "corr"})
    await schedules.put("end", endAt=iso(after(minutes=3)))
    assert await schedules.put("past", endAt=iso(NOW)) == "ended"
    assert schedules.command_wakes[-1] == NOW
    assert await schedules.put("past", endAt=iso(NOW - 1)) == "ended"
    await schedules.about("Pause", "end")
    await schedules.advance(minutes=5)
    await schedules.about("Resume", "end")
    ended = {name: await schedules.events_of("ScheduleEnded", name) for name in ("count", "end", "past")}
    reasons = {name: [each["payload"]["reason"] for each in events] for name, events in ended.items()}
    assert reasons == {"count": ["max_count"], "end": ["end_at"], "past": ["end_at"] * 2}
    assert (ended["count"][0]["causationId"], ended["count"][0]["correlationId"]) == ("put-1", "corr")
    assert await schedules.put("count", maxCount=1, data=1) == "updated"
    assert await schedules.put("count", maxCount=2) == "updated"
    await schedules.advance(minutes=2)
    again = await schedules.events_of("ScheduleEnded", "count")
    assert len({each["id"] for each in again}) == len(again) == 2
    view = await schedules.view("count")
    assert (view["status"], view["endReason"], view["endedAt"]) == ("ended", "max_count", iso(after(minutes=7)))
    assert view["createdAt"] == iso(NOW)


async def test_null_is_the_default(schedules: Schedules) -> None:
    """An optional field that is null has its default, as if it were left out."""
    optional = ("zone", "startAt", "endAt", "maxCount", "jitter", "catchUp")
    nulls: dict[str, Any] = dict.fromkeys(optional)
    assert await schedules.put(cron="@daily", every=None, **nulls) == "created"
    view = await schedules.view()
    assert (view["jitter"], view["catchUp"]) == ("PT0S", {"policy": "last", "lateBy": "PT1M", "limit": 100})
    assert await schedules.put(cron="@daily", every=None) == "unchanged"


async def test_large_data_is_deferred(schedules: Schedules) -> None:
    """Triggers that publish more data than a transaction may have are handled in several, all of them."""
    await schedules.put(data="x" * 65_000)
    before = len(schedules.command_wakes)
    for _ in range(150):
        schedules.send("TriggerSchedule")
    await schedules.consume()
    assert schedules.metrics.commands["TriggerSchedule", "triggered"] == 150
    assert len(schedules.command_wakes) - before == 5, "each transaction wakes the loops"
    assert len(await schedules.events_of("ScheduleFired")) == 150
    for verb, fields in (("Put", {"every": "PT1H", "data": "x" * 65_000}), ("Trigger", {"data": 1})):
        for number in range(40):
            schedules.send(f"{verb}Schedule", scheduleId=f"s-{number}", **fields)
        await schedules.consume()
    assert schedules.metrics.commands["TriggerSchedule", "triggered"] == 190, "schedules that are not loaded exist"


REJECTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "both": ({"cron": "@daily", "every": "P1D"}, "INVALID_PAYLOAD", "payload.cron"),
    "neither": ({}, "INVALID_PAYLOAD", "payload.cron"),
    "zone with every": ({"every": "P1D", "zone": "UTC"}, "INVALID_PAYLOAD", "payload.zone"),
    "short": ({"every": 999}, "INVALID_PAYLOAD", "payload.every"),
    "jitter": ({"every": "P1D", "jitter": "P2D"}, "INVALID_PAYLOAD", "payload.jitter"),
    "late by": ({"every": "P1D", "catchUp": {"lateBy": 1}}, "INVALID_PAYLOAD", "payload.catchUp.lateBy"),
    "cron": ({"cron": "61 * * * *"}, "INVALID_CRON", "payload.cron"),
    "question mark": ({"cron": "0 0 ? * *"}, "INVALID_CRON", "payload.cron"),
    "digits": ({"cron": "9" * 199 + " * * * *"}, "INVALID_CRON", "payload.cron"),
    "zone": ({"cron": "@daily", "zone": "Europe/Berlinn"}, "UNKNOWN_ZONE", "payload.zone"),
    "never": ({"cron": "0 0 30 2 *"}, "NEVER_FIRES", "payload.cron"),
    "end": ({"every": "P1D", "startAt": iso(NOW), "endAt": iso(NOW)}, "NEVER_FIRES", "payload.endAt"),
}


async def test_rejections(schedules: Schedules) -> None:
    """A PutSchedule that can never be handled is rejected with a code and the path of the field."""
    for number, (name, (fields, code, path)) in enumerate(REJECTED.items()):
        with case(name):
            error = (await schedules.request("PutSchedule", **fields))["error"]
            assert (error["code"], [each["path"] for each in error["errors"]]) == (code, [path])
            *others, letter = await schedules.dead_letters()
            assert json.loads(letter.body)["payload"].get("cron") == fields.get("cron")
            assert (len(others), await schedules.all_rows()) == (number, [])
