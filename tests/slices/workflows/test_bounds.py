"""What the requests of workers read and reply has a limit, however many requests there are and how large rows are."""

import asyncio
import json
import random
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.harness.counted_reads import CountedReads
from tests.harness.transactions import recording_route
from tests.harness.workflows import (
    CONTINUE,
    PARK,
    Workflows,
    complete,
    done,
    fail,
    failed,
    release,
    report,
    seen,
    sleep,
    wait_for,
)
from timer_service.core.ports.broker import Request
from timer_service.core.ports.health import OutageLog
from timer_service.core.requests.requests import HandleRequests, RequestQueue, Requests
from timer_service.core.values.budget import MIB
from timer_service.core.values.message import Kind
from timer_service.core.values.paging import PAGE_BYTES
from timer_service.workflows import SLICE, effect_store
from timer_service.workflows.protocol import REPLY_BYTES, PollTasks, RenewTasks
from timer_service.workflows.tasks.claims import Claims, Share
from timer_service.workflows.tasks.polls import Poll
from timer_service.workflows.tasks.requests import REQUESTS, handle_requests
from timer_service.workflows.workflow import Key


def counted(workflows: Workflows) -> CountedReads:
    """Count what the transactions of requests read from now on."""
    database: Any = CountedReads(workflows.database)
    workflows.database = database
    return workflows.database  # type: ignore[return-value]


def keys(name: str, count: int) -> list[str]:
    return [name, *(f"{name}:{number}" for number in range(1, count))]


def share(tenant: str, name: str, slots: int = 1) -> Share:
    """Return the share of a poll for tasks of a type."""
    poll = Poll(Request("poll-tasks", tenant, b"", "_INBOX.a"), PollTasks(worker_id="w", types=[name], slots=slots))
    return Share(poll, (tenant, "default", name), slots)


async def test_page_reads_only_what_it_shows(workflows: Workflows) -> None:
    """A page of effects reads the results that it shows, also if small ones come before large ones."""
    task = await workflows.begin()
    steps = [done(key, "x") for key in keys("a", 8)] + [done(key, "x" * 60_000) for key in keys("b", 20)]
    await workflows.report(task, steps=steps)
    reads = counted(workflows)
    page = await workflows.effects(task)
    assert (len(page["effects"]), "cursor" in page) == (16, True)
    assert reads.transactions[-1].characters < PAGE_BYTES + 20_000
    rest = await workflows.effects(task, page["cursor"])
    shown = [
        each["key"]
        for each in (*page["effects"], *rest["effects"], *(await workflows.effects(task, rest["cursor"]))["effects"])
    ]
    assert shown == sorted(keys("a", 8) + keys("b", 20), key=lambda key: (key[0], int(key[2:] or 0)))


async def test_decisions_read_no_texts(workflows: Workflows) -> None:
    """Renewals and reports read neither results nor errors, and the stored ones stay as they are."""
    task = await workflows.begin()
    error = {"type": "OSError", "message": "e" * 4000}
    broken = [{**failed(key, retryable=False), "error": error} for key in keys("b", 10)]
    again = [{**failed("again"), "error": error}]
    await workflows.report(task, steps=[*broken, *again, done("a", "r" * 60_000)])
    reads = counted(workflows)
    await workflows.renew(task)
    await workflows.report(task, seen=seen("b", "a"))
    assert max(each.characters for each in reads.transactions) < 4000
    effects = {each["key"]: each for each in (await workflows.view(limit=100))["effects"]}
    assert all(effects[key]["error"] == error for key in (*keys("b", 10), "again"))
    assert (effects["b"]["seq"], effects["a"]["result"]) == (1, "r" * 60_000)
    await workflows.report(task, steps=[done("again", attempt=2)])
    assert "error" not in {each["key"]: each for each in (await workflows.view(limit=100))["effects"]}["again"]


async def test_replies_with_long_names_fit_into_a_message(workflows: Workflows) -> None:
    """A reply counts the names of waits that are over, so it is never too large for the broker."""
    task = await workflows.begin()
    waits = [sleep("\N{GRINNING FACE}" * 90 + f"{number}", 0) for number in range(2500)]
    ((reply,)) = await workflows.ask_all(report(task, PARK, waits=waits))
    (outcome,) = reply["reports"]
    assert (outcome["outcome"], len(outcome["over"]) > 500) == ("resumed", True)
    assert len(json.dumps(reply, ensure_ascii=False).encode()) <= REPLY_BYTES


async def test_renewals_are_applied_in_portions(workflows: Workflows) -> None:
    """A transaction reads the effects of a few large workflows. Renewals of other tenants are among the first ones."""
    large = await _begin(workflows, 8, waits=60)
    (small,) = await _begin(workflows, 1, waits=1, tenant="other")
    reads = counted(workflows)
    sent = [("acme", [each]) for each in large] + [("other", [small])]
    replies = await _apply(workflows, [(tenant, _renewal(tasks)) for tenant, tasks in sent], room=600_000)
    assert [len(reply["tasks"]) for reply in replies] == [1] * 9
    assert all(len(each["over"]) == 60 for reply in replies[:8] for each in reply["tasks"])
    assert max(each.rows for each in reads.transactions) <= 4 * 61 + 9
    assert workflows.metrics.requests == {("renew-tasks", "answered"): 9}


async def test_replies_of_a_transaction_have_a_limit(workflows: Workflows) -> None:
    """A transaction reads few large results. One renewal of several tasks has no more of them than one message."""
    tasks = await _begin(workflows, 4, waits=4, size=60_000)
    reads = counted(workflows)
    asked = [("acme", _renewal([each])) for each in tasks]
    replies = await _apply(workflows, asked, room=2 * MIB)
    assert [sum(len(each["over"]) for each in reply["tasks"]) for reply in replies] == [4] * 4
    assert max(each.characters for each in reads.transactions) <= 8 * 60_000 + 10_000
    reply = await workflows.renew(*tasks)
    assert sum(len(each["over"]) for each in reply["tasks"]) == 8


async def test_tasks_that_need_too_much_memory_together(workflows: Workflows) -> None:
    """A renewal of several tasks for which no transaction has room is refused. Its worker sends halves, down to one."""
    tasks = await _begin(workflows, 4, waits=60)
    sent = [("acme", _renewal(each)) for each in (tasks, tasks[:2], tasks[:1])]
    replies = await _apply(workflows, sent, room=100_000)
    assert [reply.get("error", {}).get("code") for reply in replies] == ["TOO_LARGE", "TOO_LARGE", None]
    assert len(replies[-1]["tasks"][0]["over"]) == 60
    assert workflows.metrics.requests == {("renew-tasks", "TOO_LARGE"): 2, ("renew-tasks", "answered"): 1}


@pytest.mark.parametrize(("then", "count"), [(CONTINUE, 1), (PARK, 1), (release(), 1), (complete("y"), 4), (fail(), 4)])
async def test_transactions_of_reports(workflows: Workflows, then: dict[str, Any], count: int) -> None:
    """Results that were seen need no memory. The input needs some if the workflow ends: its row is written again."""
    tasks = []
    for number in range(4):
        task = await workflows.begin(f"w{number}", input="x" * 60_000)
        await workflows.report(task, steps=[done(key, "x" * 60_000) for key in keys("a", 4)], seen=seen(*keys("a", 4)))
        tasks.append(task)
    reads = counted(workflows)
    asked = [report(task, then, number=2).model_dump(by_alias=True, mode="json", exclude_none=True) for task in tasks]
    replies = await _apply(workflows, [("acme", ("report-tasks", each)) for each in asked], room=100_000)
    assert len({reply["reports"][0]["outcome"] for reply in replies}) == 1
    assert len(reads.transactions) == count


async def test_pages_of_effects_are_read_in_portions(workflows: Workflows) -> None:
    """A transaction reads a few pages of large effects, however many are asked for."""
    task = await workflows.begin()
    await workflows.report(task, steps=[done(key, "x" * 60_000) for key in keys("a", 9)])
    reads = counted(workflows)
    body = {"workflowId": task["workflowId"], "token": task["token"]}
    replies = await _apply(workflows, [("acme", ("get-effects", body))] * 6, room=4 * MIB)
    assert [len(each["effects"]) for each in replies] == [8] * 6
    assert [round(each.characters / PAGE_BYTES) for each in reads.transactions] == [2, 2, 2]


async def test_others_run_while_many_effects_are_read() -> None:
    """Other tasks have a turn after some hundred effects."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    row = {"tenant_id": "acme", "workflow_id": "w", "name": "a", "kind": "sleep", "status": "open", "seq": None}
    rest = {"failures": 0, "due_at": 1, "counted_from": None, "size": 0, "digest": None}
    reader = AsyncMock(fetch_each=AsyncMock(return_value=[{**row, **rest, "n": number} for number in range(2000)]))
    counting = asyncio.create_task(count())
    found = await effect_store.find_unseen(reader, [Key("acme", "w")])
    counting.cancel()
    assert (len(found[Key("acme", "w")]), turns >= 5) == (2000, True)


async def test_page_looks_only_at_effects_that_may_fit() -> None:
    """The sizes of 10,000 effects are not read for a page on which a few have room."""
    reader = AsyncMock(fetch=AsyncMock(return_value=[]))
    most_bytes = 10 * effect_store.BYTES_PER_EFFECT
    await effect_store.page_within(reader, Key("acme", "w"), effect_store.Cursor(), 10_000, most_bytes)
    assert [call.args[1]["limit"] for call in reader.fetch.await_args_list] == [12, 12]


async def test_claims_load_a_limited_number_of_effects(workflows: Workflows) -> None:
    """A claim sends as many tasks as there is memory for their effects. The others stay available."""
    for task in await _begin(workflows, 4, waits=100):
        await workflows.report(task, release(), number=2)
    poll = Poll(Request("poll-tasks", "acme", b"", "_INBOX.a"), PollTasks(worker_id="w", types=["order"], slots=4))
    claims = Claims(workflows.database, max_attempts=5, claim_bytes=500_000, rng=random.Random(0))
    share = Share(poll, ("acme", "default", "order"), 4)
    kept = [await claims.claim([share], workflows.clock.now(), may_time_out=True) for _ in range(3)]
    assert [each.kept for each in kept] == [[2], [2], [0]]


async def test_large_tasks_delay_no_other_tenant_and_no_other_lane(workflows: Workflows) -> None:
    """If a claim has room for one large task, each tenant and each lane of it has that room in one of the next claims.

    Small tasks always have room.
    """
    for tenant in ("acme", "zeta"):
        for task in await _begin(workflows, 8, waits=100, tenant=tenant):
            await workflows.ask_all(report(task, release(), number=2), tenant=tenant)
    for number in range(8):
        workflows.send("StartWorkflow", tenant="zeta", workflowId=f"new{number}", type="small")
    await workflows.consume()
    async with workflows.database.transaction() as tx:
        await tx.execute("UPDATE workflows SET type = 'other' WHERE workflow_id IN ('w4', 'w5', 'w6', 'w7')")
    claims = Claims(workflows.database, max_attempts=5, claim_bytes=100_000, rng=random.Random(0))
    shares = [share("acme", "order"), share("acme", "other"), share("zeta", "order"), share("zeta", "small")]
    kept = [(await claims.claim(shares, workflows.clock.now(), may_time_out=True)).kept for _ in range(8)]
    assert [each[-1] for each in kept] == [1] * 8
    assert [sum(each[:-1]) for each in kept] == [1] * 8
    of_lanes = [sum(lane) for lane in zip(*kept, strict=True)]
    assert min(of_lanes[0], of_lanes[1], of_lanes[2]) > 0


async def test_claims_copy_messages_of_limited_size(workflows: Workflows) -> None:
    """A claim copies the messages of a few workflows, as their results: all other writes wait for it."""
    for number in range(4):
        task = await workflows.begin(f"w{number}")
        await workflows.report(task, PARK, waits=[wait_for(key) for key in keys("a", 4)])
    for number in range(16):
        workflows.send("SendToWorkflow", workflowId=f"w{number % 4}", name="a", data="x" * 60_000)
    await workflows.consume()
    poll = Poll(Request("poll-tasks", "acme", b"", "_INBOX.a"), PollTasks(worker_id="w", types=["order"], slots=4))
    claims = Claims(workflows.database, max_attempts=5, claim_bytes=500_000, rng=random.Random(0))
    share = Share(poll, ("acme", "default", "order"), 4)
    kept: list[int] = []
    for left in (8, 0, 0):
        kept += (await claims.claim([share], workflows.clock.now(), may_time_out=True)).kept
        messages = await workflows.all_rows("workflow_messages")
        assert sum(each["data"] is not None for each in messages) == left
    assert kept == [2, 2, 0]


async def test_retries_write_inputs_in_portions(workflows: Workflows) -> None:
    """A transaction continues few workflows with large inputs, because it writes these again."""
    for number in range(300):
        workflows.send("StartWorkflow", workflowId=f"w{number:03}", type="order", input="x" * 60_000)
    await workflows.consume()
    tasks = await workflows.poll(slots=300)
    await workflows.ask_all(*(report(task, fail()) for task in tasks))
    route, applied = recording_route(SLICE, workflows._woken)
    workflows.reader = workflows.parts.reader([route], workflows._wake_outbox)
    for number in range(300):
        workflows.send("RetryWorkflow", workflowId=f"w{number:03}")
    await workflows.consume()
    assert [len(commands) for commands in applied] == [34] * 8 + [28], "2 MiB in each"


async def _begin(
    workflows: Workflows, count: int, *, waits: int, size: int = 0, tenant: str = "acme", name: str = "a"
) -> list[dict[str, Any]]:
    """Begin workflows with waits that are over, each with a message of `size` if that is not 0."""
    for number in range(count):
        workflows.send("StartWorkflow", tenant=tenant, workflowId=f"w{number}", type="order")
        for _ in range(waits if size else 0):
            workflows.send("SendToWorkflow", tenant=tenant, workflowId=f"w{number}", name="a", data="x" * size)
    await workflows.consume()
    tasks = await workflows.poll(tenant=tenant)
    began = [wait_for(key) if size else sleep(key, 0) for key in keys(name, waits)]
    await workflows.ask_all(*(report(each, CONTINUE, waits=began) for each in tasks), tenant=tenant)
    return tasks


def _renewal(tasks: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    held = [{"workflowId": each["workflowId"], "token": each["token"]} for each in tasks]
    request = RenewTasks.model_validate({"workerId": "w", "tasks": held})
    return "renew-tasks", request.model_dump(by_alias=True, mode="json")


async def _apply(workflows: Workflows, sent: list[tuple[str, tuple[str, Any]]], room: int) -> list[Any]:
    """Send requests of tenants together, and apply them in portions. Return the replies."""
    queue = RequestQueue(REQUESTS, workflows.metrics, waiting_bytes=16 * MIB, batch_bytes=MIB)
    subscription = await workflows.broker.serve(Kind.REQUEST, queue.names, queue.receive)

    async def prepare(_now: int) -> HandleRequests:
        return partial(handle_requests, rng=random.Random(0), may_time_out=True, room=room)

    async def wake(*_: object) -> None:
        pass

    requests = Requests(
        database=workflows.database,
        clock=workflows.clock,
        metrics=workflows.metrics,
        prepare=prepare,
        wake=wake,
        offer=lambda *_: None,
        outages=OutageLog(),
    )
    replies = [
        asyncio.create_task(workflows.broker.request(name, tenant, json.dumps(body).encode()))
        for tenant, (name, body) in sent
    ]
    await asyncio.sleep(0)
    queue.close()
    async with asyncio.timeout(30):
        await requests.run(queue, subscription)
        return [json.loads((await each).body) for each in replies]
