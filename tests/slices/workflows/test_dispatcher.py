"""The dispatcher: every held poll is answered in time, and every workflow is sent to one poll."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from tests.harness.clock import ManualClock
from tests.harness.databases import Databases
from tests.harness.dispatching import Dispatching, ids
from tests.harness.locks import open_locked_postgres
from tests.harness.workflows import LEASE_MS, PARK, Workflows, wait_for
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.broker import QueryReply, Request
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.errors import Code, DatabaseUnavailableError
from timer_service.core.values.message import MAX_MESSAGE_BYTES
from timer_service.workflows.protocol import REPLY_BYTES, PollTasks

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
        await dispatching.poll("4", queue="slow"),
        await dispatching.poll("5", "pack", wait_ms=100),
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
    assert (await dispatching.tick()).next_at == dispatching.workflows.clock.now() + 5000
    assert await ids([late]) == [[]]
    dispatching.workflows.clock.advance(milliseconds=LEASE_MS)
    again = await dispatching.poll("again")
    await dispatching.tick()
    assert [len(each) for each in await ids([again])] == [9]


async def test_sleeps_until_the_next_workflow(dispatching: Dispatching) -> None:
    """The next pass is when the earliest workflow of a lane with a poll becomes available."""
    await dispatching.start("soon", startIn="PT2S")
    await dispatching.start("sooner", startIn="PT1S", type="other")
    poll = await dispatching.poll()
    now = dispatching.workflows.clock.now()
    assert (await dispatching.tick()) == (0, now + 2000)
    dispatching.workflows.clock.advance(seconds=2)
    await dispatching.tick()
    assert await ids([poll]) == [["soon"]]


async def test_no_look_without_polls(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a held poll, a pass asks the database nothing, however many workflows wait."""
    await on_sqlite.start("order-1")
    on_sqlite.dispatcher.offer(ORDER, 0)
    monkeypatch.setattr(on_sqlite.database, "reader", None)  # a read would fail
    assert await on_sqlite.tick() == (0, None)
    assert on_sqlite.wakes == []


async def test_sleeping_workflows_cost_no_query(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many workflows sleep, a pass asks the database nothing before the first of them is due."""
    await on_sqlite.start(*(f"order-{number}" for number in range(20)), startIn="PT4S")
    first = on_sqlite.workflows.clock.now() + 4000
    poll = await on_sqlite.poll()
    assert await on_sqlite.tick() == (0, first)
    with monkeypatch.context() as away:
        away.setattr(on_sqlite.database, "reader", None)  # a read would fail
        for _ in range(3):
            on_sqlite.workflows.clock.advance(seconds=1)
            await on_sqlite.hold("other")
            assert await on_sqlite.tick() == (0, first)
    on_sqlite.workflows.clock.advance(seconds=1)
    assert (await on_sqlite.tick()).done == 20
    assert len((await poll)["tasks"]) >= 1


async def test_large_tasks(dispatching: Dispatching) -> None:
    """A reply has at most 512 KiB of tasks. The rest is released as if it had not been claimed."""
    large = "x" * 60_000
    await dispatching.start(*(f"order-{number:02}" for number in range(20)), input=large)
    poll = await dispatching.poll("1")
    await dispatching.tick()
    reply = await poll
    assert 7 <= len(reply["tasks"]) <= 8
    assert len(json.dumps(reply)) <= REPLY_BYTES + 8192
    rows = [await dispatching.workflows.row(f"order-{number:02}") for number in range(20)]
    left = [row for row in rows if row["status"] == "waiting"]
    assert len(left) == 20 - len(reply["tasks"])
    assert {(row["attempt"], row["worker_id"], row["lease_ms"]) for row in left} == {(0, None, None)}
    others = [await dispatching.poll("2"), await dispatching.poll("3")]
    await dispatching.tick()
    assert sum(len(each) for each in await ids(others)) == len(left)


async def test_tasks_with_new_messages(dispatching: Dispatching) -> None:
    """What a task gets by its claim counts, too: the results of waits that are over, with long names."""
    workflows, name = dispatching.workflows, "\N{GRINNING FACE}" * 100
    for number in range(40):
        task = await workflows.begin(f"order-{number:02}")
        await workflows.report(task, PARK, waits=[wait_for(name), *(wait_for(f"{name}:{n}") for n in range(1, 40))])
    for number in range(40):
        workflows.send("SendToWorkflow", workflowId=f"order-{number:02}", name=name, data="x" * 60_000)
    await workflows.consume()
    poll = await dispatching.poll("1")
    await dispatching.tick()
    reply = await poll
    assert len(reply["tasks"]) >= 4
    assert len(json.dumps(reply, ensure_ascii=False).encode()) <= MAX_MESSAGE_BYTES


@pytest.mark.parametrize("wait_ms", [0, 50])
async def test_poll_without_a_task(on_sqlite: Dispatching, wait_ms: int) -> None:
    """A poll without a task is answered when its time is up, and no longer held."""
    poll = await on_sqlite.poll(wait_ms=wait_ms)
    await on_sqlite.tick()
    assert await ids([poll]) == [[]]
    assert on_sqlite.workflows.metrics.held_polls[-1] == 0


async def test_polls_end_together(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long polls that end within 100 ms are answered with one write, at the latest when their time is up."""
    seconds = [50.001]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: seconds[0])
    subscription, written = on_sqlite.dispatcher._subscription, []
    reply = subscription.reply

    async def count(replies: Sequence[tuple[Request, QueryReply]]) -> None:
        written.append(len(replies))
        await reply(replies)

    monkeypatch.setattr(subscription, "reply", count)
    polls = []
    for number in range(20):
        polls.append(await on_sqlite.poll(str(number)))
        await on_sqlite.tick()
        seconds[0] += 0.004
    seconds[0] = 50.1
    later = await on_sqlite.poll("later")
    seconds[0] = 60
    for _ in range(20):
        await asyncio.sleep(0)  # a timeout would never end: the time stands still
    assert ([each.done() for each in polls], later.done()) == ([True] * 20, False)
    assert [each for each in written if each] == [20]
    assert await ids(polls) == [[]] * 20


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
    assert row["last_error"]
    last = await dispatching.poll("1")
    clock.advance(seconds=1)
    await dispatching.tick()
    assert (await dispatching.workflows.row("broken"))["available_at"] == clock.now() + 2000
    await dispatching.workflows.sql(f"UPDATE workflows SET created_at = {created_at} WHERE workflow_id = 'broken'")
    clock.advance(seconds=2)
    await dispatching.tick()
    assert await ids([last]) == [["broken"]]


async def test_poll_with_wait_0_is_looked_at(on_sqlite: Dispatching) -> None:
    """A poll that does not wait gets the workflows that are there."""
    await on_sqlite.start("order-1")
    poll = await on_sqlite.poll(wait_ms=0)
    await on_sqlite.tick()
    assert await ids([poll]) == [["order-1"]]


@pytest.mark.slow
async def test_database_away(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the database is away, polls are still answered in time. When it is back, the next ones get the workflows."""
    await on_sqlite.start("order-1")
    poll = await on_sqlite.poll(wait_ms=50)
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


async def test_tasks_that_were_claimed_before_an_outage_are_sent(
    on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the database goes away while a failed claim is divided, the tasks of the parts before are sent."""
    await on_sqlite.start("a")
    await on_sqlite.start("b", tenant="other")
    polls = [await on_sqlite.poll("1"), await on_sqlite.poll("2", tenant="other")]
    errors = iter([ValueError("a bug"), None, DatabaseUnavailableError("away")])

    async def fail_or_run(database: Database, work: Callable[[Transaction], Awaitable[object]]) -> object:
        if (error := next(errors)) is not None:
            raise error
        return await in_transaction(database, work)

    with monkeypatch.context() as failing:
        failing.setattr("timer_service.workflows.tasks.claims.in_transaction", fail_or_run)
        assert (await on_sqlite.tick()).done == 1
    on_sqlite.workflows.clock.advance(milliseconds=5)
    await on_sqlite.tick()
    assert await ids(polls) == [["a"], ["b"]]


async def test_clock_that_was_set_back(on_sqlite: Dispatching) -> None:
    """The looks that were planned while the clock was ahead come at once: a hint of another instance may be lost."""
    on_sqlite.workflows.clock.advance(hours=1)
    poll = await on_sqlite.poll()
    await on_sqlite.tick()
    on_sqlite.workflows.clock.advance(hours=-1)
    await on_sqlite.start("order-1")
    assert (await on_sqlite.tick()).done == 1
    assert await ids([poll]) == [["order-1"]]


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


async def test_worker_that_stops_during_the_claim(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a claim for the held poll of a worker that stops is under way, the held poll gets the tasks."""
    await on_sqlite.start("order-1")
    held = await on_sqlite.poll("w")
    claims = on_sqlite.dispatcher._claims
    claim = claims.claim

    async def claim_late(*args: object, **options: object) -> object:
        claimed = await claim(*args, **options)  # type: ignore[arg-type]
        assert await ids([await on_sqlite.poll("w", slots=0)]) == [[]]
        return claimed

    monkeypatch.setattr(claims, "claim", claim_late)
    await on_sqlite.tick()
    assert await ids([held]) == [["order-1"]]


async def test_worker_polls_again_during_the_claim(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a worker polls again while a claim for its older poll is under way, the newer poll gets the tasks."""
    await on_sqlite.start("order-1")
    await on_sqlite.hold("w")
    newer: list[asyncio.Task[object]] = []
    claims = on_sqlite.dispatcher._claims
    claim = claims.claim

    async def claim_late(*args: object, **options: object) -> object:
        claimed = await claim(*args, **options)  # type: ignore[arg-type]
        newer.append(await on_sqlite.poll("w"))
        return claimed

    monkeypatch.setattr(claims, "claim", claim_late)
    await on_sqlite.tick()
    assert await ids(newer) == [["order-1"]]


async def test_row_that_was_offered_before_its_poll(on_sqlite: Dispatching) -> None:
    """A row becomes available soon, while no poll is held. The next poll of its lane wakes the loop at that instant."""
    await on_sqlite.start("order-1")
    poll = await on_sqlite.poll()
    await on_sqlite.tick()
    assert await ids([poll]) == [["order-1"]]
    soon = on_sqlite.workflows.clock.now() + 70
    on_sqlite.dispatcher.offer(ORDER, soon)
    await on_sqlite.hold()
    assert on_sqlite.wakes[-1] == soon


async def test_poll_that_ends_before_its_claim(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the time of a poll is up while the claim for it waits for the broker, it still gets the workflows."""
    await on_sqlite.start("order-1")
    poll = await on_sqlite.poll()

    async def is_open(_now: int) -> bool:
        for _ in range(2):
            on_sqlite.end_polls()
        return True

    monkeypatch.setattr(on_sqlite.dispatcher._gate, "is_open", is_open)
    await on_sqlite.tick()
    assert await ids([poll]) == [["order-1"]]


async def test_newer_poll_that_ends_during_the_claim(on_sqlite: Dispatching, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the newer poll of a worker ends while a claim for the older one is under way, it still gets the tasks."""
    await on_sqlite.start("order-1")
    await on_sqlite.hold("w")
    newer = []
    claims = on_sqlite.dispatcher._claims
    claim = claims.claim

    async def claim_late(*args: object, **options: object) -> object:
        claimed = await claim(*args, **options)  # type: ignore[arg-type]
        newer.append(await on_sqlite.poll("w"))
        for _ in range(2):
            on_sqlite.end_polls()
        return claimed

    monkeypatch.setattr(claims, "claim", claim_late)
    await on_sqlite.tick()
    assert await ids(newer) == [["order-1"]]


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


async def test_too_many_polls(on_sqlite: Dispatching) -> None:
    """Beyond the limit, the newest poll of the tenant with the most gets BUSY."""
    on_sqlite.dispatcher._held._most = 2
    polls = [await on_sqlite.poll(str(number)) for number in range(3)]
    assert (await polls[2])["error"]["code"] == Code.BUSY
    other = await on_sqlite.poll("b", tenant="other")
    assert (await polls[1])["error"]["code"] == Code.BUSY
    assert (polls[0].done(), other.done()) == (False, False)


async def test_hints(dispatching: Dispatching) -> None:
    """Rows that no poll of this instance takes are made known to others, by one hint for many. SQLite has no others."""
    now = dispatching.workflows.clock.now()
    for number in range(100):
        dispatching.dispatcher.offer(("acme", "default", f"type-{number}"), now)
    await dispatching.dispatcher._hints.close()
    shared = not dispatching.database.exclusive
    assert dispatching.hints == [("tasks", now)] * shared
    dispatching.dispatcher.offer(ORDER, now + 60_000)  # the polls of others find it in time
    await dispatching.start("1", "2")
    await dispatching.hold(slots=1)
    dispatching.dispatcher.offer(ORDER, now)
    assert len(dispatching.hints) == shared
    await dispatching.tick()  # one of the two is left
    await dispatching.dispatcher._hints.close()
    assert len(dispatching.hints) == 2 * shared


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
    """A claim does not wait for a locked row. It takes the others, and looks again soon."""
    async with open_locked_postgres(databases, monkeypatch) as locked:
        workflows = Workflows(locked.database, memory_broker, clock)
        async with Dispatching.running(workflows) as dispatching:
            await dispatching.start("1", "2")
            polls = [await dispatching.poll("a", slots=1), await dispatching.poll("b", slots=1)]
            async with locked.locked("SELECT 1 FROM workflows WHERE workflow_id = '1' FOR UPDATE"):
                assert await dispatching.tick() == (1, clock.now() + 5)
            clock.advance(milliseconds=5)
            await dispatching.tick()
            assert sorted(await ids(polls)) == [["1"], ["2"]]


async def test_workers_of_other_tenants_are_recorded(on_sqlite: Dispatching) -> None:
    """A tenant with ever new workers fills at most one batch. The workers of others are written in the next one."""
    registry = on_sqlite.dispatcher.registry
    poll = PollTasks(worker_id="w", types=["order"], slots=1)
    for number in range(5000):
        registry.record_poll("acme", poll.model_copy(update={"worker_id": f"w-{number}"}))
    registry.record_poll("other", poll)
    now = on_sqlite.workflows.clock.now()
    assert [(await registry.tick(now)).done for _ in range(3)] == [1000, 1, 0]
    rows = await on_sqlite.workflows.all_rows("workflow_workers")
    assert len([row for row in rows if row["tenant_id"] == "other"]) == 1


async def test_workers_are_recorded(dispatching: Dispatching) -> None:
    """A poll writes what the worker executes, a second later and at most every 10 s. Other requests write when."""
    registry = dispatching.dispatcher.registry
    clock = dispatching.workflows.clock
    monotonic = [0.0]
    registry._monotonic = lambda: monotonic[0]
    first = clock.now()
    await dispatching.hold("w-1", "order", "ship", name="host-1", slots=7)
    registry.record("acme", "unknown")
    assert (await registry.tick(first)).done == 2
    (row,) = await dispatching.workflows.all_rows("workflow_workers")
    assert (row["worker_id"], row["name"], row["types"], row["slots"]) == ("w-1", "host-1", '["order","ship"]', 7)
    for seconds, written in ((9, first), (2, clock.now() + 11_000)):
        clock.advance(seconds=seconds)
        monotonic[0] += seconds
        registry.record("acme", "w-1")
        await registry.tick(clock.now())
        (row,) = await dispatching.workflows.all_rows("workflow_workers")
        assert (row["first_seen_at"], row["seen_at"]) == (first, written)
