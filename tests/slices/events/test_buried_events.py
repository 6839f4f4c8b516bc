"""Buried events on every store: a tenant lists and retries them."""

from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.in_process import InProcess
from tests.harness.memory_broker import MemoryBroker, never
from timer_service.core.events import outbox
from timer_service.core.ports.database import Database
from timer_service.core.values.message import Event
from timer_service.events import SLICE


class Events(InProcess):
    """The events slice in this process. An event that the broker refuses is buried after one attempt."""

    def __init__(self, database: Database, broker: MemoryBroker, clock: ManualClock) -> None:
        super().__init__(database, broker, clock, SLICE, max_attempts=1)

    async def add(self, *names: str, tenant: str = "acme", **payload: Any) -> None:
        """Add events to the outbox."""
        new_events = [Event(name, "JobReady", tenant, {"tenantId": tenant, **payload}, NOW) for name in names]
        async with self.database.transaction() as tx:
            await outbox.add(tx, new_events, self.clock.now())

    async def bury(self, *names: str, **fields: Any) -> None:
        """Add events and let the broker refuse them, but store another one: if it refused all, none would be buried."""
        await self.add(*names, **fields)
        await self.add("another")
        self.broker.refuses = lambda message: message.id != "another"
        await self.publish()
        self.broker.refuses = never
        self.broker.events.clear()

    async def retry(self, *names: str) -> list[str]:
        """Send a RetryEvent for each name in one batch. Return the outcomes in alphabetical order."""
        self.metrics.commands.clear()
        for name in names:
            self.send("RetryEvent", eventId=name)
        await self.consume()
        return self.outcomes()

    async def buried(self, tenant: str = "acme", **query: Any) -> Any:
        """List the buried events."""
        return await self.ask("list-buried-events", tenant=tenant, **query)


@pytest.fixture
def events(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Events:
    """The events slice on each store in turn."""
    return Events(store, memory_broker, clock)


async def test_retried_event_is_published(events: Events) -> None:
    """A buried event is listed with its text fields and its error. A retry publishes it, or it is buried again."""
    await events.bury("event-1", runId="push-1", note="x" * 200, log="x" * 201, number=1)
    (view,) = (await events.buried())["events"]
    assert view == {
        "tenantId": "acme",
        "eventId": "event-1",
        "eventType": "JobReady",
        "about": {"runId": "push-1", "note": "x" * 200},
        "addedAt": "2026-11-21T09:00:00.000Z",
        "attempt": 1,
        "lastError": "refused",
    }
    events.clock.advance(hours=1)
    assert await events.retry("event-1") == ["retried"]
    assert events.command_wakes == [events.clock.now()]
    await events.bury()
    assert [each["attempt"] for each in (await events.buried())["events"]] == [1]
    events.clock.set(NOW - 1)  # it is set back to before the event was added
    assert await events.retry("event-1") == ["retried"]
    events.clock.set(NOW)
    await events.publish()
    assert [message.id for message in events.broker.events] == ["event-1"]
    assert (await events.buried(), await events.retry("event-1")) == ({"events": []}, ["not_found"])


async def test_damaged_events_are_listed(events: Events) -> None:
    """An event that cannot be read is listed without its contents, and hides no other one."""
    bodies = {"event-1": "{", "event-2": "[]", "event-3": '{"type": "JobReady", "payload": 7}'}
    await events.bury(*bodies, "event-4", runId="push-1")
    for name, body in bodies.items():
        await events.sql(f"UPDATE outbox SET body = '{body}' WHERE event_id = '{name}'")
    found = [(each["eventType"], each["about"]) for each in (await events.buried())["events"]]
    assert found == [*[("", {})] * 3, ("JobReady", {"runId": "push-1"})]


async def test_outcomes(events: Events) -> None:
    """A RetryEvent changes only a buried event of its own tenant, once."""
    await events.bury("event-1", "event-2")
    await events.bury("event-3", tenant="other")
    await events.add("event-4")
    names = ("event-1", "event-1", "event-3", "event-4", "nobody")
    assert await events.retry(*names) == ["not_found", "not_found", "retried", "unchanged", "unchanged"]
    assert [each["eventId"] for each in (await events.buried())["events"]] == ["event-2"]
    assert [each["eventId"] for each in (await events.buried("other"))["events"]] == ["event-3"]


async def test_pages(events: Events) -> None:
    """The pages together have each event once, oldest first, also if events were added at the same instant."""
    await events.bury(*(f"event-{number}" for number in range(5)))
    events.clock.advance(milliseconds=1)
    await events.bury("an-event")
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await events.buried(**query)
        seen += [each["eventId"] for each in page["events"]]
        if "cursor" not in page:
            break
        query["cursor"] = page["cursor"]
    assert seen == [*(f"event-{number}" for number in range(5)), "an-event"]
    assert (await events.buried(cursor="mine"))["error"]["errors"][0]["path"] == "cursor"
