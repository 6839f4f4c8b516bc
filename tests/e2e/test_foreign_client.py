"""A client on Node (nats.js). It shares only contracts/ with this package."""

import asyncio
import json
import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness.processes import NatsServer, Service

CLIENT = Path(__file__).parent / "foreign_client"
CONTRACTS = Path(__file__).parents[2] / "contracts"


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """Install the client in a temporary folder. Without Node, skip the test, or fail it in CI."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        absent = "node and npm are not installed"
        pytest.fail(absent) if os.environ.get("CI") == "true" else pytest.skip(absent)
    folder = tmp_path / "client"
    shutil.copytree(CLIENT, folder)
    run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", folder=folder)
    return folder


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.slow
async def test_client_on_node_schedules_a_timer(client: Path, broker: NatsServer, service: Service) -> None:
    """A client on Node schedules a timer and receives its outcome and event. Command and event match the schemas."""
    printed = json.loads(await asyncio.to_thread(run, "node", "client.mjs", broker.url, str(CONTRACTS), folder=client))
    command, event = printed["command"], printed["event"]
    assert printed["stream"] == "TIMER_CMD"
    assert printed["outcome"]["commandId"] == command["id"]
    assert printed["outcome"]["outcome"] == "scheduled"
    assert event["type"] == "DueTimeReached"
    assert event["id"] == printed["messageId"]
    assert (event["tenantId"], event["correlationId"]) == (command["tenantId"], "order-4711")
    assert event["causationId"] == command["id"]
    fired, wanted = event["payload"], command["payload"]
    assert {name: fired[name] for name in wanted} == wanted
    assert datetime.fromisoformat(fired["reachedAt"]) >= datetime.fromisoformat(wanted["dueAt"])
