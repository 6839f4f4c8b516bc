"""Reports: repeated ones, those of a lost lease, those that contradict what is stored, and the limits of a workflow."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness.cases import case
from tests.harness.clock import NOW, after
from tests.harness.workflows import (
    CONTINUE,
    LEASE_MS,
    MAX_ATTEMPTS,
    PARK,
    Workflows,
    complete,
    done,
    fail,
    failed,
    release,
    seen,
    sleep,
    wait_for,
)

ORDER = ("acme", "default", "order")
ENDS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "complete": (complete(1), "completed", (("outbox",), ())),
    "fail": (fail(), "failed", (("outbox",), ())),
    "release": (release(), "released", ((), ((ORDER, NOW),))),
    "park": (PARK, "parked", ((), ((ORDER, after(seconds=5)),))),
}


@pytest.mark.parametrize("name", ENDS)
async def test_repeated_end(workflows: Workflows, name: str) -> None:
    """A report that ended a task wakes who has work, and is `unchanged` without further effect when it is repeated."""
    then, outcome, work = ENDS[name]
    task = await workflows.begin()
    waits = [sleep("nap", 5000)] if name == "park" else []
    first = await workflows.report(task, then, waits=waits)
    (answer,) = workflows.answers
    assert (answer.wakes, answer.lanes) == work
    row = await workflows.row()
    again = await workflows.report(task, then, number=1, waits=waits)
    assert (first["outcome"], again["outcome"], await workflows.row()) == (outcome, "unchanged", row)
    assert row["attempt"] == 0


async def test_repeated_report_stores_nothing(workflows: Workflows) -> None:
    """A report whose reply was lost is repeated with the same outcome. Its failures count once, and instants stay."""
    task = await workflows.begin()
    fields: dict[str, Any] = {
        "steps": [done("pay", {"n": 1}), failed("ship", afterMs=1000)],
        "seen": seen("pay"),
        "waits": [sleep("nap", 5000), wait_for("approval", 9000)],
    }
    first = await workflows.report(task, **fields)
    effects = await workflows.all_rows("workflow_effects")
    workflows.clock.advance(milliseconds=400)
    again = await workflows.report(task, number=1, **fields)
    assert await workflows.all_rows("workflow_effects") == effects
    assert (first["outcome"], again["outcome"]) == ("recorded", "recorded")
    assert (first["failedSteps"][0]["startInMs"], again["failedSteps"][0]["startInMs"]) == (1000, 600)
    counts = [(await workflows.row())[name] for name in ("effects", "seen")]
    assert counts == [4, 1]


@pytest.mark.parametrize("then", [CONTINUE, PARK, complete(), fail(), release()])
async def test_late_report(workflows: Workflows, then: dict[str, Any]) -> None:
    """A copy of a report that arrives after a later report of the same token stores nothing."""
    task = await workflows.begin()
    await workflows.report(task, number=1)
    await workflows.report(task, number=2, waits=[sleep("nap", 5000)])
    rows = await workflows.row(), await workflows.all_rows("workflow_effects")
    workflows.clock.advance(seconds=1)
    late = await workflows.report(task, then, number=1, steps=[done("pay")], seen=seen("pay"))
    assert late == {"workflowId": "order-1", "outcome": "unchanged"}
    assert (await workflows.row(), await workflows.all_rows("workflow_effects")) == rows


CONFLICTS: dict[str, dict[str, Any]] = {
    "another result": {"steps": [done("pay", 2)]},
    "a failure of a step that is done": {"steps": [failed("pay")]},
    "an attempt too far": {"steps": [failed("new", 2)]},
    "another kind": {"waits": [sleep("pay", 1)]},
    "a step that is a sleep": {"steps": [done("nap")]},
    "another number": {"seen": [{"key": "pay", "seq": 2}]},
    "a gap": {"steps": [done("new")], "seen": [{"key": "new", "seq": 3}]},
    "a number that is used": {"steps": [done("new")], "seen": [{"key": "new", "seq": 1}]},
    "seen before its end": {"seen": [{"key": "nap", "seq": 2}]},
    "seen without being stored": {"seen": [{"key": "other", "seq": 2}]},
    "an attempt after the last failure": {"steps": [failed("broken", 2)]},
}


async def test_conflict(workflows: Workflows) -> None:
    """A report that contradicts what is stored stores nothing."""
    task = await workflows.begin()
    broken = failed("broken", retryable=False)
    await workflows.report(task, steps=[done("pay", 1), broken], seen=seen("pay"), waits=[sleep("nap", 60_000)])
    before = await workflows.row(), await workflows.all_rows("workflow_effects")
    for name, fields in CONFLICTS.items():
        with case(name):
            outcome = await workflows.report(task, complete(), **fields)
            assert outcome["outcome"] == "conflict"
            assert (await workflows.row(), await workflows.all_rows("workflow_effects")) == before


async def test_lost(workflows: Workflows) -> None:
    """A report is lost if the workflow was claimed again, cancelled, or does not exist. It stores nothing."""
    task = await workflows.begin()
    await workflows.report(task, number=2)
    workflows.clock.advance(seconds=LEASE_MS / 1000)
    other = await workflows.take(worker_id="worker-2")
    assert (await workflows.report(other))["outcome"] == "recorded"
    assert (await workflows.report(task, steps=[done("pay")]))["outcome"] == "lost"
    assert (await workflows.renew(task))["lost"] == [{"workflowId": "order-1", "token": task["token"]}]
    assert (await workflows.effects(task)) == {"error": "NOT_FOUND"}
    await workflows.about("Cancel")
    assert (await workflows.report(other, steps=[done("pay")]))["outcome"] == "lost"
    assert (await workflows.report({**task, "workflowId": "unknown"}))["outcome"] == "lost"
    assert await workflows.all_rows("workflow_effects") == []


async def test_renewal_names_tasks(workflows: Workflows) -> None:
    """If a worker names an old and a new task of one workflow, the reply says which one is lost."""
    old = await workflows.begin()
    await workflows.report(old, waits=[sleep("nap", 0)])
    workflows.clock.advance(milliseconds=LEASE_MS)
    new = await workflows.take()
    for tasks in ((old, new), (new, old)):
        reply = await workflows.renew(*tasks)
        assert reply["lost"] == [{"workflowId": "order-1", "token": old["token"]}]
        assert [(each["workflowId"], each["token"]) for each in reply["tasks"]] == [("order-1", new["token"])]
    assert (await workflows.row())["lease_token"] == new["token"]


async def test_lost_leases_delay_and_crash(workflows: Workflows) -> None:
    """From the third lost lease in a row on, a growing delay follows. Above the most attempts the workflow fails."""
    assert await workflows.start() == "started"
    for attempt, delay in enumerate((0, 0, 10, 20, 40), 1):
        task = await workflows.take()
        assert task["attempt"] == attempt
        await workflows.renew(task)
        workflows.clock.advance(milliseconds=LEASE_MS + delay * 1000 - 1)
        assert await workflows.poll() == []
        workflows.clock.advance(milliseconds=1)
    assert (MAX_ATTEMPTS, await workflows.poll()) == (5, [])
    assert workflows.worker_wakes == [("outbox", workflows.clock.now())]
    (event,) = await workflows.events_of("WorkflowFailed")
    assert (event["payload"]["code"], await workflows.status()) == ("CRASHED", "failed")
    assert await workflows.about("Retry") == "retried"
    assert (await workflows.take())["attempt"] == 1


@pytest.mark.parametrize("renewed", [[], range(1, MAX_ATTEMPTS)], ids=["none", "the first ones"])
async def test_lost_leases_that_no_worker_renewed(workflows: Workflows, renewed: Sequence[int]) -> None:
    """If the workers die before they renew a lease, three times as many leases may run out."""
    await workflows.start()
    for attempt in range(1, 3 * MAX_ATTEMPTS + 1):
        task = await workflows.take()
        assert task["attempt"] == attempt
        if attempt in renewed:
            await workflows.renew(task)
        workflows.clock.advance(milliseconds=LEASE_MS + 300_000)
    assert (await workflows.poll(), await workflows.status()) == ([], "failed")


@pytest.mark.parametrize(("then", "attempt"), [(PARK, 1), (release(), MAX_ATTEMPTS)], ids=["park", "release"])
async def test_end_of_a_task_after_lost_leases(workflows: Workflows, then: dict[str, Any], attempt: int) -> None:
    """After a park no lost lease counts. After a release the released claim does not. Neither ends as a crash."""
    task = await workflows.begin()
    for number in range(MAX_ATTEMPTS):
        task = await workflows.take() if number else task
        await workflows.renew(task)
        workflows.clock.advance(milliseconds=LEASE_MS + 300_000)
    await workflows.report(task, then, waits=[sleep("nap", 10)])
    workflows.clock.advance(milliseconds=10)
    assert (await workflows.take())["attempt"] == attempt


async def test_park_without_a_reason(workflows: Workflows) -> None:
    """A parked workflow is available at once if nothing would continue it, or in 250 ms if a timeout is undecided."""
    task = await workflows.begin()
    assert (await workflows.report(task, PARK))["outcome"] == "parked"
    task = await workflows.take()
    parked = await workflows.report(task, PARK, steps=[done("pay")], waits=[sleep("nap", 60_000)])
    assert (parked["outcome"], (await workflows.take())["attempt"]) == ("parked", 1)
    workflows.may_time_out = False
    await workflows.report(await workflows.begin("undecided"), PARK, waits=[wait_for("approval", 0)])
    assert (await workflows.row("undecided"))["available_at"] == after(milliseconds=250)


async def test_too_large(workflows: Workflows) -> None:
    """A workflow with more than 10,000 effects, or more than 8 MiB of results, fails. The report is not stored."""
    task = await workflows.begin()
    await workflows.sql("UPDATE workflows SET effects = 9999")
    assert (await workflows.report(task, steps=[done("ship")]))["outcome"] == "recorded"
    outcome = await workflows.report(task, steps=[done("pay")])
    assert (outcome["outcome"], (await workflows.view())["workflow"]["code"]) == ("failed", "TOO_LARGE")
    assert [row["name"] for row in await workflows.all_rows("workflow_effects")] == ["ship"]
    assert await workflows.start("other") == "started"
    task = await workflows.take()
    await workflows.sql(f"UPDATE workflows SET effect_bytes = {8 * 2**20 - 3} WHERE workflow_id = 'other'")
    assert (await workflows.report(task, steps=[done("pay", 123)]))["outcome"] == "recorded"
    assert (await workflows.report(task, steps=[done("pay:1", 1)]))["outcome"] == "failed"


async def test_large_tasks_are_paged(workflows: Workflows) -> None:
    """A task has at most 64 KiB of effects. get-effects returns the others, in the same order."""
    task = await workflows.begin()
    keys = ["a", *(f"a:{number}" for number in range(1, 12))]
    steps = [done(key, "x" * 10_000) for key in keys]
    await workflows.report(task, release(), steps=steps, seen=seen(*reversed(keys[:10])))
    task = await workflows.take()
    page = await workflows.effects(task, task["cursor"])
    shown = [each["key"] for each in (*task["effects"], *page["effects"])]
    assert (len(task["effects"]), shown, page.get("cursor")) == (6, [*reversed(keys[:10]), "a:10", "a:11"], None)
    assert [each["key"] for each in (await workflows.effects(task))["effects"]] == shown
    assert await workflows.effects(task, "?") == {"error": "INVALID_PAYLOAD"}


async def test_large_messages_come_in_several_replies(workflows: Workflows) -> None:
    """A reply has at most about 512 KiB of waits that are over. The next replies have the others."""
    task = await workflows.begin()
    for number in range(12):
        assert await workflows.send_to(data=f"{number:060000}") == "sent"
    keys = ["approval", *(f"approval:{number}" for number in range(1, 12))]
    first = await workflows.report(task, PARK, waits=[wait_for(key) for key in keys])
    got = [each["key"] for each in first["over"]]
    assert (first["outcome"], len(got)) == ("resumed", 8)
    second = await workflows.report(task, PARK, seen=seen(*got))
    assert [each["key"] for each in second["over"]] == keys[8:]
