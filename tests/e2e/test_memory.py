"""The memory of the service under many large commands."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from tests.harness.memory import MIB, peak_bytes
from tests.harness.processes import NatsServer, Service

_WINDOW = 100
_HANDLED = ("kept", "not_kept")


@pytest.fixture
async def service(broker: NatsServer, tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, broker.url) as service:
        yield service


async def count_handled(service: Service) -> float:
    samples = [f'timer_commands_received_total{{outcome="{each}",type="ReportJobStatus"}}' for each in _HANDLED]
    return sum([await service.metric(sample) for sample in samples])


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
async def test_reports_of_an_unknown_run_need_little_memory(broker: NatsServer, service: Service, count: int) -> None:
    """Memory grows by less than 100 MiB however many large reports of an unknown run arrive."""
    async with await nats.connect(broker.url) as client:
        js = client.jetstream()
        before = peak_bytes(service.running.pid)
        for start in range(0, count, _WINDOW):
            reports = [
                {"runId": "unknown", "jobName": f"job-{number}", "status": "success", "outputs": {"log": "x" * 60_000}}
                for number in range(start, min(start + _WINDOW, count))
            ]
            bodies = [{"type": "ReportJobStatus", "tenantId": "acme", "payload": report} for report in reports]
            await asyncio.gather(
                *(js.publish("timer.cmd.v1.acme.report-job-status", json.dumps(body).encode()) for body in bodies)
            )
        while await count_handled(service) < count:
            await asyncio.sleep(0.05)
    growth = peak_bytes(service.running.pid) - before
    print(f"{count} reports: {before / MIB:.0f} MiB before, {growth / MIB:.0f} MiB more at most")
    assert growth < 100 * MIB
    assert await service.metric('timer_commands_received_total{outcome="not_kept",type="ReportJobStatus"}') > 0
