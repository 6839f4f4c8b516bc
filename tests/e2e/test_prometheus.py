"""A real Prometheus with the queries of `deploy/`."""

import asyncio
from pathlib import Path

import pytest

from deploy.grafana import dashboard
from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.processes import Service
from tests.harness.prometheus import Prometheus, needs_prometheus


@pytest.mark.slow
@ON_SQLITE
@needs_prometheus
async def test_prometheus_answers_the_queries_of_the_dashboard(user: User, service: Service, tmp_path: Path) -> None:
    """Prometheus accepts every query of the dashboard, and gauges have values."""
    await user.schedule({"call": 0})
    await user.until_stored("TIMER_EVT", 1)
    queries = [query.expr for row in dashboard.DASHBOARD for panel in row.panels for query in panel.queries]
    async with Prometheus(tmp_path / "prometheus", [service.port]) as prometheus:
        async with asyncio.timeout(240):
            while not await prometheus.query("timer_overdue and on (instance) rate(process_cpu_seconds_total[1m])"):
                await asyncio.sleep(0.1)
        found = {query: await prometheus.query(query.replace("$__rate_interval", "1m")) for query in queries}
    without_values = [query for query, series in found.items() if not series]
    assert without_values == []
