"""The topic of a timer: a part of the address of its event, by which consumers choose."""

import asyncio
import json
from typing import Any

import pytest

from tests.harness.cases import case
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.memory_broker import MemoryBroker, never
from tests.harness.timers import Timers
from tests.harness.wiring import VISIBILITY_TIMEOUT
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.lease import Lease, take_over_claims
from timer_service.core.values.message import Message
from timer_service.timers.store import TIMERS

LATER = after(minutes=2)


def topics(timers: Timers) -> list[tuple[str, str | None]]:
    """Return the address and the topic of each event, which its body repeats."""
    for event in timers.broker.events:
        assert json.loads(event.body).get("topic") == event.address.topic
    return [(each.address.message, each.address.topic) for each in timers.broker.events]


async def test_topic_of_each_event(timers: Timers) -> None:
    """Both events of a timer have its topic. Without one, or with null, the event has none."""
    await timers.schedule("a", topic="unpaid")
    await timers.schedule("b", topic=None)
    await timers.schedule("c", lateBy=1, topic="0_late-")
    timers.clock.advance(milliseconds=1)
    await timers.tick()
    await timers.cancel_many("a")
    await timers.pass_cancellations()
    await timers.publish()
    fired = [("due-time-reached", "unpaid"), ("due-time-reached", None), ("timer-expired", "0_late-")]
    assert topics(timers) == [*fired, ("timers-cancelled", None)]
    assert '"topic":null' not in str(timers.broker.events)
    views = [await timers.ask("get-timer", {"serviceCallId": call}) for call in "abc"]
    assert [each.get("topic", "none") for each in views] == ["unpaid", "none", "0_late-"]


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ({"topic": "a"}, {"topic": "b"}, "updated"),
        ({"topic": "a"}, {}, "updated"),
        ({"topic": "a"}, {"topic": None}, "updated"),
        ({}, {"topic": "b"}, "updated"),
        ({"topic": "a"}, {"topic": "a"}, "unchanged"),
        ({}, {"topic": None}, "unchanged"),
        ({"topic": "a"}, {"topic": "b", "due_at": NOW + 1}, "rescheduled"),
        ({"topic": "a", "data": 1}, {"due_at": NOW + 1, "lateBy": "PT1M"}, "rescheduled"),
    ],
)
async def test_another_topic(timers: Timers, first: dict[str, Any], second: dict[str, Any], outcome: str) -> None:
    """A newer command replaces the topic, or removes it, as it does with the data."""
    await timers.schedule(**first)
    await timers.schedule(**{"due_at": NOW, **second})
    timers.clock.set(LATER)
    await timers.tick()
    message = "timer-expired" if "lateBy" in second else "due-time-reached"
    assert (timers.outcomes(), topics(timers)) == ({"scheduled": 1, outcome: 1}, [(message, second.get("topic"))])


@pytest.mark.parametrize("change", [{}, {"due_at": LATER}], ids=["updated", "rescheduled"])
async def test_another_topic_during_publishing(timers: Timers, change: dict[str, Any]) -> None:
    """If the topic changes while the event is being published, the timer fires again, for the new topic."""
    await timers.schedule(topic="old")
    timers.interrupt(lambda: timers.schedule(**change, topic="new"))
    await timers.tick()
    timers.clock.set(LATER)
    await timers.tick()
    assert topics(timers) == [("due-time-reached", "old"), ("due-time-reached", "new")]
    assert len({each.id for each in timers.broker.events}) == 2


async def test_topic_after_a_crash(sqlite: SqliteDatabase) -> None:
    """A process that dies before it settles publishes the event again with the same id and topic."""
    clock, sent = ManualClock(), list[Message]()

    def crash(message: Message) -> bool:
        sent.append(message)
        raise asyncio.CancelledError

    def note(message: Message) -> bool:
        sent.append(message)
        return False

    broker = MemoryBroker()
    timers = Timers(sqlite, broker, clock)
    await timers.schedule(topic="unpaid")
    broker.loses_acknowledgement_of = crash
    with pytest.raises(asyncio.CancelledError):
        await timers.tick()
    broker.loses_acknowledgement_of = note
    restarted = Timers(sqlite, broker, clock)
    await take_over_claims(sqlite, Lease(TIMERS, VISIBILITY_TIMEOUT), clock.now())
    await restarted.tick()
    assert [(each.id, each.address.topic) for each in sent] == [(sent[0].id, "unpaid")] * 2


async def test_topic_of_a_retried_timer(timers: Timers) -> None:
    """A Failed timer keeps its topic."""
    timers.broker.refuses = lambda _: True
    await timers.schedule(topic="unpaid")
    while (await timers.row())["state"] != "Failed":
        await timers.tick()
        timers.clock.advance(minutes=10)
    timers.broker.refuses = never
    await timers.retry()
    await timers.tick()
    assert topics(timers) == [("due-time-reached", "unpaid")]


async def test_list_of_a_topic(timers: Timers) -> None:
    """A list can be limited to a topic, in every state, with the other filters and page by page."""
    for call, topic in (("a", "x"), ("b", "y"), ("c", "x"), ("d", None)):
        await timers.schedule(call, topic=topic)
    await timers.tick()
    await timers.schedule("e", LATER, topic="x")
    await timers.schedule("f", LATER, topic="x")
    await timers.cancel("f")
    await timers.schedule("g", LATER)
    await timers.schedule("h", LATER, topic="x", tenant="other")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"topic": "x"}, "efca"),
        ({"topic": "y"}, "b"),
        ({"topic": "z"}, ""),
        ({"topic": None}, "egfdcba"),
        ({"topic": "x", "state": "Reached"}, "ca"),
        ({"topic": "x", "state": "Cancelled"}, "f"),
        ({"topic": "x", "state": "Failed"}, ""),
        ({"topic": "x", "state": "Scheduled", "dueBefore": "2100-01-01T00:00:00Z"}, "e"),
    ]
    for filters, wanted in cases:
        with case(str(filters)):
            page = await timers.ask("list-timers", filters)
            assert [each["serviceCallId"] for each in page["timers"]] == list(wanted)
    found, question = "", {"topic": "x", "limit": 1}
    while question:
        page = await timers.ask("list-timers", question)
        found += "".join(each["serviceCallId"] for each in page["timers"])
        question = {**question, "cursor": page["cursor"]} if "cursor" in page else {}
    assert found == "efca"
