"""Busy concurrency keys: workflows that are queued, replace others, or share a key."""

from tests.harness.clock import NOW
from tests.harness.in_process import next_at
from tests.harness.workflows import Workflows, complete

QUEUE = {"concurrencyKey": "kim", "whenBusy": "queue"}
REPLACE = {"concurrencyKey": "kim", "whenBusy": "replace"}
SKIP = {"concurrencyKey": "kim"}


async def statuses(workflows: Workflows) -> dict[str, str]:
    """Return the status of each workflow, after the turns."""
    await workflows.take_turns()
    return {row["workflow_id"]: row["status"] for row in await workflows.all_rows()}


async def test_queued_workflows_start_in_order(workflows: Workflows) -> None:
    """The next queued workflow starts when the one before it has ended, in the order of the commands."""
    task = await workflows.begin("a", **QUEUE)
    assert [await workflows.start(name, **QUEUE) for name in ("d", "b", "c")] == 3 * ["queued"]
    assert await statuses(workflows) == {"a": "running", "b": "queued", "c": "queued", "d": "queued"}
    for name in ("d", "b", "c"):
        await workflows.report(task, complete())
        assert (await statuses(workflows))[name] == "waiting"
        task = await workflows.take()
        assert task["workflowId"] == name
    await workflows.report(task, complete())
    assert await statuses(workflows) == dict.fromkeys("abcd", "completed")
    assert await next_at(workflows.key_worker, NOW) is None
