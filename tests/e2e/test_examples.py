"""The examples of README.md and of pages in docs/, as a reader runs them."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE
from tests.harness.processes import NatsServer, Service
from tests.harness.spawn import BIN

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
NATS_CLI = f"""nats() {{ [ "$1" != pub ] || '{sys.executable}' -c '
import asyncio, os, sys, nats
async def publish():
    async with await nats.connect(os.environ["TIMER_BROKER_URL"]) as connection:
        await connection.jetstream().publish(sys.argv[1], sys.argv[2].encode())
asyncio.run(publish())' "$2" "$3"; }}
"""
"""A stand-in for the `nats` command line: `nats pub` publishes, `nats sub` does nothing."""


def block(page: str, language: str, part: str) -> str:
    """Return the only code block of a page in a language that contains `part`."""
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (found,) = (each for each in blocks if part in each)
    return str(found)


async def run(broker: NatsServer, *command: str, folder: Path = ROOT) -> list[str]:
    """Run a command that must succeed, and return the lines of its output."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    environment = {**os.environ, "TIMER_BROKER_URL": broker.url, "PATH": path}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=pipe, stderr=pipe)
    output, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, ""), output.decode()
    return output.decode().splitlines()


async def run_python(broker: NatsServer, folder: Path, example: str) -> list[str]:
    """Run a Python example. It names no broker, so it uses the one of the test."""
    assert "nats://" not in example
    (folder / "example.py").write_text(example, "utf-8")
    return await run(broker, sys.executable, "example.py", folder=folder)


@ON_SQLITE
async def test_python_of_the_readme(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """The script schedules a timer and prints its event. It can be run twice."""
    for _ in range(2):
        outcome, event = await run_python(broker, tmp_path, block("README.md", "python", "TimerApp"))
        assert (outcome, event.startswith("fired: call-"), "{'any': 'json'}" in event) == ("scheduled", True, True)


@ON_SQLITE
async def test_python_of_the_client(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """The script of docs/client.md prints what its comments say."""
    lines = await run_python(broker, tmp_path, block("docs/client.md", "python", "TimerClient"))
    assert [line.split()[0] for line in lines] == ["scheduled", "not_found", "due", "TOO_LARGE"]


@pytest.mark.slow
@ON_SQLITE
async def test_python_of_schedules(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """docs/examples/schedules.py prints what its comments say. It can be run twice."""
    for _ in range(2):
        lines = await run_python(broker, tmp_path, (EXAMPLES / "schedules.py").read_text("utf-8"))
        assert [line.split()[1].partition("+")[0] for line in lines[:3]] == ["09:00:00"] * 3
        assert lines[3:7] == ["created active", "paused", "resumed", "deleted"]
        types = [line.split()[0] for line in lines[7:-1]]
        assert (types[-1], {*types[:-1]}) == ("ScheduleEnded", {"ScheduleFired"})
        reason = "`?`, years and `cron(...)` are not supported; write `0 9 * * *`"
        assert lines[-1] == f"INVALID_CRON {[{'path': 'payload.cron', 'reason': reason}]}"


SHELL = {
    "README.md: nats": [("README.md", "nats pub")],
    "README.md: timers": [("README.md", "timers schedule")],
    "docs/schedules.md": [
        ("docs/schedules.md", part)
        for part in ("schedules preview", "--catch-up last", "schedules trigger", "schedules get")
    ],
    "docs/signals.md": [("docs/signals.md", "signals create")],
    "docs/runs.md": [("docs/runs.md", "start acme build-1")],
}
OUTCOMES = {
    "README.md: timers": ["scheduled"],
    "docs/schedules.md": ["created", "triggered", "paused", "resumed", "deleted"],
    "docs/signals.md": ["created", "transitioned", "resolved"],
    "docs/runs.md": ["started"],
}


@pytest.mark.slow
@ON_SQLITE
@pytest.mark.parametrize("example", SHELL)
async def test_shell(example: str, broker: NatsServer, service: Service) -> None:
    """The commands succeed in their order. Those that run until Ctrl-C, and `doctor`, are left out."""
    lines = "".join(block(page, "sh", part) for page, part in SHELL[example]).splitlines()
    script = "\n".join(line for line in lines if not re.match(r"timer-service (timers watch|doctor)", line))
    output = await run(broker, "bash", "-e", "-c", NATS_CLI + script)
    found = [line.partition(":")[0] for line in output if re.match(r"\w+: acme/", line)]
    assert found == OUTCOMES.get(example, [])
    if example == "docs/runs.md":
        assert "\n".join(["```", *output[1:], "```"]) in (ROOT / example).read_text("utf-8")


@ON_SQLITE
async def test_order_in_one_process(broker: NatsServer, service: Service) -> None:
    """docs/examples/orders.py runs an order in one process."""
    lines = await run(broker, sys.executable, str(EXAMPLES / "orders.py"), broker.url)
    assert lines[-1] == "Handled(charge='charge-1', approved=True, parcel='ship-1', refund=None)"
