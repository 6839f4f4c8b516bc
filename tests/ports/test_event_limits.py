"""The limit of a tenant's events: who waits, for how long, and what the others notice of it."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.locks import LockedPostgres
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.events import outbox
from timer_service.core.events.outbox import OUTBOX, stored_message
from timer_service.core.limits.event_allowances import GO_ON, USAGE, WAITS, EventAllowances, delete_empty
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.broker import PublishResult
from timer_service.core.ports.database import Database
from timer_service.core.values.message import Address, Event, Kind, Message
from timer_service.events import SLICE

PERIOD = timedelta(hours=1)
"""For how long the broker keeps events."""
TEXT = "x" * 400
MOST = 20_000
"""The limit of the tenant `a`: about 17 events, so it publishes two claims."""
SIZE = 10
"""The events of a claim."""
IN_PROGRESS = 4 * SIZE
"""How many events may be claimed before those that use the limit are charged."""
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
        """Tick as the loop does, for a time. Return the number of ticks.

        If the time is long, look only when a waiting tenant may go on.
        """
        started = self.clock.now()
        until = started + timedelta(**duration) // timedelta(milliseconds=1)
        ticks = 0
        while True:
            now = self.clock.now()
            next_at = (await self.relay.tick(now)).next_at
            ticks += 1
            if now >= until:
                return ticks
            at = (self.allowances.next_look_at(now) if until > started + 60_000 else None) or next_at or until
            self.clock.set(min(until, max(now + 1, at)))

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
    """A tenant publishes its share. The rest waits, in order and without an attempt, and others go on."""
    caplog.set_level(logging.INFO)
    await instance.add("a", *range(100))
    await instance.run(seconds=0)
    await instance.add("b", *range(100))
    await instance.run(seconds=0)
    count = len(instance.published("a"))
    assert 17 <= count <= 17 + IN_PROGRESS
    assert instance.published("a") == [f"a-{number:06}" for number in range(count)]
    assert len(instance.published("b")) == 100
    waiting = await instance.store.reader.fetch("SELECT attempt, state, available_at, last_error FROM outbox")
    columns = ("attempt", "state", "available_at", "last_error")
    assert {tuple(row[column] for column in columns) for row in waiting} == {(0, "Waiting", NOW, None)}
    assert instance.metrics.reached_limits == 1
    assert [each.message for each in caplog.records if each.name.endswith("audit")] == [WAITS]
    assert await instance.used() >= MOST - 20


async def test_waiting_events_go_out_as_room_comes_back(instance: Instance, caplog: pytest.LogCaptureFixture) -> None:
    """What a tenant has used comes back evenly. Its events go out in order, each once. The end is logged once."""
    caplog.set_level(logging.INFO)
    await instance.add("a", *range(300))
    await instance.run(seconds=0)
    first = len(instance.published("a"))
    await instance.run(hours=10)
    assert len(instance.published("a")) - first == pytest.approx(10 * 17, abs=IN_PROGRESS)
    await instance.run(hours=15)
    assert instance.published("a") == [f"a-{number:06}" for number in range(300)]
    assert instance.metrics.reached_limits == 0
    assert [each.message for each in caplog.records if each.name.endswith("audit")] == [WAITS, GO_ON]
    assert instance.metrics.settled_in["outbox", "buried"] == 0


async def test_usage_falls_to_nothing_and_the_row_is_deleted(instance: Instance) -> None:
    """Usage falls evenly. The row of a tenant that uses nothing is deleted some time later."""
    await instance.add("a", *range(100))
    await instance.run(seconds=0)
    async with instance.store.transaction() as tx:
        await tx.execute("DELETE FROM outbox")
    await instance.run(seconds=0)  # it charges what was locked
    full = await instance.used()
    await instance.run(hours=0.5)
    assert full - await instance.used() == pytest.approx(MOST / 2, rel=0.02)
    await instance.run(hours=full / MOST)
    assert (await instance.used(), instance.metrics.reached_limits) == (0, 0)
    async with instance.store.transaction() as tx:
        assert await delete_empty(tx, NOW + 1000, 10) == 0
        assert await delete_empty(tx, instance.clock.now(), 10) == 1


async def test_a_new_process_knows_who_waits(instance: Instance) -> None:
    """After a restart a tenant gets nothing before it may go on. Its first pass leaves the tenant out."""
    await instance.add("a", *range(100))
    await instance.run(seconds=0)
    before = instance.published("a")
    for _ in range(5):
        other = Instance(instance.store, instance.broker, instance.clock)
        await other.run(seconds=0)
        assert (other.metrics.reached_limits, other.metrics.claims) == (1, [0])
    assert instance.published("a") == before


async def test_instances_share_a_limit(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Each instance knows the level after its own claim, so each has at most one claim beyond the limit."""
    instances = [Instance(store, memory_broker, clock, size=4) for _ in range(3)]
    await instances[0].add("a", *range(100))
    for _ in range(10):
        for each in instances:
            await each.run(seconds=0)
    assert 17 <= len(instances[0].published("a")) <= 20 + 2 * 4
    clock.advance(seconds=5)
    await instances[2].run(seconds=0)
    assert [each.metrics.reached_limits for each in instances] == [1, 1, 1]


async def test_process_that_dies(instance: Instance) -> None:
    """A process that dies while it publishes charges nothing. Who publishes the events again does."""
    await instance.add("a", *range(100))

    class Dying(MemoryBroker):
        async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:  # noqa: ARG002
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Instance(instance.store, Dying(), instance.clock, size=5).run(seconds=0)
    assert await instance.used() == 0
    await instance.run(hours=8)
    assert sorted(instance.published("a")) == [f"a-{number:06}" for number in range(100)]


async def test_bytes_of_a_settlement_that_failed_are_charged_by_the_next_one(instance: Instance) -> None:
    """If the database is away when published events are settled, nothing is charged twice and nothing is lost."""
    await instance.add("a", *range(10))
    publish = instance.broker.publish
    messages = [Message(Address(Kind.EVENT, "a", "something"), f"a-{n}", b"", {}) for n in range(10)]
    await publish(messages)
    for _ in range(3):
        instance.allowances.count(messages)
        with suppress(ZeroDivisionError), instance.allowances.charging(NOW) as charge:
            async with instance.store.transaction() as tx:
                await charge(tx)
                raise ZeroDivisionError
    assert await instance.used() == 0
    with instance.allowances.charging(NOW) as charge:
        async with instance.store.transaction() as tx:
            await charge(tx)
    assert 3 * 10 * 600 <= await instance.used() <= 3 * 10 * 610


async def test_locked_row(locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While the row of a tenant is locked, nobody waits for it. Then what was published meanwhile is charged."""
    instance = Instance(locks.database, memory_broker, clock)
    for number in range(2):
        await instance.add("a", number)
        await instance.run(seconds=0)
    await instance.add("a", *range(2, 30))
    await instance.add("b", *range(30))
    async with locks.locked("SELECT 1 FROM event_allowances FOR UPDATE"):
        await instance.run(seconds=0)
        assert [len(instance.published(tenant)) for tenant in "ab"] == [30, 30]
    await instance.add("b", 31)
    await instance.add("a", *range(30, 50))
    await instance.run(seconds=0)
    assert await instance.used() >= 30 * 1_000
    assert len(instance.published("a")) <= 30 + SIZE


async def test_damaged_row(sqlite: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """If what a tenant has used cannot be read, it counts from nothing. No tenant waits for that."""
    limits = TenantLimits(default=Limits(published_events=10**6))
    instance = Instance(sqlite, memory_broker, clock, limits)
    async with sqlite.transaction() as tx:
        await tx.execute("INSERT INTO event_allowances VALUES ('b', 'x', :now, :now + 7200000)", {"now": NOW})
    for tenant in "abc":
        await instance.add(tenant, *range(10))
    await instance.run(seconds=1)
    assert [len(instance.published(tenant)) for tenant in "abc"] == [10, 10, 10]
    assert await instance.used("b") == await instance.used("c")


async def test_event_larger_than_the_limit(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """An event that is larger than the limit is published, and the next one when its bytes have come back."""
    limits = TenantLimits(default=Limits(published_events=5_000))
    instance = Instance(store, memory_broker, clock, limits, size=1)
    await instance.add("a", *range(6), text="x" * 9_000)
    await instance.run(seconds=0)
    first = len(instance.published("a"))
    await instance.run(hours=40)
    assert (first < 6, len(instance.published("a"))) == (True, 6)


async def test_events_that_the_broker_does_not_store_use_nothing(instance: Instance) -> None:
    """Events that the broker did not store use nothing, however often they are tried."""
    await instance.add("a", *range(10))
    instance.broker.has_no_room_for = lambda _message: True
    await instance.run(seconds=30)
    assert await instance.used() == 0
    instance.broker.has_no_room_for = lambda _message: False
    await instance.run(seconds=10)
    assert len(instance.published("a")) == 10


async def test_waiting_rows_are_not_touched(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While a tenant waits with many rows, passes write none of them, however many rows of others are published."""
    instance = Instance(store, memory_broker, clock, size=10)
    await instance.add("a", *range(300))
    await instance.run(seconds=0)
    released = instance.metrics.settled_in["outbox", "released"]
    claims = len(instance.metrics.claims)
    for number in range(20):
        await instance.add(f"tenant-{number}", *range(25))
    ticks = await instance.run(seconds=10)
    assert sum(len(instance.published(f"tenant-{number}")) for number in range(20)) == 500
    assert instance.metrics.settled_in["outbox", "released"] == released
    assert len(instance.metrics.claims) - claims <= 50 + ticks
    assert ticks <= 80, "a pass that finds only waiting rows is followed by a pause"
    (row,) = await store.reader.fetch("SELECT MAX(attempt) AS most FROM outbox")
    assert row["most"] == 0


async def test_others_beside_many_waiting_tenants(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Although more tenants wait than a claim has rows, each claim finds the rows of others, and passes make pauses."""
    names = [f"m-{number}" for number in range(12)]
    limits = TenantLimits(tenants={name: Limits(published_events=1_000) for name in names})
    instance = Instance(store, memory_broker, clock, limits, size=4)
    for name in names:
        await instance.add(name, *range(3))
    await instance.run(seconds=1)
    assert await instance.run(seconds=5) <= 20
    await instance.add("z", *range(40))
    await instance.add("a", 1)
    instance.metrics.claims.clear()
    await instance.run(seconds=0)
    assert (len(instance.published("z")), len(instance.published("a"))) == (40, 1)
    assert len(instance.metrics.claims) <= 13


async def test_one_busy_tenant_beside_a_waiting_one(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A tenant with many rows gets whole claims, although tenants with few rows take turns with it."""
    instance = Instance(store, memory_broker, clock, size=20)
    await instance.add("a", *range(300))
    await instance.run(seconds=0)
    for number in range(9):
        await instance.add(f"small-{number}", 1)
    await instance.add("busy", *range(200))
    instance.metrics.claims.clear()
    await instance.run(seconds=0)
    assert len(instance.published("busy")) + 9 >= 8 * 20 - 2


async def test_later_rows_are_on_time(instance: Instance) -> None:
    """While a tenant waits, a row of another tenant that becomes available later is claimed at that instant."""
    await instance.add("a", *range(100))
    await instance.run(seconds=0)
    await instance.add("b", 1)
    async with instance.store.transaction() as tx:
        await tx.execute(
            "UPDATE outbox SET available_at = :at, added_at = :at WHERE tenant_id = 'b'", {"at": NOW + 321}
        )
    next_at = (await instance.relay.tick(NOW)).next_at
    assert next_at == NOW + 321


class CountedStatements:
    """A database that counts its transactions, and the statements of these and of reads."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.transactions = 0
        self.statements: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def reader(self) -> Any:
        return _Counted(self._inner.reader, self.statements)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        self.transactions += 1
        async with self._inner.transaction() as tx:
            yield _Counted(tx, self.statements)


class _Counted:
    def __init__(self, inner: Any, statements: list[str]) -> None:
        self._inner, self._statements = inner, statements

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name in {"on_commit", "wait_briefly"}:
            return method

        async def run(sql: str, *arguments: Any) -> Any:
            if not name.endswith(("_each", "many")) or arguments[0]:
                self._statements.append(sql)
            return await method(sql, *arguments)

        return run


@pytest.mark.parametrize(
    ("limits", "more"),
    [
        (TenantLimits(), 0),
        (TenantLimits(tenants={"other": Limits(published_events=1)}), 1),
        (TenantLimits(default=Limits(published_events=10**9)), 2 * 5 + 3),
    ],
)
async def test_statements(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, limits: TenantLimits, more: int
) -> None:
    """Without limits, there is no statement. With one, two for each settlement, and three at the start."""
    counted = CountedStatements(store)
    instance = Instance(counted, memory_broker, clock, limits, size=100)
    await instance.add("a", *range(400))
    counted.statements.clear()
    await instance.run(seconds=0)
    assert len(instance.published("a")) == 400
    assert len([sql for sql in counted.statements if "event_allowances" in sql]) <= more


async def test_rejected_command_of_a_tenant_over_its_limit(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Dead letters do not count for the limit. The events of rejections do, and wait like others."""
    limits = TenantLimits(tenants={"a": Limits(published_events=3_000)})
    instance = Instance(store, memory_broker, clock, limits, size=2)
    for number in range(20):
        for tenant in "ab":
            memory_broker.send(Address(Kind.COMMAND, tenant, "schedule-timer"), b"{", message_id=f"{tenant}-{number}")
    await catch_up(instance.parts.reader([], instance.wake_outbox))
    await instance.run(seconds=0)
    await SLICE.workers["dead-letters"](instance.parts).tick(NOW)
    assert len(memory_broker.dead_letters) == 40
    assert 1 <= len(instance.published("a")) < 20
    assert len(instance.published("b")) == 20
