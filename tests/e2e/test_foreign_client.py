"""Clients on Node for each broker, and a worker. They share only contracts/ with this package."""

import asyncio
import json
import runpy
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.live_service import BROKERS
from tests.harness.node import install_packages, run_in
from tests.harness.processes import NatsServer, Service, body
from tests.harness.raw_worker import RawWorker, start_workflows

CLIENT = Path(__file__).parent / "foreign_client"
CONTRACTS = Path(__file__).parents[2] / "contracts"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the client in a temporary folder."""
    folder = tmp_path_factory.mktemp("node") / "client"
    shutil.copytree(CLIENT, folder)
    install_packages(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKERS)
async def test_client_on_node_schedules_a_timer(client: Path, tmp_path: Path, name: str) -> None:
    """A client on Node schedules a timer, receives its outcome and event, and asks for it, over each broker.

    All messages match the schemas.
    """
    async with BROKERS[name].start(tmp_path) as broker, Service(tmp_path, broker.url):
        run_client = ("node", "client.mjs", broker.url, str(CONTRACTS))
        printed = json.loads(await asyncio.to_thread(run_in, client, *run_client))
    command, event = printed["command"], printed["event"]
    assert printed["outcome"]["commandId"] == command["id"]
    assert printed["outcome"]["outcome"] == "scheduled"
    assert event["type"] == "DueTimeReached"
    assert event["id"] == printed["messageId"]
    assert (event["tenantId"], event["correlationId"]) == (command["tenantId"], "order-4711")
    assert event["causationId"] == command["id"]
    fired, wanted = event["payload"], command["payload"]
    assert {name: fired[name] for name in wanted} == wanted
    assert datetime.fromisoformat(fired["reachedAt"]) >= datetime.fromisoformat(wanted["dueAt"])
    assert printed["timer"]["state"] == "Reached"
    assert printed["refusal"]["error"]["code"] == "NOT_FOUND"


@pytest.mark.slow
def test_the_asyncapi_document_is_valid(client: Path) -> None:
    """The document conforms to the schema of AsyncAPI 3.0."""
    schema = json.loads((client / "node_modules/@asyncapi/specs/schemas/3.0.0.json").read_text("utf-8"))
    document = runpy.run_path(str(CONTRACTS / "generate.py"))["asyncapi"]()
    assert [each.message for each in Draft7Validator(schema).iter_errors(document)] == []


@pytest.mark.slow
@ON_SQLITE
async def test_worker_on_node_executes_workflows(
    client: Path, broker: NatsServer, user: User, service: Service
) -> None:
    """A worker on Node executes, retries, fails and continues workflows, and stops when a task is lost.

    Its requests and all replies match the schemas.
    """
    inputs: dict[str, dict[str, object]] = {
        "plain": {"name": "Ada"},
        "retried": {"name": "Bob", "failures": 1},
        "failed": {"name": "Cleo", "failures": 2},
        "continued": {"name": "Dan"},
        "hanging": {"name": "Eve", "hangs": True},
    }
    retry = {"maxAttempts": 2, "first": "PT0.01S"}
    await start_workflows(user.connection, ["continued"], type="greet", input=inputs["continued"], retry=retry)
    first = RawWorker(user.connection, types=["greet"])
    (task,) = await first.poll()
    step = {"key": "greet", "attempt": 1, "result": "Welcome back, Dan"}
    assert await first.report(task, {"action": "release", "reason": "shutdown"}, steps=[step]) == "released"
    for name in inputs.keys() - {"continued"}:
        await start_workflows(user.connection, [name], type="greet", input=inputs[name], retry=retry)

    events = await run_worker(client, broker, user, count=len(inputs))
    said: dict[str, list[object]] = {name: [] for name in inputs}
    for event in events:
        said[event.pop("workflowId")] += [] if "renewed" in event else event.items()
    assert said == {
        "plain": [("attempt", 1), ("outcome", "completed")],
        "retried": [("attempt", 1), ("outcome", "recorded"), ("attempt", 2), ("outcome", "completed")],
        "failed": [
            ("attempt", 1),
            ("outcome", "recorded"),
            ("attempt", 2),
            ("outcome", "recorded"),
            ("outcome", "failed"),
        ],
        "continued": [("outcome", "completed")],
        "hanging": [("attempt", 1), ("lost", True)],
    }
    await user.until_stored("TIMER_EVT", len(inputs))
    ended = [json.loads(message.data) for message in await user.read("TIMER_EVT", "timer.evt.v1.acme.*")]
    results = {each["payload"]["workflowId"]: each["payload"].get("result", each["type"]) for each in ended}
    assert results == {
        "plain": {"greeting": "Hello, Ada"},
        "retried": {"greeting": "Hello, Bob"},
        "failed": "WorkflowFailed",
        "continued": {"greeting": "Welcome back, Dan"},
        "hanging": "WorkflowCancelled",
    }


async def run_worker(client: Path, broker: NatsServer, user: User, *, count: int) -> list[dict[str, Any]]:
    """Run the worker until `count` tasks have ended. Cancel `hanging` after its first renewal. Return the events."""
    piped = asyncio.subprocess.PIPE
    command = ("node", "worker.mjs", broker.url, str(CONTRACTS), "acme", str(count))
    worker = await asyncio.create_subprocess_exec(*command, cwd=client, stdout=piped, stderr=piped)
    assert worker.stdout is not None
    assert worker.stderr is not None
    events: list[dict[str, Any]] = []
    cancel = body("CancelWorkflow", "acme", {"workflowId": "hanging"})
    try:
        async with asyncio.timeout(60):
            async for line in worker.stdout:
                events.append(json.loads(line))
                if cancel and events[-1] == {"workflowId": "hanging", "renewed": True}:
                    await user.js.publish("timer.cmd.v1.acme.cancel-workflow", cancel)
                    cancel = b""
            errors = (await worker.stderr.read()).decode()
            assert (await worker.wait(), errors) == (0, "")
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    return events
