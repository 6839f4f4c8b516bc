"""A client that shares nothing with this package but contracts/: nats.js, on Node."""

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
    """Install the client into a folder of its own; without Node, skip on a laptop and fail on a CI machine."""
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


async def test_nats_js(client: Path, broker: NatsServer, service: Service) -> None:
    """It schedules a timer, is told the outcome in its inbox, and receives the event; both fit the schemas."""
    told = json.loads(await asyncio.to_thread(run, "node", "client.mjs", broker.url, str(CONTRACTS), folder=client))
    command, event = told["command"], told["event"]
    assert told["stream"] == "TIMER_CMD"
    assert told["outcome"]["commandId"] == command["id"]
    assert told["outcome"]["outcome"] == "scheduled"
    assert event["type"] == "DueTimeReached"
    assert event["id"] == told["messageId"]
    assert (event["tenantId"], event["correlationId"]) == (command["tenantId"], "order-4711")
    assert event["causationId"] == command["id"]
    fired, wanted = event["payload"], command["payload"]
    assert {name: fired[name] for name in wanted} == wanted
    assert datetime.fromisoformat(fired["reachedAt"]) >= datetime.fromisoformat(wanted["dueAt"])
