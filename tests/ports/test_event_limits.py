"""The limit of a tenant's events: who waits, for how long, and what the others notice of it."""

import logging
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.metrics import RecordingMetrics
from tests.harness.wiring import make_parts
from timer_service.core.events import outbox
from timer_service.core.events.outbox import OUTBOX, stored_message
from timer_service.core.limits.event_allowances import GO_ON, USAGE, WAITS, EventAllowances
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Event, Message
from timer_service.events import SLICE

PERIOD = timedelta(hours=1)
"""For how long the broker keeps events."""
TEXT = "x" * 400
MOST = 20_000
"""The limit of the tenant `a`: about 17 events."""
SIZE = 10
"""The events of a claim."""
LIMITS = TenantLimits(tenants={"a": Limits(published_events=MOST)})


class Instance:
    """An instance with a relay of the outbox, on a store that others may use too."""

    def __init__(
        self,
        store: Database,
        broker: MemoryBroker,
        clock: ManualClock,
        limits: TenantLimits = LIMITS,
        size: int = SIZE,
    ) -> None:
        self.store, self.broker, self.clock = store, broker, clock
        self.metrics = RecordingMetrics()
        self.allowances = EventAllowances(limits, metrics=self.metrics, keeps_events_for=lambda: PERIOD)
        self.parts = make_parts(store, broker, clock, self.metrics, batch_size=size, allowances=self.allowances)
        self.relay = self.parts.relay(OUTBOX, stored_message)

    async def add(self, tenant: str, *numbers: int, text: str = TEXT) -> None:
        events = [Event(f"{tenant}-{n:06}", "something.happened", tenant, {"text": text}, NOW) for n in numbers]
        async with self.store.transaction() as tx:
            await outbox.add(tx, events, self.clock.now())

    async def run(self, **duration: float) -> int:
        """Tick as the loops do, for a time: publish, and charge what was published. Return the number of ticks.

        If the time is long, look only when a waiting tenant may go on.
        """
        started = self.clock.now()
        until = started + timedelta(**duration) // timedelta(milliseconds=1)
        ticks = 0
        while True:
            now = self.clock.now()
            await self.allowances.update(self.store, now)
            next_at = (await self.relay.tick(now)).next_at
            await self.allowances.update(self.store, now)
            ticks += 1
            if now >= until:
                return ticks
            at = (self.allowances.next_at(now) if until > started + 60_000 else None) or next_at or until
            self.clock.set(min(until, max(now + 1, at)))

    async def use_up(self) -> None:
        """Let the tenant `a` publish 25 events, which is more than its limit."""
        await self.add("a", *range(25))
        await self.run(seconds=0)

    async def wake_outbox(self) -> None:
        """Do nothing: a test publishes with `run`."""

    def published(self, tenant: str) -> list[str]:
        return [message.id for message in self.broker.events if message.address.tenant == tenant]

    async def used(self, tenant: str = "a") -> int:
        return await USAGE.amount_of(self.store.reader, tenant, self.clock.now(), 10**15)


@pytest.fixture
def instance(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Instance:
    return Instance(store, memory_broker, clock)


async def test_only_the_tenant_over_its_limit_waits(instance: Instance, caplog: pytest.LogCaptureFixture) -> None:
    """A tenant beyond its limit waits, in order and without an attempt. Others go on, and its dead letters do."""
    caplog.set_level(logging.INFO)
    await instance.use_up()
    assert await instance.used() > MOST
    await instance.add("a", *range(25, 100))
    await instance.add("b", *range(100))
    await instance.run(seconds=1)
    assert (len(instance.published("a")), len(instance.published("b"))) == (25, 100)
    waiting = await instance.store.reader.fetch("SELECT attempt, state, available_at, last_error FROM outbox")
    columns = ("attempt", "state", "available_at", "last_error")
    assert {tuple(row[column] for column in columns) for row in waiting} == {(0, "Waiting", NOW, None)}
    assert instance.metrics.reached_limits == 1
    letter = Message(Address(Kind.DEAD_LETTER, "a", "something"), "letter-1", b"", {})
    async with instance.store.transaction() as tx:
        await outbox.add_dead_letters(tx, [letter], instance.clock.now())
    await SLICE.workers["dead-letters"](instance.parts).tick(instance.clock.now())
    assert instance.broker.dead_letters == [letter]
    assert [each.message for each in caplog.records if each.name.endswith("audit")] == [WAITS]


async def test_when_a_relay_looks_again_beside_a_waiting_tenant(instance: Instance) -> None:
    """It looks when the tenant may go on, and at least each second: another process may add events of others."""
    await instance.use_up()
    await instance.add("a", 25)
    await instance.run(seconds=0)
    go_on_at = instance.allowances.next_at(instance.clock.now())
    assert go_on_at is not None
    assert (await instance.relay.tick(instance.clock.now())).next_at == instance.clock.now() + 1_000
    instance.clock.set(go_on_at - 300)
    assert (await instance.relay.tick(go_on_at - 300)).next_at == go_on_at


async def test_waiting_events_go_out_as_room_comes_back(instance: Instance, caplog: pytest.LogCaptureFixture) -> None:
    """What a tenant has used comes back evenly. Its events go out in order, each once. The end is logged once."""
    caplog.set_level(logging.INFO)
    await instance.use_up()
    for first in range(25, 100, 5):
        await instance.add("a", *range(first, first + 5))
        await instance.run(minutes=20)  # room for about 6 events comes back
        assert (first + 5 - len(instance.published("a"))) in range(31)
    await instance.run(hours=10)
    assert instance.published("a") == [f"a-{number:06}" for number in range(100)]
    assert instance.metrics.reached_limits == 0
    said = [each.message for each in caplog.records if each.name.endswith("audit")]
    assert said == [WAITS, GO_ON] * (len(said) // 2)


async def test_usage_falls_to_nothing_and_the_row_is_deleted(instance: Instance) -> None:
    """Usage falls evenly. The row of a tenant that uses nothing is deleted some time later."""
    await instance.use_up()
    full = await instance.used()
    await instance.run(hours=0.5)
    assert full - await instance.used() == pytest.approx(MOST / 2, rel=0.02)
    await instance.run(hours=full / MOST)
    assert (await instance.used(), instance.metrics.reached_limits) == (0, 0)
    async with instance.store.transaction() as tx:
        assert SLICE.delete_settled is not None
        assert await SLICE.delete_settled(tx, NOW + 1000, 10) == 0
        assert await SLICE.delete_settled(tx, instance.clock.now(), 10) == 1


async def test_a_new_process_and_another_instance_know_who_waits(instance: Instance) -> None:
    """After a restart a tenant gets nothing before it may go on. Another instance learns it in five seconds."""
    other = Instance(instance.store, instance.broker, instance.clock)
    await other.run(seconds=0)
    await instance.use_up()
    await instance.add("a", *range(25, 50))
    fresh = Instance(instance.store, instance.broker, instance.clock)
    await fresh.run(seconds=0)
    assert (fresh.metrics.reached_limits, fresh.metrics.claims) == (1, [0])
    instance.clock.advance(seconds=5)
    await other.run(seconds=0)
    assert (other.metrics.reached_limits, len(instance.published("a"))) == (1, 25)


async def test_a_charge_that_fails_is_repeated(instance: Instance) -> None:
    """If the database is away when events are charged, nothing is charged twice and nothing is lost."""
    messages = [Message(Address(Kind.EVENT, "a", "something"), f"a-{n}", b"", {}) for n in range(10)]
    letter = Message(Address(Kind.DEAD_LETTER, "a", "something"), "no event", b"", {})
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += len(messages)
        instance.allowances.count([*messages, letter])

    class Away:
        """A database that is away."""

        def __getattr__(self, name: str) -> Any:
            count()  # more is published meanwhile
            raise DatabaseUnavailableError("away")

    count()
    for _ in range(3):
        with pytest.raises(DatabaseUnavailableError):
            await instance.allowances.update(cast("Database", Away()), NOW)
    count()
    await instance.allowances.update(instance.store, NOW)
    assert counted * 600 <= await instance.used() <= counted * 610


async def test_others_beside_many_waiting_tenants(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Although more tenants wait than a claim has rows, each claim finds the rows of others, and passes make pauses.

    The others take turns, and claims are full as long as they have enough rows.
    """
    names = [f"m-{number}" for number in range(12)]
    limits = TenantLimits(tenants={name: Limits(published_events=1_000) for name in names})
    instance = Instance(store, memory_broker, clock, limits, size=4)
    for name in names:
        await instance.add(name, *range(3))
    await instance.run(seconds=1)
    for name in names:
        await instance.add(name, *range(3, 6))
    assert await instance.run(seconds=5) <= 20
    for name in "xyz":
        await instance.add(name, *range(20))
    await instance.add("a", 1)
    await instance.run(seconds=1)
    assert [len(instance.published(name)) for name in "axyz"] == [1, 20, 20, 20]
    names = [f"n-{number}" for number in range(10)]
    for name in names:
        await instance.add(name, *range(12))
    before = len(memory_broker.events)
    await instance.run(seconds=1)
    assert {message.address.tenant for message in memory_broker.events[before : before + 12]} == set(names)
