"""The limits of tenants as their users and an operator meet them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.harness.databases import Databases
from tests.harness.processes import NatsServer, Service
from timer_service.client import ExceededLimit, TimerClient

LIMITS = """
[default]
pending_timers = 1000

[tenants.acme]
pending_timers = 2
"""
TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(params=["sqlite", "postgres"])
async def service(request: pytest.FixtureRequest, tmp_path: Path, broker: NatsServer) -> AsyncIterator[Service]:
    """Yield a service with the limits, on each store in turn."""
    (tmp_path / "limits.toml").write_text(LIMITS)
    settings = {"TIMER_LIMITS_FILE": str(tmp_path / "limits.toml")}
    if request.param == "sqlite":
        async with Service(tmp_path, broker.url, **settings) as started:
            yield started
    else:
        databases: Databases = request.getfixturevalue("databases")
        async with (
            databases.database() as url,
            Service(tmp_path, broker.url, TIMER_DATABASE_URL=url, **settings) as started,
        ):
            yield started


@pytest.fixture
async def client(broker: NatsServer, service: Service) -> AsyncIterator[TimerClient]:
    del service
    async with TimerClient.connect(broker.url) as connected:
        yield connected


def usage(broker: NatsServer, tenant: str, *options: str) -> str:
    """Return what `timer-service tenants usage` prints."""
    command = [sys.executable, "-m", "timer_service", "tenants", "usage", tenant, *options]
    environment = {**os.environ, "TIMER_BROKER_URL": broker.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
async def test_over_quota(broker: NatsServer, service: Service, client: TimerClient) -> None:
    """The third timer ends as `over_quota`, and nothing is lost. The usage shows it."""
    outcomes = [await client.schedule("acme", f"call-{n}", TOMORROW) for n in range(3)]
    assert [each.name for each in outcomes] == ["scheduled", "scheduled", "over_quota"]
    assert [each.limit for each in outcomes] == [None, None, ExceededLimit(name="pending_timers", most=2)]
    assert (await client.schedule("globex", "call-1", TOMORROW)).name == "scheduled"
    assert (await client.cancel("acme", "call-0")).name == "cancelled"
    async with asyncio.timeout(10):
        while (await client.schedule("acme", "call-3", TOMORROW)).name != "scheduled":
            await asyncio.sleep(0.1)  # a slow count on a busy machine is repeated later
    shown = await asyncio.to_thread(usage, broker, "acme")
    assert shown.splitlines()[0].split() == ["pending_timers", "2", "of", "2"]
    assert ["early_commands", "0", "of", "unlimited"] in [line.split() for line in shown.splitlines()]
    found = json.loads(await asyncio.to_thread(usage, broker, "globex", "--json"))
    assert found["usage"][0] == {"limit": "pending_timers", "used": 1, "most": 1000}
    assert await service.metric('timer_commands_received_total{outcome="over_quota",type="ScheduleTimer"}') >= 1
    waiting = (await client.query("acme", "list-timers", {"state": "Scheduled"}))["timers"]
    assert [each["serviceCallId"] for each in waiting] == ["call-1", "call-3"]
