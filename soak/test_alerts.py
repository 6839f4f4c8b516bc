"""A real Prometheus with the alerts of `deploy/`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.harness.processes import NatsServer, Service
from tests.harness.prometheus import Prometheus, needs_prometheus
from timer_service.client import TimerClient

PATIENCE = 240
"""Seconds. An alert fires after its bound and its `for`: two minutes and more."""
OVERDUE = ("TimersOverdue", "timer_schedules")
NO_INSTANCE = {("TimerNoInstance", flow) for flow in ("commands", "events")}


@pytest.mark.full
@pytest.mark.timeout(900)
@needs_prometheus
async def test_alerts_fire_and_resolve(broker: NatsServer, tmp_path: Path) -> None:
    """Timers that a locked database delays fire an alert, and so does a stopped service. Both resolve afterwards."""
    async with (
        Service(tmp_path / "service", broker.url) as service,
        Prometheus(tmp_path / "prometheus", [service.port]) as prometheus,
        TimerClient.connect(broker.url) as client,
    ):
        due = datetime.now(UTC) + timedelta(seconds=10)
        for number in range(20):
            await client.timers.schedule("acme", f"call-{number}", due)
        assert await prometheus.firing() == set()
        with service.locked_database():
            await prometheus.until_firing(lambda firing: OVERDUE in firing, PATIENCE)
            print("database locked:", sorted(await prometheus.firing()))
        await prometheus.until_firing(lambda firing: not firing, PATIENCE)
        print("unlocked, resolved")
        await service.terminate()
        await prometheus.until_firing(NO_INSTANCE.issubset, PATIENCE)
        print("stopped:", sorted(await prometheus.firing()))
        await service.start()
        await prometheus.until_firing(lambda firing: not firing, PATIENCE)
        print("started again, resolved")
        assert (await client.timers.count("acme")).by_state["Reached"] == 20
