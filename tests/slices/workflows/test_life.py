"""The life of a workflow: steps, sleeps, messages, parks and its end, by commands and reports."""

from tests.harness.clock import NOW, after, iso
from tests.harness.workflows import (
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


async def test_one_step(workflows: Workflows) -> None:
    """A workflow is started, claimed, and completed with its step in one report. Its event has the result."""
    task = await workflows.begin(input={"id": 7}, envelope={"id": "start-1", "correlationId": "corr-1"})
    assert {name: task[name] for name in ("workflowId", "type", "input", "attempt", "effects", "startedAt")} == {
        "workflowId": "order-1",
        "type": "order",
        "input": {"id": 7},
        "attempt": 1,
        "effects": [],
        "startedAt": iso(NOW),
    }
    workflows.clock.advance(seconds=1)
    outcome = await workflows.report(task, complete({"ok": 1}), steps=[done("pay", 5)], seen=seen("pay"))
    assert outcome == {"workflowId": "order-1", "outcome": "completed"}
    (event,) = await workflows.events_of("WorkflowCompleted")
    assert (event["causationId"], event["correlationId"]) == ("start-1", "corr-1")
    assert event["payload"] == {
        "tenantId": "acme",
        "workflowId": "order-1",
        "type": "order",
        "startedAt": iso(NOW),
        "endedAt": iso(after(seconds=1)),
        "result": {"ok": 1},
    }
    assert (await workflows.row())["effect_bytes"] == len('5{"ok":1}')
    view = await workflows.view()
    assert (view["workflow"]["status"], view["input"], view["result"]) == ("completed", {"id": 7}, {"ok": 1})
    assert view["effects"] == [{"key": "pay", "kind": "step", "status": "done", "seq": 1, "failures": 0, "result": 5}]


async def test_sleep_and_replay(workflows: Workflows) -> None:
    """A sleep parks the workflow until its instant. The next task has the stored effects in order of their numbers."""
    task = await workflows.begin()
    await workflows.report(task, steps=[done("b", 1), done("a", 2)], seen=seen("b", "a"))
    parked = await workflows.report(task, PARK, waits=[sleep("nap", 60_000)])
    assert (parked["outcome"], await workflows.poll()) == ("parked", [])
    assert (await workflows.row())["due_at"] == after(minutes=1)
    workflows.clock.advance(milliseconds=59_999)
    assert await workflows.poll() == []
    workflows.clock.advance(milliseconds=1)
    task = await workflows.take()
    assert [(each["key"], each["status"], each.get("seq")) for each in task["effects"]] == [
        ("b", "done", 1),
        ("a", "done", 2),
        ("nap", "done", None),
    ]
    ended = await workflows.report(task, complete(), seen=seen("nap", after=2))
    assert (ended["outcome"], await workflows.status()) == ("completed", "completed")


async def test_task_says_by_relative_times_what_comes(workflows: Workflows) -> None:
    """A task names the time that is left of its open effects. The clock of the worker may be another one."""
    task = await workflows.begin()
    waits = [sleep("nap", 9_000), wait_for("approval", 7_000), wait_for("go")]
    await workflows.report(task, release(), waits=waits, steps=[failed("pay", afterMs=8_000)])
    workflows.clock.advance(seconds=2)
    task = await workflows.take()
    left = {each["key"]: (each.get("startInMs"), each.get("overInMs")) for each in task["effects"]}
    assert left == {"nap": (None, 7_000), "approval": (None, 5_000), "go": (None, None), "pay": (6_000, None)}


async def test_message_ends_a_park(workflows: Workflows) -> None:
    """A workflow that waits for a message only has no instant. The message makes it available, and is taken once."""
    task = await workflows.begin()
    assert (await workflows.report(task, PARK, waits=[wait_for("approval")]))["outcome"] == "parked"
    assert await workflows.status() == "parked"
    assert await workflows.send_to(name="other", data=1) == "sent"
    assert await workflows.poll() == []
    assert await workflows.send_to(data={"by": "kim"}) == "sent"
    task = await workflows.take()
    assert [(each["key"], each["result"]) for each in task["effects"]] == [("approval", {"by": "kim"})]
    assert ((await workflows.view())["workflow"]["messages"], (await workflows.row())["message_bytes"]) == (1, len("1"))
    await workflows.report(task, PARK, seen=seen("approval"), waits=[wait_for("approval:1")])
    assert await workflows.status() == "parked"


async def test_timeouts_wait_for_older_commands(workflows: Workflows) -> None:
    """While older commands may be unhandled, no wait times out: the workflow is available again in 250 ms."""
    task = await workflows.begin()
    await workflows.report(task, PARK, waits=[wait_for("approval", 1000)])
    workflows.clock.advance(seconds=1)
    workflows.send("SendToWorkflow", name="approval", data=1)
    workflows.clock.advance(seconds=1)
    workflows.may_time_out = False
    assert await workflows.poll() == []
    row = await workflows.row()
    assert (row["status"], row["available_at"], row["attempt"]) == ("waiting", workflows.clock.now() + 250, 0)
    await workflows.consume()
    workflows.may_time_out = True
    workflows.clock.advance(milliseconds=250)
    assert (await workflows.take())["effects"][0]["result"] == 1


async def test_message_after_the_timeout(workflows: Workflows) -> None:
    """A message that was sent after the timeout of a wait is not its result, also if no worker was there in between."""
    task = await workflows.begin()
    await workflows.report(task, PARK, waits=[wait_for("approval", 1000)])
    workflows.clock.advance(milliseconds=1001)
    assert await workflows.send_to(data=1) == "sent"
    (effect,) = (await workflows.take())["effects"]
    assert (effect["status"], (await workflows.row())["messages"]) == ("failed", 1)


async def test_messages_of_two_logs(workflows: Workflows) -> None:
    """Messages are taken in the order of their positions: those of an older log first."""
    task = await workflows.begin()
    await workflows.report(task, waits=[wait_for("approval")])
    for number in (1, 2):
        await workflows.send_to(data=number)
    change = "position_epoch = position_epoch + 1, position_sequence = 1"
    await workflows.sql(f"UPDATE workflow_messages SET {change} WHERE data = '1'")
    outcome = await workflows.report(task, waits=[wait_for("approval:1")])
    assert [each["result"] for each in outcome["over"]] == [2, 1]


async def test_failed_step_is_tried_again(workflows: Workflows) -> None:
    """The outcome says when the next attempt may start. The failure that exceeds the attempts fails the step."""
    task = await workflows.begin(retry={"maxAttempts": 2, "first": "PT10S", "factor": 1, "cap": "PT10S"})
    first = await workflows.report(task, steps=[failed("pay")])
    (following,) = first["failedSteps"]
    assert (task["retry"]["maxAttempts"], first["outcome"], following["key"]) == (2, "recorded", "pay")
    assert 0 <= following["startInMs"] <= 10_000
    assert (await workflows.row())["effect_bytes"] == len('{"type":"OSError","message":"no"}')
    second = await workflows.report(task, steps=[failed("pay", 2)])
    assert second["failedSteps"] == [{"key": "pay"}]
    (effect,) = (await workflows.view())["effects"]
    assert (effect["status"], effect["failures"], effect["error"]) == (
        "failed",
        2,
        {"type": "OSError", "message": "no"},
    )


async def test_a_step_with_its_own_policy(workflows: Workflows) -> None:
    """The policy in a report counts for this attempt, instead of that of the workflow."""
    task = await workflows.begin(retry={"maxAttempts": 1, "first": "PT0S", "factor": 1, "cap": "PT0S"})
    retry = {"maxAttempts": 2, "first": "P1D", "factor": 1, "cap": "P1D"}
    outcome = await workflows.report(task, steps=[failed("own", retry=retry), failed("other")])
    own, other = outcome["failedSteps"]
    assert (own["startInMs"] > 10_000, other) == (True, {"key": "other"})


async def test_park_goes_on_if_a_step_may_start(workflows: Workflows) -> None:
    """A park is answered with `resumed` if a failed step may start again. The outcome names the first of them."""
    task = await workflows.begin()
    steps = [failed("call", afterMs=20), failed("pay", afterMs=10)]
    outcome = await workflows.report(task, steps=steps, waits=[sleep("nap", 1000)])
    delays = [{"key": "call", "startInMs": 20}, {"key": "pay", "startInMs": 10}]
    assert (outcome["outcome"], outcome["failedSteps"]) == ("recorded", delays)
    workflows.clock.advance(milliseconds=20)
    outcome = await workflows.report(task, PARK, waits=[{"key": "without-ms", "kind": "sleep"}])
    assert (outcome["outcome"], outcome["failedSteps"]) == ("resumed", [{"key": "pay", "startInMs": 0}])
    assert [(each["key"], each["status"]) for each in outcome["over"]] == [("without-ms", "done")]


async def test_failure_and_retry(workflows: Workflows) -> None:
    """RetryWorkflow runs the failed step again that the function got last. The second failure has another event id."""
    task = await workflows.begin(deadlineIn="PT1H")
    steps = [done("pay"), failed("ship", retryable=False)]
    await workflows.report(task, fail("no ship", "ship"), steps=steps, seen=seen("pay", "ship"))
    view = await workflows.view()
    assert (view["workflow"]["code"], view["workflow"]["step"], view["failure"]["message"]) == (
        "STEP_FAILED",
        "ship",
        "no ship",
    )
    assert await workflows.about("Retry") == "retried"
    view = await workflows.view()
    assert "failure" not in view
    assert "deadlineAt" not in view["workflow"]
    task = await workflows.take()
    assert [(each["key"], each["status"], each.get("seq"), each.get("failures")) for each in task["effects"]] == [
        ("pay", "done", 1, None),
        ("ship", "open", None, None),
    ]
    await workflows.report(task, fail("again"))
    events = await workflows.events_of("WorkflowFailed")
    ends = [(each["payload"]["code"], each["payload"].get("step")) for each in events]
    assert ends == [("STEP_FAILED", "ship"), ("WORKFLOW_ERROR", None)]
    assert len({each["id"] for each in events}) == 2
    workflows.send("RetryWorkflow")
    assert await workflows.about("Cancel") == "cancelled"
    assert len(await workflows.events_of("WorkflowCancelled")) == 1


async def test_blocked(workflows: Workflows) -> None:
    """A workflow whose function does not match waits 5 s, 10 s and so on. From the third time on it is blocked."""
    task = await workflows.begin()

    async def release_it(*delays: int) -> None:
        nonlocal task
        for delay in delays:
            await workflows.report(task, release("non_deterministic", "expected pay, found ship"))
            workflows.clock.advance(milliseconds=delay * 1000 - 1)
            assert await workflows.poll() == []
            workflows.clock.advance(milliseconds=1)
            assert ("blockedBy" in (await workflows.view())["workflow"]) == (delay >= 20)
            task = await workflows.take()

    await release_it(5, 10, 20, 40, 80, 160, 300, 300)
    (event,) = await workflows.events_of("WorkflowBlocked")
    assert event["payload"]["error"] == "expected pay, found ship"
    await workflows.report(task)
    assert "blockedBy" not in (await workflows.view())["workflow"]
    await release_it(5, 10, 20)
    assert len({each["id"] for each in await workflows.events_of("WorkflowBlocked")}) == 2
    await workflows.about("Cancel")
    assert "blockedBy" not in (await workflows.view())["workflow"]


async def test_deadline(workflows: Workflows) -> None:
    """A workflow that has not ended at its deadline fails. The report of its worker is lost."""
    task = await workflows.begin(deadlineIn="PT1M")
    assert task["deadlineAt"] == iso(after(minutes=1))
    await workflows.renew(task)
    workflows.clock.advance(milliseconds=59_999)
    await workflows.end_overdue()
    assert await workflows.status() == "running"
    workflows.clock.advance(milliseconds=1)
    await workflows.end_overdue()
    (event,) = await workflows.events_of("WorkflowFailed")
    assert (event["payload"]["code"], await workflows.status()) == ("DEADLINE", "failed")
    assert (await workflows.report(task, complete()))["outcome"] == "lost"
