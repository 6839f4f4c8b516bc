"""What the requests of workers read and reply has a limit, however many requests there are and how large rows are."""

import json
from typing import Any

from tests.harness.counted_reads import CountedReads
from tests.harness.workflows import (
    CONTINUE,
    PARK,
    Workflows,
    done,
    failed,
    release,
    report,
    seen,
    sleep,
)
from timer_service.core.ports.broker import Request
from timer_service.workflows.protocol import REPLY_BYTES, PollTasks, RenewTasks
from timer_service.workflows.tasks.claims import Claims, Share
from timer_service.workflows.tasks.polls import Poll


def counted(workflows: Workflows) -> CountedReads:
    """Count what the transactions of requests read from now on."""
    database: Any = CountedReads(workflows.database)
    workflows.database = database
    return workflows.database  # type: ignore[return-value]


def keys(name: str, count: int) -> list[str]:
    return [name, *(f"{name}:{number}" for number in range(1, count))]


def share(tenant: str, name: str, slots: int = 1) -> Share:
    """Return the share of a poll for tasks of a type."""
    wanted = PollTasks(worker_id="w", types=[name], slots=slots)
    return Share(Poll(Request("poll-tasks", tenant, b"", "_INBOX.a"), wanted, 0), (tenant, "default", name), slots)


async def test_pages_have_a_limit(workflows: Workflows) -> None:
    """A page of effects has as many as fit into a reply, in the order of a task."""
    task = await workflows.begin()
    steps = [done(key, "x") for key in keys("a", 8)] + [done(key, "x" * 60_000) for key in keys("b", 20)]
    await workflows.report(task, steps=steps)
    page = await workflows.effects(task)
    assert (len(page["effects"]), "cursor" in page) == (16, True)
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


async def test_requests_are_applied_in_portions(workflows: Workflows) -> None:
    """A transaction reads the effects of a few large workflows. One request that needs more is refused, down to one."""
    tasks = await _begin(workflows, 4, waits=60)
    single = [_renewal(each) for each in tasks]
    assert [len(await workflows.ask_all(*single, room=room)) for room in (300_000, 10**9)] == [2, 4]
    assert await workflows.ask_all(_renewal(*tasks), room=100_000) == [{"error": "TOO_LARGE"}]
    (reply,) = await workflows.ask_all(single[0], room=100_000)
    assert len(reply["tasks"][0]["over"]) == 60


def _renewal(*tasks: Any) -> RenewTasks:
    held = [{"workflowId": each["workflowId"], "token": each["token"]} for each in tasks]
    return RenewTasks.model_validate({"workerId": "w", "tasks": held})


async def test_claims_load_a_limited_number_of_effects(workflows: Workflows) -> None:
    """A claim sends as many tasks as there is memory for their effects. The others stay available."""
    for task in await _begin(workflows, 4, waits=100):
        await workflows.report(task, release(), number=2)
    claims = Claims(workflows.parts, claim_bytes=500_000)
    kept = [await claims.claim([share("acme", "order", 4)], workflows.clock.now(), may_time_out=True) for _ in range(3)]
    assert [each.kept for each in kept] == [[2], [2], [0]]


async def test_large_tasks_delay_no_other_tenant_and_no_other_lane(workflows: Workflows) -> None:
    """If a claim has room for one large task, each tenant and each lane has that room in one of the next claims."""
    for tenant in ("acme", "zeta"):
        for task in await _begin(workflows, 8, waits=100, tenant=tenant):
            await workflows.ask_all(report(task, release(), number=2), tenant=tenant)
    async with workflows.database.transaction() as tx:
        await tx.execute("UPDATE workflows SET type = 'other' WHERE workflow_id IN ('w4', 'w5', 'w6', 'w7')")
    claims = Claims(workflows.parts, claim_bytes=100_000)
    shares = [share("acme", "order"), share("acme", "other"), share("zeta", "order")]
    kept = [(await claims.claim(shares, workflows.clock.now(), may_time_out=True)).kept for _ in range(8)]
    assert [sum(each) for each in kept] == [1] * 8
    assert min(sum(lane) for lane in zip(*kept, strict=True)) > 0


async def _begin(workflows: Workflows, count: int, *, waits: int, tenant: str = "acme") -> list[dict[str, Any]]:
    """Begin workflows with sleeps that are over."""
    for number in range(count):
        workflows.send("StartWorkflow", tenant=tenant, workflowId=f"w{number}", type="order")
    await workflows.consume()
    tasks = await workflows.poll(tenant=tenant)
    began = [sleep(key, 0) for key in keys("a", waits)]
    await workflows.ask_all(*(report(each, CONTINUE, waits=began) for each in tasks), tenant=tenant)
    return tasks
