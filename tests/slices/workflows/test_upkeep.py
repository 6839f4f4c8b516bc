"""Queries, gauges, retention, and the rows that the schema refuses."""

import json
from typing import Any

import pytest

from tests.harness.clock import NOW, after, iso
from tests.harness.workflows import PARK, Workflows, complete, done, fail, release, seen, sleep, wait_for
from timer_service.core.due.row_counts import RowCounts
from timer_service.core.values.paging import write_cursor
from timer_service.workflows.store import COUNTED
from timer_service.workflows.tasks.lanes import OVERDUE
from timer_service.workflows.upkeep import delete_settled


async def fill(workflows: Workflows) -> None:
    """Store a workflow in each status, one after the other, and a cancel of one that does not exist."""
    for number, name in enumerate(("waiting", "parked", "completed", "failed", "running")):
        workflows.clock.set(NOW + number)
        assert await workflows.start(name, type="other" if name == "parked" else "order") == "started"
        then = {"parked": PARK, "completed": complete(), "failed": fail(), "waiting": release()}.get(name)
        task = await workflows.take(workflow_type="other" if name == "parked" else "order")
        if then is not None:
            await workflows.report(task, then, waits=[wait_for("approval")] if then is PARK else [])
        if name == "waiting":
            await workflows.sql("UPDATE workflows SET available_at = available_at + 3600000")
    workflows.clock.set(NOW + 5)
    assert await workflows.start("cancelled") == "started"
    assert await workflows.about("Cancel", "cancelled") == "cancelled"
    assert await workflows.about("Cancel", "unknown") == "not_found"


async def test_lists_and_counts(workflows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open workflows are listed first, each newest first, by status and type, in pages, and counted up to a limit."""
    await fill(workflows)
    everything = ["running", "parked", "waiting", "cancelled", "failed", "completed"]
    page = await workflows.ask("list-workflows", limit=4)
    rest = await workflows.ask("list-workflows", limit=4, cursor=page["cursor"])
    assert [each["workflowId"] for each in (*page["workflows"], *rest["workflows"])] == everything
    assert "cursor" not in rest
    for status in everything:
        found = (await workflows.ask("list-workflows", status=status))["workflows"]
        assert [each["workflowId"] for each in found] == [status]
    others = (await workflows.ask("list-workflows", type="other"))["workflows"]
    assert [each["workflowId"] for each in others] == ["parked"]
    counts = {**dict.fromkeys(everything, 1), "queued": 0}
    assert await workflows.ask("count-workflows") == {"counts": counts, "exact": True}
    for limit in (1, 3, 4):
        monkeypatch.setattr("timer_service.workflows.queries.MOST_COUNTED", limit)
        assert (await workflows.ask("count-workflows"))["exact"] is (limit == 4)
    assert (await workflows.ask("list-workflows", tenant="globex"))["workflows"] == []
    running = (await workflows.view("running"))["workflow"]
    assert (running["dueAt"], running["claimedAt"], running["workerId"]) == (iso(NOW + 4), iso(NOW + 4), "worker-1")
    token = (await workflows.row("running"))["lease_token"]
    assert token not in str(await workflows.view("running"))


async def test_a_list_says_what_a_workflow_waits_for(workflows: Workflows) -> None:
    """A list shows the messages for which a workflow waits, its error, and whether a worker asks for its type."""
    await fill(workflows)
    await workflows.start("typo", type="odrer")
    await workflows.sql(
        "INSERT INTO workflow_workers (tenant_id, worker_id, queue, types, slots, first_seen_at, seen_at) "
        f"VALUES ('acme', 'worker-1', 'default', '[\"order\"]', 1, {NOW}, {NOW})"
    )
    error = json.dumps({"type": "E", "message": "x" * 300})
    await workflows.sql(f"UPDATE workflow_data SET error = '{error}' WHERE workflow_id = 'failed'")
    shown = {each["workflowId"]: each for each in (await workflows.ask("list-workflows"))["workflows"]}
    found = {name: (each.get("hasWorkers"), each.get("waitsFor")) for name, each in shown.items()}
    nothing = dict.fromkeys(("running", "completed", "failed", "cancelled"), (None, None))
    assert found == nothing | {"waiting": (True, None), "typo": (False, None), "parked": (None, ["approval"])}
    assert shown["failed"]["failure"] == {"type": "E", "message": "x" * 200}


async def test_row_counts(workflows: Workflows) -> None:
    """The gauges show the active, failed and blocked workflows, how many are available, and since when."""
    await fill(workflows)
    await workflows.start("late")
    workflows.clock.advance(seconds=2)
    await workflows.start("now")
    await RowCounts(workflows.database, workflows.metrics, counted=COUNTED, overdue=OVERDUE).tick(NOW + 2005)
    assert [workflows.metrics.counts["workflows", state] for state in ("active", "failed", "blocked")] == [4, 1, 0]
    assert workflows.metrics.overdues["workflows"] == [(2, 2.0)]


@pytest.mark.parametrize("filters", [{"status": "running"}, {"type": "other"}, {"status": "running", "type": "other"}])
async def test_lists_look_at_some_workflows(
    workflows: Workflows, filters: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page with a filter that has no index looks at some workflows only. Its cursor leads on, even from no match."""
    monkeypatch.setattr("timer_service.workflows.queries.LOOKED_AT", 3)
    for number in range(7):
        workflows.clock.set(NOW + number)
        await workflows.start(f"w-{number}", type="other" if number in {0, 2} else "order")
    await workflows.poll(workflow_type="other", slots=2)
    pages: list[list[str]] = []
    cursor: dict[str, str] = {}
    while not pages or cursor:
        page = await workflows.ask("list-workflows", **filters, **cursor)
        pages.append([each["workflowId"] for each in page["workflows"]])
        cursor = {"cursor": page["cursor"]} if "cursor" in page else {}
    assert pages == [[], ["w-2"], ["w-0"]]


async def test_a_filtered_list_goes_on_with_ended_workflows(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that look at some workflows only go on with those that have ended, behind the open ones."""
    monkeypatch.setattr("timer_service.workflows.queries.LOOKED_AT", 3)
    for number in range(8):
        workflows.clock.set(NOW + number)
        await workflows.start(f"w-{number}", type="other" if number % 2 else "order")
    for number in range(4):
        await workflows.about("Cancel", f"w-{number}")
    found: list[str] = []
    question: dict[str, Any] = {"type": "other"}
    while question:
        page = await workflows.ask("list-workflows", **question)
        found += [each["workflowId"] for each in page["workflows"]]
        question = {**question, "cursor": page["cursor"]} if "cursor" in page else {}
    assert found == ["w-7", "w-5", "w-3", "w-1"]


async def test_pages_of_effects(workflows: Workflows) -> None:
    """get-workflow shows the effects in pages: in the order in which the function got them, then the others."""
    task = await workflows.begin()
    steps = [done("b", 1), done("a", 2), done("c", 3)]
    await workflows.report(task, steps=steps, seen=seen("b", "a"), waits=[sleep("nap", 1000), wait_for("go")])
    pages = [await workflows.view(limit=2)]
    while "cursor" in pages[-1]:
        pages.append(await workflows.view(limit=2, cursor=pages[-1]["cursor"]))
    shown = [[(each["key"], each.get("seq")) for each in page["effects"]] for page in pages]
    assert shown == [[("b", 1), ("a", 2)], [("c", None), ("go", None)], [("nap", None)]]
    assert pages[-1]["effects"][0]["dueAt"] == iso(after(seconds=1))
    hostile: list[list[str | int]] = [[2**40, "a", 0], [0, "a", 2**40], ["a"]]
    for parts in hostile:
        assert (await workflows.view(cursor=write_cursor(parts)))["error"]["code"] == "INVALID_PAYLOAD"


async def test_workers(workflows: Workflows) -> None:
    """list-workers shows the workers, offline after a minute. get-workflow says if one asks for its lane."""
    await workflows.start()
    insert = "INSERT INTO workflow_workers (tenant_id, worker_id, queue, types, slots, first_seen_at, seen_at) VALUES "
    await workflows.sql(f"{insert} ('acme', 'w1', 'default', '[\"order\"]', 5, {NOW}, {NOW})")
    await workflows.sql(f"{insert} ('acme', 'w2', 'eu', '[\"order\"]', 5, {NOW}, {NOW})")
    await workflows.sql(f"{insert} ('globex', 'w3', 'default', '[\"order\"]', 5, {NOW}, {NOW})")
    assert (await workflows.view())["hasWorkers"] is True
    others: list[dict[str, Any]] = [{"type": "ship"}, {"queue": "us"}, {"tenant": "zeta"}]
    for number, fields in enumerate(others):
        await workflows.start(f"other-{number}", **fields)
        shown = await workflows.view(f"other-{number}", tenant=fields.get("tenant"))
        assert shown["hasWorkers"] is False, fields
    page = await workflows.ask("list-workers", limit=1)
    assert page["workers"] == [
        {
            "workerId": "w1",
            "queue": "default",
            "types": ["order"],
            "slots": 5,
            "firstSeenAt": iso(NOW),
            "seenAt": iso(NOW),
            "online": True,
        }
    ]
    workflows.clock.advance(minutes=1)
    (other,) = (await workflows.ask("list-workers", cursor=page["cursor"]))["workers"]
    assert (other["workerId"], other["online"], (await workflows.view())["hasWorkers"]) == ("w2", False, False)
    assert [await retain(workflows, NOW + later, 10) for later in (0, 1)] == [0, 3]


async def retain(workflows: Workflows, before: int, limit: int) -> int:
    async with workflows.database.transaction() as tx:
        return await delete_settled(tx, before, limit)


async def test_retention_takes_whole_workflows(workflows: Workflows) -> None:
    """A call deletes whole workflows, the oldest first. It says that more are left by returning the limit."""
    for number in range(4):
        task = await workflows.begin(f"w{number}")
        await workflows.report(task, fail(), steps=[done("a"), done("b")], seen=seen("a", "b"))
        workflows.clock.advance(seconds=1)
    assert await retain(workflows, NOW, 13) == 0
    assert await retain(workflows, after(minutes=1), 13) == 13
    assert [row["workflow_id"] for row in await workflows.all_rows()] == ["w2", "w3"]
    assert len(await workflows.all_rows("workflow_effects")) == 4
    assert await workflows.about("Retry", "w2") == "retried"
    assert len((await workflows.take())["effects"]) == 2
    assert await retain(workflows, after(minutes=1), 13) == 4
    assert [row["workflow_id"] for row in await workflows.all_rows()] == ["w2"]


async def test_no_retry_of_a_workflow_of_which_a_part_is_deleted(workflows: Workflows) -> None:
    """A large workflow is deleted in parts of bounded size. Between them no command continues or keeps it."""
    keys = ["a", *(f"a:{number}" for number in range(1, 20))]
    task = await workflows.begin(input=1)
    await workflows.report(task, fail(), steps=[done(key) for key in keys], seen=seen(*keys))
    assert await retain(workflows, NOW + 1, 8) == 9
    assert len(await workflows.all_rows("workflow_effects")) == 12
    workflows.clock.advance(days=1)
    outcomes = [await workflows.about("Retry"), await workflows.start(), await workflows.about("Cancel")]
    assert outcomes == ["not_found", "exists", "already_ended"]
    assert [await retain(workflows, NOW + 1, 8) for _ in range(3)] == [8, 5, 0]
    assert await workflows.all_rows() == []
    assert await workflows.start() == "started"


async def test_retention_of_an_early_message(workflows: Workflows) -> None:
    """What is kept for a workflow that is not started is deleted when its newest message is old."""
    assert await workflows.send_to() == "kept"
    workflows.clock.advance(days=1)
    assert await workflows.send_to() == "kept"
    assert await retain(workflows, after(hours=23), 100) == 0
    assert await retain(workflows, after(hours=25), 100) > 0
    assert await workflows.all_rows("workflow_messages") == []


# Schema


HELD = ("worker_id", "claimed_at", "lease_ms", "report_number", "lease_token")
NULLS_OF_UNHELD = ("available_at", "due_at", "counted_from", *HELD)
UNHELD = ", ".join(f"{name} = NULL" for name in NULLS_OF_UNHELD)
FORBIDDEN = [
    "status = 'done'",
    "status = 'waiting'",
    "status = 'parked'",
    "status = 'completed'",
    "lease_token = NULL",
    "worker_id = NULL",
    "lease_ms = 0",
    "available_at = due_at - 1",
    "ended_at = 1",
    "failure_code = 'CRASHED'",
    "type = NULL",
    "overdue_at = 1",
    "seen = effects + 1",
    "effect_bytes = -1",
    "is_deleting = 1",
    "status = 'cancelled', ended_at = 1",
    f"status = 'failed', ended_at = 1, {UNHELD}",
]
FORBIDDEN_EFFECTS = [
    "kind = 'timer'",
    "seq = 0",
    "status = 'open'",
    "status = 'failed'",
    "error = '{}'",
    "kind = 'sleep'",
]


async def test_schema_refuses(workflows: Workflows) -> None:
    """Both engines refuse rows that would break a promise of workflows."""
    task = await workflows.begin()
    await workflows.send_to(data=1)
    await workflows.report(task, steps=[done("pay", 1)], seen=seen("pay"))
    for table, changes in (("workflows", FORBIDDEN), ("workflow_effects", FORBIDDEN_EFFECTS)):
        for change in changes:
            with pytest.raises(Exception, match=r"(?i)check constraint"):
                await workflows.sql(f"UPDATE {table} SET {change}")
    for change in ("size = -1", "taken_at = 1"):
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            await workflows.sql(f"UPDATE workflow_messages SET {change}")
