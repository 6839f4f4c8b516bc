"""A worker with a service in memory, in virtual time."""

import asyncio
import json
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from tests.harness.clock import in_virtual_time
from tests.harness.workers import now, virtually, worker
from tests.harness.workflow_service import MemoryService
from timer_service.client.errors import NoAnswerError
from timer_service.worker import (
    Context,
    Interrupted,
    Retry,
    StepFailed,
    Worker,
    workflow,
)
from timer_service.worker.definition import Settings
from timer_service.worker.process import run_worker

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
calls: Counter[str] = Counter()
stopped: list[float] = []
"""When `hang` was stopped."""


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()
    stopped.clear()


async def work(value: Any = None, seconds: float = 0, name: str = "work") -> Any:
    calls[name] += 1
    await asyncio.sleep(seconds)
    return value


async def fail(text: str = "no", times: int = 1000) -> str:
    calls["fail"] += 1
    if calls["fail"] <= times:
        raise ValueError(text)
    return "worked"


async def hang() -> None:
    try:
        await asyncio.sleep(1000)
    finally:
        stopped.append(now())


def reports(service: MemoryService) -> list[list[dict[str, Any]]]:
    return [json.loads(body)["reports"] for name, body in service.requests if name == "report-tasks"]


@workflow("order")
async def order(ctx: Context, data: Any) -> Any:
    charge = await ctx.step("charge", work, data["id"])
    await ctx.sleep(timedelta(minutes=10))
    return {"charge": charge, "approved": await ctx.wait_for("approval", timeout=timedelta(days=3))}


@workflow("single")
async def single(ctx: Context, data: Any) -> Any:
    return await ctx.step("work", work, data)


@workflow("long")
async def long(ctx: Context, _: Any) -> Any:
    return await ctx.step("long", work, "done", 65)


@workflow("hanging")
async def hanging(ctx: Context, _: Any) -> None:
    await asyncio.gather(ctx.step("quick", work), ctx.step("hang", hang))


@virtually
async def test_many_tasks_in_one_request() -> None:
    """The reports of many tasks go into a few requests, and no more tasks are held than there are slots."""
    service = MemoryService()
    for number in range(1000):
        service.start(f"w-{number}", "single", number)
    async with worker(service, single, slots=200):
        await service.until_ended()
    assert {row.end["result"] for row in service.rows.values()} == set(range(1000))
    assert len(reports(service)) <= 15
    slots = [json.loads(body)["slots"] for name, body in service.requests if name == "poll-tasks"]
    assert max(slots) == 200


@virtually
async def test_what_a_poll_says() -> None:
    """A poll names the worker, its queue and types, its free slots, and its times."""
    service = MemoryService()
    service.start("a", "long", queue="q")
    async with worker(service, long, queue="q", name="one", slots=3, lease_seconds=20, wait_seconds=4, worker_id="w"):
        await asyncio.sleep(1)
        first, second = [json.loads(body) for name, body in service.requests if name == "poll-tasks"]
    named = {"workerId": "w", "name": "one", "queue": "q", "types": ["long"]}
    assert first == {**named, "slots": 3, "waitMs": 4000, "leaseMs": 20_000}
    assert second == {**first, "slots": 2}


@virtually
async def test_a_step_out_of_attempts() -> None:
    """A step without attempts left fails the workflow, with its key, unless the function catches the error."""

    @workflow("caught")
    async def caught(ctx: Context, _: Any) -> Any:
        try:
            await ctx.step("pay", fail, "no card", retry=Retry(max_attempts=2))
        except StepFailed as error:
            return [error.text, await ctx.step("undo", work, "undone")]

    @workflow("failed", retry=Retry(max_attempts=1))
    async def failed(ctx: Context, _: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("pay", fail, "no card"))

    service = MemoryService()
    rows = service.start("a", "caught"), service.start("b", "failed")
    async with worker(service, caught, failed):
        await service.until_ended()
    assert rows[0].end["result"] == ["no card", "undone"]
    assert (rows[1].end["action"], rows[1].end["step"]) == ("fail", "pay")


BAD_RESULTS = {"large": "x" * 70_000, "not JSON": object(), "nan": float("nan"), "surrogate": "\ud800"}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_results_that_cannot_be_stored(name: str) -> None:
    """A result that is too large or is not JSON is an error of its step, and is not tried again."""

    @workflow("bad")
    async def bad(ctx: Context, _: Any) -> None:
        await ctx.step("bad", work, BAD_RESULTS[name])

    async def main() -> None:
        service = MemoryService()
        row = service.start("a", "bad")
        async with worker(service, bad):
            await service.until_ended()
        assert (row.status, row.end["step"], calls["work"]) == ("failed", "bad", 1)

    in_virtual_time(main)


@virtually
async def test_values_are_equal_in_a_replay() -> None:
    """The function gets what the JSON of a result decodes to, and may change it."""

    @workflow("values")
    async def values(ctx: Context, data: Any) -> Any:
        data.append(1)
        found = await ctx.step("pair", work, (1, {2: "x"}))
        found.append(3)
        await ctx.sleep(SECOND)
        return [data, found]

    service = MemoryService()
    row = service.start("a", "values", [])
    async with worker(service, values):
        await service.until_ended()
    assert row.end["result"] == [[1], [1, {"2": "x"}, 3]]
    assert row.effects["pair"]["result"] == [1, {"2": "x"}]


@virtually
async def test_the_key_of_a_step() -> None:
    """ctx.key is the same in each attempt of a step, and differs between steps and workflows."""
    keys: list[str] = []

    @workflow("keys")
    async def keyed(ctx: Context, _: Any) -> None:
        async def attempt() -> None:
            keys.append(ctx.key)
            if len(keys) % 2:
                raise ValueError

        await ctx.step("a", attempt)
        await ctx.step("a", attempt)

    service = MemoryService()
    service.start("a", "keys")
    async with worker(service, keyed):
        await service.until_ended()
        service.start("b", "keys")
        await service.until_ended()
    assert (len(keys), len(set(keys))) == (8, 4)
    assert all(keys[number] == keys[number + 1] for number in range(0, 8, 2))


@virtually
async def test_a_sleep_beside_a_long_step() -> None:
    """A sleep ends in time although the worker holds the task for a long step."""

    @workflow("race")
    async def race(ctx: Context, _: Any) -> Any:
        tasks = [asyncio.ensure_future(ctx.sleep(SECOND)), asyncio.ensure_future(ctx.step("long", work, None, 600))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks[1].cancel()
        return await ctx.step("after", work, "slept")

    service = MemoryService()
    row = service.start("a", "race")
    async with worker(service, race):
        await service.until_ended()
        assert 1 <= now() < 2
    assert row.end["result"] == "slept"
    assert row.effects["long"]["status"] == "failed"  # nobody waits for it, so the workflow never starts it again


@virtually
async def test_a_message_beside_a_long_step() -> None:
    """A message that comes while a step runs is known after the next renewal."""

    @workflow("both")
    async def both(ctx: Context, _: Any) -> Any:
        return await asyncio.gather(ctx.step("long", work, "x", 60), ctx.wait_for("go"))

    service = MemoryService()
    row = service.start("a", "both")
    async with worker(service, both):
        await service.until(lambda: "go" in row.effects)
        service.send("a", "go", 5)
        await service.until(lambda: row.seen == ["go"])
        assert now() < 11
        await service.until_ended()
    assert row.end["result"] == ["x", 5]


@virtually
async def test_parks_inside_gather() -> None:
    """A workflow whose branches all wait is parked, and its `finally` blocks run at each park."""
    ends: list[str] = []

    @workflow("parks")
    async def parks(ctx: Context, _: Any) -> Any:
        async def branch(seconds: int) -> int:
            try:
                await ctx.sleep(timedelta(seconds=seconds))
            except Interrupted:
                ends.append("interrupted")
                raise
            else:
                return seconds
            finally:
                ends.append("end")

        return await asyncio.gather(*(branch(seconds) for seconds in (30, 10, 20)))

    service = MemoryService()
    row = service.start("a", "parks")
    async with worker(service, parks):
        await service.until_ended()
    assert (row.end["result"], row.seen) == ([30, 10, 20], ["sleep:1", "sleep:2", "sleep"])
    assert (Counter(ends), service.outcomes.count("parked")) == ({"interrupted": 6, "end": 12}, 3)


@virtually
async def test_many_effects_are_read_in_pages() -> None:
    """A task with more effects than fit into it is started when all pages are read."""

    @workflow("many")
    async def many(ctx: Context, _: Any) -> Any:
        found = await asyncio.gather(*(ctx.step("work", work, number) for number in range(120)))
        await ctx.sleep(SECOND)
        return sum(found)

    service = MemoryService()
    row = service.start("a", "many")
    async with worker(service, many):
        await service.until_ended()
    assert (row.end["result"], calls["work"]) == (7140, 120)
    assert sum(name == "get-effects" for name, _ in service.requests) == 2


@virtually
async def test_a_large_report_is_split() -> None:
    """Results of more than 512 KiB go into several reports; only the last one ends the workflow."""

    @workflow("large")
    async def large(ctx: Context, _: Any) -> Any:
        await asyncio.gather(*(ctx.step("work", work, "x" * 60_000) for _ in range(40)))

    service = MemoryService()
    row = service.start("a", "large")
    async with worker(service, large):
        await service.until_ended()
    assert (row.status, len(row.seen)) == ("completed", 40)
    assert max(len(body) for _, body in service.requests) <= 512 * 1024


@virtually
async def test_large_reports_of_many_tasks() -> None:
    """Reports that do not fit into one request go into the next one at once."""
    service = MemoryService()
    for number in range(12):
        service.start(f"w-{number}", "single", "x" * 60_000)
    async with worker(service, single):
        await service.until_ended()
        assert now() < 5


# Leases


@pytest.mark.parametrize(("lease", "tasks", "renewals"), [(30, 1, 6), (600, 1, 2), (30, 501, 12)])
def test_renewals_keep_a_long_step(lease: float, tasks: int, renewals: int) -> None:
    """A task is renewed every third of its lease, but at least every 25 s. A request has at most 500 tasks."""

    async def main() -> None:
        service = MemoryService()
        for number in range(tasks):
            service.start(f"w-{number}", "long")
        async with worker(service, long, lease_seconds=lease, slots=1000):
            await service.until_ended()
        assert [name for name, _ in service.requests].count("renew-tasks") == renewals
        assert calls["work"] == tasks

    in_virtual_time(main)


@virtually
async def test_a_lost_renewal_is_repeated() -> None:
    """A renewal without a reply within 5 s is sent again after a second. The next one comes at its usual time."""
    sent_at: list[int] = []

    def fault(moment: str) -> bool:
        if moment != "request renew-tasks":
            return False
        sent_at.append(round(now()))
        return len(sent_at) == 1

    service = MemoryService()
    service.fault = fault
    service.start("a", "long")
    async with worker(service, long):
        await service.until_ended()
    assert sent_at[:4] == [10, 16, 20, 30]


@pytest.mark.parametrize(("late", "ends_at"), [("poll-tasks", 11), ("report-tasks", 10), ("renew-tasks", 13)])
def test_a_late_reply_prolongs_no_lease(late: str, ends_at: float) -> None:
    """A lease counts from the request, or from the end of the poll. If the service then is silent, its task ends."""

    class Silent(MemoryService):
        async def request(self, name: str, body: bytes, timeout_seconds: float) -> Any:
            if name not in {late, "poll-tasks"} or name in answered:
                await asyncio.sleep(timeout_seconds)
                raise NoAnswerError("no reply")
            answered.add(name)
            reply = await super().request(name, body, timeout_seconds)
            await asyncio.sleep(4 if name == late else 0)
            return reply

    async def main() -> None:
        service = Silent()
        service.start("a", "hanging")
        async with worker(service, hanging, lease_seconds=10, wait_seconds=1, shutdown_seconds=0):
            await service.until(lambda: bool(stopped))
        assert ends_at <= stopped[0] < ends_at + 1

    answered: set[str] = set()
    in_virtual_time(main)


@virtually
async def test_a_cancelled_workflow_stops() -> None:
    """The step of a workflow that was cancelled is stopped with the next renewal."""
    service = MemoryService()
    service.start("a", "hanging")
    async with worker(service, hanging):
        await asyncio.sleep(5)
        service.cancel("a")
        await service.until(lambda: bool(stopped))
    assert 10 <= stopped[0] < 11


@virtually
async def test_a_silent_service_ends_the_task() -> None:
    """Without replies for the length of a lease, the worker stops its functions; later it claims them again."""
    service = MemoryService()
    row = service.start("a", "long")
    async with worker(service, long):
        await asyncio.sleep(5)
        service.fault = lambda _: True
        await asyncio.sleep(40)
        assert calls["work"] == 1
        service.fault = lambda _: False
        await service.until_ended()
    assert (row.status, calls["work"]) == ("completed", 2)


@virtually
async def test_requests_are_repeated_with_the_same_bytes() -> None:
    """A report whose reply is lost is sent again, byte for byte, and has the same outcome."""
    service = MemoryService()
    lost: list[str] = []

    def fault(moment: str) -> bool:
        if moment in {"request report-tasks", "reply report-tasks"} and lost.count(moment) < 2:
            lost.append(moment)
            return True
        return False

    service.fault = fault
    service.start("a", "single", 1)
    async with worker(service, single):
        await service.until(lambda: "unchanged" in service.outcomes)
    bodies = [body for name, body in service.requests if name == "report-tasks"]
    assert (len(bodies), len(set(bodies)), calls["work"]) == (4, 1, 1)


# Stopping


@virtually
async def test_a_drained_worker_finishes_its_step() -> None:
    """A worker that is stopped begins no step, reports the step in progress, and releases the task."""

    @workflow("two")
    async def two(ctx: Context, _: Any) -> Any:
        return [await ctx.step("one", work, 1, 5), await ctx.step("two", work, 2)]

    service = MemoryService()
    row = service.start("a", "two")
    async with worker(service, two) as drain:
        await asyncio.sleep(1)
        await drain()
        assert (row.status, row.seen, {*service.outcomes}) == ("waiting", ["one"], {"released"})
    async with worker(service, two):
        await service.until_ended()
    assert (row.end["result"], calls["work"]) == ([1, 2], 2)


@virtually
async def test_an_idle_worker_stops_at_once() -> None:
    """A worker that is stopped ends its poll, and does not wait for the end of its time."""
    async with worker(MemoryService(), single) as drain:
        await asyncio.sleep(1)
        await drain()
        assert now() < 2


@virtually
async def test_a_drained_worker_releases_what_the_last_poll_brings() -> None:
    """A task that the last poll brings is released without being started."""
    service = MemoryService()
    service.start("a", "single")
    async with worker(service, single) as drain:
        await asyncio.sleep(0)  # the poll is under way
        await asyncio.sleep(0)
        await drain()
    assert (service.rows["a"].status, service.outcomes, calls["work"]) == ("waiting", ["released"], 0)


@virtually
async def test_a_drained_worker_leaves_long_steps() -> None:
    """A step that does not end in time is cancelled, and its task is released."""
    service = MemoryService()
    row = service.start("a", "long")
    async with worker(service, long, shutdown_seconds=15) as drain:
        await asyncio.sleep(1)
        await drain()
        assert (row.status, service.outcomes, 16 <= now() < 19) == ("waiting", ["released"], True)


@virtually
async def test_a_worker_that_is_cancelled_cancels_its_steps() -> None:
    """No step goes on after the end of its worker."""
    service = MemoryService()
    service.start("a", "hanging")
    settings = Settings("acme", {"hanging": hanging})
    running = asyncio.create_task(run_worker(service.request, settings, asyncio.Event()))
    await asyncio.sleep(5)
    running.cancel()
    await asyncio.sleep(1)
    assert [round(each) for each in stopped] == [5]


# In real time: threads


async def test_functions_that_are_not_async_run_in_threads() -> None:
    """A step that is not async runs in a thread, with its context variables. It may return an awaitable."""

    def thread_name() -> str:
        return threading.current_thread().name

    @workflow("threads")
    async def threads(ctx: Context, _: Any) -> Any:
        return [
            await ctx.step("name", thread_name),
            await ctx.step("work", lambda: work(3)),
            await ctx.step("k", lambda: ctx.key),
        ]

    service = MemoryService()
    row = service.start("a", "threads")
    async with worker(service, threads, wait_seconds=0.1):
        await service.until_ended()
    name, three, key = row.end["result"]
    assert (name.startswith("the step name "), three, len(key)) == (True, 3, 32)


async def test_settings() -> None:
    """Each argument of a worker reaches the part that needs it, in seconds if it is a time."""
    given: dict[str, Any] = {"queue": "q", "slots": 7, "name": "one", "user": "me", "inbox_prefix": "_IN.me"}
    times: dict[str, Any] = {"lease": 2 * MINUTE, "shutdown_timeout": MINUTE}
    opened, executed = "timer_service.client.connection.open_connection", "timer_service.worker.worker.run_worker"
    with patch(opened) as connect, patch(executed) as run:
        await Worker("nats://here", tenant="acme", workflows=[order], subject_prefix="prefix", **given, **times).run()
    expected = Settings("acme", {"order": order}, "q", "one", slots=7, lease_seconds=120, shutdown_seconds=60)
    found = run.call_args.args[1]
    assert found == replace(expected, worker_id=found.worker_id)
    options = {"user": "me", "inbox_prefix": "_IN.me"}
    assert connect.call_args.args == ("nats://here", "timer-worker", "prefix", options)
