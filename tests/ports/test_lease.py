import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest

from tests.harness.builders import scheduled
from tests.harness.cases import case
from tests.harness.clock import NOW, after
from tests.harness.timers import put_timers
from timer_service.core.due.lease import Failure, Lease, take_over_claims
from timer_service.core.ports.database import Database, Row
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.errors import ConflictError
from timer_service.core.values.message import Position
from timer_service.timers.rules import Timer
from timer_service.timers.store import TIMERS

HOLD_MS = 30_000
LATER = after(minutes=10)


def new_lease() -> Lease:
    return Lease(TIMERS, timedelta(milliseconds=HOLD_MS))


@pytest.fixture
def lease() -> Lease:
    return new_lease()


def timer(call: str = "call-1", due_at: int = NOW, tenant: str = "acme", sequence: int = 1) -> Timer:
    return scheduled(call, due_at, Position(1, sequence), tenant=tenant)


async def put(store: Database, *several: Timer) -> None:
    async with store.transaction() as tx:
        await put_timers(tx, several)


async def forget(store: Database) -> None:
    """Delete all timers, so that the next case begins without any."""
    async with store.transaction() as tx:
        await tx.execute("DELETE FROM timer_schedules")


async def claim(store: Database, lease: Lease, now: int = NOW, limit: int = 100) -> list[Row]:
    async with store.transaction() as tx:
        return await lease.claim(tx, now, limit, alone=store.exclusive)


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
    """Settle a row at the instant LATER."""
    async with store.transaction() as tx:
        match step:
            case "complete":
                return await lease.complete(tx, [row], LATER)
            case "complete_claim":
                return await lease.complete_claim(tx, [row], LATER, shared=not store.exclusive)
            case "release":
                return await lease.release(tx, [row])
            case "retry":
                return await lease.retry(tx, [Failure(row, "late", LATER)])
            case _:
                return await lease.bury(tx, [Failure(row, "late", LATER)])


STEPS = ["complete", "complete_claim", "release", "retry", "bury"]


async def test_claim_hides_the_row_for_the_visibility_timeout(store: Database, lease: Lease) -> None:
    """A claimed row cannot be claimed until its lease ends, to the millisecond. Then it is the next attempt."""
    await put(store, timer())
    first = await claim_one(store, lease)
    assert await claim(store, lease, NOW + HOLD_MS - 1) == []
    second = await claim_one(store, lease, NOW + HOLD_MS)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["lease_token"] != second["lease_token"]


async def test_claim_takes_the_oldest_first(store: Database, lease: Lease) -> None:
    """A claim takes the rows that have been due longest, in that order, up to its limit."""
    due = {"c": 300, "a": 100, "e": 500, "b": 200, "d": 400}
    await put(store, *(timer(call, NOW + at) for call, at in due.items()))
    batches = [calls(await claim(store, lease, NOW + 450, limit=2)) for _ in range(3)]
    assert batches == [["a", "b"], ["c", "d"], []]


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("complete", ("Reached", None, LATER, 2, None)),
        ("complete_claim", ("Reached", None, LATER, 2, None)),
        ("release", ("Scheduled", NOW, None, 1, "refused")),
        ("retry", ("Scheduled", LATER, None, 2, "late")),
        ("bury", ("Failed", None, None, 2, "late")),
    ],
)
async def test_steps(store: Database, lease: Lease, step: str, left: tuple[object, ...]) -> None:
    """The state that each step leaves, on a row whose first attempt failed. No step leaves the lease."""
    await put(store, timer())
    async with store.transaction() as tx:
        await lease.retry(tx, [Failure(each, "refused", NOW) for each in await lease.claim(tx, NOW, 1)])
    assert await settle(store, lease, step, await claim_one(store, lease)) == 1
    row = await row_of(store)
    assert tuple(row[name] for name in ("state", "available_at", "reached_at", "attempt", "last_error")) == left
    assert (row["due_at"], row["lease_token"]) == (NOW, None)


async def test_late_step_changes_nothing(store: Database, lease: Lease) -> None:
    """After a row is claimed again or rescheduled, no step of the former holder changes it."""
    for step, rescheduled in product(STEPS, [False, True]):
        with case(step, rescheduled):
            await forget(store)
            await put(store, timer())
            late = await claim_one(store, lease)
            if rescheduled:
                await put(store, timer(due_at=LATER + 1, sequence=2))
            else:
                await claim_one(store, lease, NOW + HOLD_MS)
            before = await row_of(store)
            assert await settle(store, lease, step, late) == 0
            assert await row_of(store) == before


async def test_a_claim_is_settled_once(store: Database, lease: Lease) -> None:
    """After a row is settled, no second step under the same claim changes it."""
    for first, second in product(STEPS, STEPS):
        with case(first, second):
            await forget(store)
            await put(store, timer())
            row = await claim_one(store, lease)
            assert await settle(store, lease, first, row) == 1
            before = await row_of(store)
            assert await settle(store, lease, second, row) == 0
            assert await row_of(store) == before


@pytest.mark.parametrize("whole", [True, False])
async def test_batch_with_a_lost_lease(store: Database, lease: Lease, whole: bool) -> None:  # noqa: FBT001
    """Settling a batch changes the rows that are still held. Its count shows that other leases were lost."""
    await put(store, timer("a"), timer("b"), timer("c"))
    rows = await claim(store, lease)
    await put(store, timer("b", LATER, sequence=2))
    complete = partial(lease.complete_claim, shared=not store.exclusive) if whole else lease.complete
    async with store.transaction() as tx:
        assert await complete(tx, rows, NOW) == 2
    assert [(await row_of(store, call))["state"] for call in "abc"] == ["Reached", "Scheduled", "Reached"]


async def test_complete_claim_leaves_other_claims(store: Database, lease: Lease) -> None:
    """Completing a whole claim does not change another claim whose lease ends at the same instant."""
    await put(store, *(timer(call) for call in "abcd"))
    first, second = await claim(store, lease, limit=2), await claim(store, lease, limit=2)
    async with store.transaction() as tx:
        assert await lease.complete_claim(tx, first, NOW, shared=not store.exclusive) == 2
    states = {call: (await row_of(store, call))["state"] for call in "abcd"}
    assert states == dict.fromkeys(calls(first), "Reached") | dict.fromkeys(calls(second), "Scheduled")


async def test_void_ends_every_lease(store: Database, lease: Lease) -> None:
    """Voided rows wait in their old place with their attempts. The former holder cannot settle them."""
    await put(store, timer("a"), timer("b", NOW + 1), timer("waiting", LATER))
    held = await claim(store, lease, NOW + 1)
    async with store.transaction() as tx:
        assert await lease.void(tx, NOW + 2) == 2
    assert [(await row_of(store, call))["available_at"] for call in ("a", "b")] == [NOW, NOW + 1]
    assert [await settle(store, lease, step, held[0]) for step in STEPS] == [0] * len(STEPS)
    again = await claim(store, lease, NOW + 2)
    assert sorted((row["service_call_id"], row["attempt"]) for row in again) == [("a", 2), ("b", 2)]


async def test_claims_of_a_dead_process(store: Database, lease: Lease) -> None:
    """A process that starts takes over the claims that it finds, unless another process may have made them."""
    await put(store, timer())
    await claim_one(store, lease)
    await take_over_claims(store, lease, NOW + 1)
    assert len(await claim(store, lease, NOW + 1)) == int(store.exclusive)


async def test_retry_before_the_row_is_due(store: Database, lease: Lease) -> None:
    """If the clock was set back since the claim, a row that failed is not available before it is due."""
    await put(store, timer())
    async with store.transaction() as tx:
        await lease.retry(tx, [Failure(each, "refused", NOW - 5_000) for each in await lease.claim(tx, NOW, 1)])
    assert (await row_of(store))["available_at"] == NOW


async def test_next_available_beside_waiting_tenants(store: Database, lease: Lease) -> None:
    """The due rows of tenants that wait do not count. Later rows do, and others are looked for again in a second."""
    await put(store, timer("a", NOW, "waits"))

    async def claim_and_look() -> tuple[int, int | None]:
        async with store.transaction() as tx:
            rows = await lease.claim(tx, NOW, 1, alone=store.exclusive, waiting={"waits"})
        return len(rows), await lease.next_available(store.reader)

    assert await claim_and_look() == (0, NOW + 1_000)
    await put(store, timer("b", NOW + 300, "other"))
    assert await claim_and_look() == (0, NOW + 300)
    await put(store, timer("c", NOW, "other"), timer("d", NOW, "other"))
    assert await claim_and_look() == (1, NOW)


async def test_next_available(store: Database, lease: Lease) -> None:
    """`next_available` is the earliest instant at which an unsettled row can be claimed."""
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


async def test_concurrent_claims_never_share_a_row(store: Database, lease: Lease) -> None:
    """If two claimers claim the same rows at once, each row goes to one of them."""
    await put(store, *(timer(f"call-{number}", NOW - number % 7) for number in range(200)))

    claimed: list[str] = []

    async def claim_until_all_are_claimed() -> None:
        while len(claimed) < 200:
            claimed.extend(calls(await claim(store, lease, limit=7)))  # none, if the other one holds what it looked at

    async with asyncio.timeout(30):
        await asyncio.gather(*(claim_until_all_are_claimed() for _ in range(2)))
    assert sorted(claimed) == sorted(f"call-{number}" for number in range(200))


# Fairness between tenants


def flood(tenant: str, count: int, since: int = NOW - 10_000) -> list[Timer]:
    """Return timers of one tenant, due a millisecond after each other."""
    return [timer(f"call-{number:04}", since + number, tenant) for number in range(count)]


def shares(rows: Sequence[Row]) -> Counter[str]:
    return Counter(row["tenant_id"] for row in rows)


async def test_flood_of_one_tenant(store: Database, lease: Lease) -> None:
    """If one tenant has 5,000 older rows, the next claim still holds the single rows of others, and is full."""
    await put(store, *flood("a", 5000), timer(tenant="b"), timer(tenant="c", due_at=NOW - 1))
    rows = await claim(store, lease, limit=1000)
    assert shares(rows) == {"a": 998, "b": 1, "c": 1}
    assert [row["service_call_id"] for row in rows[:998]] == [f"call-{number:04}" for number in range(998)]
    assert [row["tenant_id"] for row in rows[998:]] == ["c", "b"]


async def test_more_tenants_than_fit_into_a_claim(store: Database) -> None:
    """If there are more tenants than rows in a claim, the next claims serve the other tenants."""
    for tenants, start in product([9, 10, 11, 20, 25], range(4)):
        with case(tenants, start):
            await forget(store)
            lease = new_lease()
            limit = 10
            await put(store, *flood("a", 100, NOW - 20_000))
            await put(store, *(row for number in range(1, tenants) for row in flood(f"tenant-{number}", 20)))
            for _ in range(start):
                await claim(store, lease, limit=limit)
            batches = [await claim(store, lease, limit=limit) for _ in range(math.ceil(tenants / limit))]
            assert [len(rows) for rows in batches] == [limit] * len(batches)
            assert len(shares([*itertools.chain(*batches)])) == tenants


async def test_tenants_beyond_those_that_a_claim_looks_at(store: Database, lease: Lease) -> None:
    """However many tenants without due rows come before it, a tenant is served soon. Meanwhile the claims are full."""
    idle = [timer(tenant=f"b-{number:05}", due_at=LATER) for number in range(5_200)]
    await put(store, *flood("a", 100), *idle, timer(tenant="c"))
    claims = [await claim(store, lease, limit=10) for _ in range(3)]
    assert [len(rows) for rows in claims] == [10, 10, 10]
    assert shares([*itertools.chain(*claims)]) == {"a": 29, "c": 1}


async def test_tenant_that_is_not_utf8(sqlite: Database, lease: Lease) -> None:
    """A damaged id of a tenant keeps no other tenant from its turn, also beside a waiting tenant."""
    await put(sqlite, *(timer(tenant=tenant) for tenant in ("aa", "b", "c", "waits")))
    async with sqlite.transaction() as tx:
        await tx.execute("UPDATE timer_schedules SET tenant_id = CAST(x'61ff' AS TEXT) WHERE tenant_id = 'aa'")
    found: Counter[str] = Counter()
    for _ in range(4):
        rows = await in_transaction(sqlite, partial(lease.claim, now=NOW, limit=2, alone=True, waiting=("waits",)))
        found += shares(rows)
    assert found == {"b": 1, "c": 1}


async def test_tenants_without_due_rows_take_no_share(store: Database, lease: Lease) -> None:
    """The shares are those of the tenants with due rows, however many tenants wait for later rows."""
    waiting = [timer(tenant=f"later-{number}", due_at=LATER) for number in range(6)]
    await put(store, *flood("a", 30, NOW - 20_000), *flood("b", 30), *waiting)
    assert shares(await claim(store, lease, limit=10)) == {"a": 5, "b": 5}


async def test_held_rows_take_no_share(store: Database, lease: Lease) -> None:
    """A tenant with held or retried rows still gets its share of its other rows, and other tenants get theirs."""
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


# The schema


FORBIDDEN = {
    "reached before due": "state = 'Reached', available_at = NULL, reached_at = due_at - 1",
    "reached without an instant": "state = 'Reached', available_at = NULL",
    "reached and available": "state = 'Reached', reached_at = due_at",
    "scheduled with an instant of reaching": "reached_at = due_at",
    "scheduled and never available": "available_at = NULL",
    "available before due": "available_at = due_at - 1",
    "expires when it is due": "expires_at = due_at",
    "reached when it has expired": "state = 'Reached', available_at = NULL, expires_at = due_at + 1, "
    "reached_at = due_at + 1",
    "expired before its expiry": "state = 'Expired', available_at = NULL, expires_at = due_at + 2, "
    "expired_at = due_at + 1",
    "expired without an expiry": "state = 'Expired', available_at = NULL, expired_at = due_at + 1",
    "expired without an instant": "state = 'Expired', available_at = NULL, expires_at = due_at + 1",
    "expired and available": "state = 'Expired', expires_at = due_at + 1, expired_at = due_at + 1",
    "scheduled with an instant of expiring": "expires_at = due_at + 1, expired_at = due_at + 1",
    "failed and available": "state = 'Failed'",
    "cancelled and available": "state = 'Cancelled', cancelled_at = due_at",
    "cancelled without an instant": "state = 'Cancelled', available_at = NULL",
    "scheduled with an instant of cancelling": "cancelled_at = due_at",
    "cancelled under a lease": "state = 'Cancelled', available_at = NULL, cancelled_at = due_at, lease_token = 'token'",
    "no due time": "due_at = NULL",
    "no event id": "event_id = NULL",
    "negative attempts": "attempt = -1",
    "unknown state": "state = 'Waiting'",
}


async def test_schema_refuses(store: Database) -> None:
    """The schema refuses rows that would break a promise."""
    await put(store, timer())
    for change in FORBIDDEN.values():
        with pytest.raises(Exception, match=r"(?i)(check|not.null) constraint"):
            async with store.transaction() as tx:
                await tx.execute(f"UPDATE timer_schedules SET {change}")


async def test_save_refuses_a_timer_fired_since_the_read(store: Database, lease: Lease) -> None:
    """A timer that fired since it was read is not overwritten, even by a newer command."""
    await put(store, timer())
    await settle(store, lease, "complete", await claim_one(store, lease))
    with pytest.raises(ConflictError):
        await put(store, timer(sequence=9))
    assert (await row_of(store))["state"] == "Reached"
