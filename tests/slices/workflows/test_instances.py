"""Two instances on PostgreSQL that change the same workflows at the same moment."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import StartingSchedules
from tests.harness.wiring import BATCH
from tests.harness.workflows import PARK, Workflows, complete, done, fail, seen, wait_for
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.workflows import store


@pytest.fixture
def both(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> list[Workflows]:
    """Return two instances that share a database and a broker. The second one handles commands one by one."""
    return [Workflows(postgres, memory_broker, clock, batch_size=size) for size in (BATCH, 1)]


async def test_park_and_message_at_once(both: list[Workflows]) -> None:
    """A workflow that parks while a message for it is handled gets the message: it goes on, or is available."""
    for number in range(40):
        both[0].send("StartWorkflow", workflowId=f"w{number}", type="order")
    await both[0].consume()
    tasks = await both[0].poll()
    for task in tasks:
        both[1].send("SendToWorkflow", workflowId=task["workflowId"], name="approval", data=1)

    async def park() -> list[str]:
        return [
            (await both[0].report(task, PARK, waits=[wait_for("approval")]))["outcome"]
            for task in sorted(tasks, key=lambda task: task["token"])
        ]

    outcomes, _ = await asyncio.gather(park(), both[1].consume())
    rows = await both[0].all_rows()
    assert Counter(row["status"] for row in rows) == {
        status: count
        for status, count in (("running", outcomes.count("resumed")), ("waiting", outcomes.count("parked")))
        if count
    }


async def test_cancel_and_completion_at_once(both: list[Workflows]) -> None:
    """A workflow that is cancelled while it completes ends once, with one event that says how."""
    for number in range(40):
        both[0].send("StartWorkflow", workflowId=f"w{number}", type="order", deadlineIn="PT1S")
    await both[0].consume()
    tasks = await both[0].poll()
    for task in tasks:
        both[1].send("CancelWorkflow", workflowId=task["workflowId"])
    both[0].clock.advance(seconds=1)
    now = both[0].clock.now()

    async def end() -> list[str]:
        return [
            (await both[0].report(task, complete(), steps=[done("a")], seen=seen("a")))["outcome"]
            for task in reversed(tasks)
        ]

    outcomes, _, _ = await asyncio.gather(end(), both[1].consume(), exhaust(both[1].worker, now))
    events = Counter(row["message"] for row in await both[0].rows("outbox"))
    statuses = Counter(row["status"] for row in await both[0].all_rows())
    assert sum(events.values()) == 40
    assert (outcomes.count("completed"), outcomes.count("lost")) == (
        events["workflow-completed"],
        40 - events["workflow-completed"],
    )
    assert statuses["completed"] == events["workflow-completed"]
    assert statuses["cancelled"] == events["workflow-cancelled"]
    assert statuses["failed"] == events["workflow-failed"]


@pytest.mark.parametrize("verb", ["Start", "Retry"])
async def test_a_slot_waits_while_a_command_decides_about_its_key(
    both: list[Workflows], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A slot on another instance that wants the key is tried again, and is skipped when the command has the key."""
    task = await both[0].begin("w0", concurrencyKey="kim")
    await both[0].report(task, fail())
    schedules = StartingSchedules(both[0].database, both[0].broker, both[0].clock)
    await schedules.put_start(start={"concurrencyKey": "kim"})
    await schedules.fire()  # so that the worker waits for no commands any more
    now = both[0].clock.advance(minutes=1)
    lock, fired = store.lock_uses, False

    async def lock_before_the_slot_fires(*args: Any, **options: Any) -> Any:
        nonlocal fired
        found = await lock(*args, **options)
        if not fired:
            fired = True
            await exhaust(schedules.worker, now)
        return found

    monkeypatch.setattr(store, "lock_uses", lock_before_the_slot_fires)
    about: dict[str, Any] = (
        {"workflowId": "w0"} if verb == "Retry" else {"workflowId": "w1", "type": "order", "concurrencyKey": "kim"}
    )
    both[0].send(f"{verb}Workflow", **about)
    both[0].send("StartWorkflow", workflowId="w2", type="order")
    await both[0].consume()
    outcome = "retried" if verb == "Retry" else "started"
    assert [both[0].reply(number)["outcome"] for number in (1, 2)] == [outcome, "started"]
    both[0].clock.advance(seconds=1)
    await schedules.fire()
    assert [reason for _, reason in await schedules.skipped()] == ["busy"]
