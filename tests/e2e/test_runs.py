"""Runs over a real broker. The executor of docs/examples runs a pipeline, while executor and service are killed."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User, kill_and_start
from tests.harness.processes import Executor, NatsServer, Service, body
from timer_service.core.values.message import kebab

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PIPELINE: dict[str, Any] = json.loads((EXAMPLES / "checks.json").read_text("utf-8"))
QUICK = ["python", "-c", "import time; time.sleep(0.1)"]
TESTS = ["tests-postgres", "tests-sqlite"]


@pytest.fixture
async def executor(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Executor]:
    async with Executor(tmp_path, EXAMPLES / "executor.py", broker.url) as executor:
        yield executor


def pipeline(**commands: list[str]) -> dict[str, Any]:
    """Return docs/examples/checks.json with quick commands. `commands` replaces the commands of single jobs."""
    jobs = [
        job if job["name"] == "plan" else {**job, "payload": {"run": commands.get(job["name"], QUICK)}}
        for job in PIPELINE["jobs"]
    ]
    plan = [{"name": name, "needs": ["types"], "payload": {"run": commands.get(name, QUICK)}} for name in TESTS]
    plan_payload = {"resolves": "tests", "run": ["python", "-c", f"print({json.dumps(plan)!r})"]}
    return {**PIPELINE, "jobs": [{**job, "payload": plan_payload} if job["name"] == "plan" else job for job in jobs]}


async def request(user: User, message_type: str, **payload: Any) -> None:
    fields = {"tenantId": "acme", "runId": "push-1", **payload}
    await user.js.publish(f"timer.cmd.v1.acme.{kebab(message_type)}", body(message_type, "acme", fields))


async def get_run(user: User, run: str = "push-1") -> Any:
    request = json.dumps({"runId": run}).encode()
    reply = await user.connection.request("timer.qry.v1.acme.get-run", request, timeout=10)
    return json.loads(reply.data)


async def get_jobs(user: User) -> list[Any]:
    return list((await get_run(user)).get("jobs", ()))


async def until(user: User, job: str, *statuses: str, seconds: float = 60) -> None:
    """Wait until a job has one of the statuses."""
    async with asyncio.timeout(seconds):
        while not any(each["name"] == job and each["status"] in statuses for each in await get_jobs(user)):
            await asyncio.sleep(0.02)


async def events(user: User, name: str) -> list[Mapping[str, Any]]:
    return [json.loads(message.data) for message in await user.read("TIMER_EVT", f"timer.evt.v1.acme.{name}")]


async def until_published(user: User, name: str) -> None:
    """Wait until an event of this type is in the stream."""
    async with asyncio.timeout(60):
        while not await events(user, name):
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_pipeline_with_kills(user: User, service: Service, executor: Executor) -> None:
    """A pipeline with a dynamic group completes although executor and service are killed while it runs."""
    await request(user, "StartRun", **pipeline(package=["python", "-c", "import time; time.sleep(1)"]))
    executor.launch()
    await until(user, "types", "success", "running")
    await executor.kill()
    await kill_and_start(service)
    executor.launch()
    await until(user, "package", "running")
    await executor.kill()
    executor.launch()
    await until(user, "notify", "success")
    await user.until_handled()
    await until_published(user, "run-completed")
    ready = await events(user, "job-ready")
    run = await get_run(user)
    assert (run["status"], run["counts"]) == ("success", {"success": 8})
    assert sorted({each["payload"]["jobName"] for each in ready}) == sorted(job["name"] for job in run["jobs"])
    assert len({each["id"] for each in ready}) == len(run["jobs"])
    outputs = {each["payload"]["jobName"]: each["payload"]["upstreamJobOutputs"] for each in ready}
    assert outputs["package"].keys() == {"lint", "types", "plan", *TESTS}
    assert len({each["id"] for each in await events(user, "run-completed")}) == 1


@pytest.mark.slow
@ON_SQLITE
async def test_example_of_the_readme(user: User, service: Service, executor: Executor) -> None:
    """The run of build.json completes. One of its jobs resolves its group."""
    await request(user, "StartRun", **json.loads((EXAMPLES / "build.json").read_text("utf-8")))
    executor.launch()
    await until_published(user, "run-completed")
    assert (await get_run(user))["counts"] == {"success": 7}
