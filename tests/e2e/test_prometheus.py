"""A real Prometheus with the alerts and the queries of `deploy/`."""

import asyncio
import time
from pathlib import Path

import pytest

from deploy.grafana import dashboard
from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.processes import NatsServer, Service
from tests.harness.prometheus import Prometheus, needs_prometheus

PATIENCE = 240
"""Seconds. An alert fires after its bound and its `for`: two minutes and more."""
OVERDUE = ("TimersOverdue", "timer_schedules")
NO_INSTANCE = {("TimerNoInstance", flow) for flow in ("commands", "events")}


@pytest.mark.full
@pytest.mark.timeout(900)
@needs_prometheus
async def test_alerts_fire_and_resolve(user: User, broker: NatsServer, tmp_path: Path) -> None:
    """Timers that a locked database delays fire an alert, and so does a stopped service. Both resolve afterwards."""
    async with (
        Service(tmp_path / "service", broker.url) as service,
        Prometheus(tmp_path / "prometheus", [service.port]) as prometheus,
    ):
        due = round(time.time() * 1000) + 10_000
        await user.schedule({f"call-{number}": due for number in range(20)})
        scheduled = 'timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}'
        await service.until_metric(scheduled, at_least=20)
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
        await user.until_stored("TIMER_EVT", 20)


@pytest.mark.slow
@ON_SQLITE
@needs_prometheus
async def test_prometheus_answers_the_queries_of_the_dashboard(user: User, service: Service, tmp_path: Path) -> None:
    """Prometheus accepts every query of the dashboard, and gauges have values."""
    await user.schedule({"call": 0})
    await user.until_stored("TIMER_EVT", 1)
    queries = [query.expr for row in dashboard.DASHBOARD for panel in row.panels for query in panel.queries]
    async with Prometheus(tmp_path / "prometheus", [service.port]) as prometheus:
        async with asyncio.timeout(PATIENCE):
            while not await prometheus.query("timer_overdue and on (instance) rate(process_cpu_seconds_total[1m])"):
                await asyncio.sleep(0.1)
        found = {query: await prometheus.query(query.replace("$__rate_interval", "1m")) for query in queries}
    without_values = [query for query, series in found.items() if not series]
    assert without_values == []
