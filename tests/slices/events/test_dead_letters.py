"""Dead letters on their way to the broker: they hold up no event, and none is given up."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust
from tests.harness.memory_broker import MemoryBroker, never
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.wiring import make_parts
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES
from timer_service.core.ports.broker import PublishStatus
from timer_service.core.ports.database import Database
from timer_service.core.service.slice import Parts
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Message
from timer_service.events import SLICE

COUNT = 30


async def _nobody_sleeps() -> None:
    """Do nothing: a test takes every pass."""


@pytest.mark.parametrize("fault", [PublishStatus.FULL, PublishStatus.REFUSED])
async def test_dead_letters_that_cannot_be_stored_hold_up_no_event(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, fault: PublishStatus
) -> None:
    """However many dead letters of a tenant wait, its events go out. Then its dead letters do, each once."""
    metrics = RecordingMetrics()
    parts = make_parts(store, memory_broker, clock, metrics, batch_size=5, max_attempts=3)
    events, letters = (SLICE.workers[name](parts) for name in ("outbox", "dead-letters"))

    def is_letter(message: Message) -> bool:
        return message.address.kind is Kind.DEAD_LETTER

    for number in range(COUNT):
        memory_broker.send(Address(Kind.COMMAND, "acme", "schedule-timer"), b"{", message_id=f"bad-{number}")
    await catch_up(parts.reader([], _nobody_sleeps))
    if fault is PublishStatus.FULL:
        memory_broker.has_no_room_for = is_letter
    else:
        memory_broker.refuses = is_letter
    for _ in range(10):
        await letters.tick(clock.now())
        await exhaust(events, clock.now())
        clock.advance(minutes=5)
    assert (len(memory_broker.events), len(memory_broker.dead_letters)) == (COUNT, 0)
    assert (parts.publishing.health.usable, parts.dead_letters.failures > 0) == (True, True)
    memory_broker.has_no_room_for = memory_broker.refuses = lambda _message: False
    for _ in range(COUNT):
        await exhaust(letters, clock.now())
        clock.advance(minutes=5)
    assert {each.id for each in memory_broker.dead_letters} == {f"dlq-1-{number + 1}" for number in range(COUNT)}
    assert metrics.settled_in["dead_letters", "buried"] == 0


async def test_refused_dead_letter_is_never_given_up(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A dead letter that the broker refuses again and again is stored in the end, while others are stored at once."""
    metrics = RecordingMetrics()
    parts = make_parts(store, memory_broker, clock, metrics, max_attempts=2)
    reader, letters = parts.reader([], _nobody_sleeps), SLICE.workers["dead-letters"](parts)
    memory_broker.refuses = lambda message: message.id == "dlq-1-1"
    for number in range(5):
        memory_broker.send(Address(Kind.COMMAND, "acme", "schedule-timer"), b"{", message_id=f"bad-{number}")
        await catch_up(reader)
        await exhaust(letters, clock.now())
        assert len(memory_broker.dead_letters) == number
        clock.advance(minutes=10)
    memory_broker.refuses = never
    await exhaust(letters, clock.now())
    assert {each.id for each in memory_broker.dead_letters} == {f"dlq-1-{number + 1}" for number in range(5)}
    assert metrics.settled_in["dead_letters", "buried"] == 0


def test_tables_of_relays(sqlite: SqliteDatabase, memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table of a relay is named as leased, so that its rows are counted, and repaired after a clock jump."""
    tables: list[str] = []
    monkeypatch.setattr(Parts, "relay", lambda _, table, *__, **___: tables.append(table.name))
    parts = make_parts(sqlite, memory_broker, ManualClock(), RecordingMetrics())
    for slice_ in SLICES:
        for make in slice_.workers.values():
            make(parts)
    assert sorted(tables) == ["dead_letters", "outbox", "timer_schedules"]
    assert {*tables} <= {table.name for each in SLICES for table in each.leased}
