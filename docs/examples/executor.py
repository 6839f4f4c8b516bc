"""A small executor. It runs the command in the payload of each JobReady and reports the result (docs/runs.md).

    python docs/examples/executor.py acme

It finds the broker as the commands of `timer-service` do: TIMER_BROKER_URL, or the `dev` of the current folder.
It may be killed at any time. The broker delivers an event that was not acknowledged again, and the executor runs the
command again. A report that is sent twice counts once.
"""

import argparse
import asyncio
import json
import time
from datetime import timedelta
from typing import Any

from timer_service.client import JobReady, NoAnswerError, RetryLater, TimerApp

MAX_JOBS = 2
"""How many jobs run at the same time."""
MAX_OUTPUT = 2000
"""How many characters of the output of a command are reported."""


def create_app(tenant: str, ack_wait: timedelta) -> TimerApp:
    """Return the app that executes the jobs of a tenant, also those that became ready before its first start."""
    app = TimerApp(tenant=tenant, name="executor", concurrency=MAX_JOBS, from_start=True, ack_wait=ack_wait)

    @app.on_job()
    async def execute(event: JobReady) -> None:
        """Run one job and report its end. While the service is away, the job waits."""
        try:
            await run_job(app, event)
        except NoAnswerError as error:
            raise RetryLater(timedelta(seconds=5), str(error)) from error

    return app


async def run_job(app: TimerApp, event: JobReady) -> None:
    """Run the command of a job. If it lists the jobs of a group, resolve the group."""
    runs = app.client.runs
    await runs.report(event.tenant, event.run_id, event.job_name, "running", attempt=event.attempt)
    started = time.monotonic()
    payload = event.payload or {}
    code, output = await run_command(payload)
    if "resolves" in payload:
        code, jobs = read_jobs(code, output)
        await runs.resolve_group(event.tenant, event.run_id, payload["resolves"], jobs)
    status = "failed" if code else "success"
    outputs = {"exitCode": code, "seconds": round(time.monotonic() - started, 1), "output": output[-MAX_OUTPUT:]}
    await runs.report(event.tenant, event.run_id, event.job_name, status, outputs=outputs, attempt=event.attempt)
    print(f"{event.job_name}: {status} after {outputs['seconds']} s", flush=True)


async def run_command(payload: dict[str, Any]) -> tuple[int, str]:
    """Run the command of a payload, if it has one. Return the exit code and the output."""
    if "run" not in payload:
        return 0, ""
    piped = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*payload["run"], stdout=piped, stderr=asyncio.subprocess.STDOUT)
    except OSError as error:
        return 127, str(error)
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode(errors="replace")


def read_jobs(code: int, output: str) -> tuple[int, list[Any]]:
    """Return the exit code and the jobs of a group.

    If the command failed, the group is resolved without jobs, because an unresolved group keeps its run open.
    """
    try:
        return (code, json.loads(output)) if code == 0 else (code, [])
    except ValueError:
        return 1, []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tenant")
    parser.add_argument(
        "--ack-wait",
        type=float,
        default=30,
        help="seconds until the jobs of a killed executor are run again",
    )
    arguments = parser.parse_args()
    create_app(arguments.tenant, timedelta(seconds=arguments.ack_wait)).run()
