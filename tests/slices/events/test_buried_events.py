"""Events that could not be published, on every store: seen by their tenant, and put back."""

from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.in_process import InProcess
from timer_service.adapters.memory import MemoryBroker, never
from timer_service.core import outbox
from timer_service.core.database import Database
from timer_service.core.message import Event
from timer_service.events import SLICE


class Events(InProcess):
    """Consumer, outbox and queries; what the broker refuses is buried at once."""

    def __init__(self, database: Database, broker: MemoryBroker, clock: ManualClock) -> None:
        super().__init__(database, broker, clock, SLICE, max_attempts=1)

    async def add(self, *names: str, tenant: str = "acme", **payload: Any) -> None:
        """Add events to the outbox."""
        told = [Event(name, "JobReady", tenant, {"tenantId": tenant, **payload}, NOW) for name in names]
        async with self.database.transaction() as tx:
            await outbox.add(tx, told, self.clock.now())

    async def bury(self, *names: str, **fields: Any) -> None:
        """Add events that the broker refuses."""
        await self.add(*names, **fields)
        self.broker.refuses = lambda _: True
        await self.publish()
        self.broker.refuses = never

    async def retry(self, *names: str) -> list[str]:
        """Ask for events to be put back, all in one batch; return the outcomes in the order of their names."""
        self.metrics.commands.clear()
        for name in names:
            self.send("RetryEvent", eventId=name)
        await self.consume()
        return self.outcomes()

    async def buried(self, tenant: str = "acme", **question: Any) -> Any:
        """List what could not be published."""
        return await self.ask("list-buried-events", tenant=tenant, **question)


@pytest.fixture
def events(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Events:
    """Return the events slice over every store in turn."""
    return Events(store, memory_broker, clock)


async def test_event_is_put_back(events: Events) -> None:
    """A buried event is listed with what it is about and why, and goes out as it was once it is put back."""
    await events.bury("event-1", runId="push-1", log="x" * 201, number=1)
    (shown,) = (await events.buried())["events"]
    assert shown == {
        "tenantId": "acme",
        "eventId": "event-1",
        "eventType": "JobReady",
        "about": {"runId": "push-1"},
        "addedAt": "2026-11-21T09:00:00.000Z",
        "attempt": 1,
        "lastError": "refused",
    }
    events.clock.advance(hours=1)
    assert await events.retry("event-1") == ["retried"]
    assert events.command_wakes == [events.clock.now()]
    await events.publish()
    assert [message.id for message in events.broker.events] == ["event-1"]
    assert (await events.buried(), await events.retry("event-1")) == ({"events": []}, ["not_found"])


async def test_outcomes(events: Events) -> None:
    """Only what is buried is put back, once; what waits, what is not there and what is another tenant's stay."""
    await events.bury("event-1", "event-2")
    await events.bury("event-3", tenant="other")
    await events.add("event-4")
    names = ("event-1", "event-1", "event-3", "event-4", "nobody")
    assert await events.retry(*names) == ["not_found", "not_found", "retried", "unchanged", "unchanged"]
    assert [each["eventId"] for each in (await events.buried())["events"]] == ["event-2"]
    assert [each["eventId"] for each in (await events.buried("other"))["events"]] == ["event-3"]


async def test_put_back_with_all_attempts_before_it(events: Events) -> None:
    """What is refused again after it was put back is buried again, and can be put back again."""
    await events.bury("event-1")
    for _ in range(2):
        assert await events.retry("event-1") == ["retried"]
        await events.bury()
        (shown,) = (await events.buried())["events"]
        assert shown["attempt"] == 1


async def test_page_after_page(events: Events) -> None:
    """However many were added at one instant, pages give each once, oldest first."""
    await events.bury(*(f"event-{number}" for number in range(5)))
    events.clock.advance(milliseconds=1)
    await events.bury("an-event")
    seen: list[str] = []
    question: dict[str, Any] = {"limit": 2}
    while True:
        page = await events.buried(**question)
        seen += [each["eventId"] for each in page["events"]]
        if "cursor" not in page:
            break
        question["cursor"] = page["cursor"]
    assert seen == [*(f"event-{number}" for number in range(5)), "an-event"]
    assert (await events.buried(cursor="mine"))["error"]["errors"][0]["path"] == "cursor"


async def test_event_added_ahead_of_this_clock(events: Events) -> None:
    """An event that an instance with another clock added is put back no earlier than it was added."""
    await events.bury("event-1")
    events.clock.advance(seconds=-10)
    assert await events.retry("event-1") == ["retried"]
    events.clock.advance(seconds=10)
    await events.publish()
    assert [message.id for message in events.broker.events] == ["event-1"]
