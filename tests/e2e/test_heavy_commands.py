"""Small commands that cost much, on large prepared runs, beside the commands of another tenant."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.harness.memory import MIB, peak_bytes
from tests.harness.processes import NatsServer, Service, body

LARGE = [{"name": "job-0"}, *({"name": f"job-{number}", "needs": ["job-0"]} for number in range(1, 10_000))]
"""As many jobs as a run can have."""
_MEMORY_BUDGET = 256 * MIB


async def publish(client: Client, message: str, kind: str, payloads: list[dict[str, Any]]) -> None:
    for payload in payloads:
        await client.jetstream().publish(f"timer.cmd.v1.flood.{message}", body(kind, "flood", payload), timeout=30)


async def latency(client: Client, call: str) -> float:
    """Schedule a timer of another tenant. Return how many seconds its reply takes."""
    inbox = await client.subscribe(client.new_inbox())
    started = time.monotonic()
    schedule = body("ScheduleTimer", "good", {"serviceCallId": call, "dueAt": "2100-01-01T00:00:00Z"})
    headers = {"Timer-Reply-To": inbox.subject}
    await client.jetstream().publish("timer.cmd.v1.good.schedule-timer", schedule, headers=headers)
    assert json.loads((await inbox.next_msg(timeout=60)).data)["outcome"] == "scheduled"
    return time.monotonic() - started


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, pytest.param(50, marks=[pytest.mark.full, pytest.mark.timeout(300)])])
async def test_small_commands_on_large_runs(broker: NatsServer, tmp_path: Path, count: int) -> None:
    """Runs of 10,000 jobs are started and cancelled, many at a time. Other tenants wait for few of them."""
    names = [f"run-{number}" for number in range(count)]
    async with Service(tmp_path, broker.url) as service, await nats.connect(broker.url) as client:
        await publish(client, "start-run", "StartRun", [{"runId": name, "jobs": LARGE} for name in names])
        starting = await latency(client, "call-1")
        while await service.metric('timer_commands_received_total{outcome="started",type="StartRun"}') < count:
            await asyncio.sleep(0.1)
        await publish(client, "cancel-run", "CancelRun", [{"runId": name} for name in names])
        cancelling = await latency(client, "call-2")
        handled = await service.metric('timer_commands_received_total{outcome="cancelled",type="CancelRun"}')
        while await service.metric('timer_commands_received_total{outcome="cancelled",type="CancelRun"}') < count:
            await asyncio.sleep(0.1)
        peak = peak_bytes(service.running.pid)
    print(
        f"{count} runs: {starting:.1f} s behind StartRuns, {cancelling:.1f} s behind CancelRuns, {peak / MIB:.0f} MiB"
    )
    assert handled < count, "the command overtook some of them"
    assert peak < _MEMORY_BUDGET
