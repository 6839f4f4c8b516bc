import json

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker, never
from tests.harness.metrics import RecordingMetrics
from tests.harness.wiring import VISIBILITY_TIMEOUT, make_parts
from timer_service.core.due.lease import Lease
from timer_service.core.due.row_counts import RowCounts, overdue_sql
from timer_service.core.events import outbox
from timer_service.core.events.outbox import OUTBOX, stored_message
from timer_service.core.events.relay import Relay
from timer_service.core.ports.database import Database, Row
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Event, Trace

MAX_ATTEMPTS = 2


@pytest.fixture
def lease() -> Lease:
    return Lease(OUTBOX, VISIBILITY_TIMEOUT)


@pytest.fixture
def relay(store: Database, memory_broker: MemoryBroker, clock: ManualClock, metrics: RecordingMetrics) -> Relay:
    parts = make_parts(store, memory_broker, clock, metrics, batch_size=10, max_attempts=MAX_ATTEMPTS)
    return parts.relay(OUTBOX, stored_message)


def make_event(number: int = 1, *, tenant: str = "acme", text: str = "hello") -> Event:
    return Event(f"event-{number}", "something.happened", tenant, {"text": text}, NOW)


async def add(store: Database, *events: Event, now: int = NOW) -> None:
    async with store.transaction() as tx:
        await outbox.add(tx, events, now)


async def rows(store: Database) -> list[Row]:
    return list(await store.reader.fetch("SELECT * FROM outbox ORDER BY tenant_id, event_id"))


async def test_event_is_published_and_its_row_deleted(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, relay: Relay, metrics: RecordingMetrics
) -> None:
    """An event is published with all its fields and headers. Its row is deleted."""
    event = Event("event-1", "something.happened", "acme", {"é": [1, None]}, NOW, "corr", "cause", Trace("p", "s"))
    await add(store, event)
    clock.advance(milliseconds=250)
    claimed = (await relay.tick(clock.now())).done
    (message,) = memory_broker.events
    assert (claimed, await rows(store)) == (1, [])
    assert (message.address, message.id) == (Address(Kind.EVENT, "acme", "something-happened"), "event-1")
    assert message.headers == {"traceparent": "p", "tracestate": "s"}
    assert json.loads(message.body) == {
        "id": "event-1",
        "type": "something.happened",
        "tenantId": "acme",
        "correlationId": "corr",
        "causationId": "cause",
        "timestampMs": NOW,
        "payload": {"é": [1, None]},
    }
    assert (metrics.settled_in, metrics.lateness) == ({("outbox", "fired"): 1}, [0.25])


async def test_topic_of_an_event(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, relay: Relay
) -> None:
    """The topic of an event is in its address and in its body, also if it was refused before."""
    await add(store, make_event(1)._replace(topic="report"), make_event(2))
    memory_broker.refuses = lambda message: message.id == "event-1"
    await relay.tick(clock.now())
    memory_broker.refuses = never
    clock.advance(minutes=5)
    await relay.tick(clock.now())
    published = [(each.id, each.address.topic, json.loads(each.body).get("topic")) for each in memory_broker.events]
    assert published == [("event-2", None, None), ("event-1", "report", "report")]


async def test_event_is_added_once(store: Database) -> None:
    """An event that is added again does not change. The same id of another tenant is another event."""
    await add(store, make_event(text="first"), make_event(tenant="other"))
    await add(store, make_event(text="second"), now=NOW + 5)
    kept = await rows(store)
    assert [(row["tenant_id"], row["added_at"]) for row in kept] == [("acme", NOW), ("other", NOW)]
    assert [json.loads(row["body"])["payload"]["text"] for row in kept] == ["first", "hello"]


async def test_events_of_one_transaction_keep_their_order(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, relay: Relay
) -> None:
    """Events of one instant are published in the order in which their transaction added them."""
    tenants = ("b", "a")
    async with store.transaction() as tx:
        for first in (90, 80, 70):
            await outbox.add(tx, [make_event(first - number, tenant=tenants[number % 2]) for number in range(10)], NOW)
    for _ in range(10):
        await relay.tick(clock.now())
    published = [message.id for message in memory_broker.events]
    assert published == [f"event-{number}" for number in range(90, 60, -1)]


async def test_refused_event_is_buried(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, relay: Relay, metrics: RecordingMetrics
) -> None:
    """An event that the broker always refuses is buried with the reason. It does not delay other events."""
    await add(store, make_event(1), make_event(2))
    memory_broker.refuses = lambda message: message.id == "event-1"
    for _ in range(MAX_ATTEMPTS + 1):
        await relay.tick(clock.now())
        clock.advance(minutes=10)
    (row,) = await rows(store)
    assert [message.id for message in memory_broker.events] == ["event-2"]
    assert (row["event_id"], row["state"], row["available_at"]) == ("event-1", "Buried", None)
    assert (row["attempt"], row["last_error"]) == (MAX_ATTEMPTS, "refused")
    assert metrics.given_up == {"outbox": 1}
    await RowCounts(store, metrics, counted=outbox.COUNTED, overdue={OUTBOX.name: overdue_sql(OUTBOX)}).tick(
        clock.now()
    )
    assert metrics.counts == {("outbox", "Waiting"): 0, ("outbox", "Buried"): 1, ("dead_letters", "Waiting"): 0}


async def test_schema_refuses(store: Database) -> None:
    """The schema refuses an event that could never be published, and a buried event that is available."""
    await add(store, make_event())
    for change in (
        "available_at = NULL",
        "available_at = added_at - 1",
        "state = 'Buried'",
        "attempt = -1",
        "ordinal = -1",
    ):
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            async with store.transaction() as tx:
                await tx.execute(f"UPDATE outbox SET {change}")
