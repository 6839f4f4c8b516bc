"""CancelTimers: timers that are cancelled by the prefix of their ids."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.builders import cancel_timers, schedule_timer, scheduled
from tests.harness.cases import case
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.timers import Timers, always, bodies, put_timers
from tests.harness.wiring import MAX_ATTEMPTS
from timer_service.adapters.memory import MemoryBroker, never
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.due.due_rows import DueRows
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.ports.database import Database
from timer_service.core.service.clock_repair import ClockRepair
from timer_service.core.values.message import Message, Position
from timer_service.timers import SLICE, cancellation_worker, cancellations
from timer_service.timers.cancellations import CANCELLATIONS, prefix_end

DUE = after(hours=1)
LAST = "\U0010ffff"


async def states(timers: Timers, tenant: str = "acme") -> dict[str, str]:
    rows = await timers.database.reader.fetch(
        "SELECT service_call_id, state FROM timer_schedules WHERE tenant_id = :tenant", {"tenant": tenant}
    )
    return {row["service_call_id"]: row["state"] for row in rows}


async def scheduled_calls(timers: Timers, tenant: str = "acme") -> set[str]:
    return {call for call, state in (await states(timers, tenant)).items() if state == "Scheduled"}


async def announced(timers: Timers) -> list[dict[str, Any]]:
    """Return the payloads of the TimersCancelled in the outbox."""
    rows = await timers.database.reader.fetch("SELECT body FROM outbox WHERE message = 'timers-cancelled'")
    return [json.loads(row["body"])["payload"] for row in rows]


async def test_cancelled_by_prefix(timers: Timers) -> None:
    """Exactly the pending and Failed timers of the tenant whose ids begin with the prefix are cancelled."""
    await timers.fail("order-1/failed")
    for call in ("order-1/reached", "order-1/expired"):
        await timers.schedule(call, NOW, **({"lateBy": "PT0.001S"} if "expired" in call else {}))
    await timers.tick()
    for call in ("order-1/a", "order-1/b", "order-1", "order-10/a", "order-0", "order-2"):
        await timers.schedule(call, after(days=1))
    await timers.schedule("order-1/a", after(days=1), tenant="other")
    position = await timers.cancel_many("order-1/")
    assert timers.cancellation_wakes == [timers.clock.now()]
    assert await announced(timers) == []
    await timers.pass_cancellations()
    assert await states(timers) == {
        "order-1/failed": "Cancelled",
        "order-1/reached": "Reached",
        "order-1/expired": "Expired",
        "order-1/a": "Cancelled",
        "order-1/b": "Cancelled",
        **dict.fromkeys(("order-1", "order-10/a", "order-0", "order-2"), "Scheduled"),
    }
    assert await states(timers, "other") == {"order-1/a": "Scheduled"}
    row = await timers.row("order-1/a")
    assert (row["available_at"], row["position_sequence"], row["cancelled_at"] is None) == (
        None,
        position.sequence,
        False,
    )
    command_id = f"1-{position.sequence}"
    assert await announced(timers) == [{"tenantId": "acme", "commandId": command_id, "prefix": "order-1/", "count": 3}]
    assert timers.outcomes()["cancelling"] == 1


async def test_event_after_the_pass(timers: Timers) -> None:
    """The event has the ids of its command. Nothing else is left of the cancellation."""
    timers.send(cancel_timers("a", envelope={"id": "cancel-1", "correlationId": "corr-1"}), message="cancel-timers")
    await timers.consume()
    await timers.pass_cancellations()
    (row,) = await timers.database.reader.fetch("SELECT * FROM outbox")
    event = json.loads(row["body"])
    assert (event["type"], event["causationId"], event["correlationId"]) == ("TimersCancelled", "cancel-1", "corr-1")
    assert (event["payload"]["commandId"], event["payload"]["count"]) == ("cancel-1", 0)
    assert timers.outcomes() == {"cancelling": 1}
    assert await timers.database.reader.fetch("SELECT * FROM timer_cancellations") == []


async def test_newer_command_before_the_pass(timers: Timers) -> None:
    """A timer that a newer command has scheduled before the pass is not cancelled, and keeps its claim."""
    await timers.schedule("a/1", DUE)
    await timers.schedule("a/2", DUE)
    await timers.cancel_many("a/")
    await timers.schedule("a/1", DUE)
    await timers.pass_cancellations()
    assert await states(timers) == {"a/1": "Scheduled", "a/2": "Cancelled"}
    (event,) = await announced(timers)
    assert event["count"] == 1


async def test_cancelled_during_publishing(timers: Timers) -> None:
    """A timer that is being published is cancelled, and its event may still go out once."""
    await timers.schedule("a", NOW)

    async def cancel(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = ignore
        await timers.cancel_many("a")
        await timers.pass_cancellations()

    timers.broker.before_publishing = cancel
    await timers.tick()
    row = await timers.row("a")
    assert (row["state"], row["lease_token"], timers.fired(), timers.metrics.lost) == ("Cancelled", None, ["a"], 1)


async def ignore(_: Sequence[Message]) -> None:
    pass


# Pages


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation_worker, "_TIMERS", 4)
    monkeypatch.setattr(cancellation_worker, "_TENANTS", 2)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9, 30])
async def test_pages(timers: Timers, count: int) -> None:
    """Each transaction reads a bounded number of timers. No timer is missed, and none is counted twice."""
    calls = [f"a/{number:02}" for number in range(count)]
    async with timers.database.transaction() as tx:
        await put_timers(tx, [scheduled(call, DUE, Position(0, 1)) for call in ("a", *calls, "b")])
    await timers.cancel_many("a/")
    await timers.pass_cancellations()
    assert await scheduled_calls(timers) == {"a", "b"}
    assert [event["count"] for event in await announced(timers)] == [count]


@pytest.mark.usefixtures("small_pages")
async def test_small_cancellation_beside_a_large_one(timers: Timers) -> None:
    """A cancellation does not wait for the end of a large one."""
    async with timers.database.transaction() as tx:
        await put_timers(tx, [scheduled(f"a/{number:03}", DUE, Position(0, 1)) for number in range(100)])
        await put_timers(tx, [scheduled("small", DUE, Position(0, 1), tenant="other")])
    await timers.cancel_many("a/")
    await timers.cancel_many("small", tenant="other")
    ticks = 0
    while await scheduled_calls(timers, "other"):
        timers.clock.advance(milliseconds=1)
        await timers.cancellation_worker.tick(timers.clock.now())
        ticks += 1
    assert ticks <= 3
    assert len(await scheduled_calls(timers)) > 80


@pytest.mark.usefixtures("small_pages")
async def test_overlapping_cancellations(timers: Timers) -> None:
    """Cancellations whose ranges overlap are each announced once, and together cancel each timer once."""
    async with timers.database.transaction() as tx:
        calls = [f"a/{number}/{part}" for number in range(3) for part in range(3)]
        await put_timers(tx, [scheduled(call, DUE, Position(0, 1)) for call in calls])
    for prefix in ("a/1/", "a/", "a/1", "a/1/2"):
        timers.send(cancel_timers(prefix), message="cancel-timers")
    await timers.consume()
    await timers.pass_cancellations()
    events = await announced(timers)
    assert (len(events), sum(event["count"] for event in events)) == (4, len(calls))
    assert await scheduled_calls(timers) == set()


async def test_more_cancellations_than_timers_of_a_page(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cancellation of a tenant is finished, also if the pages are very small."""
    monkeypatch.setattr(cancellation_worker, "_TIMERS", 2)
    calls = [f"{letter}/{number}" for letter in "abcde" for number in range(3)]
    async with timers.database.transaction() as tx:
        await put_timers(tx, [scheduled(call, DUE, Position(0, 1)) for call in calls])
    for letter in "abcde":
        timers.send(cancel_timers(f"{letter}/"), message="cancel-timers")
    await timers.consume()
    await timers.pass_cancellations()
    assert ([event["count"] for event in await announced(timers)], await scheduled_calls(timers)) == ([3] * 5, set())


FORBIDDEN = {
    "never available": "available_at = NULL",
    "empty prefix": "prefix = ''",
    "negative count": "cancelled_count = -1",
}


@pytest.mark.parametrize("change", FORBIDDEN.values(), ids=FORBIDDEN)
async def test_schema_refuses(timers: Timers, change: str) -> None:
    """The schema refuses cancellations that would never end, or that make no sense."""
    await timers.cancel_many("a")
    with pytest.raises(Exception, match=r"(?i)(check|not.null) constraint"):
        await timers.sql(f"UPDATE timer_cancellations SET {change}")


async def test_two_instances(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """An instance skips a cancellation that another instance has locked, and asks for another look soon."""
    ours, theirs = (Timers(postgres, memory_broker, clock) for _ in range(2))
    await ours.schedule("a", DUE)
    await ours.cancel_many("a")
    async with postgres.transaction() as tx:
        assert len(await DueRows(CANCELLATIONS).lock_oldest(tx, ["acme"], NOW)) == 1
        assert await theirs.cancellation_worker.tick(NOW) == (0, NOW + 50)
    assert await theirs.pass_cancellations() == 1
    assert await states(ours) == {"a": "Cancelled"}


@pytest.mark.slow
async def test_locked_timer_holds_only_its_cancellation(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A timer that another session has locked delays its own cancellation, and no other one."""
    timers = Timers(postgres, memory_broker, clock)
    for call in ("a", "b", "c"):
        await timers.schedule(call, DUE)
    async with postgres.transaction() as session:
        await session.fetch("SELECT 1 AS one FROM timer_schedules WHERE service_call_id = 'b' FOR UPDATE")
        for prefix in ("a", "b", "c"):
            timers.send(cancel_timers(prefix), message="cancel-timers")
        await timers.consume()
        await timers.pass_cancellations()
        assert await states(timers) == {"a": "Cancelled", "b": "Scheduled", "c": "Cancelled"}
        assert await DueRows(CANCELLATIONS).next_available(postgres.reader) == NOW + 1000
    clock.advance(seconds=1)
    await timers.pass_cancellations()
    assert (await states(timers))["b"] == "Cancelled"


# Turns of tenants


async def test_many_cancellations_of_one_tenant(timers: Timers) -> None:
    """A tenant with many cancellations of one prefix does not delay the cancellation of another tenant."""
    async with timers.database.transaction() as tx:
        await put_timers(tx, [scheduled(f"a/{number:03}", DUE, Position(0, 1)) for number in range(300)])
        await put_timers(tx, [scheduled("a/1", DUE, Position(0, 1), tenant="other")])
    for _ in range(150):
        timers.send(cancel_timers("a/"), message="cancel-timers")
    await timers.cancel_many("a/", tenant="other")
    await timers.cancellation_worker.tick(timers.clock.now())
    assert await states(timers, "other") == {"a/1": "Cancelled"}
    await timers.pass_cancellations()
    counts = [event["count"] for event in await announced(timers) if event["tenantId"] == "acme"]
    assert sorted(counts) == [0] * 149 + [300]


async def test_oldest_cancellation_of_a_tenant_first(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's second cancellation begins when the pass of the first one has ended."""
    monkeypatch.setattr(cancellation_worker, "_TIMERS", 2)
    async with timers.database.transaction() as tx:
        calls = [f"{letter}{number}" for letter in "ba" for number in range(3)]
        await put_timers(tx, [scheduled(call, DUE, Position(0, 1)) for call in calls])
    for prefix in "ba":
        timers.send(cancel_timers(prefix), message="cancel-timers")
    await timers.consume()
    while "b2" in (left := await scheduled_calls(timers)):
        assert {"a0", "a1", "a2"} <= left
        timers.clock.advance(milliseconds=1)
        await timers.cancellation_worker.tick(timers.clock.now())
    await timers.pass_cancellations()
    assert await scheduled_calls(timers) == set()


@pytest.mark.usefixtures("small_pages")
async def test_tenants_take_turns(timers: Timers) -> None:
    """A transaction handles a bounded number of tenants, and the next one continues with the next tenants."""
    tenants = [f"tenant-{number}" for number in range(5)]
    async with timers.database.transaction() as tx:
        for tenant in tenants:
            rows = [scheduled(f"a/{number}", DUE, Position(0, 1), tenant=tenant) for number in range(9)]
            await put_timers(tx, rows)
    for tenant in tenants:
        await timers.cancel_many("a/", tenant=tenant)
    left = []
    for _ in range(3):
        await timers.cancellation_worker.tick(timers.clock.now())
        left.append([len(await scheduled_calls(timers, tenant)) for tenant in tenants])
    assert left == [[7, 7, 9, 9, 9], [7, 7, 7, 7, 9], [6, 7, 7, 7, 7]]
    await timers.pass_cancellations()
    assert {event["tenantId"]: event["count"] for event in await announced(timers)} == dict.fromkeys(tenants, 9)


async def test_instances_share_no_tenant(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """While an instance handles a cancellation, another one skips its tenant, whose pages may overlap."""
    timers = Timers(postgres, memory_broker, clock)
    for tenant in ("acme", "acme", "other"):
        await timers.cancel_many("a", tenant=tenant)
    async with postgres.transaction() as tx, postgres.transaction() as another:
        assert len(await DueRows(CANCELLATIONS).lock_oldest(tx, ["acme"], NOW)) == 1
        locked = await DueRows(CANCELLATIONS).lock_oldest(another, ["acme", "other"], NOW)
        assert [each["tenant_id"] for each in locked] == ["other"]


# Prefixes


HOSTILE = ["%", "_", "a%", "a_b", "\\", "'", '"', "a/", "é", "É", "ß", "ss", "z", "\ud7ff", "\ue000", LAST, f"a{LAST}"]


async def test_hostile_prefixes(timers: Timers) -> None:
    """A prefix is compared character by character: no character is a wildcard, equal to another one, or ignored."""
    calls = {*HOSTILE, *(f"{each}{tail}" for each in HOSTILE for tail in ("x", LAST, "\ue000")), "axb", "ab", "e\u0301"}
    tenants = {f"tenant-{number}": prefix for number, prefix in enumerate(HOSTILE)}
    for tenant, prefix in tenants.items():
        async with timers.database.transaction() as tx:
            await put_timers(tx, [scheduled(call, DUE, Position(0, 1), tenant=tenant) for call in calls])
        await timers.cancel_many(prefix, tenant=tenant)
    await timers.pass_cancellations()
    for tenant, prefix in tenants.items():
        with case(prefix):
            wanted = {call for call in calls if not call.startswith(prefix)}
            assert await scheduled_calls(timers, tenant) == wanted


characters = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from(["\ud7ff", "\ue000", LAST, "%", "_"])


@given(st.text(characters, min_size=1, max_size=4), st.text(characters, min_size=1, max_size=6))
def test_end_of_a_prefix(prefix: str, call: str) -> None:
    """An id begins with a prefix exactly if it lies between the prefix and its end, as characters and as bytes."""
    between = prefix <= call < prefix_end(prefix)
    in_bytes = prefix.encode() <= call.encode() < prefix_end(prefix).encode()
    assert between == in_bytes == call.startswith(prefix)


async def test_invalid_prefix(timers: Timers) -> None:
    """A prefix that is empty, too long, no text, or has control characters is rejected."""
    await timers.schedule("a", DUE)
    prefixes: list[object] = ["", "x" * 201, "a\0", "a\x1f", 7, None]
    for number, prefix in enumerate(prefixes):
        with case(prefix):
            body = {"type": "CancelTimers", "tenantId": "acme", "payload": {"prefix": prefix}}
            timers.send(json.dumps(body).encode(), message="cancel-timers")
            await timers.consume()
            assert [each["payload"]["code"] for each in bodies(timers.broker.events)[number:]] == ["INVALID_PAYLOAD"]
            assert await timers.pass_cancellations() == 0


async def test_prefix_with_a_surrogate(timers: Timers) -> None:
    """A prefix with half a surrogate pair is no JSON."""
    body = b'{"type": "CancelTimers", "tenantId": "acme", "payload": {"prefix": "a\\ud800"}}'
    timers.send(body, message="cancel-timers")
    await timers.consume()
    assert [each["payload"]["code"] for each in bodies(timers.broker.events)] == ["INVALID_JSON"]


# Upkeep


async def test_clock_repair(timers: Timers) -> None:
    """A page that waits for a wrong clock is read when the clock was set back."""
    timers.clock.set(after(days=365))
    await timers.cancel_many("a")
    await timers.schedule("a", after(days=400))
    timers.clock.set(NOW)
    repair = ClockRepair(timers.database, timers.clock, SLICE.timed)
    assert (await repair.tick(NOW)).done == 1
    assert await timers.pass_cancellations() == 1


async def test_failing_cancellation_does_not_hold_the_others(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation that cannot be handled waits, and the others go on."""
    for call in ("a", "b", "c"):
        await timers.schedule(call, DUE)
    for prefix in ("a", "b", "c"):
        timers.send(cancel_timers(prefix), message="cancel-timers")
    await timers.consume()
    read_page = cancellations.read_page

    async def fail(reader: Any, cancellation: Any, *bounds: int) -> Any:
        if cancellation.prefix == "b":
            raise ValueError("a surprise")
        return await read_page(reader, cancellation, *bounds)

    monkeypatch.setattr(cancellations, "read_page", fail)
    await timers.pass_cancellations()
    assert await states(timers) == {"a": "Cancelled", "b": "Scheduled", "c": "Cancelled"}
    monkeypatch.setattr(cancellations, "read_page", read_page)
    timers.clock.advance(seconds=1)
    await timers.pass_cancellations()
    assert (await states(timers))["b"] == "Cancelled"


async def test_event_goes_through_the_outbox(timers: Timers) -> None:
    """The event of a finished cancellation waits in the outbox, like the events of signals and runs."""
    await timers.cancel_many("a")
    await timers.pass_cancellations()
    rows = await timers.database.reader.fetch(f"SELECT message, state FROM {OUTBOX.name}")
    assert [(row["message"], row["state"]) for row in rows] == [("timers-cancelled", "Waiting")]


async def test_random_histories(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """With any batches, and passes in between, the newest command on each timer decides."""
    rng = random.Random(7)
    timers = Timers(store, memory_broker, clock, batch_size=3)
    for round_ in range(6):
        tenant = f"tenant-{round_}"
        lives: dict[str, bool] = {}
        for _ in range(25):
            if rng.random() < 0.25:
                prefix = rng.choice(["a", "aa", "b"])
                timers.send(cancel_timers(prefix, tenant=tenant), tenant=tenant, message="cancel-timers")
                lives |= {call: False for call in lives if call.startswith(prefix)}
            else:
                call = rng.choice(["a", "aa", "ab", "b", "ba"])
                timers.send(schedule_timer(call, after(days=9), tenant=tenant), tenant=tenant)
                lives[call] = True
            if rng.random() < 0.5:
                await timers.consume()
            if rng.random() < 0.2:
                await timers.cancellation_worker.tick(clock.now())
        await timers.consume()
        await timers.pass_cancellations()
        assert await scheduled_calls(timers, tenant) == {call for call, alive in lives.items() if alive}


async def test_failed_timer_of_the_broker(timers: Timers) -> None:
    """A timer whose event is refused is cancelled before its next attempt."""
    await timers.schedule("a", NOW)
    timers.broker.refuses = always
    await timers.tick()
    await timers.cancel_many("a")
    await timers.pass_cancellations()
    timers.broker.refuses = never
    for _ in range(MAX_ATTEMPTS):
        timers.clock.advance(minutes=10)
        await timers.tick()
    assert timers.fired() == []
