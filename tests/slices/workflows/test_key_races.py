"""Two sessions on PostgreSQL that decide about one concurrency key at the same moment: none misses the other."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust
from tests.harness.locks import LockedPostgres
from tests.harness.memory_broker import MemoryBroker
from tests.harness.workflows import Workflows, complete
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.workflows import store

QUEUE: dict[str, Any] = {"concurrencyKey": "kim", "whenBusy": "queue"}
WAITING = "SELECT 1 AS one FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"


def once_after(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Awaitable[Any]]) -> None:
    """Let `act` run once after the next call of a function of the store, inside its transaction."""
    inner, acts = getattr(store, name), [act]

    async def call(*arguments: Any, **options: Any) -> Any:
        found = await inner(*arguments, **options)
        while acts:
            await acts.pop()()
        return found

    monkeypatch.setattr(store, name, call)


@pytest.fixture
def workflows(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> Workflows:
    """Return the workflows slice on PostgreSQL."""
    return Workflows(postgres, memory_broker, clock)


async def statuses(workflows: Workflows) -> dict[str, str]:
    return {row["workflow_id"]: row["status"] for row in await workflows.all_rows()}


async def test_an_end_while_a_start_queues(workflows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start has seen the key busy. The holder ends, and the worker of keys looks: it leaves the key for later."""
    task = await workflows.begin("a", **QUEUE)

    async def end_and_look() -> None:
        await workflows.report(task, complete())
        assert not (await workflows.key_worker.tick(workflows.clock.now())).done

    once_after(monkeypatch, "lock_uses", end_and_look)
    assert await workflows.start("b", **QUEUE) == "queued"
    await workflows.take_turns()
    assert await statuses(workflows) == {"a": "completed", "b": "waiting"}


async def test_a_start_while_the_worker_looks(workflows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of keys has seen that nothing waits. A start waits for the lock of the key, and finds the key free."""
    task = await workflows.begin("a", **QUEUE)
    await workflows.report(task, complete())
    starting: list[asyncio.Task[str]] = []

    async def start() -> None:
        starting.append(asyncio.create_task(workflows.start("b", **QUEUE)))
        while not await workflows.database.reader.fetch(WAITING):
            assert not starting[0].done()

    once_after(monkeypatch, "find_queued", start)
    await workflows.take_turns()
    assert await starting[0] == "started"
    assert await statuses(workflows) == {"a": "completed", "b": "waiting"}


async def test_a_start_while_the_next_one_starts(workflows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of keys has chosen the next workflow. A start waits for the lock of the key, and is queued behind."""
    task = await workflows.begin("a", **QUEUE)
    await workflows.start("b", **QUEUE)
    await workflows.report(task, complete())
    starting: list[asyncio.Task[str]] = []

    async def start() -> None:
        starting.append(asyncio.create_task(workflows.start("c", **QUEUE)))
        while not await workflows.database.reader.fetch(WAITING):
            assert not starting[0].done()

    once_after(monkeypatch, "find_uses", start)
    await workflows.take_turns()
    assert await starting[0] == "queued"
    assert await statuses(workflows) == {"a": "completed", "b": "waiting", "c": "queued"}


async def test_a_locked_workflow_waits(locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While another transaction has the next workflow, none passes it, and other keys are handled."""
    workflows = Workflows(locks.database, memory_broker, clock)
    for key in ("kim", "lee"):
        for name in "abc":
            await workflows.start(f"{key}-{name}", concurrencyKey=key, whenBusy="queue")
        await workflows.about("Cancel", f"{key}-a")
    async with locks.locked("SELECT 1 FROM workflows WHERE workflow_id = 'kim-b' FOR UPDATE"):
        await workflows.take_turns()
        found = await statuses(workflows)
        assert [found[name] for name in ("kim-b", "kim-c", "lee-b")] == ["queued", "queued", "waiting"]
    await workflows.take_turns()
    assert [(await statuses(workflows))[name] for name in ("kim-b", "kim-c")] == ["waiting", "queued"]


async def test_two_instances(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Two instances start, end and look at the same keys. All workflows run, in order, and one of a key at a time."""
    both = [Workflows(postgres, memory_broker, clock, batch_size=size) for size in (7, 1)]
    for number in range(80):
        about: dict[str, Any] = {"concurrencyKey": f"k{number % 8}", "whenBusy": "queue"}
        both[0].send("StartWorkflow", workflowId=f"w{number:02}", type="order", **about)
    ended: list[str] = []
    running: set[int] = set()

    async def work(each: Workflows) -> None:
        while len(ended) < 80:
            for task in await each.poll():
                name = task["workflowId"]
                key = int(name[1:]) % 8
                assert key not in running
                running.add(key)
                await asyncio.sleep(0)
                running.remove(key)
                ended.append(name)
                await each.report(task, complete())
            await exhaust(each.key_worker, clock.now())

    async with asyncio.timeout(60):
        await asyncio.gather(both[0].consume(), *map(work, both))
    for key in range(8):
        assert [name for name in ended if int(name[1:]) % 8 == key] == [f"w{each:02}" for each in range(key, 80, 8)]
