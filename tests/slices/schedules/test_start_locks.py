"""Workflows that another transaction or another instance writes while slots start workflows, on PostgreSQL."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import exhaust
from tests.harness.locks import LockedPostgres
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import StartingSchedules
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Transaction
from timer_service.core.service.workflow_start import Started, WorkflowStart
from timer_service.core.values.errors import DatabaseBlockedError
from timer_service.schedules import room
from timer_service.schedules.backfill.worker import BackfillWorker
from timer_service.schedules.firing.worker import FiringWorker
from timer_service.workflows import store
from timer_service.workflows.commands.slot_start import start_workflows

KEY = {"concurrencyKey": "only-one"}
SLOT = iso(after(minutes=1))


LOCK_KEY = "SELECT pg_advisory_xact_lock(hashtextextended('workflow key acme/only-one', 0))"
"""The statement of another transaction that decides about the key."""


def insert(workflow: str) -> str:
    """Return the statement of another transaction that starts a workflow."""
    return f"""INSERT INTO workflows (
        tenant_id, workflow_id, type, queue, status, due_at, available_at, digest, created_at,
        started_epoch, started_sequence, cancelled_epoch, cancelled_sequence
    ) VALUES ('acme', '{workflow}', 'order', 'default', 'waiting', 0, 0, 'd', 0, 0, 1, 0, 0)"""


@pytest.fixture
def starting(
    locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> StartingSchedules:
    """Return the slices of schedules and workflows. However slow this machine is, no pass ends because of the time.

    A slot that is skipped because of a limit would show that a failed transaction has used its room.
    """
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", inf)
    limits = TenantLimits(default=Limits(open_workflows=61))
    return StartingSchedules(locks.database, memory_broker, clock, limits=limits)


async def put_neighbours(starting: StartingSchedules, count: int) -> None:
    """Put schedules with `start` and one without, all due at the same instant."""
    for number in range(count):
        starting.send("PutSchedule", scheduleId=f"n-{number:03}", every="PT1M", start={"type": "order"})
    starting.send("PutSchedule", scheduleId="plain", every="PT1M")
    await starting.consume()


BLOCKED = {"the id is inserted": insert(f"daily/{SLOT}"), "the key is locked": LOCK_KEY}


@pytest.mark.parametrize("statement", BLOCKED.values(), ids=BLOCKED)
async def test_a_lock_of_another_transaction(
    starting: StartingSchedules, locks: LockedPostgres, statement: str
) -> None:
    """Only the schedule whose id or key is locked waits, longer each time. One pass fires all others."""
    await put_neighbours(starting, 60)
    await starting.put_start(start=KEY)
    starting.clock.advance(minutes=1)
    async with locks.locked(statement):
        assert (await starting.worker.tick(starting.clock.now())).done == 62
        assert len(await starting.workflows()) == 60
        assert await starting.fired("plain") == [SLOT]
        row = await starting.row()
        names = ("slot_at", "available_at", "fired_count")
        assert tuple(row[name] for name in names) == (after(minutes=1), after(minutes=1) + 1000, 0)
        assert row["last_error"] is not None
        starting.clock.advance(seconds=1)
        await starting.worker.tick(starting.clock.now())
        assert (await starting.row())["available_at"] == after(minutes=1) + 3000
    await starting.advance(seconds=2)
    assert (await starting.row())["last_error"] is None
    assert await starting.workflows() == {
        **{f"n-{number:03}/{SLOT}": "waiting" for number in range(60)},
        f"daily/{SLOT}": "waiting",
    }


@pytest.mark.parametrize(
    ("workflow", "statement", "reason"),
    [
        ("mine", "UPDATE workflows SET status = 'cancelled', due_at = NULL, available_at = NULL, ended_at = 1", "busy"),
        (f"daily/{SLOT}", "SELECT 1 FROM workflows FOR UPDATE", "exists"),
    ],
    ids=["the holder of the key ends", "the workflow with the id is locked"],
)
async def test_a_locked_workflow_that_is_known(
    starting: StartingSchedules, locks: LockedPostgres, workflow: str, statement: str, reason: str
) -> None:
    """The slot is skipped at once, and nothing waits."""
    await starting.start(workflow, input=1, **KEY)
    await starting.put_start(start=KEY)
    starting.clock.advance(minutes=1)
    async with locks.locked(statement):
        await starting.fire()
        assert await starting.skipped() == [(SLOT, reason)]


async def test_a_broken_row_beside_a_locked_one(starting: StartingSchedules, locks: LockedPostgres) -> None:
    """Both wait with an error, and the others fire."""
    await put_neighbours(starting, 30)
    await starting.put_start(start=KEY)
    await starting.put_start("broken")
    await starting.sql(
        "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$ LANGUAGE plpgsql"
    )
    await starting.sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON workflows FOR EACH ROW WHEN (NEW.workflow_id LIKE 'broken%')"
        " EXECUTE FUNCTION refuse()"
    )
    starting.clock.advance(minutes=1)
    async with locks.locked(LOCK_KEY):
        for _ in range(3):
            await starting.worker.tick(starting.clock.now())
        assert len(await starting.workflows()) == 30
        errors = {row["schedule_id"] for row in await starting.all_rows() if row["last_error"] is not None}
        assert errors == {"broken", "daily"}
    await starting.advance(seconds=10)
    assert f"daily/{SLOT}" in await starting.workflows()


async def test_a_locked_workflow_of_a_backfill(starting: StartingSchedules, locks: LockedPostgres) -> None:
    """A backfill whose workflow is locked waits a second. That of another tenant goes on."""
    for tenant in ("acme", "other"):
        start = {"type": "order"}
        starting.send("PutSchedule", tenant=tenant, scheduleId="daily", every="PT1M", start=start)
        span: dict[str, Any] = {"from": iso(after(minutes=-3)), "to": iso(NOW)}
        starting.send("BackfillSchedule", tenant=tenant, scheduleId="daily", **span)
    await starting.consume()
    async with locks.locked(insert(f"daily/{iso(after(minutes=-2))}")):
        await starting.fire_backfills()
        assert (len(await starting.workflows()), len(await starting.workflows("other"))) == (0, 3)
        assert (await starting.rows("schedule_backfills"))[0]["available_at"] == after(seconds=1)
    starting.clock.advance(seconds=1)
    await starting.fire_backfills()
    assert len(await starting.workflows()) == 3


async def test_taken_between_the_look_and_the_insert(
    starting: StartingSchedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another instance takes the id in between: this slot is skipped, and the pass goes on."""
    await put_neighbours(starting, 3)
    await starting.put_start(start=KEY)
    then(monkeypatch, lambda: starting.sql(insert(f"daily/{SLOT}")))
    await starting.advance(minutes=1)
    assert await starting.skipped() == [(SLOT, "exists")]
    assert list((await starting.workflows()).values()) == ["waiting"] * 4


def then(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[Any]]) -> None:
    """Let `act` run once after the next look at concurrency keys."""
    inner, acts = store.lock_uses, [act]

    async def lock_uses(*arguments: Any, **options: Any) -> Any:
        found = await inner(*arguments, **options)
        while acts:
            await acts.pop()()
        return found

    monkeypatch.setattr(store, "lock_uses", lock_uses)


async def test_a_tombstone_is_locked_while_it_is_started(
    starting: StartingSchedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message for a slot's workflow, which another instance handles in between, is not lost: it has to wait."""
    await starting.put_start()
    await starting.request("SendToWorkflow", workflowId=f"daily/{SLOT}", name="approval")

    async def send() -> None:
        with pytest.raises(DatabaseBlockedError):
            await starting.sql("UPDATE workflows SET messages = 2")

    then(monkeypatch, send)
    await starting.advance(minutes=1)
    assert [row["messages"] for row in await starting.workflow_rows()] == [1]


async def test_a_start_waits_briefly(starting: StartingSchedules) -> None:
    """In a pass or a backfill that starts workflows, a statement waits 10 ms for a lock."""
    waits: list[str] = []

    async def asking(
        tx: Transaction, starts: Sequence[WorkflowStart], now: int, /, *, quotas: Quotas
    ) -> Sequence[Started]:
        waits.append((await tx.fetch("SHOW lock_timeout"))[0]["lock_timeout"])
        return await start_workflows(tx, starts, now, quotas=quotas)

    starting.worker = FiringWorker(starting.parts, asking)
    starting.backfill_worker = BackfillWorker(starting.parts, asking)
    await starting.put_start()
    await starting.advance(minutes=1)
    await starting.backfill(after(minutes=-1), NOW)
    await starting.fire_backfills()
    assert waits == ["10ms"] * 2


async def test_two_instances(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Two instances fire beside commands with the same ids and keys. A slot starts one workflow, or is skipped."""
    both = [StartingSchedules(postgres, memory_broker, clock) for _ in range(2)]
    reading = StartingSchedules(postgres, memory_broker, clock, batch_size=5)
    for number in range(200):
        start = {"type": "order", "input": number, "concurrencyKey": f"key-{number % 150}"}
        both[0].send("PutSchedule", scheduleId=f"s-{number:03}", every="PT1M", start=start)
    await both[0].consume()
    clock.advance(minutes=1)
    for number in range(0, 200, 3):
        both[0].send("StartWorkflow", workflowId=f"s-{number:03}/{iso(clock.now())}", type="mine")
        both[0].send("StartWorkflow", workflowId=f"mine-{number}", type="mine", concurrencyKey=f"key-{number}")

    async def exhaust_again(starting: StartingSchedules) -> None:
        for _ in range(20):
            await exhaust(starting.worker, clock.now())
            await asyncio.sleep(0)

    await asyncio.gather(*map(exhaust_again, both), reading.consume())
    for each in both:
        clock.advance(seconds=10)
        await exhaust(each.worker, clock.now())
    rows = await both[0].rows("workflows")
    events = [each for number in range(200) for each in await both[0].skipped(f"s-{number:03}")]
    fired = sum(row["fired_count"] for row in await both[0].all_rows())
    assert fired + len(events) == 200
    open_keys = Counter(row["concurrency_key"] for row in rows if row["ended_at"] is None and row["concurrency_key"])
    assert set(open_keys.values()) == {1}
    started = [row for row in rows if row["type"] == "order" and row["ended_at"] is None]
    assert len(started) == fired
