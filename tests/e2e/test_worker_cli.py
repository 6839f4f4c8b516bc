"""`timer-service worker` and `timer-service workflows`, with the real broker and the real service."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import NatsServer, Service

ORDERS = """
import os, time
from datetime import timedelta
from timer_service.worker import workflow

async def pay(order):
    with open("calls", "a") as file:
        file.write(f"{order}\\n")
    if order == "kill" and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
    return f"paid {order}"

def slow(seconds):
    time.sleep(seconds)
    return "slept"

@workflow("order")
async def order(ctx, order):
    charge = await ctx.step("charge", pay, order["id"])
    return {"charge": charge, "approved": await ctx.wait_for("approval", timeout=timedelta(days=3))}

@workflow("slow")
async def slow_workflow(ctx, seconds):
    return [await ctx.step("slow", slow, seconds), await ctx.step("pay", pay, "x")]

def hold():
    open("held", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
    return "held"

@workflow("held")
async def held(ctx, _):
    return [await ctx.step("hold", hold), await ctx.step("pay", pay, "x")]

async def count(number):
    await pay(number)
    return number

@workflow("long")
async def long(ctx, _):
    return sum([await ctx.step("count", count, number) for number in range(50)])
"""


class Shell:
    """A folder with a module of workflows, and the command line in it."""

    def __init__(self, folder: Path, broker: NatsServer) -> None:
        self.folder = folder
        self._environment = {**os.environ, "TIMER_BROKER_URL": broker.url}
        self._started: list[asyncio.subprocess.Process] = []
        (folder / "orders.py").write_text(ORDERS, "utf-8")

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "timer_service", *arguments),
            cwd=self.folder,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._started.append(process)
        return process

    async def kill(self) -> None:
        """Kill the processes that a failed test has left."""
        for process in self._started:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    async def run(self, *arguments: str, code: int = 0) -> str:
        process = await self.start(*arguments)
        output, _ = await process.communicate()
        assert process.returncode == code, output.decode()
        return output.decode()

    async def workflow(self, name: str) -> Any:
        return json.loads(await self.run("workflows", "get", "acme", name, "--json"))

    async def until_status(self, name: str, status: str) -> Any:
        while (found := await self.workflow(name))["workflow"]["status"] != status:
            await asyncio.sleep(0.1)
        return found

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text("utf-8").split() if path.exists() else []


@pytest.fixture
async def shell(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Shell]:
    folder = tmp_path / "project"
    folder.mkdir()
    async with Service(tmp_path / "service", broker.url), asyncio.timeout(100):
        shell = Shell(folder, broker)
        try:
            yield shell
        finally:
            await shell.kill()


async def end(process: asyncio.subprocess.Process) -> str:
    """Stop a process with SIGTERM, which it handles, and return its output."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.slow
async def test_the_order_example_on_the_command_line(shell: Shell) -> None:
    """A worker executes a workflow that was started on the command line, and shows what it did."""
    worker = await shell.start("worker", "acme", "orders:order", "orders:slow_workflow", "--name", "demo")
    try:
        assert await shell.run("workflows", "start", "acme", "o-1", "order", "--input", '{"id": 7}') == (
            "started: acme/o-1 (waiting)\n"
        )
        assert (await shell.run("workflows", "send", "acme", "o-1", "approval", "--data", "true")).startswith("sent")
        found = await shell.until_status("o-1", "completed")
        assert found["result"] == {"charge": "paid 7", "approved": True}
        text = await shell.run("workflows", "get", "acme", "o-1")
        assert '"charge": "paid 7"' in text
        assert "approval" in text
        assert "o-1" in await shell.run("workflows", "list", "acme", "--status", "completed", "--type", "order")
        assert "completed          1\n" in await shell.run("workflows", "count", "acme")
        assert "demo" in await shell.run("workflows", "workers", "acme")
        assert "already_ended" in await shell.run("workflows", "cancel", "acme", "o-1", code=1)
        assert "already_ended" in await shell.run("workflows", "retry", "acme", "o-1", code=1)
        waited = await shell.run("workflows", "start", "acme", "s-1", "slow", "--input", "0", "--wait")
        assert waited.endswith('["slept", "paid x"]\n')
        assert "not found" in await shell.run("workflows", "get", "acme", "nobody", code=1)
    finally:
        output = await end(worker)
    assert "Executing workflows of tenant acme: order, slow" in output


@pytest.mark.slow
async def test_a_killed_worker(shell: Shell) -> None:
    """A step that kills its worker runs again with the next worker, after the lease."""
    worker = await shell.start("worker", "acme", "orders:order", "--lease", "10s")
    await shell.run("workflows", "start", "acme", "o-1", "order", "--input", '{"id": "kill"}')
    await worker.communicate()
    assert worker.returncode == -signal.SIGKILL
    worker = await shell.start("worker", "acme", "orders:order", "--lease", "10s")
    try:
        await shell.run("workflows", "send", "acme", "o-1", "approval")
        found = await shell.until_status("o-1", "completed")
    finally:
        await end(worker)
    assert found["result"] == {"charge": "paid kill", "approved": None}
    assert shell.calls() == ["kill", "kill"]


@pytest.mark.slow
async def test_a_stopped_worker_finishes_its_step(shell: Shell) -> None:
    """SIGTERM lets the step in progress finish and releases the workflow; no attempt is lost."""
    worker = await shell.start("worker", "acme", "orders:slow_workflow")
    await shell.run("workflows", "start", "acme", "s-1", "slow", "--input", "2")
    await shell.until_status("s-1", "running")
    await end(worker)
    found = await shell.workflow("s-1")
    assert (found["workflow"]["status"], found["workflow"]["attempt"]) == ("waiting", 0)
    assert [(each["key"], each["status"]) for each in found["effects"]] == [("slow", "done")]
    assert not (shell.folder / "calls").exists()


@pytest.mark.slow
async def test_a_second_signal_ends_a_worker(shell: Shell) -> None:
    """A worker that gets a second signal ends before its step has ended, and says so instead of a traceback."""
    worker = await shell.start("worker", "acme", "orders:slow_workflow")
    await shell.run("workflows", "start", "acme", "s-1", "slow", "--input", "60")
    await shell.until_status("s-1", "running")
    for number in (signal.SIGTERM, signal.SIGINT):
        worker.send_signal(number)
    output, _ = await worker.communicate()
    assert "Traceback" not in output.decode()
    end = "timer-service: ended by a second signal; the workflows in progress continue when their leases end"
    assert (worker.returncode, output.decode().splitlines()[-1]) == (1, end)


@pytest.mark.slow
async def test_a_worker_that_was_stopped_for_longer_than_its_lease(shell: Shell) -> None:
    """Another worker takes over. When the first one continues, it stores nothing: the step ran twice at most."""
    first = await shell.start("worker", "acme", "orders:held", "--lease", "10s")
    await shell.run("workflows", "start", "acme", "h-1", "held")
    while not (shell.folder / "held").exists():  # the step waits for the file `go`, however slow this test is
        await asyncio.sleep(0.02)
    first.send_signal(signal.SIGSTOP)
    (shell.folder / "go").touch()
    second = await shell.start("worker", "acme", "orders:held", "--lease", "10s")
    found = await shell.until_status("h-1", "completed")
    first.send_signal(signal.SIGCONT)
    assert first.stdout is not None
    while b"the lease of the workflow h-1 has run out" not in (line := await first.stdout.readline()):
        assert line, "the first worker has ended"
    assert await shell.workflow("h-1") == found
    for worker in (first, second):
        await end(worker)
    assert found["result"] == ["held", "paid x"]
    assert shell.calls() == ["x"]
