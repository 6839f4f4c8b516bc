"""`timer-service worker` and `timer-service workflows`, with the real broker and the real service."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli import Cli
from tests.harness.processes import NatsServer, Service

ORDERS = """
import os, time
from datetime import timedelta
from timer_service.worker import workflow

async def pay(order):
    with open("calls", "a") as file:
        file.write(f"{order}\\n")
    return f"paid {order}"

def hold():
    open("held", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
    return "held"

@workflow("order")
async def order(ctx, order):
    charge = await ctx.step("charge", pay, order["id"])
    return {"charge": charge, "approved": await ctx.wait_for("approval", timeout=timedelta(days=3))}

@workflow("held")
async def held(ctx, _):
    return [await ctx.step("hold", hold), await ctx.step("pay", pay, "x")]
"""


class Shell(Cli):
    """The command line in a folder with a module of workflows."""

    def __init__(self, folder: Path, broker: NatsServer) -> None:
        super().__init__(folder, broker.url)
        self.workers: list[asyncio.subprocess.Process] = []
        (folder / "orders.py").write_text(ORDERS, "utf-8")

    async def start_worker(self, *workflows: str) -> asyncio.subprocess.Process:
        """Start a worker. Its output has its errors."""
        worker = await asyncio.create_subprocess_exec(
            *self.program,
            *("worker", "acme", *workflows, "--lease", "10s"),
            cwd=self.folder,
            env={**os.environ, **self.settings},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.workers.append(worker)
        return worker

    async def begin(self, name: str, workflow_type: str) -> str:
        """Start a workflow, and return the notes about it. The service may not have recorded the worker yet."""
        done = await self.run("workflows", "start", "acme", name, workflow_type)
        assert (done.returncode, done.stdout) == (0, f"started: acme/{name} (waiting)\n")
        return done.stderr

    async def until_status(self, name: str, status: str) -> Any:
        while (found := await self.json("workflows", "get", "acme", name))["workflow"]["status"] != status:
            await asyncio.sleep(0.1)
        return found

    async def until_held(self) -> None:
        """Wait until the step `hold` runs. It ends when the file `go` exists."""
        while not (self.folder / "held").exists():
            await asyncio.sleep(0.02)


@pytest.fixture
async def shell(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Shell]:
    shell = Shell(tmp_path, broker)
    async with Service(tmp_path / "service", broker.url), asyncio.timeout(100):
        try:
            yield shell
        finally:
            for each in shell.workers:
                if each.returncode is None:
                    each.kill()
                    await each.communicate()


async def end(worker: asyncio.subprocess.Process) -> str:
    """Stop a worker with SIGTERM, which it handles, and return its output."""
    worker.send_signal(signal.SIGTERM)
    output, _ = await worker.communicate()
    assert worker.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.slow
async def test_the_order_example_on_the_command_line(shell: Shell) -> None:
    """A worker executes a workflow that was started on the command line, and shows what it did."""
    worker = await shell.start_worker("orders:order", "orders:held", "--name", "demo")
    start = ("workflows", "start", "acme", "o-1", "order", "--input", '{"id": 7}')
    assert (await shell.run(*start)).stdout == "started: acme/o-1 (waiting)\n"
    assert (await shell.lines("workflows", "send", "acme", "o-1", "approval", "--data", "true"))[0].startswith("sent")
    found = await shell.until_status("o-1", "completed")
    assert found["result"] == {"charge": "paid 7", "approved": True}
    assert "approval" in "".join(await shell.lines("workflows", "get", "acme", "o-1"))
    _, row = await shell.lines("workflows", "list", "acme", "--status", "completed", "--type", "order")
    assert row.startswith("o-1 ")
    assert "completed          1" in await shell.lines("workflows", "count", "acme")
    while not (workers := await shell.json("workflows", "workers", "acme")):  # it is recorded within a second
        await asyncio.sleep(0.1)
    assert [each["name"] for each in workers] == ["demo"]
    assert (await shell.json("workflows", "cancel", "acme", "o-1", code=1))["outcome"] == "already_ended"
    (retried,) = await shell.json("workflows", "retry", "acme", "o-1", code=1)
    assert retried["outcome"] == "already_ended"
    (shell.folder / "go").touch()
    waited = await shell.run("workflows", "start", "acme", "h-1", "held", "--wait")
    assert (waited.returncode, waited.stdout) == (0, '["held", "paid x"]\n')
    broker = f"{shell.settings['TIMER_BROKER_URL']} (TIMER_BROKER_URL)"
    assert f"Executing workflows of tenant acme at {broker}: order, held" in await end(worker)


async def test_a_type_without_workers(shell: Shell) -> None:
    """The start of a workflow says that no worker asks for its type, which may be a wrong one."""
    note = "No worker asks for the type odrer in the queue default yet. Check the type, or start a worker.\n"
    assert await shell.begin("o-1", "odrer") == note
    worker = await shell.start_worker("orders:held")
    while not await shell.json("workflows", "workers", "acme"):
        await asyncio.sleep(0.1)
    assert await shell.begin("o-2", "odrer") == note
    assert await shell.begin("h-1", "held") == ""
    worker.kill()


@pytest.mark.slow
async def test_a_stopped_worker_finishes_its_step(shell: Shell) -> None:
    """SIGTERM lets the step in progress finish and releases the workflow; no attempt is lost."""
    worker = await shell.start_worker("orders:held")
    await shell.begin("h-1", "held")
    await shell.until_held()
    worker.send_signal(signal.SIGTERM)
    (shell.folder / "go").touch()
    await worker.communicate()
    found = await shell.json("workflows", "get", "acme", "h-1")
    assert (worker.returncode, found["workflow"]["status"], found["workflow"]["attempt"]) == (0, "waiting", 0)
    assert [(each["key"], each["status"]) for each in found["effects"]] == [("hold", "done")]
    assert not (shell.folder / "calls").exists()


@pytest.mark.slow
async def test_a_second_signal_ends_a_worker(shell: Shell) -> None:
    """A worker that gets a second signal ends before its step has ended, and says so instead of a traceback."""
    worker = await shell.start_worker("orders:held")
    await shell.begin("h-1", "held")
    await shell.until_held()
    for number in (signal.SIGTERM, signal.SIGINT):
        worker.send_signal(number)
    output, _ = await worker.communicate()
    assert "Traceback" not in output.decode()
    text = "timer-service: ended by a second signal; the workflows in progress continue when their leases end"
    assert (worker.returncode, output.decode().splitlines()[-1]) == (1, text)


@pytest.mark.slow
async def test_a_worker_that_was_stopped_for_longer_than_its_lease(shell: Shell) -> None:
    """Another worker takes over. When the first one continues, it stores nothing: the step ran twice at most."""
    first = await shell.start_worker("orders:held")
    await shell.begin("h-1", "held")
    await shell.until_held()
    first.send_signal(signal.SIGSTOP)
    (shell.folder / "go").touch()
    second = await shell.start_worker("orders:held")
    found = await shell.until_status("h-1", "completed")
    first.send_signal(signal.SIGCONT)
    assert first.stdout is not None
    while b"the lease of the workflow h-1 has run out" not in (line := await first.stdout.readline()):
        assert line, "the first worker has ended"
    assert await shell.json("workflows", "get", "acme", "h-1") == found
    for worker in (first, second):
        await end(worker)
    assert found["result"] == ["held", "paid x"]
    assert (shell.folder / "calls").read_text() == "x\n"
