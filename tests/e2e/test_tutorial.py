"""The commands of docs/workflows-tutorial.md, as a reader types them."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.harness.processes import NatsServer, Service
from tests.harness.spawn import BIN

TUTORIAL = (Path(__file__).parents[2] / "docs" / "workflows-tutorial.md").read_text("utf-8")


def block(language: str, part: str) -> str:
    """Return the only code block of the tutorial in a language that contains `part`."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
    (found,) = (each for each in blocks if part in each)
    return str(found)


def until_ended(order: int) -> str:
    """Return a command that waits for the end of an order, and prints its result."""
    return f"timer-service workflows start acme order-{order} order --input '{{\"id\": {order}}}' --wait"


@pytest.mark.slow  # the order of a worker that was killed waits for a lease of 10 s
async def test_commands_of_the_tutorial(tmp_path: Path, broker: NatsServer) -> None:
    """The first order ends as printed. The second one ends although its worker is killed, and is charged once."""
    (tmp_path / "orders.py").write_text(block("python", "async def pay"), "utf-8")
    script = f"""
timer-service worker acme orders:order 2>worker.err >worker.out &
{block("sh", "order-1").replace("sleep 5", until_ended(1))}
kill -TERM %1
wait %1
{block("sh", "order-2").replace("# the next worker", "&")}
{until_ended(2)}
kill -TERM $!
wait $!
"""
    environment = {
        **os.environ,
        "TIMER_BROKER_URL": broker.url,
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
    }
    async with Service(tmp_path / "service", broker.url):
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await shell.communicate()
    assert shell.returncode == 0, output.decode()
    lines = output.decode().splitlines()
    printed = block("", "N  EFFECT").splitlines()
    for line in [printed[0], *printed[-6:]]:
        assert line in lines, output.decode()
    assert lines.count('{"charge": "charge-2", "approved": true}') == 1
    assert len([line for line in lines if line.startswith("charge order 2")]) == 1
