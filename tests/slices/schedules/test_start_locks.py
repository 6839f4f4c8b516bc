"""Workflows that another transaction or another instance writes while slots start workflows, on PostgreSQL."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.in_process import exhaust, next_at
from tests.harness.locks import LockedPostgres
from tests.harness.schedules import StartingSchedules
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Transaction
from timer_service.core.service.workflow_start import Started, WorkflowStart
from timer_service.core.values.errors import DatabaseBlockedError
from timer_service.schedules import room
from timer_service.schedules.firing.worker import FiringWorker
from timer_service.workflows import store
from timer_service.workflows.commands.slot_start import start_workflows

KEY = {"concurrencyKey": "only-one"}
POSITIONS = "started_epoch, started_sequence, cancelled_epoch, cancelled_sequence"


def insert(workflow: str, *, key: str | None = None) -> str:
    """Return the statement of another transaction that starts a workflow."""
    concurrency_key = "NULL" if key is None else f"'{key}'"
    return f"""INSERT INTO workflows (
        tenant_id, workflow_id, type, queue, status, due_at, available_at, digest, created_at, concurrency_key,
        {POSITIONS}
    ) VALUES ('acme', '{workflow}', 'order', 'default', 'waiting', 0, 0, 'd', 0, {concurrency_key}, 0, 1, 0, 0)"""


@pytest.fixture
def starting(
    locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> StartingSchedules:
    """Return the slices of schedules and workflows. However slow this machine is, no pass ends because of the time."""
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", inf)
    return StartingSchedules(locks.database, memory_broker, clock)


async def put_neighbours(starting: StartingSchedules, count: int) -> None:
    """Put schedules with `start` and one without, all due at the same instant."""
    for number in range(count):
        starting.send("PutSchedule", scheduleId=f"n-{number:03}", every="PT1M", start={"type": "order"})
    starting.send("PutSchedule", scheduleId="plain", every="PT1M")
    await starting.consume()


BLOCKED = {
    "the id is inserted": insert(f"daily/{iso(after(minutes=1))}"),
    "the key is inserted": insert("mine", key="only-one"),
}


@pytest.mark.parametrize("statement", BLOCKED.values(), ids=BLOCKED)
async def test_a_lock_of_another_transaction(
    starting: StartingSchedules, locks: LockedPostgres, statement: str
) -> None:
    """Only the schedule whose id or key is locked waits, with the error. One pass fires all others."""
    await put_neighbours(starting, 120)
    await starting.put_start(start=KEY)
    starting.clock.advance(minutes=1)
    async with locks.locked(statement):
        passed = await starting.worker.tick(starting.clock.now())
        assert passed.done == 122
        assert len(await starting.workflows()) == 120
        assert await starting.fired("plain") == [iso(after(minutes=1))]
        row = await starting.row()
        names = ("slot_at", "available_at", "fired_count")
        assert tuple(row[name] for name in names) == (after(minutes=1), after(minutes=1) + 1000, 0)
        assert row["last_error"] is not None
    await starting.advance(seconds=1)
    assert (await starting.row())["last_error"] is None
    assert await starting.workflows() == {
        **{f"n-{number:03}/{iso(after(minutes=1))}": "waiting" for number in range(120)},
        f"daily/{iso(after(minutes=1))}": "waiting",
    }


async def test_a_holder_that_ends_in_another_transaction(starting: StartingSchedules, locks: LockedPostgres) -> None:
    """While the holder of a key is locked, it has the key: the slot is skipped, and nothing waits."""
    await starting.start("mine", **KEY)
    await starting.put_start(start=KEY)
    starting.clock.advance(minutes=1)
    async with locks.locked(
        "UPDATE workflows SET status = 'cancelled', due_at = NULL, available_at = NULL, ended_at = 1"
    ):
        await starting.fire()
        assert await starting.skipped() == [(iso(after(minutes=1)), "busy")]


async def test_the_user_workflow_is_locked(starting: StartingSchedules, locks: LockedPostgres) -> None:
    """A locked workflow of the user with the id of a slot: the slot is skipped at once."""
    await starting.start(f"daily/{iso(after(minutes=1))}", input=1)
    await starting.put_start()
    starting.clock.advance(minutes=1)
    async with locks.locked("SELECT 1 FROM workflows FOR UPDATE"):
        await starting.fire()
        assert await starting.skipped() == [(iso(after(minutes=1)), "exists")]


async def test_how_long_a_locked_schedule_waits(starting: StartingSchedules, locks: LockedPostgres) -> None:
    """It waits longer each time, up to a minute."""
    await starting.put_start(start=KEY)
    starting.clock.advance(minutes=1)
    waits = []
    async with locks.locked(insert("mine", key="only-one")):
        for _ in range(7):
            now = starting.clock.now()
            at = await next_at(starting.worker, now)
            assert at is not None
            waits.append(at - now)
            starting.clock.set(at)
    assert waits == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]


async def test_many_locked_schedules_of_a_tenant(starting: StartingSchedules, locks: LockedPostgres) -> None:
    """Many locked schedules of a tenant wait. Those of others fire."""
    statements = []
    for number in range(20):
        start = {"type": "order", "concurrencyKey": f"key-{number}"}
        starting.send("PutSchedule", scheduleId=f"s-{number}", every="PT1M", start=start)
        starting.send("PutSchedule", tenant="other", scheduleId=f"s-{number}", every="PT1M", start=start)
        statements.append(insert(f"mine-{number}", key=f"key-{number}"))
    await starting.consume()
    starting.clock.advance(minutes=1)
    async with locks.locked("; ".join(statements)):
        while (await starting.worker.tick(starting.clock.now())).done:
            pass
        assert (len(await starting.workflows()), len(await starting.workflows("other"))) == (0, 20)
        assert {row["available_at"] for row in await starting.all_rows()} == {
            after(minutes=1, seconds=1),
            after(minutes=2),
        }


async def refuse(starting: StartingSchedules, statement: str, condition: str) -> None:
    """Let the database refuse rows: those of an INSERT or UPDATE on a table for which the condition is true."""
    await starting.sql(
        "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$ LANGUAGE plpgsql"
    )
    await starting.sql(
        f"CREATE TRIGGER refuse BEFORE {statement} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()"
    )


async def test_a_broken_row_beside_a_locked_one(starting: StartingSchedules, locks: LockedPostgres) -> None:
    """Both wait with an error, and the others fire."""
    await put_neighbours(starting, 30)
    await starting.put_start(start=KEY)
    await starting.put_start("broken")
    await refuse(starting, "INSERT ON workflows", "NEW.workflow_id LIKE 'broken%'")
    starting.clock.advance(minutes=1)
    async with locks.locked(insert("mine", key="only-one")):
        for _ in range(3):
            await starting.worker.tick(starting.clock.now())
        assert len(await starting.workflows()) == 30
        errors = {row["schedule_id"] for row in await starting.all_rows() if row["last_error"] is not None}
        assert errors == {"broken", "daily"}
    await starting.advance(seconds=10)
    assert f"daily/{iso(after(minutes=1))}" in await starting.workflows()


async def test_tries_that_meet_a_lock_use_no_room(
    locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A slot is not skipped as `over_quota` because of workflows that a failed transaction wanted to start."""
    limits = TenantLimits(default=Limits(open_workflows=6))
    starting = StartingSchedules(locks.database, memory_broker, clock, limits=limits)
    await put_neighbours(starting, 5)
    await starting.put_start(start=KEY)
    clock.advance(minutes=1)
    async with locks.locked(insert("mine", key="only-one")):
        await starting.fire()
        assert len(await starting.workflows()) == 5
        assert [await starting.skipped(f"n-{number:03}") for number in range(5)] == [[]] * 5


async def test_a_broken_row_without_start_beside_a_locked_one(
    starting: StartingSchedules, locks: LockedPostgres
) -> None:
    """A broken schedule without `start` gets an error, and the others fire, as without the lock."""
    await put_neighbours(starting, 2)
    await starting.put_start(start=KEY)
    await starting.put("broken")
    await refuse(starting, "UPDATE ON schedules", "NEW.schedule_id = 'broken' AND NEW.fired_count = 1")
    starting.clock.advance(minutes=1)
    async with locks.locked(insert("mine", key="only-one")):
        for _ in range(2):
            await starting.worker.tick(starting.clock.now())
        rows = {row["schedule_id"]: row for row in await starting.all_rows()}
        assert {name for name, row in rows.items() if row["last_error"] is not None} == {"broken", "daily"}
        assert {name for name, row in rows.items() if row["fired_count"]} == {"n-000", "n-001", "plain"}


# Between the look and the insert


@pytest.mark.parametrize(
    ("workflow", "reason"), [("mine", "busy"), (f"daily/{iso(after(minutes=1))}", "exists")], ids=["key", "id"]
)
async def test_taken_between_the_look_and_the_insert(
    starting: StartingSchedules, monkeypatch: pytest.MonkeyPatch, workflow: str, reason: str
) -> None:
    """Another instance takes the key or the id in between: this slot is skipped, and the pass goes on."""
    await put_neighbours(starting, 3)
    await starting.put_start(start=KEY)
    await then_insert(monkeypatch, lambda: starting.sql(insert(workflow, key="only-one")))
    await starting.advance(minutes=1)
    assert await starting.skipped() == [(iso(after(minutes=1)), reason)]
    found = await starting.workflows()
    assert (found[workflow], sum(name.startswith("n-") for name in found)) == ("waiting", 3)
    (row,) = [each for each in await starting.rows("workflows") if each["workflow_id"] == workflow]
    assert row["digest"] == "d"


async def then_insert(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[Any]]) -> None:
    """Let `act` run once after the next look at the holders of concurrency keys."""
    inner, acts = store.find_holders, [act]

    async def find_holders(*arguments: Any) -> Any:
        found = await inner(*arguments)
        while acts:
            await acts.pop()()
        return found

    monkeypatch.setattr(store, "find_holders", find_holders)


async def test_a_tombstone_is_locked_while_it_is_started(
    starting: StartingSchedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message for a slot's workflow, which another instance handles in between, is not lost: it has to wait."""
    await starting.put_start()
    await starting.request("SendToWorkflow", workflowId=f"daily/{iso(after(minutes=1))}", name="approval")

    async def send() -> None:
        with pytest.raises(DatabaseBlockedError):
            await starting.sql("UPDATE workflows SET messages = 2")

    await then_insert(monkeypatch, send)
    await starting.advance(minutes=1)
    assert [row["messages"] for row in await starting.workflow_rows()] == [1]


async def test_a_start_waits_briefly(starting: StartingSchedules) -> None:
    """In a pass that starts workflows, a statement waits 10 ms for a lock."""
    waits: list[str] = []

    async def asking(
        tx: Transaction, starts: Sequence[WorkflowStart], now: int, /, *, quotas: Quotas
    ) -> Sequence[Started]:
        waits.append((await tx.fetch("SHOW lock_timeout"))[0]["lock_timeout"])
        return await start_workflows(tx, starts, now, quotas=quotas)

    starting.worker = FiringWorker(starting.parts, asking)
    await starting.put_start()
    await starting.advance(minutes=1)
    assert waits == ["10ms"]


async def test_two_instances(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Two instances fire beside commands with the same ids and keys. A slot starts one workflow, or is skipped."""
    both = [StartingSchedules(postgres, memory_broker, clock) for _ in range(2)]
    reading = StartingSchedules(postgres, memory_broker, clock, batch_size=5)
    for number in range(200):
        start = {"type": "order", "input": number, "concurrencyKey": f"key-{number % 150}"}
        both[0].send("PutSchedule", scheduleId=f"s-{number:03}", every="PT1M", start=start)
    await both[0].consume()
    clock.advance(minutes=1)
    at = iso(clock.now())
    for number in range(0, 200, 3):
        both[0].send("StartWorkflow", workflowId=f"s-{number:03}/{at}", type="mine")
        both[0].send("StartWorkflow", workflowId=f"mine-{number}", type="mine", concurrencyKey=f"key-{number}")
    for each in both:
        each.worker = FiringWorker(each.parts, start_workflows)
    await asyncio.gather(*(exhaust_again(each, clock) for each in both), reading.consume())
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


async def exhaust_again(starting: StartingSchedules, clock: ManualClock) -> None:
    """Fire what is due, again and again, while commands are handled."""
    for _ in range(20):
        await exhaust(starting.worker, clock.now())
        await asyncio.sleep(0)
