"""The dispatcher: every held poll is answered in time, and every workflow is sent to one poll."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.harness.clock import ManualClock
from tests.harness.databases import Databases
from tests.harness.dispatching import Dispatching, ids
from tests.harness.locks import open_locked_postgres
from tests.harness.memory_broker import MemoryBroker
from tests.harness.workflows import LEASE_MS, Workflows
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.workflows.protocol import REPLY_BYTES

ORDER = ("acme", "default", "order")


@pytest.fixture
async def dispatching(workflows: Workflows) -> AsyncIterator[Dispatching]:
    async with Dispatching.running(workflows) as started:
        yield started


@pytest.fixture
async def on_sqlite(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> AsyncIterator[Dispatching]:
    """A dispatcher on SQLite, for tests that do not depend on the store."""
    async with Dispatching.running(Workflows(sqlite, memory_broker, clock)) as started:
        yield started


async def test_workflow_that_is_offered(dispatching: Dispatching) -> None:
    """A held poll gets the workflow that is offered. The row names the worker, its lease and its length."""
    poll = await dispatching.poll("w-1", leaseMs=20_000)
    assert (await dispatching.tick()).done == 0
    await dispatching.start("order-1")
    dispatching.dispatcher.offer(ORDER, now := dispatching.workflows.clock.now())
    assert dispatching.wakes[-1] == now
    assert (await dispatching.tick()).done == 1
    (task,) = (await poll)["tasks"]
    row = await dispatching.workflows.row()
    assert (row["status"], row["lease_token"], row["worker_id"]) == ("running", task["token"], "w-1")
    assert (row["claimed_at"], row["lease_ms"], row["available_at"]) == (now, 20_000, now + 20_000)
    assert dispatching.workflows.metrics.tasks == 1
    assert (await dispatching.dispatcher.registry.tick(now)).done == 1


async def test_each_lane_has_its_own_tasks(dispatching: Dispatching) -> None:
    """A poll gets only workflows of its tenant, its queue and its types."""
    await dispatching.start("a")
    await dispatching.start("b", tenant="other")
    await dispatching.start("c", type="ship")
    await dispatching.start("d", queue="slow")
    polls = [
        await dispatching.poll("1"),
        await dispatching.poll("2", tenant="other"),
        await dispatching.poll("3", "ship", "pack"),
        await dispatching.poll("1", queue="slow"),  # a worker has one poll for each queue
        await dispatching.poll("5", "pack", wait_ms=0),
    ]
    await dispatching.tick()
    assert await ids(polls) == [["a"], ["b"], ["c"], ["d"], []]


async def test_a_workflow_is_sent_once(dispatching: Dispatching) -> None:
    """Several polls of a lane share its workflows. None is sent twice before its lease has run out."""
    await dispatching.start(*(f"order-{number}" for number in range(9)))
    polls = [await dispatching.poll(str(number), slots=4) for number in range(3)]
    await dispatching.tick()
    sent = await ids(polls)
    assert [len(each) for each in sent] == [3, 3, 3]
    assert len({each for one in sent for each in one}) == 9
    late = await dispatching.poll("late", wait_ms=0)
    await dispatching.tick()
    assert await ids([late]) == [[]]
    dispatching.workflows.clock.advance(milliseconds=LEASE_MS)
    again = await dispatching.poll("again")
    await dispatching.tick()
    assert [len(each) for each in await ids([again])] == [9]


async def test_large_tasks(dispatching: Dispatching) -> None:
    """A reply has at most 512 KiB of tasks. The rest is released as if it had not been claimed."""
    large = "x" * 60_000
    await dispatching.start(*(f"order-{number:02}" for number in range(20)), input=large)
    poll = await dispatching.poll("1")
    await dispatching.tick()
    reply = await poll
    assert 7 <= len(reply["tasks"]) <= 8
    assert dispatching.workflows.metrics.claims == [20]
    assert len(json.dumps(reply)) <= REPLY_BYTES + 8192
    rows = [await dispatching.workflows.row(f"order-{number:02}") for number in range(20)]
    left = [row for row in rows if row["status"] == "waiting"]
    assert len(left) == 20 - len(reply["tasks"])
    assert {(row["attempt"], row["worker_id"], row["lease_ms"]) for row in left} == {(0, None, None)}
    others = [await dispatching.poll("2"), await dispatching.poll("3")]
    await dispatching.tick()
    assert sum(len(each) for each in await ids(others)) == len(left)


async def test_a_workflow_that_cannot_be_sent_stops_no_other(dispatching: Dispatching) -> None:
    """A workflow whose task cannot be made waits, longer each time. Others of its lane and of other tenants go on."""
    clock = dispatching.workflows.clock
    for workflow in ("a", "b", "broken", "d"):
        await dispatching.start(workflow)
        clock.advance(milliseconds=1)
    await dispatching.start("theirs", tenant="other")
    created_at = (await dispatching.workflows.row("broken"))["created_at"]
    await dispatching.workflows.sql(f"UPDATE workflows SET created_at = {2**60} WHERE workflow_id = 'broken'")
    polls = [await dispatching.poll("1"), await dispatching.poll("2", tenant="other")]
    await dispatching.tick()
    sent = await ids(polls)
    again = await dispatching.poll("1")
    clock.advance(milliseconds=5)
    await dispatching.tick()
    sent += await ids([again])
    assert sorted(each for tasks in sent for each in tasks) == ["a", "b", "d", "theirs"]
    row = await dispatching.workflows.row("broken")
    assert (row["status"], row["attempt"], row["available_at"]) == ("waiting", 0, clock.now() + 1000)
    assert row["counted_from"] == clock.now()
    assert row["last_error"]
    last = await dispatching.poll("1")
    clock.advance(seconds=1)
    await dispatching.tick()
    assert (await dispatching.workflows.row("broken"))["available_at"] == clock.now() + 2000
    await dispatching.workflows.sql(f"UPDATE workflows SET created_at = {created_at} WHERE workflow_id = 'broken'")
    clock.advance(seconds=2)
    await dispatching.tick()
    assert await ids([last]) == [["broken"]]


async def test_poll_without_a_task(on_sqlite: Dispatching) -> None:
    """A poll that does not wait is looked at, then answered, and no longer held."""
    poll = await on_sqlite.poll(wait_ms=0)
    await on_sqlite.tick()
    assert (await ids([poll]), on_sqlite.workflows.metrics.held_polls[-1]) == ([[]], 0)
    await on_sqlite.start("order-1")
    on_sqlite.dispatcher.offer(ORDER, on_sqlite.workflows.clock.now())
    poll = await on_sqlite.poll(wait_ms=0)
    await on_sqlite.tick()
    assert await ids([poll]) == [["order-1"]]


async def test_the_time_of_a_poll(on_sqlite: Dispatching) -> None:
    """The loop is woken when the time of a poll is up, also if its lane has nothing for longer."""
    now = on_sqlite.workflows.clock.now()
    await on_sqlite.hold("1")
    assert (await on_sqlite.tick()).next_at == now + 5000  # a lost hint costs no more
    await on_sqlite.hold("2", wait_ms=900)
    assert on_sqlite.wakes[-1] == now + 900
    next_at = (await on_sqlite.tick()).next_at
    assert next_at is not None
    assert next_at <= now + 900


async def test_database_away(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the database is away, polls are still answered in time. When it is back, the next ones get the workflows."""
    await on_sqlite.start("order-1")
    poll = await on_sqlite.poll(wait_ms=0)
    with monkeypatch.context() as away:
        away.setattr("timer_service.workflows.tasks.claims.in_transaction", _unavailable)
        with pytest.raises(DatabaseUnavailableError):
            await on_sqlite.tick()
        assert await ids([poll]) == [[]]
    again = await on_sqlite.poll()
    await on_sqlite.tick()
    assert await ids([again]) == [["order-1"]]


async def _unavailable(*_: object) -> None:
    raise DatabaseUnavailableError("away")


async def test_newer_poll_of_the_same_worker(on_sqlite: Dispatching) -> None:
    """If a worker polls again, its older poll is answered at once, and the newer one gets the workflows."""
    old = await on_sqlite.poll("w")
    new = await on_sqlite.poll("w")
    assert await ids([old]) == [[]]
    await on_sqlite.start("order-1")
    await on_sqlite.tick()
    assert await ids([new]) == [["order-1"]]


async def test_worker_that_stops(on_sqlite: Dispatching) -> None:
    """A poll without slots ends the held poll of its worker, and no other. Both are answered at once."""
    held, other = await on_sqlite.poll("w"), await on_sqlite.poll("other")
    stop = await on_sqlite.poll("w", slots=0)
    assert await ids([held, stop]) == [[], []]
    await on_sqlite.start("order-1")
    await on_sqlite.tick()
    assert await ids([other]) == [["order-1"]]


async def test_broker_away(on_sqlite: Dispatching) -> None:
    """While the connection for requests is lost nothing is claimed. After that, the polls from before get no task."""
    await on_sqlite.hold("before")
    on_sqlite.workflows.broker.health = Health.down("away")
    await on_sqlite.start("order-1")
    on_sqlite.dispatcher.offer(ORDER, on_sqlite.workflows.clock.now())
    now = on_sqlite.workflows.clock.now()
    assert await on_sqlite.tick() == (0, now + 250)
    on_sqlite.workflows.broker.health = HEALTHY
    await on_sqlite.tick()
    assert (await on_sqlite.workflows.row())["status"] == "waiting"
    after = await on_sqlite.poll("after")
    await on_sqlite.tick()
    assert await ids([after]) == [["order-1"]]


async def test_stop_answers_every_poll(on_sqlite: Dispatching) -> None:
    """When the service stops, every held poll is answered without a task, and so is one that arrives meanwhile."""
    polls = [await on_sqlite.poll(str(number)) for number in range(10)]
    body = b'{"workerId": "late", "types": ["order"], "slots": 1}'
    polls.append(asyncio.create_task(on_sqlite.workflows.broker.request("poll-tasks", "acme", body)))
    await asyncio.sleep(0)  # so that it is received
    await on_sqlite.stop()
    late = await polls.pop()
    assert (await ids(polls), json.loads(late.body)) == ([[]] * 10, {"tasks": []})
    await on_sqlite.start("order-1")
    assert await on_sqlite.tick() == (0, None)


async def test_hints(dispatching: Dispatching) -> None:
    """Rows that no poll of this instance takes are made known to others, by one hint for many. SQLite has no others."""
    now = dispatching.workflows.clock.now()
    await dispatching.start("1", "2")
    await dispatching.hold(slots=1)
    dispatching.dispatcher.offer(ORDER, now)
    dispatching.dispatcher.offer(("acme", "default", "later"), now + 60_000)  # the polls of others find it in time
    assert dispatching.hints == []
    await dispatching.tick()  # one of the two is left
    hint = [("tasks", now)] * (not dispatching.database.exclusive)
    async with asyncio.timeout(10):
        while dispatching.hints != hint:
            await asyncio.sleep(0)
    for number in range(100):
        dispatching.dispatcher.offer(("acme", "default", f"type-{number}"), now)
    await dispatching.stop()
    assert dispatching.hints == 2 * hint


async def test_hint_of_another_instance(on_sqlite: Dispatching) -> None:
    """After a hint, the lanes of held polls are looked at."""
    poll = await on_sqlite.poll()
    await on_sqlite.tick()
    await on_sqlite.start("order-1")  # handled by another instance: nobody offers it here
    assert (await on_sqlite.tick()).done == 0
    on_sqlite.dispatcher.look_everywhere(on_sqlite.workflows.clock.now())
    await on_sqlite.tick()
    assert await ids([poll]) == [["order-1"]]


async def test_workflow_that_another_transaction_has_locked(
    databases: Databases, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim does not wait for a locked row. It takes the others, and looks again soon. So does a deadline."""
    async with open_locked_postgres(databases, monkeypatch) as locked:
        workflows = Workflows(locked.database, memory_broker, clock)
        async with Dispatching.running(workflows) as dispatching:
            await dispatching.start("1", "2", deadlineIn="PT1M")
            polls = [await dispatching.poll("a", slots=1), await dispatching.poll("b", slots=1)]
            async with locked.locked("SELECT 1 FROM workflows WHERE workflow_id = '1' FOR UPDATE"):
                assert await dispatching.tick() == (1, clock.now() + 5)
            clock.advance(milliseconds=5)
            await dispatching.tick()
            assert sorted(await ids(polls)) == [["1"], ["2"]]
            now = clock.advance(minutes=1)
            async with locked.locked("SELECT 1 FROM workflows FOR UPDATE"):
                assert await workflows.worker.tick(now) == (0, now + 50)
