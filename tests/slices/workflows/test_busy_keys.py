"""Busy concurrency keys: workflows that are queued, replace others, or share a key."""

from typing import Any

import pytest

from tests.harness.cases import case
from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.clock_repair import scan
from tests.harness.in_process import next_at
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import StartingSchedules
from tests.harness.workflows import LEASE_MS, MAX_ATTEMPTS, Workflows, complete, fail, wait_for
from timer_service.app.slices import build_clock_repair
from timer_service.core.due.row_counts import RowCounts
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.core.service.workflow_start import Concurrency, WhenBusy
from timer_service.workflows.key_worker import KeyWorker
from timer_service.workflows.keys import MOST_TURNS, KeyUse, Queued, Turn, Turns, next_turns, turn_of
from timer_service.workflows.store import COUNTED
from timer_service.workflows.upkeep import delete_settled
from timer_service.workflows.workflow import Key

SKIP: dict[str, Any] = {"concurrencyKey": "kim"}
QUEUE = {**SKIP, "whenBusy": "queue"}
REPLACE = {**SKIP, "whenBusy": "replace"}


async def statuses(workflows: Workflows) -> dict[str, str]:
    """Return the status of each workflow, after the turns."""
    await workflows.take_turns()
    return {row["workflow_id"]: row["status"] for row in await workflows.all_rows()}


async def started(workflows: Workflows) -> list[str]:
    """Return the workflows that are started and have not ended, after the turns."""
    return [name for name, status in (await statuses(workflows)).items() if status in {"waiting", "running", "parked"}]


# Rules


def test_turn() -> None:
    """A workflow starts if fewer than its limit are started, and none is queued. Else its policy decides."""
    for limit, use, is_free in (
        (1, KeyUse(), True),
        (1, KeyUse(1), False),
        (2, KeyUse(1), True),
        (2, KeyUse(2), False),
        (3, KeyUse(0, 1, 1), False),
    ):
        wanted = [Turn.START] * 3 if is_free else [Turn.SKIP, Turn.QUEUE, Turn.QUEUE]
        with case(limit, use):
            assert [turn_of(Concurrency("kim", limit, policy), use) for policy in WhenBusy] == wanted
    assert turn_of(None, KeyUse(9, 9, 9)) is Turn.START


def test_next_turns() -> None:
    """Queued workflows start in order while each finds room by its own limit. The newest replacement takes a place."""
    names = {name: Key("acme", name) for name in ("a", "b", "c", "r", "s", "x", "y")}

    def queue(*wanted: tuple[str, int]) -> list[Queued]:
        return [Queued(names[name], Concurrency("kim", limit)) for name, limit in wanted]

    def turns(starts: str, replaced: str = "") -> Turns:
        return Turns([names[each] for each in starts], [names[each] for each in replaced])

    waiting = queue(("a", 1), ("b", 3), ("c", 2))
    oldest = [names["x"], names["y"]]
    for begun, queued, replacing, wanted in (
        (0, waiting, [], turns("ab")),
        (1, waiting, [], turns("")),
        (0, waiting[1:], [], turns("bc")),
        (1, queue(("a", 1), ("r", 1)), queue(("r", 1)), turns("r", "x")),
        (2, queue(("a", 1), ("r", 1)), queue(("r", 1)), turns("r", "xy")),
        (2, queue(("a", 3), ("r", 3)), queue(("r", 3)), turns("r", "")),
        (2, queue(("r", 2), ("a", 3)), queue(("r", 2)), turns("ra", "x")),
        (1, queue(("r", 1), ("a", 1), ("s", 1)), queue(("r", 1), ("s", 1)), turns("s", "rx")),
    ):
        with case(begun, queued, replacing):
            assert next_turns(begun, oldest, queued, replacing) == wanted
    many = [Queued(Key("acme", str(number)), Concurrency("kim", 99)) for number in range(MOST_TURNS)]
    assert next_turns(0, (), many) == Turns([each.key for each in many], [], has_more=True)
    crowd = [each.key for each in many]
    newest = queue(("r", 1))
    assert next_turns(MOST_TURNS + 5, crowd, newest, newest) == Turns([], crowd, has_more=True)


# Queue


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


async def test_each_end_frees_the_key(workflows: Workflows) -> None:
    """However a workflow ends, the worker of keys is woken, and it starts the next one and offers its lane."""

    async def give_up() -> None:
        for _ in range(3 * MAX_ATTEMPTS):
            workflows.clock.advance(milliseconds=LEASE_MS + 300_000)
            await workflows.poll(workflow_type="holder")

    async def expire() -> None:
        workflows.clock.advance(days=2)
        await workflows.end_overdue()

    async def cancel() -> None:
        await workflows.about("Cancel", name)

    async def report(then: Any) -> None:
        await workflows.report(task, then)
        workflows.worker_wakes += [(loop, workflows.clock.now()) for loop in workflows.answers[0].wakes]

    ends = {
        "completed": lambda: report(complete()),
        "failed": lambda: report(fail()),
        "crashed": give_up,
        "cancelled": cancel,
        "expired": expire,
    }
    for name, end in ends.items():
        with case(name):
            key = {"concurrencyKey": name, "whenBusy": "queue"}
            await workflows.start(name, type="holder", deadlineIn="P1D", **key)
            task = await workflows.take(workflow_type="holder")
            assert await workflows.start(f"next-{name}", type=name, **key) == "queued"
            workflows.worker_wakes.clear()
            await end()
            now = workflows.clock.now()
            assert name == "cancelled" or ("workflow-keys", now) in workflows.worker_wakes
            assert (await workflows.row(name))["key_due_at"] == now
            assert await started(workflows) == [f"next-{name}"]
            assert workflows.offers[-1] == (("acme", "default", name), now)
            await workflows.about("Cancel", f"next-{name}")


async def test_a_policy_without_a_key(workflows: Workflows) -> None:
    """A limit or a policy without a key is rejected, with the name of the field."""
    for field, value in (("whenBusy", "queue"), ("concurrencyLimit", 2)):
        reply = await workflows.request("StartWorkflow", type="order", **{field: value})
        assert f"payload.{field}" in str(reply["error"])
        assert "needs concurrencyKey" in str(reply["error"])


async def test_a_limit_above_one(workflows: Workflows) -> None:
    """At most so many workflows with a key are started. The command's own limit decides about its workflow."""
    two = {**QUEUE, "concurrencyLimit": 2}
    outcomes = [await workflows.start(name, **two) for name in "abcd"]
    assert outcomes == ["started", "started", "queued", "queued"]
    assert await workflows.start("e", concurrencyKey="kim", concurrencyLimit=3) == "skipped_busy", "others wait"
    await workflows.about("Cancel", "a")
    assert await started(workflows) == ["b", "c"]
    await workflows.about("Cancel", "d")
    assert await workflows.start("f", concurrencyKey="kim", concurrencyLimit=3) == "started"
    assert await workflows.start("g", concurrencyKey="kim", concurrencyLimit=3) == "skipped_busy"
    assert await workflows.start("h", **QUEUE) == "queued"
    for name in "bc":
        await workflows.about("Cancel", name)
        assert await statuses(workflows) | {"h": "queued"} == await statuses(workflows)
    await workflows.about("Cancel", "f")
    assert await started(workflows) == ["h"]


async def test_nothing_passes_the_queue(workflows: Workflows) -> None:
    """Between an end and the next turn, a start with any policy does not pass a queued workflow."""
    await workflows.start("a", **QUEUE)
    await workflows.start("b", **QUEUE)
    await workflows.about("Cancel", "a")
    assert await workflows.start("c", **SKIP) == "skipped_busy"
    assert await workflows.start("d", **QUEUE) == "queued"
    assert await started(workflows) == ["b"]


async def test_commands_of_one_batch(workflows: Workflows) -> None:
    """Each command sees how the ones before it have used the key."""
    verbs = (("Start", "a"), ("Start", "b"), ("Start", "c"), ("Cancel", "b"), ("Cancel", "a"), ("Start", "d"))
    for verb, name in verbs:
        workflows.send(f"{verb}Workflow", workflowId=name, **({"type": "order", **QUEUE} if verb == "Start" else {}))
    await workflows.consume()
    assert [workflows.reply(number)["outcome"] for number in range(6)] == [
        *("started", "queued", "queued", "cancelled", "cancelled", "queued"),
    ]
    assert await started(workflows) == ["c"]
    await workflows.about("Cancel", "c")
    assert await started(workflows) == ["d"]


async def test_many_turns_at_once(workflows: Workflows) -> None:
    """More workflows than one transaction starts all have their turn."""
    for name in ("first", "second"):
        await workflows.start(name, **QUEUE)
    count = 2 * MOST_TURNS + 5
    for number in range(count):
        workflows.send("StartWorkflow", workflowId=f"w{number}", type="order", **QUEUE, concurrencyLimit=count)
    await workflows.consume()
    await workflows.about("Cancel", "first")
    assert (await workflows.key_worker.tick(NOW)).next_at == NOW
    assert len(await started(workflows)) == count
    assert (await workflows.ask("count-workflows"))["counts"]["queued"] == 1, "by its limit there is no room"


async def test_a_queued_workflow(workflows: Workflows) -> None:
    """It keeps its messages and its start instant, and can be cancelled. A worker gets it only after its turn."""
    await workflows.start("a", **QUEUE)
    assert await workflows.start("b", **QUEUE, startIn="PT2M") == "queued"
    assert await workflows.start("c", **QUEUE) == "queued"
    assert await workflows.send_to("b", data=1) == "sent"
    assert await workflows.about("Cancel", "c", reason="late") == "cancelled"
    (event,) = await workflows.events_of("WorkflowCancelled", "c")
    assert event["payload"]["reason"] == "late"
    await workflows.take()
    workflows.clock.advance(minutes=1)
    await workflows.about("Cancel", "a")
    assert await started(workflows) == ["b"]
    assert await workflows.poll() == []
    workflows.clock.advance(minutes=1)
    task = await workflows.take()
    assert (await workflows.report(task, waits=[wait_for("approval")]))["over"][0]["result"] == 1


async def test_the_deadline_counts_from_the_command(workflows: Workflows) -> None:
    """The time in the queue counts. A queued workflow whose deadline passes fails, and the one behind it moves up."""
    await workflows.start("a", **QUEUE)
    assert await workflows.start("b", **QUEUE, deadlineIn="PT1M") == "queued"
    assert workflows.command_wakes == [after(minutes=1)]
    assert await workflows.start("c", **QUEUE) == "queued"
    workflows.clock.advance(minutes=1)
    await workflows.end_overdue()
    (event,) = await workflows.events_of("WorkflowFailed", "b")
    assert event["payload"]["code"] == "DEADLINE"
    assert (await workflows.view("c"))["workflow"]["queuedBehind"] == "a"
    await workflows.about("Cancel", "a")
    assert await started(workflows) == ["c"]


async def test_a_retry_follows_the_stored_policy(workflows: Workflows) -> None:
    """A RetryWorkflow whose key is busy is skipped, waits, or replaces the holder, as its StartWorkflow said."""
    for policy, outcome in (("skip", "skipped_busy"), ("queue", "queued"), ("replace", "queued")):
        key = {"concurrencyKey": policy, "whenBusy": policy}
        await workflows.start(f"{policy}-a", type=policy, **key)
        await workflows.report(await workflows.take(workflow_type=policy), fail())
        await workflows.start(f"{policy}-b", **key)
        assert await workflows.about("Retry", f"{policy}-a") == outcome
    assert await statuses(workflows) == {
        "queue-a": "queued",
        "queue-b": "waiting",
        "replace-a": "waiting",
        "replace-b": "cancelled",
        "skip-a": "failed",
        "skip-b": "waiting",
    }
    await workflows.about("Cancel", "queue-b")
    assert "queue-a" in await started(workflows)


async def test_a_retry_before_the_next_turn(workflows: Workflows) -> None:
    """A workflow that fails and is continued at once waits behind those that were queued before, and these start."""
    task = await workflows.begin("a", **QUEUE)
    await workflows.start("b", **QUEUE)
    await workflows.report(task, fail())
    assert await workflows.about("Retry", "a") == "queued"
    assert await started(workflows) == ["b"]
    await workflows.about("Cancel", "b")
    assert await started(workflows) == ["a"]


async def test_a_retried_step_waits_too(workflows: Workflows) -> None:
    """A queued retry has reset the failed step, which runs again after the turn."""
    task = await workflows.begin("a", **QUEUE)
    broken = {"key": "pay", "attempt": 5, "error": {"type": "OSError", "message": "no"}, "retryable": False}
    await workflows.report(task, steps=[{**broken, "attempt": 1}])
    await workflows.report(task, fail(step="pay"), seen=[{"key": "pay", "seq": 1}])
    await workflows.start("b", **QUEUE)
    assert await workflows.about("Retry", "a") == "queued"
    await workflows.about("Cancel", "b")
    await workflows.take_turns()
    (effect,) = (await workflows.take())["effects"]
    assert (effect["key"], effect["status"]) == ("pay", "open")


# Replace


async def test_replace(workflows: Workflows) -> None:
    """The new workflow takes the place of the oldest one, which is cancelled. Those that wait keep their places."""
    task = await workflows.begin("a", **QUEUE)
    await workflows.start("b", **QUEUE)
    assert await workflows.start("r", **REPLACE) == "queued"
    assert await statuses(workflows) == {"a": "cancelled", "b": "queued", "r": "waiting"}
    assert ("outbox", NOW) in workflows.worker_wakes
    (event,) = await workflows.events_of("WorkflowCancelled", "a")
    assert event["payload"]["reason"] == "replaced"
    assert (await workflows.report(task, complete()))["outcome"] == "lost"
    await workflows.about("Cancel", "r")
    assert await started(workflows) == ["b"]


async def test_the_newest_replacement_stays(workflows: Workflows) -> None:
    """Of queued workflows that replace others, only the newest starts. The others are cancelled as replaced."""
    assert await workflows.start("r0", **REPLACE) == "started", "nothing has the key"
    assert [await workflows.start(f"r{number}", **REPLACE) for number in (1, 2, 3)] == 3 * ["queued"]
    assert await workflows.about("Cancel", "r3") == "cancelled"
    assert await statuses(workflows) == {"r0": "cancelled", "r1": "cancelled", "r2": "waiting", "r3": "cancelled"}
    reasons = [(await workflows.row(name))["reason"] for name in ("r0", "r1", "r3")]
    assert reasons == ["replaced", "replaced", None]


async def test_replace_with_a_limit(workflows: Workflows) -> None:
    """As many of the oldest are cancelled as the limit of the new one asks for."""
    for number in range(4):
        workflows.clock.advance(seconds=1)
        await workflows.start(f"w{number}", **QUEUE, concurrencyLimit=4)
    assert await workflows.start("r", **REPLACE, concurrencyLimit=3) == "queued"
    assert await started(workflows) == ["r", "w2", "w3"]
    assert await workflows.start("s", **REPLACE, concurrencyLimit=4) == "started"


async def test_replace_many(workflows: Workflows) -> None:
    """If more are to be cancelled than one transaction cancels, the new one starts when all of them have ended."""
    count = 2 * MOST_TURNS + 3
    for number in range(count):
        workflows.send("StartWorkflow", workflowId=f"w{number}", type="order", **SKIP, concurrencyLimit=count)
    await workflows.consume()
    await workflows.start("r", **REPLACE)
    await workflows.key_worker.tick(NOW)
    assert (await workflows.row("r"))["status"] == "queued"
    assert await started(workflows) == ["r"]


# Schedules


async def test_slots_follow_the_policy(starting: StartingSchedules) -> None:
    """A slot whose key is busy waits for its turn, and counts as fired. Slots that replace cancel the one before."""
    worker = KeyWorker(starting.parts)
    await starting.put_start(start={**QUEUE, "deadlineIn": "PT10M"})
    for _ in range(3):
        await starting.advance(minutes=1)
    assert list((await starting.workflows()).values()) == ["waiting", "queued", "queued"]
    assert starting.worker_wakes.count(("workflow-deadlines", after(minutes=3))) == 1
    assert (await starting.view())["firedCount"] == 3
    assert [row["deadline_at"] for row in await starting.workflow_rows()] == [
        after(minutes=each) for each in (11, 12, 13)
    ]
    assert (await starting.request("TriggerSchedule", scheduleId="daily"))["outcome"] == "queued"
    await starting.about_workflow("Cancel", f"daily/{iso(after(minutes=1))}")
    await worker.tick(starting.clock.now())
    assert (await starting.workflows())[f"daily/{iso(after(minutes=2))}"] == "waiting"

    await starting.put_start("other", start={"concurrencyKey": "lee", "whenBusy": "replace"})
    for _ in range(2):
        await starting.advance(minutes=1)
        await worker.tick(starting.clock.now())
    found = await starting.workflows()
    assert [found[f"other/{iso(after(minutes=each))}"] for each in (4, 5)] == ["cancelled", "waiting"]
    assert ("workflow-keys", after(minutes=5)) in starting.worker_wakes


# Limits, views, upkeep


async def test_queued_workflows_count(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A queued workflow is open, so the limit of open workflows bounds the queue."""
    limits = TenantLimits(default=Limits(open_workflows=2))
    workflows = Workflows(store, memory_broker, clock, limits=limits)
    assert [await workflows.start(name, **QUEUE) for name in "abc"] == ["started", "queued", "over_quota"]


async def test_views_show_the_queue(workflows: Workflows) -> None:
    """Replies to queries show which workflow is directly before a queued one. The gauge counts the queued ones."""
    for name in "abc":
        reply = (await workflows.request("StartWorkflow", workflowId=name, type="order", **QUEUE))["workflow"]
        assert (reply["status"], reply["whenBusy"]) == ("waiting" if name == "a" else "queued", "queue")
    for name, behind in (("a", None), ("b", "a"), ("c", "b")):
        assert (await workflows.view(name))["workflow"].get("queuedBehind") == behind
    found = (await workflows.ask("list-workflows", status="queued"))["workflows"]
    assert [(each["workflowId"], each["queuedBehind"]) for each in found] == [("c", "b"), ("b", "a")]
    assert (await workflows.ask("count-workflows"))["counts"]["queued"] == 2
    await RowCounts(workflows.database, workflows.metrics, counted=COUNTED, overdue={}).tick(NOW)
    assert workflows.metrics.counts["workflows", "queued"] == 2
    await workflows.about("Cancel", "a")
    assert "queuedBehind" not in (await workflows.view("b"))["workflow"], "its turn is next"


async def test_retention_waits_for_the_turn(workflows: Workflows) -> None:
    """A workflow that has ended stays until its key was looked at, so that the next one starts."""
    await workflows.start("a", **QUEUE)
    await workflows.start("b", **QUEUE)
    await workflows.about("Cancel", "a")
    workflows.clock.advance(days=90)
    for wanted in (["a", "b"], ["b"]):
        async with workflows.database.transaction() as tx:
            await delete_settled(tx, workflows.clock.now(), 100)
        assert [row["workflow_id"] for row in await workflows.all_rows()] == wanted
        await workflows.take_turns()


async def test_an_end_while_the_clock_was_ahead(workflows: Workflows) -> None:
    """After the clock was set back, the clock repair lets the next one start."""
    await workflows.start("a", **QUEUE)
    await workflows.start("b", **QUEUE)
    workflows.clock.advance(hours=1)
    await workflows.about("Cancel", "a")
    workflows.clock.set(NOW)
    assert await started(workflows) == []
    await scan(build_clock_repair(workflows.parts), workflows.clock)
    assert await started(workflows) == ["b"]


async def test_a_key_that_fails_stops_no_other(workflows: Workflows) -> None:
    """A key of which a workflow cannot be written waits, longer each time. It is handled when the row is whole."""
    for key in ("broken", "whole"):
        for name in "abc":
            await workflows.start(f"{key}-{name}", concurrencyKey=key, whenBusy="queue" if name != "c" else "replace")
    await workflows.sql(f"UPDATE workflows SET created_at = {2**60} WHERE workflow_id = 'broken-a'")
    assert await next_at(workflows.key_worker, NOW) == NOW + 1000
    assert (await statuses(workflows))["whole-c"] == "waiting"
    assert await next_at(workflows.key_worker, NOW + 1000) == NOW + 3000
    await workflows.sql(f"UPDATE workflows SET created_at = {NOW} WHERE workflow_id = 'broken-a'")
    workflows.clock.advance(seconds=3)
    assert await started(workflows) == ["broken-c", "whole-c"]


FORBIDDEN = [
    "status = 'waiting'",
    "key_place = NULL",
    "due_at = NULL",
    "available_at = 1",
    "concurrency_key = NULL",
    "concurrency_limit = NULL",
    "concurrency_limit = 0",
    "when_busy = NULL",
    "when_busy = 'wait'",
    "ended_at = 1",
]


async def test_schema_refuses(workflows: Workflows) -> None:
    """Both engines refuse a queued workflow without a place or key, and two with one place."""
    for name in "abc":
        await workflows.start(name, **QUEUE)
    for change in FORBIDDEN:
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            await workflows.sql(f"UPDATE workflows SET {change} WHERE workflow_id = 'b'")
    with pytest.raises(Exception, match=r"(?i)unique"):
        await workflows.sql("UPDATE workflows SET key_place = 7 WHERE workflow_id <> 'a'")


@pytest.fixture
def starting(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> StartingSchedules:
    """Return the slices of schedules and workflows on each store in turn."""
    return StartingSchedules(store, memory_broker, clock)
