"""The throughput of parallel runs, in which each job is reported as soon as it is ready."""

import asyncio
import json
import time

from nats.aio.msg import Msg

from benchmarks.harness import Message, Rig, command, publish, until_none
from benchmarks.records import Result
from benchmarks.timers import count_faults

_JOBS = 20
_JOBS_PER_STEP = 4
"""A run has five steps of four jobs. Each job needs all jobs of the step before."""


def _start(run: str) -> Message:
    first = [number // _JOBS_PER_STEP * _JOBS_PER_STEP for number in range(_JOBS)]
    needs = [[f"{each}" for each in range(max(at - _JOBS_PER_STEP, 0), at)] for at in first]
    jobs = [{"name": f"{number}", "needs": each} for number, each in enumerate(needs)]
    return command("StartRun", f"start-{run}", {"runId": run, "jobs": jobs})


async def runs(rig: Rig, size: int) -> Result:
    """Start runs. Report the success of each job when its JobReady arrives, until all runs are complete."""
    queue: asyncio.Queue[Message] = asyncio.Queue()
    jobs: list[tuple[str, str]] = []
    completed: list[str] = []

    async def ready(message: Msg) -> None:
        payload = json.loads(message.data)["payload"]
        run, job = payload["runId"], payload["jobName"]
        jobs.append((run, job))
        queue.put_nowait(
            command("ReportJobStatus", f"end-{run}-{job}", {"runId": run, "jobName": job, "status": "success"})
        )

    async def complete(message: Msg) -> None:
        completed.append(json.loads(message.data)["payload"]["runId"])

    async def missing() -> int:
        return size - len(completed)

    async with rig.broker() as client, rig.service() as service:
        await client.subscribe("timer.evt.v1.*.job-ready", cb=ready)
        await client.subscribe("timer.evt.v1.*.run-completed", cb=complete)
        publisher = await publish(client, ())

        async def execute() -> None:
            while True:
                await publisher.send(await queue.get())

        executing = asyncio.create_task(execute())
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
    return Result(figures, count_faults([(f"run-{n}", f"{job}") for n in range(size) for job in range(_JOBS)], jobs))
