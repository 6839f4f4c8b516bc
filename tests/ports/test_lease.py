import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.builders import in_state, scheduled
from tests.harness.clock import NOW, after
from tests.harness.timers import put_timers
from timer_service.core.database import Database, Row
from timer_service.core.errors import ConflictError
from timer_service.core.lease import Failure, Lease
from timer_service.core.message import Position, Trace
from timer_service.timers import store as timers
from timer_service.timers.messages import State
from timer_service.timers.rules import Key, Timer
from timer_service.timers.store import TIMERS

HOLD_MS = 30_000
LATER = after(minutes=10)


@pytest.fixture
def lease() -> Lease:
    return Lease(TIMERS, timedelta(milliseconds=HOLD_MS))


def timer(call: str = "call-1", due_at: int = NOW, tenant: str = "acme", sequence: int = 1) -> Timer:
    return scheduled(call, due_at, Position(1, sequence), tenant=tenant)


async def put(store: Database, *several: Timer) -> None:
    async with store.transaction() as tx:
        await put_timers(tx, several)


async def claim(store: Database, lease: Lease, now: int = NOW, limit: int = 100) -> list[Row]:
    async with store.transaction() as tx:
        return await lease.claim(tx, now, limit)


async def claim_one(store: Database, lease: Lease, now: int = NOW) -> Row:
    (row,) = await claim(store, lease, now)
    return row


async def row_of(store: Database, call: str = "call-1") -> dict[str, Any]:
    columns = "state", "due_at", "available_at", "reached_at", "attempt", "lease_token", "last_error"
    (row,) = await store.reader.fetch(
        f"SELECT {', '.join(columns)} FROM timer_schedules WHERE service_call_id = :call", {"call": call}
    )
    return {column: row[column] for column in columns}


def calls(rows: Sequence[Row]) -> list[str]:
    return [row["service_call_id"] for row in rows]


async def settle(store: Database, lease: Lease, step: str, row: Row) -> int:
    """Settle a row, or extend its lease, at a time later than all others."""
    async with store.transaction() as tx:
        match step:
            case "complete":
                return await lease.complete(tx, [row], LATER)
            case "complete_claim":
                return await lease.complete_claim(tx, [row], LATER)
            case "release":
                return await lease.release(tx, [row])
            case "extend":
                return await lease.extend(tx, [row], LATER)
            case "retry":
                return await lease.retry(tx, [Failure(row, "late", LATER)])
            case _:
                return await lease.bury(tx, [Failure(row, "late", LATER)])


STEPS = ["complete", "complete_claim", "release", "extend", "retry", "bury"]


async def test_claim_hands_out_the_whole_row(store: Database, lease: Lease) -> None:
    """A claim hands out all that an event is made of, the attempt it is and the token that fences it."""
    made = scheduled(data="1", correlation_id="corr", causation_id="cause", trace=Trace("parent", "state"))
    await put(store, made)
    row = await claim_one(store, lease)
    handed = {column: row[column] for column in TIMERS.claimed}
    assert handed == {
        "tenant_id": "acme",
        "service_call_id": "call-1",
        "due_at": NOW,
        "data": "1",
        "correlation_id": "corr",
        "causation_id": "cause",
        "traceparent": "parent",
        "tracestate": "state",
        "event_id": made.schedule.event_id if made.schedule else None,
    }
    assert (row["attempt"], bool(row["lease_token"])) == (1, True)


async def test_claim_hides_the_row_for_the_visibility_timeout(store: Database, lease: Lease) -> None:
    """A claimed row can't be claimed until its lease runs out, to the millisecond; then it can, as the next attempt."""
    await put(store, timer())
    first = await claim_one(store, lease)
    assert await claim(store, lease, NOW + HOLD_MS - 1) == []
    second = await claim_one(store, lease, NOW + HOLD_MS)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["lease_token"] != second["lease_token"]


async def test_nothing_before_it_is_available(store: Database, lease: Lease) -> None:
    """A row due a millisecond later is not claimed; at its due time it is."""
    await put(store, timer(due_at=NOW + 1))
    assert await claim(store, lease, NOW) == []
    assert calls(await claim(store, lease, NOW + 1)) == ["call-1"]


async def test_claim_takes_the_oldest_first(store: Database, lease: Lease) -> None:
    """A claim takes what is due longest, in that order, and no more than it was asked for."""
    due = {"c": 300, "a": 100, "e": 500, "b": 200, "d": 400}
    await put(store, *(timer(call, NOW + at) for call, at in due.items()))
    batches = [calls(await claim(store, lease, NOW + 450, limit=2)) for _ in range(3)]
    assert batches == [["a", "b"], ["c", "d"], []]


async def test_limit_of_a_batch(store: Database, lease: Lease) -> None:
    """A claim of a thousand takes a thousand, each row once, all under one token."""
    await put(store, *(timer(f"call-{number}", NOW - number) for number in range(1100)))
    rows = await claim(store, lease, limit=1000)
    assert calls(rows) == [f"call-{number}" for number in range(1099, 99, -1)]
    assert len({row["lease_token"] for row in rows}) == 1


@pytest.mark.parametrize("step", ["complete", "complete_claim"])
async def test_complete(store: Database, lease: Lease, step: str) -> None:
    """A completed row is done at the instant given and is not claimed again."""
    await put(store, timer())
    row = await claim_one(store, lease)
    assert await settle(store, lease, step, row) == 1
    assert await row_of(store) == {
        "state": "Reached",
        "due_at": NOW,
        "available_at": None,
        "reached_at": LATER,
        "attempt": 1,
        "lease_token": None,
        "last_error": None,
    }
    assert await claim(store, lease, LATER + HOLD_MS) == []


async def test_retry(store: Database, lease: Lease) -> None:
    """A row to be retried keeps its attempts, its due time and the reason, and waits until its time has come."""
    await put(store, timer())
    row = await claim_one(store, lease)
    async with store.transaction() as tx:
        changed = await lease.retry(tx, [Failure(row, "refused", NOW + 700)])
    assert changed == 1
    assert await row_of(store) == {
        "state": "Scheduled",
        "due_at": NOW,
        "available_at": NOW + 700,
        "reached_at": None,
        "attempt": 1,
        "lease_token": None,
        "last_error": "refused",
    }
    assert await claim(store, lease, NOW + 699) == []
    assert (await claim_one(store, lease, NOW + 700))["attempt"] == 2


async def test_bury(store: Database, lease: Lease) -> None:
    """A buried row stays, with its reason and attempts, and is not claimed again."""
    await put(store, timer())
    row = await claim_one(store, lease)
    assert await settle(store, lease, "bury", row) == 1
    assert await row_of(store) == {
        "state": "Failed",
        "due_at": NOW,
        "available_at": None,
        "reached_at": None,
        "attempt": 1,
        "lease_token": None,
        "last_error": "late",
    }
    assert await claim(store, lease, LATER) == []


async def test_release_gives_the_attempt_back(store: Database, lease: Lease) -> None:
    """A released row may be claimed at once, in its old place, and its next claim is the same attempt again."""
    await put(store, timer())
    for _ in range(3):
        row = await claim_one(store, lease)
        assert row["attempt"] == 1
        async with store.transaction() as tx:
            assert await lease.release(tx, [row]) == 1
    released = await row_of(store)
    assert (released["attempt"], released["available_at"], released["lease_token"]) == (0, NOW, None)


async def test_extend_holds_from_now_and_never_adds_up(store: Database, lease: Lease) -> None:
    """Extended often and early, a lease still ends one visibility timeout after the last extension."""
    await put(store, timer())
    row = await claim_one(store, lease)
    for _ in range(100):
        async with store.transaction() as tx:
            assert await lease.extend(tx, [row], NOW + 10) == 1
    assert (await row_of(store))["available_at"] == NOW + 10 + HOLD_MS


@pytest.mark.parametrize("step", STEPS)
async def test_late_step_changes_nothing(store: Database, lease: Lease, step: str) -> None:
    """Once a row has been claimed anew, nothing the former holder does reaches it."""
    await put(store, timer())
    late = await claim_one(store, lease)
    await claim_one(store, lease, NOW + HOLD_MS)
    before = await row_of(store)
    assert await settle(store, lease, step, late) == 0
    assert await row_of(store) == before


@pytest.mark.parametrize("step", STEPS)
async def test_step_on_a_rescheduled_row_changes_nothing(store: Database, lease: Lease, step: str) -> None:
    """Once a row has been rescheduled, nothing its holder does reaches the new schedule."""
    await put(store, timer())
    held = await claim_one(store, lease)
    await put(store, timer(due_at=LATER + 1, sequence=2))
    before = await row_of(store)
    assert await settle(store, lease, step, held) == 0
    assert await row_of(store) == before
    assert (before["attempt"], before["available_at"]) == (0, LATER + 1)


@pytest.mark.parametrize("second", STEPS)
@pytest.mark.parametrize("first", ["complete", "complete_claim", "release", "retry", "bury"])
async def test_a_claim_is_settled_once(store: Database, lease: Lease, first: str, second: str) -> None:
    """After a row was settled nothing more can be done under that claim."""
    await put(store, timer())
    row = await claim_one(store, lease)
    assert await settle(store, lease, first, row) == 1
    before = await row_of(store)
    assert await settle(store, lease, second, row) == 0
    assert await row_of(store) == before


@pytest.mark.parametrize("whole", [True, False])
async def test_lost_leases_do_not_spoil_a_batch(store: Database, lease: Lease, whole: bool) -> None:  # noqa: FBT001
    """Settling a batch changes the rows still held, and its count tells that others were lost."""
    await put(store, timer("a"), timer("b"), timer("c"))
    rows = await claim(store, lease)
    await put(store, timer("b", LATER, sequence=2))
    complete = lease.complete_claim if whole else lease.complete
    async with store.transaction() as tx:
        assert await complete(tx, rows, NOW) == 2
    assert [(await row_of(store, call))["state"] for call in "abc"] == ["Reached", "Scheduled", "Reached"]


async def test_claims_at_the_same_instant_are_completed_apart(store: Database, lease: Lease) -> None:
    """Completing a whole claim leaves alone another one whose lease ends at the same instant."""
    await put(store, *(timer(call) for call in "abcd"))
    first, second = await claim(store, lease, limit=2), await claim(store, lease, limit=2)
    async with store.transaction() as tx:
        assert await lease.complete_claim(tx, first, NOW) == 2
    states = {call: (await row_of(store, call))["state"] for call in "abcd"}
    assert states == dict.fromkeys(calls(first), "Reached") | dict.fromkeys(calls(second), "Scheduled")


async def test_void_ends_every_lease(store: Database, lease: Lease) -> None:
    """After a voiding what was held waits in its old place, attempts counted; its former holder settles nothing."""
    await put(store, timer("a"), timer("b", NOW + 1), timer("waiting", LATER))
    held = await claim(store, lease, NOW + 1)
    async with store.transaction() as tx:
        assert await lease.void(tx, NOW + 2) == 2
    assert [(await row_of(store, call))["available_at"] for call in ("a", "b")] == [NOW, NOW + 1]
    assert [await settle(store, lease, step, held[0]) for step in STEPS] == [0] * len(STEPS)
    again = await claim(store, lease, NOW + 2)
    assert sorted((row["service_call_id"], row["attempt"]) for row in again) == [("a", 2), ("b", 2)]


async def test_void_leaves_what_is_not_held(store: Database, lease: Lease) -> None:
    """A voiding shortens no backoff and wakes neither what waits for its due time nor what is settled."""
    await put(store, timer("retried"), timer("buried"), timer("waiting", NOW + 5))
    retried, buried = await claim(store, lease)
    async with store.transaction() as tx:
        await lease.retry(tx, [Failure(retried, "refused", NOW + 500)])
        await lease.bury(tx, [Failure(buried, "refused", NOW)])
        assert await lease.void(tx, NOW + 1) == 0
    assert await lease.next_available(store.reader) == NOW + 5


async def test_void_with_the_clock_set_back(store: Database, lease: Lease) -> None:
    """Voided by a clock that is behind its due time, a row is left to its lease: never early."""
    await put(store, timer(due_at=NOW))
    await claim_one(store, lease)
    async with store.transaction() as tx:
        assert await lease.void(tx, NOW - 10) == 0
    assert (await row_of(store))["available_at"] == NOW + HOLD_MS


async def test_same_call_of_another_tenant(store: Database, lease: Lease) -> None:
    """Settling a row leaves another tenant's row of the same name alone."""
    await put(store, timer(tenant="acme"), timer(tenant="other", due_at=NOW + 1))
    rows = await claim(store, lease, NOW + 1)
    async with store.transaction() as tx:
        assert await lease.complete(tx, rows[:1], NOW + 1) == 1
    found = await store.reader.fetch("SELECT tenant_id, state FROM timer_schedules ORDER BY tenant_id")
    assert [(row["tenant_id"], row["state"]) for row in found] == [("acme", "Reached"), ("other", "Scheduled")]


async def test_unchanged_command_leaves_the_claim(store: Database, lease: Lease) -> None:
    """A command that only confirms a timer doesn't end the claim on it."""
    await put(store, timer())
    row = await claim_one(store, lease)
    async with store.transaction() as tx:
        before = await timers.load(tx, [timer().key])
        await timers.save(tx, before, {key: found._replace(position=Position(1, 2)) for key, found in before.items()})
    assert await settle(store, lease, "complete", row) == 1


async def test_next_available(store: Database, lease: Lease) -> None:
    """It is the earliest instant at which a row that isn't settled may be claimed."""
    seen = [await lease.next_available(store.reader)]
    await put(store, timer("a", NOW + 5), timer("b", NOW + 7))
    seen.append(await lease.next_available(store.reader))
    (row,) = await claim(store, lease, NOW + 5)
    seen.append(await lease.next_available(store.reader))
    async with store.transaction() as tx:
        await lease.retry(tx, [Failure(row, "refused", NOW + 6)])
    seen.append(await lease.next_available(store.reader))
    async with store.transaction() as tx:
        await lease.complete(tx, await lease.claim(tx, NOW + 7, 10), NOW + 7)
    seen.append(await lease.next_available(store.reader))
    assert seen == [None, NOW + 5, NOW + 7, NOW + 6, None]


async def test_next_available_counts_held_rows(store: Database, lease: Lease) -> None:
    """The end of a lease is something to wake up for."""
    await put(store, timer())
    await claim_one(store, lease)
    assert await lease.next_available(store.reader) == NOW + HOLD_MS


async def test_claimers_never_share_a_row(store: Database, lease: Lease) -> None:
    """Two claimers that race through the same rows get each row once between them."""
    await put(store, *(timer(f"call-{number}", NOW - number % 7) for number in range(200)))

    async def claim_all() -> list[str]:
        mine: list[str] = []
        while rows := await claim(store, lease, limit=7):
            mine += calls(rows)
        return mine

    claimed = await asyncio.gather(claim_all(), claim_all())
    assert all(claimed)
    assert sorted(itertools.chain(*claimed)) == sorted(f"call-{number}" for number in range(200))


# Fairness


def flood(tenant: str, count: int, since: int = NOW - 10_000) -> list[Timer]:
    """Return timers of one tenant, due a millisecond after each other."""
    return [timer(f"call-{number:04}", since + number, tenant) for number in range(count)]


def shares(rows: Sequence[Row]) -> Counter[str]:
    return Counter(row["tenant_id"] for row in rows)


async def test_a_flood_delays_nobody(store: Database, lease: Lease) -> None:
    """Behind one tenant's five thousand older rows, the single rows of others are in the next claim, which is full."""
    await put(store, *flood("a", 5000), timer(tenant="b"), timer(tenant="c", due_at=NOW - 1))
    rows = await claim(store, lease, limit=1000)
    assert shares(rows) == {"a": 998, "b": 1, "c": 1}
    assert [row["service_call_id"] for row in rows[:998]] == [f"call-{number:04}" for number in range(998)]
    assert [row["tenant_id"] for row in rows[998:]] == ["c", "b"]


async def test_whole_fair_claim_is_completed_at_once(store: Database, lease: Lease) -> None:
    """However many tenants a claim was shared between, its rows are one claim: under one token, completed together."""
    await put(store, *flood("a", 50), *flood("b", 3), *flood("c", 20, NOW - 5000))
    rows = await claim(store, lease, limit=30)
    async with store.transaction() as tx:
        completed = await lease.complete_claim(tx, rows, NOW)
    assert (len(rows), completed, len({row["lease_token"] for row in rows})) == (30, 30, 1)
    found = await store.reader.fetch("SELECT tenant_id FROM timer_schedules WHERE state = 'Reached'")
    assert shares(found) == shares(rows) == {"a": 17, "b": 3, "c": 10}


async def test_shares_are_the_oldest_of_each_tenant(store: Database, lease: Lease) -> None:
    """Of each tenant a claim takes what is due longest, and hands all of it out oldest first."""
    await put(store, *reversed(flood("a", 9, NOW - 90)), *flood("b", 9, NOW - 900), timer("last", tenant="c"))
    batches = [await claim(store, lease, limit=6) for _ in range(4)]
    for tenant, wanted in (("a", 9), ("b", 9), ("c", 1)):
        order = [row["due_at"] for rows in batches for row in rows if row["tenant_id"] == tenant]
        assert (len(order), order) == (wanted, sorted(order))
    for rows in batches:
        assert [row["due_at"] for row in rows] == sorted(row["due_at"] for row in rows)


async def test_all_is_claimed_when_it_fits(store: Database, lease: Lease) -> None:
    """What fits into one claim is claimed whole, however unequal the tenants are."""
    await put(store, *flood("a", 97), timer(tenant="b"), timer(tenant="c"), timer(tenant="d", due_at=NOW + 1))
    assert shares(await claim(store, lease, limit=99)) == {"a": 97, "b": 1, "c": 1}


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("tenants", [9, 10, 11, 20, 25])
async def test_more_tenants_than_fit_into_a_claim(store: Database, lease: Lease, tenants: int, start: int) -> None:
    """However many tenants there are, each is served once in as many claims as it takes, from wherever it starts."""
    limit = 10
    await put(store, *flood("a", 100, NOW - 20_000))
    await put(store, *(row for number in range(1, tenants) for row in flood(f"tenant-{number}", 20)))
    for _ in range(start):
        await claim(store, lease, limit=limit)
    batches = [await claim(store, lease, limit=limit) for _ in range(math.ceil(tenants / limit))]
    assert [len(rows) for rows in batches] == [limit] * len(batches)
    assert len(shares([*itertools.chain(*batches)])) == tenants


@pytest.mark.parametrize("start", range(3))
async def test_tenants_that_only_wait_hide_nobody(store: Database, lease: Lease, start: int) -> None:
    """A flood delays a single row no longer, though tenants with nothing due yet fill the claims between the two."""
    await put(store, *flood("a", 100), *(timer(tenant=f"b-{number}", due_at=LATER) for number in range(10)))
    for _ in range(start):
        await claim(store, lease, limit=10)
    await put(store, timer(tenant="c"))
    batches = [await claim(store, lease, limit=10) for _ in range(2)]
    assert [len(rows) for rows in batches] == [10, 10]
    assert shares([*itertools.chain(*batches)])["c"] == 1


async def test_held_rows_take_no_share(store: Database, lease: Lease) -> None:
    """A tenant whose oldest rows are held or wait to be retried gets its share of its others, and others get theirs."""
    await put(store, *flood("a", 30))
    await claim(store, lease, limit=8)
    async with store.transaction() as tx:
        refused = await lease.claim(tx, NOW, 8)
        await lease.retry(tx, [Failure(row, "refused", LATER) for row in refused])
    await put(store, *flood("b", 20, NOW - 5000))
    rows = await claim(store, lease, limit=10)
    assert shares(rows) == {"a": 5, "b": 5}
    assert [row["service_call_id"] for row in rows if row["tenant_id"] == "a"] == [
        f"call-{n:04}" for n in range(16, 21)
    ]


async def test_tenant_with_nothing_but_held_rows(store: Database, lease: Lease) -> None:
    """The share of a tenant all of whose rows are held goes to the others: the claim is full."""
    await put(store, *flood("a", 10))
    await claim(store, lease, limit=10)
    await put(store, *flood("b", 20), *flood("c", 20))
    rows = await claim(store, lease, limit=12)
    assert len(rows) == 12
    assert set(shares(rows)) == {"b", "c"}
    assert min(shares(rows).values()) >= 4


async def test_count_available(store: Database, lease: Lease) -> None:
    """It counts what may be claimed, not what is held, retried later or not due, and no further than it is told."""
    await put(store, *flood("a", 5), timer(tenant="b"), timer("future", LATER))
    assert [await lease.count_available(store.reader, NOW, limit) for limit in (1, 6, 7, 100)] == [1, 6, 6, 6]
    held, refused = await claim(store, lease, limit=2)
    async with store.transaction() as tx:
        await lease.retry(tx, [Failure(refused, "refused", NOW + 1)])
    assert await lease.count_available(store.reader, NOW, 100) == 4
    assert await lease.count_available(store.reader, held["available_at"], 100) == 6


FORBIDDEN = {
    "reached before due": "state = 'Reached', available_at = NULL, reached_at = due_at - 1",
    "reached at no time": "state = 'Reached', available_at = NULL",
    "reached and still to fire": "state = 'Reached', reached_at = due_at",
    "reached at a time, but scheduled": "reached_at = due_at",
    "scheduled and never available": "available_at = NULL",
    "available before due": "available_at = due_at - 1",
    "failed and still to fire": "state = 'Failed'",
    "cancelled and still to fire": "state = 'Cancelled', cancelled_at = due_at",
    "failed without a due time": "state = 'Failed', available_at = NULL, due_at = NULL",
    "cancelled at no time": "state = 'Cancelled', available_at = NULL",
    "cancelled at a time, but scheduled": "cancelled_at = due_at",
    "cancelled under a lease": "state = 'Cancelled', available_at = NULL, cancelled_at = due_at, lease_token = 'token'",
    "confirmed as settled, but scheduled": "confirmed_at = due_at",
    "due at no time": "due_at = NULL",
    "fires without an id": "event_id = NULL",
    "fewer than no attempts": "attempt = -1",
    "a state of its own": "state = 'Waiting'",
}


@pytest.mark.parametrize("change", FORBIDDEN.values(), ids=FORBIDDEN)
async def test_schema_refuses(store: Database, change: str) -> None:
    """The schema itself refuses rows that would break a promise, whatever the code does."""
    await put(store, timer())
    with pytest.raises(Exception, match=r"(?i)check constraint"):
        async with store.transaction() as tx:
            await tx.execute(f"UPDATE timer_schedules SET {change}")


async def test_schema_takes_a_tombstone(store: Database) -> None:
    """A cancelled timer that never was may lack what only firing needs, and comes back as it was put."""
    key = Key("acme", "unknown")
    tombstone = Timer(key, State.CANCELLED, Position(1, 1), registered_at=NOW, schedule=None, settled_at=LATER)
    await put(store, tombstone)
    assert await timers.find(store.reader, [key]) == {key: tombstone}


@pytest.mark.parametrize("state", [State.SCHEDULED, State.CANCELLED, State.FAILED])
async def test_timers_come_back(store: Database, state: State) -> None:
    """A timer is read as it was put, whatever its state; over an older one too, and nothing of that one is left."""
    full = scheduled(
        position=Position(1, 1), data="1", correlation_id="corr", causation_id="cause", trace=Trace("p", "s")
    )
    small = scheduled(due_at=LATER, position=Position(1, 2))
    for made in (in_state(state, full), in_state(state, small)):
        await put(store, made)
        assert await timers.find(store.reader, [made.key, Key("acme", "other")]) == {made.key: made}


@pytest.mark.parametrize("sequence", [1, 2])
async def test_save_refuses_what_was_changed_meanwhile(store: Database, sequence: int) -> None:
    """A timer that has come to the same or a newer position since it was read is not written over: all is undone."""
    await put(store, timer(sequence=2))
    with pytest.raises(ConflictError):
        await put(store, timer("other"), timer(due_at=LATER, sequence=sequence))
    assert list(await timers.find(store.reader, [Key("acme", "call-1"), Key("acme", "other")])) == [timer().key]


async def test_save_refuses_what_has_fired_meanwhile(store: Database, lease: Lease) -> None:
    """A timer that has fired since it was read is not written over, however new the command."""
    await put(store, timer())
    await settle(store, lease, "complete", await claim_one(store, lease))
    with pytest.raises(ConflictError):
        await put(store, timer(sequence=9))
    assert (await row_of(store))["state"] == "Reached"


async def test_save_refuses_to_confirm_what_was_changed_meanwhile(store: Database) -> None:
    """A timer that a newer command has confirmed since it was read does not get an older position."""
    await put(store, timer(sequence=5))
    read = timer(sequence=3)
    with pytest.raises(ConflictError):
        async with store.transaction() as tx:
            await timers.save(tx, {read.key: read}, {read.key: read._replace(position=Position(1, 4))})
    assert (await timers.find(store.reader, [timer().key]))[timer().key].position == Position(1, 5)


async def test_save_writes_nothing_where_nothing_differs(store: Database, lease: Lease) -> None:
    """A timer that no command has changed is not written, so the claim on it goes on."""
    await put(store, timer())
    row = await claim_one(store, lease)
    async with store.transaction() as tx:
        before = await timers.load(tx, [timer().key])
        await timers.save(tx, before, dict(before))
    assert await settle(store, lease, "complete", row) == 1


@pytest.mark.parametrize("state", [State.CANCELLED, State.REACHED])
async def test_confirmation_comes_back(store: Database, lease: Lease, state: State) -> None:
    """When a settled timer was last confirmed is read as it was saved, and nothing else of it has changed."""
    if state is State.CANCELLED:
        await put(store, in_state(state, timer()))
    else:
        await put(store, timer())
        await settle(store, lease, "complete", await claim_one(store, lease))
    async with store.transaction() as tx:
        before = await timers.load(tx, [timer().key])
        confirmed = before[timer().key]._replace(position=Position(1, 2), confirmed_at=LATER)
        await timers.save(tx, before, {confirmed.key: confirmed})
    assert await timers.find(store.reader, [timer().key]) == {confirmed.key: confirmed}
