import json
import random
from datetime import timedelta

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.metrics import RecordingMetrics
from timer_service.adapters.memory import MemoryBroker, never
from timer_service.core import outbox
from timer_service.core.database import Database, Row
from timer_service.core.lease import Failure, Lease
from timer_service.core.message import Address, Event, Kind, Trace
from timer_service.core.outbox import OUTBOX, stored_message
from timer_service.core.recovery import take_over_claims
from timer_service.core.relay import Relay
from timer_service.core.row_counts import RowCounts

HOLD = timedelta(seconds=30)
MAX_ATTEMPTS = 2


class OurError(Exception):
    """What a test's own code raises."""


@pytest.fixture
def lease() -> Lease:
    return Lease(OUTBOX, HOLD)


@pytest.fixture
def relay(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, metrics: RecordingMetrics, lease: Lease
) -> Relay:
    return Relay(
        database=store,
        broker=memory_broker,
        lease=lease,
        encode=stored_message,
        clock=clock,
        metrics=metrics,
        batch_size=10,
        max_attempts=MAX_ATTEMPTS,
        rng=random.Random(0),
    )


def events_of(number: int = 1, *, tenant: str = "acme", text: str = "told") -> Event:
    return Event(f"event-{number}", "something.happened", tenant, {"text": text}, NOW)


async def add(store: Database, *events: Event, now: int = NOW) -> None:
    async with store.transaction() as tx:
        await outbox.add(tx, events, now)


async def rows(store: Database) -> list[Row]:
    return list(await store.reader.fetch("SELECT * FROM outbox ORDER BY tenant_id, event_id"))


async def test_event_is_published_and_its_row_deleted(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, relay: Relay, metrics: RecordingMetrics
) -> None:
    """An event comes out as it was added, to the last field and header, and nothing is left of it."""
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


async def add_and_fail(store: Database) -> None:
    async with store.transaction() as tx:
        await outbox.add(tx, [events_of()], NOW)
        raise OurError


async def test_nothing_is_added_by_a_transaction_that_fails(store: Database) -> None:
    """An event is there exactly when the state it announces is."""
    with pytest.raises(OurError):
        await add_and_fail(store)
    assert await rows(store) == []


async def test_same_event_is_there_once(store: Database) -> None:
    """An event added again while it waits stays as it was first; another tenant's of the same id is another event."""
    await add(store, events_of(text="first"), events_of(tenant="other"))
    await add(store, events_of(text="second"), now=NOW + 5)
    kept = await rows(store)
    assert [(row["tenant_id"], row["added_at"]) for row in kept] == [("acme", NOW), ("other", NOW)]
    assert [json.loads(row["body"])["payload"]["text"] for row in kept] == ["first", "told"]


async def test_oldest_goes_out_first(store: Database, memory_broker: MemoryBroker, relay: Relay) -> None:
    """Events go out in the order in which they were added."""
    for number in (2, 3, 1):
        await add(store, events_of(number), now=NOW - 10 + number)
    await relay.tick(NOW)
    assert [message.id for message in memory_broker.events] == ["event-1", "event-2", "event-3"]


async def test_events_of_one_transaction_keep_their_order(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, relay: Relay
) -> None:
    """Events of one instant go out in the order in which their transaction added them, whatever they are called."""
    tenants = ("b", "a")
    async with store.transaction() as tx:
        for first in (90, 80, 70):
            await outbox.add(tx, [events_of(first - number, tenant=tenants[number % 2]) for number in range(10)], NOW)
    for _ in range(10):
        await relay.tick(clock.now())
    published = [message.id for message in memory_broker.events]
    assert published == [f"event-{number}" for number in range(90, 60, -1)]


@pytest.mark.parametrize("whole", [True, False])
async def test_completing_deletes_what_is_still_held(store: Database, lease: Lease, whole: bool) -> None:  # noqa: FBT001
    """Completing a claim deletes the rows whose lease it has, leaves the others, and its count tells how many."""
    await add(store, events_of(1), events_of(2))
    async with store.transaction() as tx:
        late = await lease.claim(tx, NOW, 10)
        await lease.retry(tx, [Failure(late[0], "late", NOW)])
        (again,) = await lease.claim(tx, NOW, 10)
        complete = lease.complete_claim if whole else lease.complete
        assert await complete(tx, late, NOW) == 1
    (left,) = await rows(store)
    assert (left["event_id"], left["attempt"], left["lease_token"]) == (again["event_id"], 2, again["lease_token"])


async def test_broker_away_costs_no_attempt(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, relay: Relay
) -> None:
    """What an unavailable broker did not take waits in its old place, all attempts before it, and goes out later."""
    await add(store, events_of())
    memory_broker.loses_acknowledgement_of = lambda _: True
    await relay.tick(NOW)
    (row,) = await rows(store)
    memory_broker.loses_acknowledgement_of = never
    clock.advance(seconds=1)
    await relay.tick(clock.now())
    assert (row["attempt"], row["available_at"]) == (0, NOW)
    assert ([message.id for message in memory_broker.events], await rows(store)) == (["event-1"], [])


async def test_refused_event_is_buried_and_visible(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, relay: Relay, metrics: RecordingMetrics
) -> None:
    """An event that the broker never takes stays with the reason, and holds up no other one."""
    await add(store, events_of(1), events_of(2))
    memory_broker.refuses = lambda message: message.id == "event-1"
    for _ in range(MAX_ATTEMPTS + 1):
        await relay.tick(clock.now())
        clock.advance(minutes=10)
    (row,) = await rows(store)
    assert [message.id for message in memory_broker.events] == ["event-2"]
    assert (row["event_id"], row["state"], row["available_at"]) == ("event-1", "Buried", None)
    assert (row["attempt"], row["last_error"]) == (MAX_ATTEMPTS, "refused")
    assert metrics.given_up == {"outbox": 1}
    await RowCounts(store, metrics, counted=outbox.COUNTED, leased=[OUTBOX]).tick(clock.now())
    assert metrics.counts == {("outbox", "Waiting"): 0, ("outbox", "Buried"): 1}


async def test_dead_predecessor_s_claims_are_taken_over(
    store: Database, memory_broker: MemoryBroker, relay: Relay, lease: Lease
) -> None:
    """What a dead process had claimed goes out at once where no other one can hold a lease; else its lease must end."""
    await add(store, events_of())
    async with store.transaction() as tx:
        await lease.claim(tx, NOW, 10)
    await take_over_claims(store, lease, NOW)
    assert (await relay.tick(NOW)).done == (1 if store.exclusive else 0)
    assert [message.id for message in memory_broker.events] == (["event-1"] if store.exclusive else [])


async def test_schema_refuses(store: Database) -> None:
    """The schema itself refuses an event that could never be published, or a buried one that still would."""
    await add(store, events_of())
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
