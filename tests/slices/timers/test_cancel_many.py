"""CancelTimers: timers that are cancelled by the prefix of their ids. The simulation has crashes and many instances."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.builders import cancel_timers, scheduled
from tests.harness.cases import case
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.memory_broker import MemoryBroker
from tests.harness.timers import Timers, put_timers
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.due.due_rows import DueRows
from timer_service.core.values.message import Position
from timer_service.timers import cancellation_worker
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


async def put(timers: Timers, *calls: str, tenant: str = "acme") -> None:
    """Write scheduled timers that are older than every command."""
    async with timers.database.transaction() as tx:
        await put_timers(tx, [scheduled(call, DUE, Position(0, 1), tenant=tenant) for call in calls])


async def cancel_in_one_batch(timers: Timers, *prefixes: str) -> None:
    for prefix in prefixes:
        timers.send(cancel_timers(prefix), message="cancel-timers")
    await timers.consume()


async def announced(timers: Timers) -> list[dict[str, Any]]:
    """Return the TimersCancelled in the outbox."""
    rows = await timers.database.reader.fetch("SELECT body FROM outbox WHERE message = 'timers-cancelled'")
    return [json.loads(row["body"]) for row in rows]


async def test_cancelled_by_prefix(timers: Timers) -> None:
    """Exactly the pending and Failed timers of the tenant whose ids begin with the prefix are cancelled."""
    await timers.fail("order-1/failed")
    for call in ("order-1/reached", "order-1/expired"):
        await timers.schedule(call, NOW, **({"lateBy": "PT0.001S"} if "expired" in call else {}))
    await timers.tick()
    await put(timers, "order-1/a", "order-1/b", "order-1", "order-10/a", "order-0", "order-2")
    await put(timers, "order-1/a", tenant="other")
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
    assert (row["available_at"], row["position_sequence"]) == (None, position.sequence)
    assert [event["payload"]["count"] for event in await announced(timers)] == [3]
    assert timers.outcomes()["cancelling"] == 1


async def test_event_after_the_pass(timers: Timers) -> None:
    """The event has the ids and the trace of its command. Nothing else is left of the cancellation."""
    body = cancel_timers("a", envelope={"id": "cancel-1", "correlationId": "corr-1"})
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "a=b"}
    timers.send(body, trace, message="cancel-timers")
    await timers.consume()
    await timers.pass_cancellations()
    (event,) = await announced(timers)
    assert (event["type"], event["causationId"], event["correlationId"]) == ("TimersCancelled", "cancel-1", "corr-1")
    assert event["payload"] == {"tenantId": "acme", "commandId": "cancel-1", "prefix": "a", "count": 0}
    rows = await timers.database.reader.fetch("SELECT traceparent, tracestate FROM outbox")
    assert [dict(row) for row in rows] == [trace]
    assert await timers.database.reader.fetch("SELECT * FROM timer_cancellations") == []


async def test_newer_command_before_the_pass(timers: Timers) -> None:
    """A timer that a newer command has scheduled before the pass is not cancelled."""
    await timers.schedule("a/1", DUE)
    await timers.schedule("a/2", DUE)
    await timers.cancel_many("a/")
    await timers.schedule("a/1", DUE)
    await timers.pass_cancellations()
    assert await states(timers) == {"a/1": "Scheduled", "a/2": "Cancelled"}
    assert [event["payload"]["count"] for event in await announced(timers)] == [1]


async def test_cancelled_during_publishing(timers: Timers) -> None:
    """A timer that is being published is cancelled, and its event may still go out once."""
    await timers.schedule("a", NOW)

    async def cancel() -> None:
        await timers.cancel_many("a")
        await timers.pass_cancellations()

    timers.interrupt(cancel)
    await timers.tick()
    row = await timers.row("a")
    assert (row["state"], row["lease_token"], timers.fired(), timers.metrics.lost) == ("Cancelled", None, ["a"], 1)


# Pages and turns


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation_worker, "MOST_TIMERS", 4)
    monkeypatch.setattr(cancellation_worker, "MOST_TENANTS", 2)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9, 30])
async def test_pages(timers: Timers, count: int) -> None:
    """Each transaction reads a bounded number of timers. No timer is missed, and none is counted twice."""
    await put(timers, "a", *(f"a/{number:02}" for number in range(count)), "b")
    await timers.cancel_many("a/")
    await timers.pass_cancellations()
    assert await scheduled_calls(timers) == {"a", "b"}
    assert [event["payload"]["count"] for event in await announced(timers)] == [count]


@pytest.mark.usefixtures("small_pages")
async def test_tenants_take_turns(timers: Timers) -> None:
    """A transaction handles few tenants and few timers, and the next one continues with the next tenants."""
    tenants = [f"tenant-{number}" for number in range(5)]
    for tenant in tenants:
        await put(timers, *(f"a/{number}" for number in range(9)), tenant=tenant)
        for _ in range(3):
            await timers.cancel_many("a/", tenant=tenant)
    for _ in range(3):
        await timers.cancellation_worker.tick(timers.clock.now())
    left = [len(await scheduled_calls(timers, tenant)) for tenant in tenants]
    assert (max(left) < 9, min(left) > 4) == (True, True)
    await timers.pass_cancellations()
    counts = [(event["tenantId"], event["payload"]["count"]) for event in await announced(timers)]
    assert sorted(counts) == sorted((tenant, count) for tenant in tenants for count in (0, 0, 9))


@pytest.mark.usefixtures("small_pages")
async def test_oldest_cancellation_of_a_tenant_first(timers: Timers) -> None:
    """A tenant's second cancellation begins when the pass of the first one has ended."""
    await put(timers, *(f"{letter}{number}" for letter in "ba" for number in range(9)))
    await cancel_in_one_batch(timers, "b", "a")
    while "b8" in (left := await scheduled_calls(timers)):
        assert {f"a{number}" for number in range(9)} <= left
        timers.clock.advance(milliseconds=1)
        await timers.cancellation_worker.tick(timers.clock.now())
    await timers.pass_cancellations()
    assert await scheduled_calls(timers) == set()


# Faults


async def test_two_instances(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """An instance skips a cancellation that another instance has locked, and asks for another look soon."""
    ours, theirs = (Timers(postgres, memory_broker, clock) for _ in range(2))
    await ours.schedule("a", DUE)
    await ours.cancel_many("a")
    async with postgres.transaction() as tx:
        await tx.fetch("SELECT 1 AS one FROM timer_cancellations /* for update */")
        done, next_at = await theirs.cancellation_worker.tick(NOW)
        assert (done, next_at is not None and NOW < next_at <= NOW + 100) == (0, True)
    assert await theirs.pass_cancellations() == 1
    assert await states(ours) == {"a": "Cancelled"}


@pytest.mark.slow
async def test_locked_timer_holds_only_its_cancellation(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A timer that another session has locked delays its own cancellation, and no other one."""
    timers = Timers(postgres, memory_broker, clock)
    await put(timers, "a", "b", "c")
    async with postgres.transaction() as session:
        await session.fetch("SELECT 1 AS one FROM timer_schedules WHERE service_call_id = 'b' FOR UPDATE")
        await cancel_in_one_batch(timers, "a", "b", "c")
        await timers.pass_cancellations()
        assert await states(timers) == {"a": "Cancelled", "b": "Scheduled", "c": "Cancelled"}
    clock.advance(seconds=1)
    await timers.pass_cancellations()
    assert (await states(timers))["b"] == "Cancelled"


async def test_failing_cancellation_does_not_hold_the_others(timers: Timers) -> None:
    """A cancellation that cannot be handled waits with its error, and the others go on."""
    await put(timers, "a", "b", "c")
    await timers.sql("CREATE UNIQUE INDEX one_bee ON timer_schedules (service_call_id) WHERE cancelled_at IS NOT NULL")
    await timers.schedule("b", after(days=1), tenant="other")
    await timers.cancel("b", tenant="other")
    await cancel_in_one_batch(timers, "a", "b", "c")
    await timers.pass_cancellations()
    assert await states(timers) == {"a": "Cancelled", "b": "Scheduled", "c": "Cancelled"}
    (row,) = await timers.database.reader.fetch("SELECT * FROM timer_cancellations")
    assert (row["prefix"], row["available_at"], row["last_error"] is None) == ("b", timers.clock.now() + 1000, False)
    async with timers.database.transaction() as tx:
        assert await DueRows(CANCELLATIONS).lock_oldest(tx, ["acme"], timers.clock.now()) == []
    await timers.sql("DROP INDEX one_bee")
    timers.clock.advance(seconds=1)
    await timers.pass_cancellations()
    assert (await states(timers))["b"] == "Cancelled"


# Prefixes


HOSTILE = ["%", "_", "a%", "a_b", "\\", "'", '"', "a/", "é", "É", "ß", "ss", "z", "\ud7ff", "\ue000", LAST, f"a{LAST}"]


async def test_hostile_prefixes(timers: Timers) -> None:
    """A prefix is compared character by character: no character is a wildcard, equal to another one, or ignored."""
    calls = {*HOSTILE, *(f"{each}{tail}" for each in HOSTILE for tail in ("x", LAST, "\ue000")), "axb", "ab", "e\u0301"}
    tenants = {f"tenant-{number}": prefix for number, prefix in enumerate(HOSTILE)}
    for tenant, prefix in tenants.items():
        await put(timers, *calls, tenant=tenant)
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
