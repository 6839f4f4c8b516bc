"""Commands on workflows: replies, concurrency keys, messages, limits and rejections."""

from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import next_at
from tests.harness.memory_broker import MemoryBroker
from tests.harness.workflows import Workflows, done, fail, wait_for
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.workflows.store import STORED, growth
from timer_service.workflows.workflow import Key, unstarted

RECHECK_MS = 250
EVERYTHING: dict[str, Any] = {
    "type": "order",
    "queue": "eu",
    "input": {"id": [1, None]},
    "startAt": iso(after(minutes=5)),
    "deadlineAt": iso(after(days=1)),
    "retry": {"maxAttempts": 3, "first": "PT2S", "factor": 1.5, "cap": "PT1M"},
    "concurrencyKey": "kim",
}


async def test_reply_shows_the_workflow(workflows: Workflows) -> None:
    """The reply and get-workflow show the definition. Only get-workflow shows the input and the effects."""
    reply = await workflows.request("StartWorkflow", **EVERYTHING)
    assert reply["outcome"] == "started"
    assert reply["workflow"] == {
        "tenantId": "acme",
        "workflowId": "order-1",
        "type": "order",
        "queue": "eu",
        "status": "waiting",
        "createdAt": iso(NOW),
        "dueAt": EVERYTHING["startAt"],
        "deadlineAt": EVERYTHING["deadlineAt"],
        "attempt": 0,
        "retries": 0,
        "effects": 0,
        "messages": 0,
        "retry": EVERYTHING["retry"],
        "concurrencyKey": "kim",
        "concurrencyLimit": 1,
        "whenBusy": "skip",
    }
    assert await workflows.view() == {
        "workflow": reply["workflow"],
        "input": {"id": [1, None]},
        "hasWorkers": False,
        "effects": [],
    }
    assert (await workflows.about("Retry", "other"), len(await workflows.all_rows())) == ("not_found", 1)
    assert (await workflows.view("other"))["error"]["code"] == "NOT_FOUND"


async def test_commands_offer_lanes_and_wake_loops(workflows: Workflows) -> None:
    """Polls hear of a workflow that may start or go on, the worker of deadlines of a deadline, the relay of an end."""
    offer = ("acme", "default", "order"), after(minutes=1)
    await workflows.start(startIn="PT1M", deadlineIn="PT1H")
    assert (workflows.offers, workflows.command_wakes) == ([offer], [after(minutes=1)])
    await workflows.send_to()
    assert (workflows.offers, len(workflows.command_wakes)) == ([offer, offer], 1)
    await workflows.about("Cancel")
    assert (len(workflows.offers), workflows.command_wakes[1:]) == (2, [NOW])


async def test_outcomes_of_a_life(workflows: Workflows) -> None:
    """Commands in one batch see the effects of the earlier ones, and each has its outcome."""
    verbs = ["Retry", "Cancel", "SendTo", "Start", "Start", "SendTo", "Retry", "Cancel", "Cancel", "SendTo", "Start"]
    args: dict[str, Any] = {"Start": {"type": "order", "input": 7}, "SendTo": {"name": "a"}, "Cancel": {"reason": "no"}}
    for verb in verbs:
        workflows.send(f"{verb}Workflow", **args.get(verb, {}))
    await workflows.consume()
    assert [workflows.reply(number)["outcome"] for number in range(len(verbs))] == [
        *("not_found", "not_found", "kept", "started", "unchanged", "sent", "unchanged"),
        *("cancelled", "unchanged", "already_ended", "unchanged"),
    ]
    (event,) = await workflows.events_of("WorkflowCancelled")
    assert event["causationId"] is not None
    view = await workflows.view()
    assert (view["workflow"]["status"], view["workflow"]["reason"], view["input"]) == ("cancelled", "no", 7)
    assert event["payload"]["reason"] == "no"


async def test_concurrency_key(workflows: Workflows) -> None:
    """Of the workflows with one key, one is open. A skipped one stays cancelled, without an event."""
    assert await workflows.start("a", concurrencyKey="kim") == "started"
    assert await workflows.start("b", concurrencyKey="kim") == "skipped_busy"
    assert await workflows.start("c", concurrencyKey="lee") == "started"
    assert await workflows.start("d", concurrencyKey="kim", tenant="globex") == "started"
    assert await workflows.about("Cancel", "a") == "cancelled"
    assert await workflows.status("b") == "cancelled"
    assert await workflows.events_of("WorkflowCancelled", "b") == []
    assert await workflows.start("e", concurrencyKey="kim") == "started"
    workflows.send("StartWorkflow", workflowId="f", type="order", concurrencyKey="kim")
    workflows.send("CancelWorkflow", workflowId="f")
    await workflows.consume()
    assert workflows.reply(workflows.sent - 1)["outcome"] == "unchanged"
    assert await workflows.events_of("WorkflowCancelled", "f") == []


async def test_concurrency_key_in_one_batch(workflows: Workflows, caplog: pytest.LogCaptureFixture) -> None:
    """A key passes from one workflow to the next within a batch, and back by a retry only if it is free."""
    caplog.set_level("INFO")
    task = await workflows.begin("a", concurrencyKey="kim")
    await workflows.report(task, {"action": "fail", "error": {"type": "E"}})
    workflows.send("StartWorkflow", workflowId="b", type="order", concurrencyKey="kim")
    workflows.send("RetryWorkflow", workflowId="a")
    workflows.send("CancelWorkflow", workflowId="b")
    workflows.send("StartWorkflow", workflowId="c", type="order", concurrencyKey="kim")
    workflows.send("CancelWorkflow", workflowId="c")
    workflows.send("RetryWorkflow", workflowId="a")
    await workflows.consume()
    assert [workflows.reply(number)["outcome"] for number in range(1, 7)] == [
        *("started", "skipped_busy", "cancelled", "started", "cancelled", "retried"),
    ]
    task = await workflows.take()
    await workflows.report(task, fail())
    await workflows.start("d", concurrencyKey="kim")
    workflows.send("CancelWorkflow", workflowId="d")
    assert await workflows.about("Retry", "a") == "retried"
    assert [line for line in caplog.messages if "operator" in line or "failed" in line] == 3 * ["operator action"]


async def test_messages_are_stored_once(workflows: Workflows, caplog: pytest.LogCaptureFixture) -> None:
    """A message with a known message id is `unchanged`, also after it was taken."""
    await workflows.start()
    for name in ("approval", "approval", "other"):
        workflows.send("SendToWorkflow", name=name, messageId="m-1", data=1)
    await workflows.consume()
    assert [workflows.reply(number)["outcome"] for number in (1, 2, 3)] == ["sent", "unchanged", "unchanged"]
    assert "transaction of commands failed" not in caplog.text
    task = await workflows.take()
    await workflows.report(task, waits=[wait_for("approval")])
    assert await workflows.send_to(messageId="m-1", data=2) == "unchanged"
    assert [row["taken_at"] for row in await workflows.all_rows("workflow_messages")] == [NOW]


async def test_early_messages_are_bounded(workflows: Workflows) -> None:
    """100 messages are kept for a workflow that does not exist. It gets them when it starts."""
    for number in range(101):
        workflows.send("SendToWorkflow", name="a", data=number)
    await workflows.consume()
    assert workflows.outcomes().count("kept") == 100
    assert workflows.reply(100)["outcome"] == "mailbox_full"
    assert (await workflows.view())["error"]["code"] == "NOT_FOUND"
    task = await workflows.begin()
    outcome = await workflows.report(task, waits=[wait_for("a"), wait_for("a:1")])
    assert [each["result"] for each in outcome["over"]] == [0, 1]


async def test_limits(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A tenant has at most so many open workflows, and so many bytes of large ones."""
    limits = TenantLimits(default=Limits(open_workflows=2, workflow_data=5000))
    workflows = Workflows(store, memory_broker, clock, limits=limits)
    assert [await workflows.start(f"w{n}", input="x" * 2000) for n in range(3)] == ["started", "started", "over_quota"]
    assert await workflows.send_to("w0", data="x" * 2000) == "over_quota"
    assert await workflows.send_to("w9", data="x" * 2000) == "over_quota"
    assert await workflows.send_to("w0", data="x" * 900) == "sent"
    assert await workflows.start("w0", input="x" * 2000) == "unchanged"
    assert await workflows.about("Cancel", "w0") == "cancelled"
    assert await workflows.start("w3") == "started"
    assert "error" in await workflows.view("w2")
    assert await workflows.about("Cancel", "w1") == "cancelled"
    assert await Workflows(store, memory_broker, clock, limits=limits).start("w4") == "started"


async def test_results_over_the_limit(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Results are not refused. A tenant whose results leave no room opens no workflow, but may end its open ones."""
    limits = TenantLimits(default=Limits(workflow_data=5000))
    workflows = Workflows(store, memory_broker, clock, limits=limits)
    ended, open_ = await workflows.begin("ended"), await workflows.begin("open")
    assert (await workflows.report(ended, fail(), steps=[done("pay", "x" * 3000)]))["outcome"] == "failed"
    assert (await workflows.report(open_, steps=[done("pay", "x" * 3000)]))["outcome"] == "recorded"

    restarted = Workflows(store, memory_broker, clock, limits=limits)
    assert await restarted.start("new") == "over_quota"
    assert await restarted.about("Retry", "ended") == "over_quota"
    assert await restarted.start("ended") == "unchanged"
    assert await restarted.send_to("open") == "sent"
    assert await restarted.about("Cancel", "open") == "cancelled"


async def test_many_effects_take_room(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Each effect of a workflow after the tenth counts as 1,000 bytes, also without a result."""
    limits = TenantLimits(default=Limits(workflow_data=5000))
    workflows = Workflows(store, memory_broker, clock, limits=limits)
    task = await workflows.begin("long")
    steps = [done(f"step-{number}") for number in range(15)]
    assert (await workflows.report(task, steps=steps[:14]))["outcome"] == "recorded"
    assert await Workflows(store, memory_broker, clock, limits=limits).start("second") == "started"
    assert (await workflows.report(task, steps=steps[14:]))["outcome"] == "recorded"
    assert await STORED.amount_of(store.reader, "acme", NOW, 10**9) == 5000
    for effects, size, counted in ((10, 1000, 1), (10, 1001, 1001), (11, 0, 1000)):
        opened = unstarted(Key("acme", "other"), NOW)._replace(ended_at=None, effects=effects, effect_bytes=size)
        assert growth(None, opened)[STORED] == counted
    assert await Workflows(store, memory_broker, clock, limits=limits).start("third") == "over_quota"


# Deadlines


async def test_deadline_waits_for_older_commands(workflows: Workflows) -> None:
    """After an outage of the broker, deadlines wait for the commands that were stored before."""
    await workflows.start(deadlineIn="PT1M")
    await workflows.end_overdue()
    workflows.broker.health = Health.down("away")
    workflows.send("CancelWorkflow")
    workflows.broker.health = HEALTHY
    workflows.clock.advance(minutes=2)
    assert await next_at(workflows.worker, workflows.clock.now()) == workflows.clock.now() + RECHECK_MS
    await workflows.consume()
    await workflows.end_overdue()
    assert await workflows.status() == "cancelled"


async def test_next_deadline(workflows: Workflows) -> None:
    """The worker sleeps until the next deadline, and wakes the relay for the events of those that passed."""
    assert await next_at(workflows.worker, NOW) is None
    await workflows.start("a", deadlineIn="PT1M")
    await workflows.start("b", deadlineIn="PT2M")
    assert await next_at(workflows.worker, NOW) == after(minutes=1)
    workflows.clock.advance(minutes=1)
    assert await next_at(workflows.worker, after(minutes=1)) == after(minutes=2)
    assert workflows.worker_wakes == [("outbox", after(minutes=1))]


async def test_deadlines_of_one_tenant_delay_no_other(workflows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants take turns: a pass ends workflows of each tenant, although one has many that are overdue for longer."""
    monkeypatch.setattr("timer_service.workflows.deadline_worker.MOST_WORKFLOWS", 2)
    for number in range(4):
        await workflows.start(f"order-{number}", deadlineIn="PT1M")
    await workflows.start("last", tenant="other", deadlineIn="PT2M")
    workflows.clock.advance(minutes=2)
    await workflows.worker.tick(workflows.clock.now())
    ended = [row["workflow_id"] for row in await workflows.rows("workflows") if row["ended_at"] is not None]
    assert len(ended) == 2
    assert "last" in ended


async def test_a_workflow_that_cannot_be_ended_stops_no_other(workflows: Workflows) -> None:
    """A workflow whose end fails waits, longer each time, and stops no deadline of its tenant or of another one.

    When its row is whole again, it ends.
    """
    for workflow, tenant in (("before", "acme"), ("broken", "acme"), ("after", "acme"), ("theirs", "zeta")):
        await workflows.start(workflow, tenant=tenant, deadlineIn="PT1M")
    created_at = (await workflows.row("broken"))["created_at"]
    await workflows.sql(f"UPDATE workflows SET created_at = {2**60} WHERE workflow_id = 'broken'")
    now = workflows.clock.advance(minutes=2)
    await workflows.worker.tick(now)
    ended = {row["workflow_id"] for row in await workflows.all_rows() if row["status"] == "failed"}
    assert ended == {"before", "after", "theirs"}
    assert (await workflows.row("broken"))["last_error"]
    assert await next_at(workflows.worker, now) == now + 1000
    assert await next_at(workflows.worker, now + 1000) == now + 3000
    await workflows.sql(f"UPDATE workflows SET created_at = {created_at} WHERE workflow_id = 'broken'")
    await workflows.worker.tick(now + 3000)
    assert await workflows.status("broken") == "failed"
