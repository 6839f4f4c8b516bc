"""Code of users may hang or ignore its cancellation: neither other code nor the end of the program waits for it."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.harness import stubborn
from tests.harness.clock import in_virtual_time
from tests.harness.waiting import until
from tests.harness.workers import now, virtually, worker
from tests.harness.workflow_service import MemoryService
from timer_service import user_code
from timer_service.user_code import Ended, UserCode, end_loop
from timer_service.worker import Context, Retry, workflow


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event for which functions of a test hang. They end after the test."""
    found = threading.Event()
    yield found
    found.set()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_hung_threads_are_bounded(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was given up leaves its place to another one, until too many hang. Its end leaves no second place."""
    monkeypatch.setattr(user_code, "MOST_LEFT", {True: 2, False: 2})
    code = UserCode(1)
    began: list[int] = []

    def hang() -> bool:
        began.append(1)
        return gate.wait()

    calls = [asyncio.ensure_future(code.run("hang", hang, is_async=False)) for _ in range(4)]
    for hung in (1, 2):
        await until(lambda hung=hung: len(began) == hung)  # type: ignore[misc]
        calls[hung - 1].cancel()
        await asyncio.wait(calls[:hung])
    await turns()
    assert (len(began), await code.run("async", asyncio.sleep, 0, 7, is_async=True)) == (2, (7, None))
    gate.set()
    async with asyncio.timeout(10):
        assert [each and each.value for each in await asyncio.gather(*calls[2:])] == [True, True]
    await until(lambda: not code.names)
    gate.clear()
    calls = [asyncio.ensure_future(code.run("hang", hang, is_async=False)) for _ in range(2)]
    await until(lambda: len(began) == 5)
    await turns()
    assert len(began) == 5  # there is one place
    gate.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*calls)


@virtually
async def test_async_code_that_was_given_up_is_bounded() -> None:
    """While too much code does not end, no call begins. The next one begins when code ends."""
    code, gates = UserCode(1), [asyncio.Event() for _ in range(user_code.MOST_LEFT[True])]

    async def swallow(gate: asyncio.Event) -> None:
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    runs = [code.run("swallow", swallow, gate, is_async=True, seconds=1) for gate in gates]
    assert {*await asyncio.gather(*runs)} == {None}
    following = asyncio.create_task(code.run("next", asyncio.sleep, 0, 7, is_async=True))
    await asyncio.sleep(100)
    assert not following.done()
    gates[0].set()
    assert await following == Ended(7)
    for gate in gates:
        gate.set()


@virtually
async def test_the_wait_for_a_thread_is_no_part_of_the_timeout() -> None:
    """A call that waits for its turn longer than its timeout is not late."""
    code = UserCode(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_code, "MOST_LEFT", {True: 1, False: 1})

        async def swallow() -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
            await asyncio.sleep(100)

        assert await code.run("swallow", swallow, is_async=True, seconds=1) is None
        assert await code.run("sleep", asyncio.sleep, 4, 7, is_async=True, seconds=5) == Ended(7)
        assert now() == 105
        assert await code.run("sleep", asyncio.sleep, 4, 7, is_async=True, seconds=3) is None


@pytest.mark.parametrize("way", stubborn.WAYS)
def test_an_attempt_ends_at_its_timeout(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the code of a step does after its timeout, the workflow gets a failure in time, and the worker ends.

    What the code does later is logged and has no effect.
    """

    async def main() -> None:
        service = MemoryService()
        row = service.start("a", "stubborn", way)
        async with worker(service, stubborn.stubborn) as drain:
            await service.until_ended()
            assert row.end["error"]["message"].endswith(f"TimeoutError: no result within {stubborn.SECONDS} s")
            assert stubborn.SECONDS <= now() < stubborn.SECONDS + 0.1
            if way == "returns_later":
                await asyncio.sleep(5)
            ended_at = now()
            await drain()
            assert now() < ended_at + 1.1
        assert (row.end["action"], row.end["step"]) == ("fail", way)
        await end_loop()

    in_virtual_time(main)
    name = f"the step {way} of the workflow a has"
    assert name in caplog.text or way == "waits_for_another"  # it ends, and leaves a child behind
    endings = {"returns_later": "returned a result 3.0", "raises_another_error": "raised ValueError 0.0"}
    assert f"{name} {endings.get(way)}" in caplog.text or way not in endings


@pytest.mark.parametrize("way", stubborn.WAYS)
def test_a_worker_ends_beside_code_that_does_not(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """After the time of the shutdown the tasks are released, and the worker ends, whatever its steps do."""

    async def main() -> None:
        service = MemoryService()
        row = service.start("a", "endless", way)
        async with worker(service, stubborn.endless, shutdown_seconds=5) as drain:
            await service.until(lambda: row.status == "running")
            await asyncio.sleep(1)
            await drain()
            assert now() < 8
        assert row.status == "waiting"
        await end_loop()

    in_virtual_time(main)
    assert f"the step {way} of the workflow a" in caplog.text


async def test_code_that_blocks_the_loop_is_late() -> None:
    """Code that blocks the event loop beyond its timeout has failed, although it ends before the timeout is noticed."""
    code = UserCode(1)

    async def block() -> None:
        threading.Event().wait(timeout=0.05)

    assert await code.run("block", block, is_async=True, seconds=0.01) is None
    assert await code.run("block", block, is_async=True, seconds=10) == Ended()


async def test_a_worker_with_hung_steps_goes_on(gate: threading.Event) -> None:
    """Hung steps of one workflow use up no slot of another one, and the worker stops without waiting for them."""

    @workflow("hang")
    async def hang(ctx: Context, _: Any) -> None:
        await ctx.step("hang", gate.wait, timeout=timedelta(milliseconds=5), retry=Retry(max_attempts=3))

    @workflow("quick")
    async def quick(ctx: Context, _: Any) -> Any:
        return await ctx.step("quick", lambda: "quick")

    service = MemoryService(retry_seconds=0)
    for number in range(4):
        service.start(f"h-{number}", "hang")
    async with worker(service, hang, quick, slots=2, wait_seconds=0.1, shutdown_seconds=0.2), asyncio.timeout(20):
        await service.until_ended()
        service.start("q", "quick")
        await service.until_ended("q")
    assert service.rows["q"].end["result"] == "quick"
    assert [service.rows[f"h-{number}"].end["step"] for number in range(4)] == ["hang"] * 4


PROGRAM = """
import asyncio, time
from tests.harness.workers import worker
from tests.harness.workflow_service import MemoryService
from timer_service.worker import workflow

@workflow("hang")
async def hang(ctx, _):
    await ctx.step("hang", time.sleep, 120)

async def main():
    service = MemoryService()
    row = service.start("h", "hang")
    async with worker(service, hang, wait_seconds=0.1, shutdown_seconds=0.1) as drain:
        while row.status != "running":
            await asyncio.sleep(0.01)
        await drain()
    print(row.status)

asyncio.run(main())
"""


def test_a_process_with_a_hung_thread_ends() -> None:
    """The process of a worker that has stopped ends although a thread still works on a step."""
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "waiting\n"
