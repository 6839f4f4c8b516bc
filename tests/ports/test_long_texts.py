"""Texts of more than 1,000 characters are in a table of their own, and are read just before they are published."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.timers import Timers
from tests.harness.wiring import make_parts
from timer_service.core.due.lease import Lease, LeasedTable
from timer_service.core.events import outbox
from timer_service.core.events.outbox import DEAD_LETTERS, OUTBOX, stored_dead_letter, stored_message
from timer_service.core.events.relay import Encode
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Event, Message

LONG = "x" * 2_000
OTHER = "y" * 3_000
LATER = NOW + 60_000


@pytest.fixture
def timers(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Timers:
    return Timers(store, memory_broker, clock)


async def texts(store: Database) -> list[str]:
    """Return the first characters of the long texts."""
    return sorted(row["text"][:2] for row in await store.reader.fetch("SELECT text FROM long_texts"))


async def shown(timers: Timers) -> Any:
    return (await timers.ask("get-timer", {"serviceCallId": "call-1"}))["data"]


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([LONG], ['"x']),
        ([LONG, OTHER], ['"y']),
        ([LONG, "short"], []),
        (["short", LONG], ['"x']),
        ([LONG, None], ['"x']),
        ([LONG, None, OTHER], ['"y']),
    ],
    ids=["one", "another", "a short one instead", "a long one instead", "cancelled", "scheduled again"],
)
async def test_the_data_of_a_timer(timers: Timers, steps: Sequence[str | None], kept: list[str]) -> None:
    """A long text is kept once, as long as its timer has it: also while the timer is cancelled. A query shows it."""
    for number, text in enumerate(steps):
        await (timers.cancel() if text is None else timers.schedule(due_at=LATER + number, data=text))
    assert await texts(timers.database) == kept
    assert await shown(timers) == [each for each in steps if each is not None][-1]


async def test_a_text_that_is_missing(timers: Timers) -> None:
    """A row whose text is missing is given up after its attempts, with the reason. It stops no other."""
    await timers.schedule("call-1", data=LONG)
    await timers.schedule("call-2", data=OTHER)
    await timers.sql("DELETE FROM long_texts WHERE text LIKE '\"x%'")
    for _ in range(10):
        await timers.tick()
        timers.clock.advance(minutes=10)
    row = await timers.row("call-1")
    assert (row["state"], timers.fired()) == ("Failed", ["call-2"])
    assert "its long text is missing" in row["last_error"]


async def add_event(tx: Transaction, number: int, text: str) -> None:
    await outbox.add(tx, [Event(f"id-{number}", "something.happened", "acme", {"text": text}, NOW)], NOW)


async def add_letter(tx: Transaction, number: int, text: str) -> None:
    letter = Message(Address(Kind.DEAD_LETTER, "acme", "schedule-timer"), f"id-{number}", text.encode(), {})
    await outbox.add_dead_letters(tx, [letter], NOW)


@pytest.mark.parametrize(
    ("table", "add", "encode"),
    [(OUTBOX, add_event, stored_message), (DEAD_LETTERS, add_letter, stored_dead_letter)],
    ids=["events", "dead letters"],
)
async def test_long_bodies(
    timers: Timers,
    table: LeasedTable,
    add: Callable[..., Any],
    encode: Encode,
) -> None:
    """A row is published with its long body, byte for byte, and both are deleted. A row that exists keeps its body."""
    store, broker = timers.database, timers.broker
    async with store.transaction() as tx:
        await add(tx, 1, LONG)
        await add(tx, 2, "short")
        await add(tx, 1, OTHER)
    assert len(await texts(store)) == 1
    relay = make_parts(store, broker, timers.clock, timers.metrics).relay(table, encode)
    await relay.tick(NOW)
    published = broker.events if table is OUTBOX else broker.dead_letters
    bodies = {message.id: message.body.decode() for message in published}
    assert sorted(bodies) == ["id-1", "id-2"]
    assert LONG in bodies["id-1"]
    assert OTHER not in bodies["id-1"]
    assert (await texts(store), list(await store.reader.fetch(f"SELECT * FROM {table.name}"))) == ([], [])


async def test_a_late_holder_deletes_no_text(timers: Timers) -> None:
    """After its lease has ended, a holder deletes neither the row nor its long text."""
    store, lease = timers.database, Lease(OUTBOX, timedelta(seconds=30))
    async with store.transaction() as tx:
        await add_event(tx, 1, LONG)
        late = await lease.claim(tx, NOW, 10)
    async with store.transaction() as tx:
        assert len(await lease.claim(tx, NOW + 30_000, 10)) == 1
    async with store.transaction() as tx:
        assert await lease.complete(tx, late, NOW + 30_000) == 0
    assert len(await texts(store)) == 1
