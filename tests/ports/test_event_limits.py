"""The limit of a tenant's events: who waits, for how long, and what the others notice of it."""

import asyncio
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
from tests.harness.wiring import BATCH, make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.events import outbox
from timer_service.core.events.event_admission import EventAdmission
from timer_service.core.events.outbox import OUTBOX, stored_message
from timer_service.core.limits import event_allowances
from timer_service.core.limits.event_allowances import GO_ON, USAGE, WAITS, EventAllowances, Size, delete_empty
from timer_service.core.limits.event_level import Level, Limit, Taken, take
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.broker import PublishResult
from timer_service.core.ports.database import Database
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Address, Event, Kind, Message

PERIOD = timedelta(hours=1)
"""For how long the broker keeps events."""
TEXT = "x" * 400
MOST = 20_000
"""The limit of the tenant `a`: about 17 events."""
LIMITS = TenantLimits(tenants={"a": Limits(published_events=MOST)})


class Instance:
    """An instance with a relay of the outbox, on a store that others may use too."""

    def __init__(
        self,
        store: Database,
        broker: MemoryBroker,
        clock: ManualClock,
        limits: TenantLimits = LIMITS,
        size: int = BATCH,
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
            await self.allowances.tick(now)
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
    assert 15 <= count <= 20
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
    await instance.add("a", *range(60))
    await instance.run(seconds=0)
    first = len(instance.published("a"))
    await instance.run(hours=0.5)
    half = len(instance.published("a"))
    await instance.run(hours=3)
    assert half - first == pytest.approx(first / 2, abs=2)
    assert instance.published("a") == [f"a-{number:06}" for number in range(60)]
    assert instance.metrics.reached_limits == 0
    assert [each.message for each in caplog.records if each.name.endswith("audit")] == [WAITS, GO_ON]
    assert instance.metrics.settled_in["outbox", "buried"] == 0


async def test_usage_falls_to_nothing_and_the_row_is_deleted(instance: Instance) -> None:
    """Usage falls evenly. The row of a tenant that uses nothing is deleted some time later."""
    await instance.add("a", *range(100))
    await instance.run(seconds=0)
    async with instance.store.transaction() as tx:
        await tx.execute("DELETE FROM outbox")
    full = await instance.used()
    await instance.run(hours=0.5)
    assert await instance.used() == pytest.approx(full / 2, rel=0.02)
    await instance.run(hours=0.6)
    assert (await instance.used(), instance.metrics.reached_limits) == (0, 0)
    async with instance.store.transaction() as tx:
        assert await delete_empty(tx, NOW + 1000, 10) == 0
        assert await delete_empty(tx, instance.clock.now(), 10) == 1


async def test_new_process_keeps_the_level(instance: Instance) -> None:
    """After a restart a tenant gets no new share. The unused rest of a part counts as used."""
    await instance.add("a", *range(100))
    await instance.run(seconds=0)
    before = instance.published("a")
    for _ in range(5):
        other = Instance(instance.store, instance.broker, instance.clock)
        await other.run(seconds=0)
    assert instance.published("a") == before
    fresh = Instance(
        instance.store, instance.broker, instance.clock, TenantLimits(default=Limits(published_events=10**6))
    )
    await fresh.add("b", 1)
    await fresh.run(seconds=0)
    assert await fresh.used("b") == 10**6 // 64


async def test_instances_share_a_limit(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Several instances together publish one share."""
    instances = [Instance(store, memory_broker, clock, size=4) for _ in range(3)]
    await instances[0].add("a", *range(100))
    for _ in range(10):
        for each in instances:
            await each.run(seconds=0)
    assert 15 <= len(instances[0].published("a")) <= 20


async def test_process_that_dies(instance: Instance) -> None:
    """A process that dies while it publishes costs the tenant its bytes once. Its events go out later."""
    await instance.add("a", *range(100))
    sent: list[Message] = []

    class Dying(MemoryBroker):
        async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
            sent.extend(messages)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Instance(instance.store, Dying(), instance.clock, size=5).run(seconds=0)
    assert await instance.used() >= sum(500 + len(message.body) for message in sent) > 0
    await instance.run(hours=8)
    assert sorted(instance.published("a")) == [f"a-{number:06}" for number in range(100)]


async def test_withheld_events_keep_their_order(
    store: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first withheld event of a claim, the later ones of its tenant wait, also if room comes back."""
    monkeypatch.setattr("timer_service.core.events.relay._CHUNK_BYTES", 12_000)
    monkeypatch.setitem(globals(), "PERIOD", timedelta(seconds=20))

    class Slow(MemoryBroker):
        async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
            clock.advance(seconds=4)
            return await super().publish(messages)

    instance = Instance(store, Slow(), clock)
    for numbers in (range(25), range(25, 50)):
        await instance.add("a", *numbers)
        await instance.add("b", *numbers)
    await instance.relay.tick(clock.now())
    assert instance.published("b") == [f"b-{number:06}" for number in range(50)]
    assert instance.published("a") == [f"a-{number:06}" for number in range(len(instance.published("a")))]
    assert 15 <= len(instance.published("a")) <= 25


async def test_database_is_away(instance: Instance) -> None:
    """A tenant waits if it is known to be over its limit. Other events are published: they may have been settled."""
    await instance.add("a", *range(100))
    await instance.run(seconds=0)
    before = len(instance.published("a"))
    admission = EventAdmission(instance.broker.publish, instance.allowances, Away(instance.store), instance.clock)
    events = [Message(Address(Kind.EVENT, tenant, "something"), f"{tenant}-new", b"", {}) for tenant in "ab"]
    found = [result.status.value for result in await admission.publish(events)]
    instance.clock.advance(minutes=11)
    found += [result.status.value for result in await admission.publish(events)]
    assert found == ["withheld", "published", "published", "published"]
    assert len(instance.published("a")) == before + 1


def events_of(tenant: str, *numbers: int) -> list[Message]:
    """Return events of 600 bytes and a little more."""
    return [Message(Address(Kind.EVENT, tenant, "something"), f"{tenant}-{n:06}", b"", {}) for n in numbers]


async def test_what_was_not_taken_is_not_given_back(instance: Instance) -> None:
    """If the database is away and then the broker stores nothing, a tenant gets no bytes by that."""
    broker, clock, allowances = instance.broker, instance.clock, instance.allowances
    admission = EventAdmission(broker.publish, allowances, instance.store, clock)
    await admission.publish(events_of("a", 0))
    broker.has_no_room_for = lambda _message: True
    await EventAdmission(broker.publish, allowances, Away(instance.store), clock).publish(events_of("a", *range(1, 99)))
    broker.has_no_room_for = lambda _message: False
    await admission.publish(events_of("a", *range(99, 300)))
    assert len(instance.published("a")) <= MOST / 600 + 1


async def test_a_small_claim_does_not_overtake_one_that_waits_for_the_database(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Of two claims that overlap, the second one fits into what the process has. The first one still goes first."""
    most = 64 * 5_000
    instance = Instance(store, memory_broker, clock, TenantLimits(tenants={"a": Limits(published_events=most)}))
    for amount in (most - 5_000, 1):
        async with store.transaction() as tx:
            await instance.allowances.admit(tx, [Size("a", amount)], NOW)
    admission = EventAdmission(memory_broker.publish, instance.allowances, store, clock)
    await asyncio.gather(*(admission.publish(events_of("a", *each)) for each in (range(30), range(30, 36))))
    found = instance.published("a")
    assert found == [f"a-{number:06}" for number in range(len(found))]
    assert 5 <= len(found) <= 10


async def test_locked_row(locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While the row of a tenant is locked, it waits and keeps to its limit. The events of others go out."""
    instance = Instance(locks.database, memory_broker, clock, size=10)
    async with locks.database.transaction() as tx:
        assert await instance.allowances.admit(tx, [Size("a", MOST)], NOW) == [True]
    await instance.add("a", *range(100))
    await instance.add("b", *range(100))
    async with locks.locked("SELECT 1 FROM event_allowances FOR UPDATE"):
        await instance.run(seconds=5)
        assert (len(instance.published("a")), len(instance.published("b"))) == (0, 100)
        assert instance.metrics.settled_in["outbox", "released"] <= 30, "its rows are left out"
    await instance.run(hours=0.5)
    assert 5 <= len(instance.published("a")) <= 12


async def test_locked_row_beside_other_tenants_with_limits(
    locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """All tenants of a batch waited for 10 s, again and again, while the row of one of them was locked."""
    limits = TenantLimits(default=Limits(published_events=10**6))
    instance = Instance(locks.database, memory_broker, clock, limits, size=10)
    async with locks.database.transaction() as tx:
        assert await instance.allowances.admit(tx, [Size(tenant, MOST) for tenant in "ab"], NOW) == [True, True]
    other = Instance(locks.database, memory_broker, clock, limits, size=10)
    await other.add("a", *range(20))
    await other.add("b", *range(20))
    await other.add("c", *range(20))
    async with locks.locked("SELECT 1 FROM event_allowances WHERE tenant_id = 'a' FOR UPDATE"):
        await other.run(seconds=5)
        assert [len(other.published(tenant)) for tenant in "abc"] == [0, 20, 20]
    await other.run(hours=0.5)
    assert len(other.published("a")) == 20


async def test_damaged_row(sqlite: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """If what a tenant has used cannot be read, it waits. The events of others in the same claims go out at once."""
    limits = TenantLimits(default=Limits(published_events=10**6))
    instance = Instance(sqlite, memory_broker, clock, limits)
    async with sqlite.transaction() as tx:
        await tx.execute("INSERT INTO event_allowances VALUES ('b', 'x', :now, :now + 1000000)", {"now": NOW})
    for tenant in "abc":
        await instance.add(tenant, *range(10))
    await instance.run(seconds=1)
    assert [len(instance.published(tenant)) for tenant in "abc"] == [10, 0, 10]
    async with sqlite.transaction() as tx:
        await tx.execute("UPDATE event_allowances SET used = 0")
    await instance.run(seconds=15)
    assert instance.published("b") == [f"b-{number:06}" for number in range(10)]


async def test_damaged_row_beside_a_locked_one(
    locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of others also go out if the row of one tenant is locked, and that of another one is damaged."""
    tenants = {"b": Limits(published_events=10**6 + 1)}
    limits = TenantLimits(default=Limits(published_events=10**6), tenants=tenants)
    instance = Instance(locks.database, memory_broker, clock, limits)
    async with locks.database.transaction() as tx:
        await tx.execute("INSERT INTO event_allowances VALUES ('a', 0, :now, :now)", {"now": NOW})
    for tenant in "abc":
        await instance.add(tenant, *range(10))

    def take_unless_damaged(level: Level, limit: Limit, wanted: int, now: int) -> Taken:
        if limit.most > 10**6:
            raise ValueError("damaged")
        return take(level, limit, wanted, now)

    monkeypatch.setattr(event_allowances, "take", take_unless_damaged)
    async with locks.locked("SELECT 1 FROM event_allowances WHERE tenant_id = 'a' FOR UPDATE"):
        await instance.run(seconds=1)
        assert [len(instance.published(tenant)) for tenant in "abc"] == [0, 0, 10]


async def test_event_larger_than_the_limit(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """An event that is larger than the rest, or than the limit, is published once something is left."""
    limits = TenantLimits(default=Limits(published_events=5_000))
    instance = Instance(store, memory_broker, clock, limits)
    await instance.add("a", *range(3), text="x" * 9_000)
    await instance.run(seconds=0)
    first = len(instance.published("a"))
    await instance.run(hours=40)
    assert (first, len(instance.published("a"))) == (1, 3)


async def test_failed_publishing_gives_back(instance: Instance) -> None:
    """Events that the broker did not store use nothing, however often they are tried."""
    await instance.add("a", *range(10))
    instance.broker.has_no_room_for = lambda _message: True
    await instance.run(seconds=30)
    instance.broker.has_no_room_for = lambda _message: False
    await instance.run(seconds=10)
    assert len(instance.published("a")) == 10
    assert await instance.used() < MOST


async def test_events_that_are_given_up_use_nothing(instance: Instance) -> None:
    """Events that are buried because the process died with each of them give back what their claim has taken."""
    await instance.add("a", *range(10))
    async with instance.store.transaction() as tx:
        await tx.execute("UPDATE outbox SET attempt = 1000")
    await instance.run(seconds=0)
    assert instance.metrics.settled_in["outbox", "buried"] == 10
    await instance.add("a", *range(10, 20))
    await instance.run(seconds=0)
    assert len(instance.published("a")) == 10


async def test_rolled_back_transaction_takes_nothing(instance: Instance) -> None:
    """If the transaction that takes a part of the limit is rolled back, the tenant has all that it had before."""
    await instance.add("a", *range(10))
    for _ in range(20):
        with suppress(ZeroDivisionError):
            async with instance.store.transaction() as tx:
                assert await instance.allowances.admit(tx, [Size("a", 5_000)] * 2, NOW) == [True] * 2
                raise ZeroDivisionError
    await instance.run(seconds=0)
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


class Away:
    """A database of which no transaction can begin."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def transaction(self) -> Any:
        raise DatabaseUnavailableError("away")


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
        if name in {"on_commit", "on_rollback", "wait_briefly"}:
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
        (TenantLimits(tenants={"other": Limits(published_events=1)}), 0),
        (TenantLimits(default=Limits(published_events=10**9)), 3),
    ],
)
async def test_statements(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, limits: TenantLimits, more: int
) -> None:
    """A tenant without a limit costs no statement. One with a limit costs three for each part of its limit."""
    counted = CountedStatements(store)
    instance = Instance(counted, memory_broker, clock, limits, size=100)
    await instance.add("a", *range(400))
    counted.statements.clear()
    await instance.run(seconds=0)
    assert len(instance.published("a")) == 400
    assert len([sql for sql in counted.statements if "event_allowances" in sql]) == more
    if not more:
        baseline = len(counted.statements)
        assert baseline == len([sql for sql in counted.statements if "outbox" in sql])


async def test_claims_that_overlap_take_a_part_once(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """The first of several claims takes a part of the limit. It is enough for the others, which wait for it."""
    counted = CountedStatements(store)
    limits = TenantLimits(default=Limits(published_events=10**9), tenants={"free": Limits()})
    admission = EventAdmission(memory_broker.publish, EventAllowances(limits), counted, clock)
    claims = [events_of("a", 0), events_of("a", 1), [*events_of("free", 0), *events_of("a", 2)], events_of("free", 1)]
    results = await asyncio.gather(*map(admission.publish, claims))
    assert {result.status.value for each in results for result in each} == {"published"}
    assert [event.id for event in memory_broker.events if event.address.tenant == "a"] == [
        f"a-{number:06}" for number in range(3)
    ]
    assert counted.transactions == 1


async def test_rejected_command_of_a_tenant_over_its_limit(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Dead letters do not count for the limit. The events of rejections do, and wait like others."""
    limits = TenantLimits(tenants={"a": Limits(published_events=3_000)})
    instance = Instance(store, memory_broker, clock, limits)
    for number in range(20):
        for tenant in "ab":
            memory_broker.send(Address(Kind.COMMAND, tenant, "schedule-timer"), b"{", message_id=f"{tenant}-{number}")
    await catch_up(instance.parts.reader([], instance.wake_outbox))
    await instance.run(seconds=0)
    assert len(memory_broker.dead_letters) == 40
    assert 1 <= len(instance.published("a")) <= 4
    assert len(instance.published("b")) == 20


@pytest.mark.parametrize(("events", "claimed"), [(100, 0), (5, 1)], ids=["a tenant waits", "no tenant waits"])
async def test_commands_do_not_wait_for_limits(instance: Instance, events: int, claimed: int) -> None:
    """While a tenant waits, a transaction of commands claims no events: a claim looks at all tenants then."""
    await instance.add("a", *range(events))
    await instance.run(seconds=0)
    await instance.add("b", 1)
    instance.relay.handover.open(lambda error: pytest.fail(str(error)))
    async with instance.store.transaction() as tx:
        rows = await instance.relay.handover.claim(tx, NOW)
    await instance.relay.handover.close()
    assert len(rows) == claimed
