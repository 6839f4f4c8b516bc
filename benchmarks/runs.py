"""The throughput of parallel runs, in which each job is reported as soon as it is ready."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.harness import Message, Publisher, Rig, until_none
from benchmarks.result import Result

_JOBS = 20
_JOBS_PER_STEP = 4
"""A run has five steps of four jobs. Each job needs all jobs of the step before."""


def _command(message_type: str, message: str, command_id: str, payload: Mapping[str, Any]) -> Message:
    fields = {"tenantId": "bench", **payload}
    body = {"id": command_id, "type": message_type, "tenantId": "bench", "payload": fields}
    return Message(f"timer.cmd.v1.bench.{message}", command_id, json.dumps(body).encode())


def _start(run: str) -> Message:
    jobs = [{"name": f"{number}", "needs": [f"{each}" for each in _step_before(number)]} for number in range(_JOBS)]
    return _command("StartRun", "start-run", f"start-{run}", {"runId": run, "jobs": jobs})


def _step_before(number: int) -> range:
    first = number // _JOBS_PER_STEP * _JOBS_PER_STEP
    return range(max(first - _JOBS_PER_STEP, 0), first)


def _success(ready: Mapping[str, Any]) -> Message:
    run, job = ready["runId"], ready["jobName"]
    payload = {"runId": run, "jobName": job, "status": "success"}
    return _command("ReportJobStatus", "report-job-status", f"end-{run}-{job}", payload)


async def runs(rig: Rig, size: int) -> Result:
    """Start runs. Report the success of each job when its JobReady arrives, until all runs are complete."""
    queue: asyncio.Queue[Message] = asyncio.Queue()
    ready_ids: list[str] = []
    completed: list[str] = []

    async def ready(message: Msg) -> None:
        event = json.loads(message.data)
        ready_ids.append(event["id"])
        queue.put_nowait(_success(event["payload"]))

    async def complete(message: Msg) -> None:
        completed.append(json.loads(message.data)["payload"]["runId"])

    async def missing() -> int:
        return size - len(completed)

    async with rig.broker() as client, rig.service() as service:
        await client.subscribe("timer.evt.v1.*.job-ready", cb=ready)
        await client.subscribe("timer.evt.v1.*.run-completed", cb=complete)
        executing = asyncio.create_task(_execute(client, queue))
        started = time.time()
        for number in range(size):
            queue.put_nowait(_start(f"run-{number}"))
        seconds = await until_none(service, missing) - started
        executing.cancel()
    figures = {
        f"runs of {_JOBS} jobs in parallel": size,
        "seconds from the first StartRun to the last RunCompleted": seconds,
        "runs/s": size / seconds,
        "jobs/s": size * _JOBS / seconds,
    }
    problems = (
        [] if len(set(ready_ids)) == size * _JOBS else [f"{len(set(ready_ids))} of {size * _JOBS} jobs were ready"]
    )
    return Result(figures, problems)


async def _execute(client: Client, queue: asyncio.Queue[Message]) -> None:
    publisher = Publisher(client)
    await publisher.open()
    while True:
        await publisher.send(await queue.get())
