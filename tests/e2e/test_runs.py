"""Runs over the real broker: a pipeline done by the executor of the docs, killed on the way, and the service too."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User, kill_and_start
from tests.harness.processes import Executor, NatsServer, Service, body
from timer_service.core.message import kebab

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PIPELINE: dict[str, Any] = json.loads((EXAMPLES / "checks.json").read_text("utf-8"))
QUICK = ["python", "-c", "import time; time.sleep(0.1)"]
TESTS = ["tests-postgres", "tests-sqlite"]


@pytest.fixture
async def executor(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Executor]:
    async with Executor(tmp_path, EXAMPLES / "executor.py", broker.url) as made:
        yield made


def pipeline(**commands: list[str]) -> dict[str, Any]:
    """Return the checks of this project as a run whose commands are quick, or as given."""
    jobs = [
        job if job["name"] == "plan" else {**job, "payload": {"run": commands.get(job["name"], QUICK)}}
        for job in PIPELINE["jobs"]
    ]
    plan = [{"name": name, "needs": ["types"], "payload": {"run": commands.get(name, QUICK)}} for name in TESTS]
    planning = {"resolves": "tests", "run": ["python", "-c", f"print({json.dumps(plan)!r})"]}
    return {**PIPELINE, "jobs": [{**job, "payload": planning} if job["name"] == "plan" else job for job in jobs]}


async def request(user: User, message_type: str, **payload: Any) -> None:
    fields = {"tenantId": "acme", "runId": "push-1", **payload}
    await user.js.publish(f"timer.cmd.v1.acme.{kebab(message_type)}", body(message_type, "acme", fields))


async def ask(user: User, run: str = "push-1") -> Any:
    question = json.dumps({"runId": run}).encode()
    answer = await user.connection.request("timer.qry.v1.acme.get-run", question, timeout=10)
    return json.loads(answer.data)


async def until(user: User, job: str, *statuses: str, seconds: float = 60) -> None:
    """Wait until a job is in one of some statuses."""
    async with asyncio.timeout(seconds):
        while not any(each["name"] == job and each["status"] in statuses for each in (await ask(user)).get("jobs", ())):
            await asyncio.sleep(0.02)


async def events(user: User, name: str) -> list[Mapping[str, Any]]:
    return [json.loads(message.data) for message in await user.read("TIMER_EVT", f"timer.evt.v1.acme.{name}")]


async def until_told(user: User, name: str) -> None:
    """Wait until an event of a kind is in the stream."""
    async with asyncio.timeout(60):
        while not await events(user, name):
            await asyncio.sleep(0.02)


async def test_pipeline_with_everything_killed(user: User, service: Service, executor: Executor) -> None:
    """A pipeline with a dynamic group is done to its end though executor and service are killed on the way."""
    await request(user, "StartRun", **pipeline(package=["python", "-c", "import time; time.sleep(1)"]))
    executor.launch()
    await until(user, "types", "success", "running")
    await executor.kill()
    await kill_and_start(service, user)
    executor.launch()
    await until(user, "package", "running")
    await executor.kill()
    executor.launch()
    await until(user, "notify", "success")
    await user.until_handled()
    await until_told(user, "run-completed")
    ready = await events(user, "job-ready")
    run = await ask(user)
    assert (run["status"], run["counts"]) == ("success", {"success": 8})
    assert sorted({each["payload"]["jobName"] for each in ready}) == sorted(job["name"] for job in run["jobs"])
    assert len({each["id"] for each in ready}) == len(run["jobs"])
    given = {each["payload"]["jobName"]: each["payload"]["upstreamJobOutputs"] for each in ready}
    assert given["package"].keys() == {"lint", "types", "plan", *TESTS}
    assert len({each["id"] for each in await events(user, "run-completed")}) == 1


async def test_pipeline_that_fails(user: User, service: Service, executor: Executor) -> None:
    """With one engine's tests failing nothing is packaged or published, and everybody is notified."""
    await request(user, "StartRun", **pipeline(**{"tests-sqlite": ["python", "-c", "raise SystemExit(3)"]}))
    executor.launch()
    await until(user, "notify", "success")
    await until(user, "tests-postgres", "success")
    await until_told(user, "run-completed")
    run = await ask(user)
    statuses = {job["name"]: job["status"] for job in run["jobs"]}
    assert run["status"] == "failed"
    assert [statuses[name] for name in ("tests-sqlite", "package", "publish")] == ["failed", "skipped", "skipped"]
    assert {each["payload"]["reason"] for each in await events(user, "job-skipped")} == {
        "upstream_failed: tests-sqlite",
        "upstream_failed: package",
    }


@ON_SQLITE
async def test_example_for_anywhere(user: User, service: Service, executor: Executor) -> None:
    """The example of the README is done to its end, its group resolved by one of its jobs."""
    await request(user, "StartRun", **json.loads((EXAMPLES / "build.json").read_text("utf-8")))
    executor.launch()
    await until_told(user, "run-completed")
    assert (await ask(user))["counts"] == {"success": 7}


@ON_SQLITE
async def test_command_that_is_not_there(user: User, service: Service, executor: Executor) -> None:
    """The example executor reports what it can't run as failed, and leaves no group open."""
    await request(
        user, "StartRun", groups=["tests"], jobs=[{"name": "plan", "payload": {"resolves": "tests", "run": ["nil"]}}]
    )
    executor.launch()
    await until_told(user, "run-completed")
    run = await ask(user)
    assert (run["status"], run["groups"]) == ("failed", {"tests": True})
    assert run["jobs"][0]["outputs"]["exitCode"] == 127


async def test_switched_off_and_on(tmp_path: Path, user: User, broker: NatsServer) -> None:
    """With TIMER_RUNS_ENABLED=false commands are taken and nobody goes; started with true, it catches up."""
    async with Service(tmp_path / "service", broker.url, TIMER_RUNS_ENABLED="false"):
        await request(user, "StartRun", jobs=[{"name": "a"}])
        await user.until_handled()
        assert await user.stored("TIMER_EVT") == 0
    async with Service(tmp_path / "service", broker.url):
        await user.until_stored("TIMER_EVT", 1)
        assert [each["payload"]["jobName"] for each in await events(user, "job-ready")] == ["a"]


@pytest.mark.full
async def test_own_checks(user: User, service: Service, executor: Executor) -> None:
    """The checks of this project, as docs/examples has them, are done as a run, the executor killed amid the tests."""
    await request(user, "StartRun", **PIPELINE)
    executor.launch()
    await until(user, "tests-postgres", "running", seconds=300)
    await executor.kill()
    executor.launch()
    async with asyncio.timeout(600):
        while (await ask(user)).get("status") in {None, "running"}:
            await asyncio.sleep(0.5)
    run = await ask(user)
    print({job["name"]: (job["status"], job.get("outputs", {}).get("seconds")) for job in run["jobs"]})
    assert run["status"] == "success"
    assert len({event["id"] for event in await events(user, "job-ready")}) == len(run["jobs"]) == 8
