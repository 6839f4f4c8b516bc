"""A small executor: runs the command in each JobReady's payload and reports how it ended (docs/runs.md).

    python docs/examples/executor.py acme

It may be killed at any moment: an event that was not acknowledged comes again, its command is run again, and what is
reported twice counts once.
"""

import argparse
import asyncio
import json
import os
import time
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

AT_ONCE = 2
OUTPUT = 2000


async def main(url: str, tenant: str, patience: float) -> None:
    """Take jobs until killed."""
    async with await nats.connect(url) as connection:
        stream = connection.jetstream()
        ready = await stream.pull_subscribe(
            f"timer.evt.v1.{tenant}.job-ready",
            durable="executor",
            stream="TIMER_EVT",
            config=ConsumerConfig(ack_wait=patience, max_ack_pending=AT_ONCE),
        )
        async with asyncio.TaskGroup() as working:
            while True:
                try:
                    for message in await ready.fetch(1, timeout=5):
                        working.create_task(execute(stream, tenant, message, patience))
                except TimeoutError:
                    continue


async def execute(stream: JetStreamContext, tenant: str, message: Msg, patience: float) -> None:
    """Do one job; its event is acknowledged once its end is reported, and claimed as long as that takes."""
    event = json.loads(message.data)
    job = event["payload"]
    about = {"tenantId": tenant, "runId": job["runId"], "jobName": job["jobName"]}
    claiming = asyncio.create_task(claim(message, patience / 3))
    try:
        await tell(stream, "ReportJobStatus", {**about, "status": "running"}, f"{event['id']}-running")
        started = time.monotonic()
        given = job.get("payload") or {}
        code, output = await command(given)
        if "resolves" in given:
            code, jobs = read_jobs(code, output)
            group = {"tenantId": tenant, "runId": job["runId"], "groupName": given["resolves"], "jobs": jobs}
            await tell(stream, "ResolveGroup", group, f"{event['id']}-resolved")
        outputs = {"exitCode": code, "seconds": round(time.monotonic() - started, 1), "output": output[-OUTPUT:]}
        ended = {**about, "status": "failed" if code else "success", "outputs": outputs}
        await tell(stream, "ReportJobStatus", ended, f"{event['id']}-ended")
        await message.ack()
        print(f"{job['jobName']}: {ended['status']} after {outputs['seconds']} s", flush=True)
    finally:
        claiming.cancel()


async def claim(message: Msg, interval: float) -> None:
    """Say again and again that the job is being done."""
    while True:
        await asyncio.sleep(interval)
        await message.in_progress()


async def command(payload: dict[str, Any]) -> tuple[int, str]:
    """Run a payload's command, if it has one; return its exit code and what it printed."""
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
    """Read the jobs of a group: none if its command failed, for a group that nobody resolves keeps its run open."""
    try:
        return (code, json.loads(output)) if code == 0 else (code, [])
    except ValueError:
        return 1, []


async def tell(stream: JetStreamContext, message_type: str, payload: dict[str, Any], message_id: str) -> None:
    """Send a command; the broker drops a second one of the same id."""
    tenant = payload["tenantId"]
    body = {"id": message_id, "type": message_type, "tenantId": tenant, "payload": payload}
    subject = {"ReportJobStatus": "report-job-status", "ResolveGroup": "resolve-group"}[message_type]
    headers = {"Nats-Msg-Id": message_id}
    await stream.publish(f"timer.cmd.v1.{tenant}.{subject}", json.dumps(body).encode(), headers=headers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tenant")
    parser.add_argument("--patience", type=float, default=30, help="seconds until a dead executor's jobs are done anew")
    given = parser.parse_args()
    asyncio.run(main(os.environ.get("TIMER_BROKER_URL", "nats://localhost:4222"), given.tenant, given.patience))
