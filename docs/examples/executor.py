"""A small executor. It runs the command in the payload of each JobReady and reports the result (docs/runs.md).

    python docs/examples/executor.py acme

It finds the broker as the commands of `timer-service` do: TIMER_BROKER_URL, or the `dev` of the current folder.
It may be killed at any time. The broker delivers an event that was not acknowledged again, and the executor runs the
command again. A report that is sent twice counts once.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from timer_service.client import Broker, NoAnswerError, find_broker

MAX_JOBS = 2
"""How many jobs run at the same time."""
MAX_OUTPUT = 2000
"""How many characters of the output of a command are reported."""


async def main(broker: Broker, tenant: str, ack_wait: float) -> None:
    """Run jobs until killed."""
    async with await nats.connect(broker.url.split(",")) as connection:
        stream = connection.jetstream()
        ready = await stream.pull_subscribe(
            f"timer.evt.v1.{tenant}.job-ready",
            durable="executor",
            stream="TIMER_EVT",
            config=ConsumerConfig(ack_wait=ack_wait, max_ack_pending=MAX_JOBS),
        )
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    for message in await ready.fetch(1, timeout=5):
                        tasks.create_task(execute(stream, tenant, message, ack_wait))
                except TimeoutError:
                    continue


async def execute(stream: JetStreamContext, tenant: str, message: Msg, ack_wait: float) -> None:
    """Run one job, report its end, and then acknowledge its JobReady."""
    event = json.loads(message.data)
    job = event["payload"]
    names = {"tenantId": tenant, "runId": job["runId"], "jobName": job["jobName"]}
    extending = asyncio.create_task(extend_ack_wait(message, ack_wait / 3))
    try:
        await send(stream, "ReportJobStatus", {**names, "status": "running"}, f"{event['id']}-running")
        started = time.monotonic()
        payload = job.get("payload") or {}
        code, output = await run_command(payload)
        if "resolves" in payload:
            code, jobs = read_jobs(code, output)
            group = {"tenantId": tenant, "runId": job["runId"], "groupName": payload["resolves"], "jobs": jobs}
            await send(stream, "ResolveGroup", group, f"{event['id']}-resolved")
        outputs = {"exitCode": code, "seconds": round(time.monotonic() - started, 1), "output": output[-MAX_OUTPUT:]}
        end = {**names, "status": "failed" if code else "success", "outputs": outputs}
        await send(stream, "ReportJobStatus", end, f"{event['id']}-ended")
        await message.ack()
        print(f"{job['jobName']}: {end['status']} after {outputs['seconds']} s", flush=True)
    finally:
        extending.cancel()


async def extend_ack_wait(message: Msg, interval: float) -> None:
    """Tell the broker at intervals that the job is still running, so that it does not deliver the event again."""
    while True:
        await asyncio.sleep(interval)
        await message.in_progress()


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


async def send(stream: JetStreamContext, message_type: str, payload: dict[str, Any], message_id: str) -> None:
    """Publish a command. The broker drops a second command with the same id."""
    tenant = payload["tenantId"]
    body = {"id": message_id, "type": message_type, "tenantId": tenant, "payload": payload}
    subject = {"ReportJobStatus": "report-job-status", "ResolveGroup": "resolve-group"}[message_type]
    headers = {"Nats-Msg-Id": message_id}
    await stream.publish(f"timer.cmd.v1.{tenant}.{subject}", json.dumps(body).encode(), headers=headers)


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
    try:
        broker = find_broker()
    except NoAnswerError as error:
        sys.exit(f"executor.py: {error}")
    print(f"Waiting for jobs of tenant {arguments.tenant} at {broker}. Stop with Ctrl-C.", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(broker, arguments.tenant, arguments.ack_wait))
