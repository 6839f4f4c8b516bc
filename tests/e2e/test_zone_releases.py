"""A service that starts again with a newer release of the time zone data."""

import asyncio
from collections.abc import Mapping

import pytest

from tests.harness.cli import Cli, statuses
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Service
from tests.harness.zone_releases import FOLDER

pytestmark = pytest.mark.slow
OLD, NEW = ({"PYTHONTZPATH": str(FOLDER / release)} for release in ("2023.3", "2024.2"))
PUT = "put acme a --zone Asia/Almaty --start-at 2100-01-01T00:00:00Z --cron"


async def test_start_with_a_newer_release(cli: Cli, broker: NatsServer, stored: Mapping[str, str]) -> None:
    """The next slot moves by the change of the rules, and `doctor` names the zone until then."""
    folder = cli.folder / "service"
    cli.settings |= {**stored, **OLD}
    async with Service(folder, broker.url, **stored, **OLD):
        await cli.lines("schedules", *PUT.split(), "0 10 * * *")
        assert (await cli.json("schedules", "get", "acme", "a"))["nextSlotAt"] == "2100-01-01T04:00:00.000Z"
        assert "time zones" not in await statuses(cli, 0)
    cli.settings |= NEW
    document = await cli.json("doctor")
    (found,) = [each for each in document["checks"] if each["check"] == "time zones"]
    assert (found["status"], "Asia/Almaty (1)" in found["message"]) == ("warn", True)
    async with Service(folder, broker.url, **stored, **NEW) as service:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "next slots have moved" not in service.log.read_text():
                await asyncio.sleep(0.02)
        view = await cli.json("schedules", "get", "acme", "a")
        assert view["nextSlotAt"] == "2100-01-01T05:00:00.000Z"
        assert "time zones" not in await statuses(cli, 0)
