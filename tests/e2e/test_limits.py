"""The limits of tenants as their users and an operator meet them."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.harness.cli import Cli
from tests.harness.processes import NatsServer, Service
from timer_service.client import ExceededLimit, TimerClient

LIMITS = "[default]\npending_timers = 1000\n\n[tenants.acme]\npending_timers = 2\n"
TOMORROW = datetime.now(UTC) + timedelta(days=1)


async def test_over_quota(tmp_path: Path, broker: NatsServer, cli: Cli, stored: Mapping[str, str]) -> None:
    """The third timer ends as `over_quota`, and nothing is lost. The usage shows it."""
    limits = tmp_path / "limits.toml"
    limits.write_text(LIMITS)
    async with (
        Service(tmp_path / "service", broker.url, TIMER_LIMITS_FILE=str(limits), **stored),
        TimerClient.connect(broker.url) as client,
    ):
        outcomes = [await client.timers.schedule("acme", f"call-{n}", TOMORROW) for n in range(3)]
        assert [(each.name, each.limit) for each in outcomes] == [
            ("scheduled", None),
            ("scheduled", None),
            ("over_quota", ExceededLimit(name="pending_timers", most=2)),
        ]
        assert (await client.timers.schedule("globex", "call-1", TOMORROW)).name == "scheduled"
        assert (await client.timers.cancel("acme", "call-0")).name == "cancelled"
        async with asyncio.timeout(10):
            while (await client.timers.schedule("acme", "call-3", TOMORROW)).name != "scheduled":
                await asyncio.sleep(0.1)  # a slow count on a busy machine is repeated later
        done = await cli.run("timers", "schedule", "acme", "call-4", "--in", "1h")
        assert (done.returncode, done.stderr.partition("; ")[0]) == (
            1,
            "over_quota: acme/call-4: the tenant may have 2 of pending_timers",
        )
        _, *shown = [line.split() for line in await cli.lines("tenants", "usage", "acme")]
        assert (shown[0], shown[-1][2:]) == (["pending_timers", "2", "2"], ["unlimited"])
        assert (await cli.lines("tenants", "usage", "nobody"))[1].split() == ["pending_timers", "0", "1,000"]
        assert (await cli.json("tenants", "usage", "globex"))["usage"][0] == {
            "limit": "pending_timers",
            "used": 1,
            "most": 1000,
        }
        timers = (await client.query("acme", "list-timers", {"state": "Scheduled"}))["timers"]
        assert [each["serviceCallId"] for each in timers] == ["call-1", "call-3"]
