"""The command line with the real service over a real Redis server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.cli import Cli
from tests.harness.processes import Service
from tests.harness.redis import RedisServer
from timer_service.client import CommandError, TimerClient
from timer_service.redis_client import new_client


@pytest.fixture
async def service(tmp_path: Path, server: RedisServer) -> AsyncIterator[Service]:
    async with Service(tmp_path / "service", server.url) as running:
        yield running


@pytest.fixture
def cli(tmp_path: Path, server: RedisServer) -> Cli:
    return Cli(tmp_path, server.url)


async def test_dead_letters(server: RedisServer, service: Service, cli: Cli) -> None:
    """The letters of the service are listed in pages, shown whole, and sent again."""
    async with TimerClient.connect(server.url) as client:
        for name in "abc":
            with pytest.raises(CommandError, match="INVALID_PAYLOAD"):
                await client.events.park("acme", "orders", {"wrong": name}, reason="no", attempts=1)
        while len(await client.dead_letters.list()) < 3:
            await asyncio.sleep(0.01)
    done = await cli.run("dead-letters", "list", "acme", "--limit", "2", "--json")
    page = json.loads(done.stdout)
    cursor = done.stderr.partition("--cursor ")[2].split()[0]
    (last,) = await cli.json("dead-letters", "list", "acme", "--limit", "2", "--cursor", cursor)
    assert [each["code"] for each in (*page, last)] == ["INVALID_PAYLOAD"] * 3
    shown = await cli.lines("dead-letters", "show", str(last["sequence"]))
    assert (shown[0], '"wrong":"a"' in shown[-1]) == (f"acme/{last['sequence']}", True)
    done = await cli.run("dead-letters", "resubmit", "acme", str(last["sequence"]))
    assert (done.returncode, "INVALID_PAYLOAD" in done.stderr) == (1, True)
    assert len(await cli.json("dead-letters", "list")) == 4


async def test_a_login_in_the_settings(server: RedisServer, service: Service, cli: Cli) -> None:
    """A command has the user and the password of the settings. Without them it says that the server refuses it."""
    async with new_client(server.url, "operator") as operator:
        await operator.execute_command("ACL", "SETUSER", "kim", "on", ">secret", "allkeys", "allchannels", "+@all")
        login = {"TIMER_BROKER_USER": "kim", "TIMER_BROKER_PASSWORD": "secret"}
        done = await cli.run("timers", "count", "acme", **login)
        assert done.returncode == 0, done.stderr
        done = await cli.run("timers", "count", "acme", **{**login, "TIMER_BROKER_PASSWORD": "wrong"})
        assert (done.returncode, "invalid username-password" in done.stderr) == (1, True)


async def test_streams_of_tenants(server: RedisServer, cli: Cli) -> None:
    """Redis has nothing to set up. The error says how a tenant gets a stream for its commands."""
    for command in ("separate", "events"):
        done = await cli.run("tenants", command, "acme")
        assert (done.returncode, "if it is in the set timer:tenants" in done.stderr) == (1, True), done.stderr
