"""`doctor` on Redis: what it finds, and what it says to do."""

from pathlib import Path

import pytest

from tests.harness.redis import RedisServer
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.cli.doctor.redis import check_redis, check_storage, check_version
from timer_service.config import Config
from timer_service.redis_client import new_client


def by_check(found: list[Finding]) -> dict[str, tuple[Status, str]]:
    return {each.check: (each.status, each.message) for each in found}


async def test_findings_on_a_server(tmp_path: Path) -> None:
    """Each part of a server that works is ok. Nobody reads the commands yet."""
    async with RedisServer(tmp_path / "redis") as server:
        found = await check_redis(Config.model_validate({"broker_url": server.url}))
    assert [type(each) for each in found].count(Skew) == 1
    statuses = {each.check: each.status for each in found if isinstance(each, Finding)}
    assert statuses.pop("reader") is Status.WARN
    assert set(statuses.values()) == {Status.OK}
    assert statuses.keys() == {"broker", "durability", "storage", "stream timer:cmd", "stream timer:dlq"}


async def test_server_that_is_away(tmp_path: Path) -> None:
    """The finding names the address, without the password."""
    server = RedisServer(tmp_path / "redis")
    url = server.url.replace("//", "//me:s3cret@")
    (found,) = await check_redis(Config.model_validate({"broker_url": url}))
    assert isinstance(found, Finding)
    assert (found.check, found.status) == ("broker", Status.FAIL)
    assert str(server.port) in found.message
    assert "s3cret" not in found.message


@pytest.mark.parametrize(
    ("info", "fsync", "check", "status", "text"),
    [
        ({"aof_enabled": 1}, "always", "durability", Status.OK, "syncs to disk before"),
        ({"aof_enabled": 1}, "everysec", "durability", Status.WARN, "appendfsync is everysec"),
        ({"aof_enabled": 1}, None, "durability", Status.NOTE, "may not see"),
        ({"aof_enabled": 0}, "always", "durability", Status.WARN, "appendonly is off"),
        ({"maxmemory": 100, "used_memory": 99}, None, "storage", Status.FAIL, "no room"),
        ({"maxmemory_policy": "allkeys-lru"}, None, "storage", Status.FAIL, "may delete streams"),
        ({"role": "slave"}, None, "storage", Status.FAIL, "is a replica"),
        ({"maxmemory": 100, "used_memory": 50}, None, "storage", Status.OK, "uses 50 bytes of maxmemory = 100"),
    ],
)
def test_storage(info: dict[str, object], fsync: str | None, check: str, status: Status, text: str) -> None:
    """What the server stores, and what it can lose."""
    found = by_check(list(check_storage(info, fsync)))[check]
    assert found[0] is status
    assert text in found[1]


@pytest.mark.parametrize(
    ("info", "status"),
    [
        ({"redis_version": "7.0.15"}, Status.OK),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, Status.OK),
        ({"redis_version": "6.2.5"}, Status.FAIL),
        ({}, Status.FAIL),
    ],
)
def test_version(info: dict[str, str], status: Status) -> None:
    """Redis 7.0 and Valkey are supported."""
    assert [each.status for each in check_version(info, "here:6379")] == [status]


async def test_commands_of_a_tenant_that_the_service_does_not_know(tmp_path: Path) -> None:
    """The finding says what to run."""
    async with RedisServer(tmp_path / "redis") as server:
        async with new_client(server.url, "user") as user:
            await user.xadd("timer:cmd:forgotten", {"body": "{}"})
            await user.sadd("timer:tenants", "known")
        found = await check_redis(Config.model_validate({"broker_url": server.url}))
    (finding,) = [each for each in found if isinstance(each, Finding) and each.status is Status.FAIL]
    assert (finding.check, finding.remedy) == ("stream timer:cmd:forgotten", "redis-cli SADD timer:tenants forgotten")
