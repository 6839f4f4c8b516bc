"""Runs over a real broker. The executor of docs/examples runs a pipeline, while executor and service are killed."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import User
from tests.harness.processes import Executor, NatsServer, Service, body

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PIPELINE: dict[str, Any] = json.loads((EXAMPLES / "checks.json").read_text("utf-8"))
QUICK = ["python", "-c", "import time; time.sleep(0.1)"]
SLOW = ["python", "-c", "import time; time.sleep(1)"]
TESTS = ["tests-postgres", "tests-sqlite"]
PLAN = [{"name": name, "needs": ["types"], "payload": {"run": QUICK}} for name in TESTS]


@pytest.fixture
async def executor(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Executor]:
    async with Executor(tmp_path, EXAMPLES / "executor.py", broker.url) as executor:
        yield executor


def payload(job: str) -> dict[str, Any]:
    """Return what a job of docs/examples/checks.json runs in the test: a quick command."""
    if job == "plan":
        return {"resolves": "tests", "run": ["python", "-c", f"print({json.dumps(PLAN)!r})"]}
    return {"run": SLOW if job == "package" else QUICK}


async def get_run(user: User) -> Any:
    reply = await user.connection.request("timer.qry.v1.acme.get-run", b'{"runId": "push-1"}', timeout=10)
    return json.loads(reply.data)


async def until(user: User, job: str, *statuses: str) -> None:
    """Wait until a job has one of the statuses."""
    async with asyncio.timeout(60):
        while True:
            jobs = (await get_run(user)).get("jobs", ())
            if any(each["name"] == job and each["status"] in statuses for each in jobs):
                return
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_retry_with_kills(user: User, service: Service, executor: Executor, tmp_path: Path) -> None:
    """A run is retried while service and executor are killed. Each job has one JobReady in each of its attempts."""
    flag = tmp_path / "repaired"
    repaired = {"run": ["python", "-c", f"import pathlib, sys; sys.exit(not pathlib.Path({str(flag)!r}).exists())"]}
    jobs = [
        {"name": "first", "payload": {"run": QUICK}},
        {"name": "flaky", "needs": ["first"], "payload": repaired},
        {"name": "after", "needs": ["flaky"], "payload": {"run": QUICK}},
        {"name": "clean", "needs": ["after"], "payload": {"run": QUICK}, "always": True},
    ]
    await user.js.publish("timer.cmd.v1.acme.start-run", body("StartRun", "acme", {"runId": "push-1", "jobs": jobs}))
    executor.launch()
    await until(user, "clean", "success")
    flag.touch()
    retry = body("RetryRun", "acme", {"runId": "push-1"})
    await asyncio.gather(user.js.publish("timer.cmd.v1.acme.retry-run", retry), service.kill(), executor.kill())
    await service.start()
    executor.launch()
    await until(user, "after", "success")
    await service.kill()
    await service.start()
    completed = await until_completed(user, 2)
    ready = [json.loads(each.data) for each in await user.read("TIMER_EVT", "timer.evt.v1.acme.job-ready")]
    attempts = Counter((each["payload"]["jobName"], each["payload"].get("attempt", 1)) for each in ready)
    assert attempts == Counter(
        [("first", 1), ("flaky", 1), ("clean", 1), *((name, 2) for name in ("flaky", "after", "clean"))]
    )
    assert [each["payload"]["status"] for each in completed] == ["failed", "success"]
    assert len({each["id"] for each in (*ready, *completed)}) == 8


async def until_completed(user: User, count: int) -> list[Any]:
    """Wait until `count` RunCompleted are stored, and return them."""
    async with asyncio.timeout(60):
        while len(found := await user.read("TIMER_EVT", "timer.evt.v1.acme.run-completed")) < count:
            await asyncio.sleep(0.02)
    return [json.loads(each.data) for each in found]


@pytest.mark.slow
async def test_pipeline_with_kills(user: User, service: Service, executor: Executor) -> None:
    """A pipeline with a dynamic group completes although executor and service are killed while it runs."""
    jobs = [{**job, "payload": payload(job["name"])} for job in PIPELINE["jobs"]]
    start = body("StartRun", "acme", {**PIPELINE, "runId": "push-1", "jobs": jobs})
    await user.js.publish("timer.cmd.v1.acme.start-run", start)
    executor.launch()
    await until(user, "types", "success", "running")
    await executor.kill()
    await service.kill()
    await service.start()
    executor.launch()
    await until(user, "package", "running")
    await executor.kill()
    executor.launch()
    await until(user, "notify", "success")
    await user.until_handled()
    ended = await until_completed(user, 1)
    ready = [json.loads(each.data) for each in await user.read("TIMER_EVT", "timer.evt.v1.acme.job-ready")]
    run = await get_run(user)
    assert (run["status"], run["counts"], len(ended)) == ("success", {"success": 8}, 1)
    assert sorted({each["payload"]["jobName"] for each in ready}) == sorted(job["name"] for job in run["jobs"])
    assert len({each["id"] for each in ready}) == len(run["jobs"])
    outputs = {each["payload"]["jobName"]: each["payload"]["upstreamJobOutputs"] for each in ready}
    assert outputs["package"].keys() == {"lint", "types", "plan", *TESTS}
