"""The clock is ahead for a while and is then set back: requests go on, and no workflow waits too long."""

import pytest

from tests.harness.clock import NOW, after
from tests.harness.clock_repair import scan
from tests.harness.workflows import (
    CONTINUE,
    LEASE_MS,
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
from timer_service.app.slices import build_clock_repair


async def repair(workflows: Workflows) -> int:
    """Run one scan of the clock repair. Return how many rows were repaired."""
    return await scan(build_clock_repair(workflows.parts), workflows.clock)


async def test_requests_after_the_clock_was_set_back(workflows: Workflows) -> None:
    """A worker reports and renews as usual if the clock was set back by more than its lease, and gets a new lease."""
    ends = (CONTINUE, "recorded"), (PARK, "parked"), (complete(), "completed"), (fail(), "failed")
    for then, outcome in (*ends, (release(), "released"), (release("non_deterministic", "no"), "released")):
        task = await workflows.begin(f"w-{outcome}-{then.get('reason')}")
        workflows.clock.advance(hours=-1)
        assert (await workflows.renew(task))["lost"] == []
        assert (await workflows.row(task["workflowId"]))["available_at"] == workflows.clock.now() + LEASE_MS
        ended = await workflows.report(
            task, then, steps=[done("pay")], seen=seen("pay"), waits=[sleep("nap", 300 * 86_400_000)]
        )
        assert ended["outcome"] == outcome
        workflows.clock.advance(hours=1)
        await workflows.about("Cancel", task["workflowId"])


async def test_start_while_the_clock_was_ahead(workflows: Workflows) -> None:
    """A workflow that was started, retried or got a message then is due when the broker stored the command."""
    task = await workflows.begin("failed")
    await workflows.report(task, fail())
    task = await workflows.begin("parked")
    await workflows.report(task, PARK, waits=[wait_for("approval")])
    workflows.send("StartWorkflow", workflowId="started", type="order")
    workflows.send("StartWorkflow", workflowId="delayed", type="order", startIn="PT10M")
    workflows.send("RetryWorkflow", workflowId="failed")
    workflows.send("SendToWorkflow", workflowId="parked", name="approval")
    workflows.clock.advance(hours=1)
    await workflows.consume()
    workflows.clock.set(NOW)
    assert sorted(each["workflowId"] for each in await workflows.poll()) == ["failed", "parked", "started"]
    workflows.clock.advance(minutes=10)
    assert "delayed" in [each["workflowId"] for each in await workflows.poll()]


async def test_lease_of_a_worker_that_died_while_the_clock_was_ahead(workflows: Workflows) -> None:
    """A claim or a renewal from then ends one lease length after the repair. A worker that lives keeps its task."""
    await workflows.start("claimed")
    await workflows.start("renewed")
    (renewed,) = await workflows.poll(1)
    workflows.clock.advance(hours=1)
    (claimed,) = await workflows.poll(1)
    await workflows.renew(renewed)
    workflows.clock.set(NOW)
    assert await repair(workflows) == 2
    workflows.clock.advance(milliseconds=LEASE_MS - 1)
    assert await workflows.poll() == []
    assert (await workflows.renew(claimed))["lost"] == []
    workflows.clock.advance(milliseconds=1)
    assert [each["workflowId"] for each in await workflows.poll()] == [renewed["workflowId"]]


@pytest.mark.parametrize("parks", [True, False], ids=["before the repair", "never"])
async def test_waits_that_began_while_the_clock_was_ahead(workflows: Workflows, *, parks: bool) -> None:
    """A sleep, a timeout and the delay of a step from then last as long as they were meant to, from the repair on."""
    task = await workflows.begin()
    workflows.clock.advance(hours=1)
    await workflows.report(
        task,
        PARK if parks else CONTINUE,
        steps=[failed("pay", afterMs=3_000)],
        waits=[sleep("nap", 1_000), wait_for("approval", 2_000)],
    )
    workflows.clock.set(NOW)
    assert await repair(workflows) == 4
    effects = {each["name"]: each["due_at"] - NOW for each in await workflows.all_rows("workflow_effects")}
    assert effects == {"pay": 3_000, "nap": 1_000, "approval": 2_000}
    assert (await workflows.row())["available_at"] - NOW == (1_000 if parks else LEASE_MS)


async def test_what_a_right_clock_wrote_stays(workflows: Workflows) -> None:
    """Rows from before the jump keep their instants, however far away these are. So does a `startAt`."""
    task = await workflows.begin("sleeps")
    await workflows.report(task, PARK, waits=[sleep("nap", 300 * 86_400_000)])
    task = await workflows.begin("runs")
    await workflows.start("later", startIn="P100D")
    before = await workflows.all_rows(), await workflows.all_rows("workflow_effects")
    workflows.clock.advance(hours=1)
    workflows.clock.set(NOW - 900)
    assert await repair(workflows) == 0
    assert (await workflows.all_rows(), await workflows.all_rows("workflow_effects")) == before


async def test_workers_that_were_seen_while_the_clock_was_ahead(workflows: Workflows) -> None:
    """A worker that was seen then, and not since, is offline after the repair and its time."""
    insert = "INSERT INTO workflow_workers (tenant_id, worker_id, queue, types, slots, first_seen_at, seen_at) VALUES "
    ahead = after(hours=1)
    await workflows.sql(f"{insert} ('acme', 'w1', 'default', '[\"order\"]', 5, {ahead}, {ahead})")
    assert await repair(workflows) == 1
    workflows.clock.advance(minutes=1)
    (worker,) = (await workflows.ask("list-workers"))["workers"]
    assert (worker["online"], worker["firstSeenAt"] <= worker["seenAt"]) == (False, True)
