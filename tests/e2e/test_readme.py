"""The examples of README.md and of pages in docs/, as a reader runs them."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.processes import NatsServer, Service
from tests.harness.spawn import BIN

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SCHEDULES = (ROOT / "docs" / "schedules.md").read_text("utf-8")
SIGNALS = (ROOT / "docs" / "signals.md").read_text("utf-8")
RUNS = (ROOT / "docs" / "runs.md").read_text("utf-8")
DEFAULT_URL = "nats://localhost:4222"
NATS_CLI = f"""nats() {{ [ "$1" != pub ] || '{sys.executable}' -c '
import asyncio, os, sys, nats
async def publish():
    async with await nats.connect(os.environ["TIMER_BROKER_URL"]) as connection:
        await connection.jetstream().publish(sys.argv[1], sys.argv[2].encode())
asyncio.run(publish())' "$2" "$3"; }}
"""
"""A stand-in for the `nats` command line: `nats pub` publishes, `nats sub` does nothing."""


def block(language: str, part: str, page: str = README) -> str:
    """Return the only code block of a page in a language that contains `part`."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (found,) = (each for each in blocks if part in each)
    return str(found)


async def run(broker: NatsServer, *command: str) -> list[str]:
    """Run a command that must succeed, and return the lines of its output."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, "TIMER_BROKER_URL": broker.url, "PATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, "")
    return output.decode().splitlines()


async def run_shell(broker: NatsServer, script: str) -> list[str]:
    return await run(broker, "bash", "-e", "-c", script)


@pytest.mark.slow
@ON_SQLITE
async def test_python(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """The script schedules a timer and prints its event. It can be run twice."""
    script = tmp_path / "example.py"
    example = block("python", "TimerClient")
    assert DEFAULT_URL in example
    script.write_text(example.replace(DEFAULT_URL, broker.url), "utf-8")
    for _ in range(2):
        outcome, event = await run(broker, sys.executable, str(script))
        assert outcome == "scheduled"
        assert "'data': {'any': 'json'}" in event


@ON_SQLITE
async def test_nats_cli(user: User, broker: NatsServer, service: Service) -> None:
    """The command that the `nats` command line publishes fires at once."""
    await run_shell(broker, NATS_CLI + block("sh", "nats pub"))
    await user.until_stored("TIMER_EVT", 1)
    (fired,) = await user.fired()
    assert fired.event["payload"]["data"] == {"any": "json"}


@pytest.mark.slow
@ON_SQLITE
@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("timers schedule", ["scheduled: acme/call-"]),
    ],
)
async def test_timer_service(part: str, expected: list[str], broker: NatsServer, service: Service) -> None:
    """The commands succeed twice. Commands that run until Ctrl-C, and `doctor`, are left out."""
    endless = re.compile(r"^timer-service (timers watch|doctor)", re.ASCII)
    script = "\n".join(line for line in block("sh", part).splitlines() if not endless.match(line))
    for _ in range(2):
        output = await run_shell(broker, script)
        for text in expected:
            assert any(line.startswith(text) for line in output), output


@pytest.mark.slow
@ON_SQLITE
async def test_shell_of_schedules(broker: NatsServer, service: Service) -> None:
    """The commands of docs/schedules.md succeed in their order, and twice."""
    parts = ("schedules preview", "--catch-up last", "schedules trigger", "schedules get")
    script = "".join(block("sh", part, SCHEDULES) for part in parts)
    outcomes = ["created", "triggered", "paused", "resumed", "deleted"]
    for _ in range(2):
        output = await run_shell(broker, script)
        ended = [line.partition(":")[0] for line in output if re.match(r"\w+: acme/report", line)]
        assert ended == outcomes


@pytest.mark.slow
@ON_SQLITE
async def test_shell_of_signals(broker: NatsServer, service: Service) -> None:
    """The commands of docs/signals.md succeed in their order."""
    output = await run_shell(broker, block("sh", "signals create", SIGNALS))
    outcomes = [line.partition(":")[0] for line in output if re.match(r"\w+: acme/", line)]
    assert outcomes == ["created", "transitioned", "resolved"]


@pytest.mark.slow
@ON_SQLITE
async def test_shell_of_runs(broker: NatsServer, service: Service) -> None:
    """The commands of docs/runs.md print the graph that the page shows."""
    _, *graph = await run_shell(broker, block("sh", "start acme build-1", RUNS))
    assert "\n".join(["```", *graph, "```"]) in RUNS


@pytest.mark.slow
@ON_SQLITE
async def test_python_of_schedules(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """The script of docs/schedules.md prints what its comments say. It can be run twice."""
    script = tmp_path / "example.py"
    example = block("python", "TimerClient", SCHEDULES)
    assert DEFAULT_URL in example
    script.write_text(example.replace(DEFAULT_URL, broker.url), "utf-8")
    for _ in range(2):
        lines = await run(broker, sys.executable, str(script))
        assert [line.split()[1].partition("+")[0] for line in lines[:3]] == ["09:00:00"] * 3
        assert lines[3:7] == ["created active", "paused", "resumed", "deleted"]
        types = [line.split()[0] for line in lines[7:-1]]
        assert (types[-1], {*types[:-1]}) == ("ScheduleEnded", {"ScheduleFired"})
        assert lines[-1].startswith("INVALID_CRON [{'path': 'payload.cron', 'reason': \"the field day of week is '?'")
