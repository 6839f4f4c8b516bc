"""Tests of deploy/redis/: a tenant reaches its own commands, events and replies, and nothing else."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from tests.harness.cases import case
from tests.harness.cli import Cli, statuses
from tests.harness.installed import require
from tests.harness.processes import PATIENCE_SECONDS, Service, body
from tests.harness.redis_fence import FencedRedis, User, programs
from timer_service.adapters.embedded import REDIS
from timer_service.client import TimerClient, TimerServiceError

STREAMS = "timer:cmd", "timer:dlq", "timer:qry", "timer:wrk", "timer:log"
FOREIGN = "timer:cmd:tenant-b", "timer:evt:tenant-b", "timer:qry:tenant-b", "timer:wrk:tenant-b"
PUBLISHED: list[tuple[str, ...]] = [
    ("XADD", key, "*", "tenant", "tenant-b", "type", "schedule-timer", "body", "{}")
    for key in (*STREAMS[:-1], *FOREIGN, "timer:evt:tenant-a", "other")
]
READ: list[tuple[str, ...]] = [
    command
    for key in (*STREAMS[:-1], *FOREIGN, "timer:cmd:tenant-a", "timer:qry:tenant-a")
    for command in (
        ("XRANGE", key, "-", "+"),
        ("XREVRANGE", key, "+", "-"),
        ("XREAD", "STREAMS", "timer:evt:tenant-a", key, "0", "0"),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">"),
        ("XGROUP", "CREATE", key, "mine", "0", "MKSTREAM"),
        ("XINFO", "STREAM", key),
        ("XLEN", key),
        ("DUMP", key),
        ("COPY", key, "timer:evt:tenant-a-copy"),
    )
]
DRAINED = [
    ("XACK", "timer:evt:tenant-b", "g", "1-1"),
    ("XAUTOCLAIM", "timer:evt:tenant-b", "g", "c", "0", "0"),
    ("XCLAIM", "timer:evt:tenant-b", "g", "c", "0", "1-1"),
    ("XPENDING", "timer:evt:tenant-b", "g"),
    ("XGROUP", "DESTROY", "timer:evt:tenant-b", "g"),
    ("XGROUP", "DESTROY", "timer:qry", "timer-service"),
    ("XDEL", "timer:evt:tenant-b", "1-1"),
    ("XTRIM", "timer:evt:tenant-b", "MAXLEN", "0"),
    ("DEL", "timer:evt:tenant-b"),
    ("UNLINK", "timer:cmd"),
    ("RENAME", "timer:evt:tenant-b", "timer:evt:tenant-a"),
    ("EXPIRE", "timer:cmd", "1"),
    ("RESTORE", "timer:cmd", "0", "x"),
    ("FLUSHALL",),
    ("FLUSHDB",),
]
FORGED = [
    ("XADD", "timer:evt:tenant-a", "*", "type", "due-time-reached", "body", "{}"),
    ("XDEL", "timer:evt:tenant-a", "1-1"),
    ("XTRIM", "timer:evt:tenant-a", "MAXLEN", "0"),
    ("XSETID", "timer:evt:tenant-a", "9-9"),
    ("DEL", "timer:evt:tenant-a"),
    ("SADD", "timer:tenants", "tenant-c"),
    ("SMEMBERS", "timer:tenants"),
    ("HSET", "timer:log", "id", "x"),
    ("PUBLISH", "timer:reply:tenant-b:1", "{}"),
    ("PUBLISH", "timer:reply:tenant-a:1", "{}"),
    ("PUBLISH", "timer:wake", "timers 1"),
    ("SPUBLISH", "timer:wake", "timers 1"),
]
ADMINISTERED = [
    ("EVAL", "return redis.call('XADD', KEYS[1], '*', 'a', 'b')", "1", "timer:cmd"),
    ("EVAL", "return 1", "0"),
    ("FUNCTION", "LIST"),
    ("MULTI",),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("DBSIZE",),
    ("SELECT", "1"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "tenant-a", "+@all", "~*"),
    ("ACL", "LOG"),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("CLIENT", "PAUSE", "1000"),
    ("PUBSUB", "CHANNELS"),
    ("INFO",),
    ("MONITOR",),
    ("SLOWLOG", "GET"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("BGREWRITEAOF",),
    ("SHUTDOWN", "NOSAVE"),
]
ATTACKS: dict[str, list[tuple[str, ...]]] = {
    "publish": PUBLISHED,
    "read": READ,
    "drain": DRAINED,
    "forge": FORGED,
    "administer": ADMINISTERED,
}


@pytest.fixture(params=["wheel", "installed"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FencedRedis]:
    """Yield a prepared server of each program, in which both tenants have events and streams of their own."""
    require(REDIS)
    if (program := programs().get(request.param)) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("not run: redis-server is not installed")
    async with FencedRedis(tmp_path, program) as server:
        async with server.user("operator") as operator:
            await operator.run("SADD", "timer:tenants", "tenant-a", "tenant-b")
        yield server


@pytest.fixture
async def operator(broker: FencedRedis) -> AsyncIterator[User]:
    async with broker.user("operator") as connected:
        for tenant in ("tenant-a", "tenant-b"):
            await connected.run("XADD", f"timer:evt:{tenant}", "1-1", "type", "due-time-reached", "body", "{}")
            await connected.run("XGROUP", "CREATE", f"timer:evt:{tenant}", "g", "0")
        for key in ("timer:cmd", "timer:dlq", "timer:qry", "timer:wrk"):
            await connected.run("XADD", key, "1-1", "tenant", "tenant-b", "body", "{}")
        yield connected


@pytest.fixture
async def a(broker: FencedRedis, operator: User) -> AsyncIterator[User]:
    async with broker.user("tenant-a") as connected:
        yield connected


@pytest.mark.parametrize("attack", ATTACKS)
async def test_tenant_is_refused(a: User, operator: User, attack: str) -> None:
    """Every command that reaches something else than the tenant's own streams is refused, and changes nothing."""
    before = await operator.dump()
    for words in ATTACKS[attack]:
        with case(" ".join(words)):
            assert await a.is_refused(*words)
    assert await operator.dump() == before


async def test_tenant_cannot_listen_to_others(a: User) -> None:
    """It can subscribe to its own replies only, neither to a pattern that has those of others nor to hints."""
    for channel in ("timer:reply:tenant-b:1", "timer:reply:tenant-b", "timer:wake", "timer:reply:"):
        with case(channel), pytest.raises(NoPermissionError):
            async with a.listen(channel):
                pass
    for pattern in ("*", "timer:*", "timer:reply:*", "timer:reply:tenant-?:*", "timer:reply:tenant-b:*", "__key*"):
        with case(pattern), pytest.raises(NoPermissionError):
            async with a.listen(pattern, pattern=True):
                pass


async def test_tenant_has_what_it_needs(a: User, operator: User, broker: FencedRedis) -> None:
    """It sends commands, queries and requests, receives replies, and reads its events with a group of its own."""
    for key in ("timer:cmd:tenant-a", "timer:qry:tenant-a", "timer:wrk:tenant-a"):
        assert await a.run(
            "XADD", key, "*", "type", "schedule-timer", "body", "{}", "reply-to", "timer:reply:tenant-a:x:1"
        )
    async with (
        a.listen("timer:reply:tenant-a:x:1", "timer:reply:tenant-a:x:2") as replies,
        broker.user("timer-service") as service,
    ):
        assert await service.run("PUBLISH", "timer:reply:tenant-a:x:2", "{}") == 1
        assert (await replies.get_message(timeout=5))["data"] == "{}"
    async with a.listen("timer:reply:tenant-a:*", pattern=True):
        pass
    events = "timer:evt:tenant-a"
    await operator.run("DEL", events)
    await a.run("XGROUP", "CREATE", events, "app", "$", "MKSTREAM")
    async with broker.user("timer-service") as service:
        stored = await service.run("XADD", events, "*", "type", "due-time-reached", "body", "{}")
    await a.run("XREADGROUP", "GROUP", "app", "one", "COUNT", "10", "STREAMS", events, ">")
    await a.run("XAUTOCLAIM", events, "app", "other", "0", "0")
    assert (await a.run("XPENDING", events, "app"))["pending"] == 1
    assert await a.run("XACK", events, "app", stored) == 1
    assert await a.run("XLEN", events) == 1
    await a.run("XREAD", "COUNT", "1", "STREAMS", events, "0")
    await a.run("XINFO", "STREAM", events)
    await a.run("XINFO", "GROUPS", events)
    assert await a.run("XGROUP", "DESTROY", events, "app") == 1


async def test_service_has_no_other_permissions(operator: User, broker: FencedRedis) -> None:
    """The service cannot change the server or its users, read stored events or dead letters, or reach other keys."""
    before = await operator.dump()
    async with broker.user("timer-service") as service:
        for words in (
            ("XRANGE", "timer:evt:tenant-a", "-", "+"),
            ("XREAD", "STREAMS", "timer:dlq", "0"),
            ("SADD", "timer:tenants", "tenant-c"),
            ("XADD", "other", "*", "a", "b"),
            ("DEL", "timer:cmd"),
            ("FLUSHALL",),
            ("KEYS", "*"),
            ("CONFIG", "SET", "maxmemory", "1"),
            ("ACL", "SETUSER", "tenant-a", "+@all"),
            ("SHUTDOWN",),
            ("PUBLISH", "other", "x"),
        ):
            with case(" ".join(words)):
                assert await service.is_refused(*words)
    assert await operator.dump() == before


async def test_tenant_is_added_while_the_server_runs(tmp_path: Path, broker: FencedRedis, operator: User) -> None:
    """prepare.py adds a user, and ACL LOAD makes the server know it. The others keep their passwords."""
    assert "ACL LOAD" in broker.add_tenant("acme_2")
    await operator.run("ACL", "LOAD")
    for tenant in ("acme_2", "tenant-b"):
        async with broker.user(tenant) as added:
            assert await added.run("XADD", f"timer:cmd:{tenant}", "*", "type", "schedule-timer", "body", "{}")


async def first_of(user: User, stream: str) -> dict[str, str]:
    """Wait for the first entry of a stream, and return its fields."""
    ((_, ((_, fields),)),) = await user.client.xread({stream: "0"}, block=PATIENCE_SECONDS * 1000)
    return dict(fields)


@pytest.mark.slow
async def test_service_works_with_least_privilege(tmp_path: Path, a: User, operator: User, broker: FencedRedis) -> None:
    """The service handles the commands and queries of a fenced tenant, fires its timer, and stores a dead letter."""
    await operator.run("DEL", "timer:evt:tenant-a", "timer:cmd", "timer:dlq", "timer:qry", "timer:wrk")
    command = body("ScheduleTimer", "tenant-a", {"serviceCallId": "call-1", "dueAt": "2020-01-01T00:00:00Z"})
    forged = {"tenant": "tenant-b", "type": "schedule-timer"}
    async with (
        Service(tmp_path / "service", broker.url, **broker.service_login) as service,
        a.listen("timer:reply:tenant-a:1") as replies,
    ):
        fields = {**forged, "body": command, "id": "1", "reply-to": "timer:reply:tenant-a:1"}
        await a.client.xadd("timer:cmd:tenant-a", fields)
        reply = await replies.get_message(timeout=PATIENCE_SECONDS)
        assert json.loads(reply["data"])["outcome"] == "scheduled"
        event = await first_of(a, "timer:evt:tenant-a")
        assert (event["type"], json.loads(event["body"])["payload"]["serviceCallId"]) == ("due-time-reached", "call-1")
        await a.client.xadd(
            "timer:qry:tenant-a",
            {"type": "get-timer", "body": '{"serviceCallId": "call-1"}', "reply-to": "timer:reply:tenant-a:1"},
        )
        assert json.loads((await replies.get_message(timeout=PATIENCE_SECONDS))["data"])["serviceCallId"] == "call-1"
        await a.client.xadd("timer:cmd:tenant-a", {"type": "schedule-timer", "body": "no JSON", "id": "2"})
        letter = await first_of(operator, "timer:dlq")
        assert letter["tenant"] == "tenant-a"
        cli = Cli(tmp_path, broker.url)
        cli.settings |= broker.service_login
        found = {name: status for name, status in (await statuses(cli, 0)).items() if status not in {"ok", "note"}}
        assert found.keys() <= {"sqlite"}, found  # an old library
        assert (await service.page("/readyz"))[0] == 200
        assert await service.terminate() == 0
    assert "permission" not in service.log.read_text().lower()


@pytest.mark.slow
async def test_tenant_uses_the_client(tmp_path: Path, operator: User, broker: FencedRedis) -> None:
    """A tenant schedules timers, receives the outcomes, watches, consumes and queries, with the client."""
    await operator.run("DEL", "timer:evt:tenant-a", "timer:cmd", "timer:dlq", "timer:qry", "timer:wrk")
    password = broker.password_file("tenant-a").read_text()
    async with (
        Service(tmp_path / "service", broker.url, **broker.service_login) as service,
        TimerClient.connect(broker.url, user="tenant-a", password=password, inbox_prefix="tenant-a") as client,
    ):
        events = client.consume("tenant-a", "app", from_start=True)
        watched = client.timers.watch("tenant-a")
        fired = asyncio.ensure_future(anext(watched))
        assert (await client.timers.schedule("tenant-a", "call-1", due_in=timedelta(seconds=1))).name == "scheduled"
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await fired).raw["payload"]["serviceCallId"] == "call-1"
            delivery = await anext(events)
        assert delivery.event.raw["payload"]["serviceCallId"] == "call-1"
        await delivery.ack()
        assert (await client.timers.get("tenant-a", "call-1")) is not None
        with pytest.raises(TimerServiceError):
            await client.timers.schedule("tenant-b", "call-1", due_in=timedelta(seconds=1))
        await events.aclose()
        assert await service.terminate() == 0
