"""The client over a real Redis server: commands, queries, watches, dead letters, outages and logins."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.harness.receiving import RedisPublisher
from tests.harness.redis import RedisServer
from tests.harness.redis_peer import RedisPeer, scheduled
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.waiting import until
from timer_service.client import (
    CommandError,
    DueTimeReached,
    NewTimer,
    NoAnswerError,
    Outcome,
    QueryError,
    TimerClient,
    TimerServiceError,
)
from timer_service.redis_client import new_client

DUE = datetime(2100, 1, 1, tzinfo=UTC)


async def test_commands_in_order(server: RedisServer, peer: RedisPeer) -> None:
    """Many commands are stored in order, each with its id, and each gets its outcome. The progress is reported."""
    peer.outcome = lambda fields: (
        {**scheduled(fields), "error": {"code": "INVALID_PAYLOAD", "message": "no"}}
        if "timer-3" in fields["body"]
        else scheduled(fields)
    )
    many = [NewTimer("acme", f"timer-{number}", DUE, number) for number in range(3)] + [
        NewTimer("acme", "timer-3", DUE)
    ]
    ended: list[int] = []
    async with TimerClient.connect(server.url) as client:
        outcomes = await client.timers.schedule_many(many, progress=ended.append)
    assert [type(each) for each in outcomes] == [Outcome, Outcome, Outcome, CommandError]
    assert ended == [1, 2, 3, 4]
    bodies = [json.loads(each["body"]) for each in peer.commands]
    assert [each["payload"]["serviceCallId"] for each in bodies] == [each.timer_id for each in many]
    assert [each["id"] for each in peer.commands] == [each["id"] for each in bodies]
    assert {(each["tenant"], each["type"], each["key"]) for each in peer.commands} == {
        ("acme", "schedule-timer", "timer:cmd")
    }


async def test_queries(server: RedisServer, peer: RedisPeer) -> None:
    """A query is answered in the body, also with an error. Without an answer it ends after its time."""
    async with TimerClient.connect(server.url) as client:
        assert await client.timers.get("acme", "a") is None
        peer.answer = lambda fields: {"error": {"code": "BUSY", "message": fields["type"]}}
        with pytest.raises(QueryError, match="BUSY: get-timer"):
            await client.query("acme", "get-timer", {})
        peer.answer = lambda _: None
        with pytest.raises(NoAnswerError, match=r"no answer within 0.05 s; is timer-service running"):
            await client.query("acme", "get-timer", {}, timeout_seconds=0.05)
        with pytest.raises(QueryError, match="TOO_LARGE"):
            await client.query("acme", "get-timer", {"x": "x" * 1024 * 1024})
        with pytest.raises(ValueError, match="data must be smaller"):
            await client.timers.schedule("acme", "a", DUE, data="x" * 1024 * 1024)


async def test_unreadable_outcomes(server: RedisServer, peer: RedisPeer) -> None:
    """What is no outcome is ignored. The client goes on to receive."""
    bodies = ["{", "[]", "\xff", "{}", '{"commandId": 7, "outcome": []}']

    peer.outcome = lambda _: None
    async with TimerClient.connect(server.url) as client:
        waiting = asyncio.ensure_future(client.timers.schedule("acme", "a", DUE))
        await peer.until_commands(1)
        for body in (*bodies, json.dumps(scheduled(peer.commands[0]))):
            await peer.client.publish(peer.commands[0]["reply-to"], body)
        assert (await waiting).name == "scheduled"


async def test_watches(server: RedisServer) -> None:
    """A watch gets the events from now on, of its tenant or of all, also of a tenant whose first event comes later."""

    async def collect(events: AsyncIterator[DueTimeReached], found: list[Any]) -> None:
        async for event in events:
            found.append((event.tenant, event.timer_id))  # noqa: PERF401 - each at once

    async with new_client(server.url, "publisher") as publisher, TimerClient.connect(server.url) as client:
        events = RedisPublisher(publisher, room=3)
        await events.fire("before")
        mine, every = list[Any](), list[Any]()
        tasks = [asyncio.create_task(collect(*each)) for each in _watched(client, mine, every)]
        number = 0
        while not (mine and every):  # a watch begins when it is iterated over
            number += 1
            await events.fire(f"{number}", topic="any")
            await asyncio.sleep(0.01)
        assert ("acme", "before") not in mine + every
        await events.fire("new", tenant="other")
        await until(lambda: every[-1] == ("other", "new"))
        await events.fire("last")
        await until(lambda: mine[-1] == every[-1] == ("acme", "last"))
        assert len(mine) == len(set(mine))
        assert {tenant for tenant, _ in mine} == {"acme"}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_watch_of_all_gets_no_old_events(server: RedisServer) -> None:
    """Not even if it joins while the events of another watch are read."""
    async with new_client(server.url, "publisher") as publisher, TimerClient.connect(server.url) as client:
        events = RedisPublisher(publisher, room=3)
        for number in range(20):
            await events.fire("before", tenant=f"other-{number}")

        async def fire_for_ever() -> None:
            while True:
                await events.fire("now")

        first = client.timers.watch("acme")
        firing = asyncio.create_task(fire_for_ever())
        await anext(first)
        for _ in range(30):
            every = client.timers.watch("*")
            assert [(await anext(every)).about for _ in range(3)] == ["timer now"] * 3
            await every.aclose()  # type: ignore[attr-defined]
        firing.cancel()
        await asyncio.wait([firing])


def _watched(client: TimerClient, mine: list[Any], every: list[Any]) -> list[Any]:
    return [(client.timers.watch("acme"), mine), (client.timers.watch("*"), every)]


async def test_a_lost_connection_ends_what_waits(server: RedisServer, peer: RedisPeer) -> None:
    """A command, a query and a watch raise `NoAnswerError`. The client connects again by itself, and all work again."""
    peer.outcome = peer.answer = lambda _: None
    async with TcpProxy(server.port) as proxy, TimerClient.connect(f"redis://127.0.0.1:{proxy.port}") as client:
        watch = client.timers.watch("acme")
        waiting = [
            asyncio.ensure_future(each)
            for each in (client.timers.schedule("acme", "a", DUE), client.timers.get("acme", "a"), anext(watch))
        ]
        await peer.until_commands(1)
        proxy.cut()
        for each in waiting:
            with pytest.raises(NoAnswerError, match=r"broker (was lost|has ended)|cannot be watched|may not (be|have)"):
                await asyncio.wait_for(each, 5)
        peer.outcome = scheduled
        outcome: Any = None

        async def is_back() -> bool:
            nonlocal outcome
            try:
                outcome = await client.timers.schedule("acme", "b", DUE)
            except NoAnswerError:
                return False
            return True

        await until(is_back)
        assert outcome.name == "scheduled"


@pytest.mark.slow
async def test_a_server_that_hangs(server: RedisServer, peer: RedisPeer) -> None:
    """A server that is there but does not answer counts as lost after some seconds, although nothing is closed."""
    peer.answer = lambda _: None
    async with TcpProxy(server.port) as proxy, TimerClient.connect(f"redis://127.0.0.1:{proxy.port}") as client:
        waiting = asyncio.ensure_future(client.query("acme", "get-timer", {}, timeout_seconds=60))
        proxy.stall_open_connections()
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match="lost"):
            await waiting
        assert time.monotonic() - began < 10


async def test_what_cannot_be_reached(server: RedisServer) -> None:
    """The first connect raises an error with the reason, and without the login."""
    cases: dict[str, Any] = {
        "redis://127.0.0.1:1": "cannot connect to the broker at redis://127.0.0.1:1: .*Connect call failed",
        f"redis://kim:secret@127.0.0.1:{server.port}": f"at redis://127.0.0.1:{server.port}: .*username-password",
    }
    for url, reason in cases.items():
        with pytest.raises(NoAnswerError, match=reason) as caught:
            async with TimerClient.connect(url):
                pass
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="nkeys_seed must be left out"):
        async with TimerClient.connect(server.url, nkeys_seed="x"):
            pass


async def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.delitem(sys.modules, "timer_service.client.redis.link", raising=False)
    monkeypatch.delitem(sys.modules, "timer_service.redis_client", raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setattr(sys, "path", [each for each in sys.path if "site-packages" not in each])
    with pytest.raises(TimerServiceError, match=r'pip install "timer-service\[redis\]"'):
        async with TimerClient.connect("redis://localhost"):
            pass


_FENCE = (
    "ACL SETUSER acme on >secret resetchannels &timer:reply:acme:* ~timer:cmd:acme ~timer:qry:acme ~timer:wrk:acme "
    "~timer:evt:acme +@all -@dangerous"
)


async def test_a_fenced_tenant(server: RedisServer, peer: RedisPeer) -> None:
    """Its messages go to the streams of its own, which it may use. It cannot reach those of another tenant."""
    await peer.client.execute_command(*_FENCE.split())
    login = {"user": "acme", "password": "secret", "inbox_prefix": "acme"}
    async with TimerClient.connect(server.url, **login) as client:
        assert (await client.timers.schedule("acme", "a", DUE)).name == "scheduled"
        assert await client.timers.get("acme", "a") is None
        assert {each["key"] for each in peer.commands} == {"timer:cmd:acme"}
        with pytest.raises(
            NoAnswerError, match="may publish to neither timer:cmd nor timer:cmd:other: is other its tenant"
        ):
            await client.timers.schedule("other", "a", DUE)
        with pytest.raises(NoAnswerError, match=r"timer:dlq cannot be read: .*login of the operator"):
            await client.dead_letters.list()
        consumed = client.consume("acme", "mine", from_start=True)
        await RedisPublisher(peer.client, room=3).fire("a")
        async with asyncio.timeout(5):
            assert (await anext(consumed)).event.about == "timer a"
        await consumed.aclose()


async def test_a_login_is_read_again(server: RedisServer, peer: RedisPeer) -> None:
    """A password that has changed is used at the next connect."""
    passwords = ["first"]
    await peer.client.execute_command("ACL", "SETUSER", "kim", "on", ">first", "allkeys", "allchannels", "+@all")

    def login() -> Any:
        return {"user": "kim", "password": passwords[-1]}

    async with (
        TcpProxy(server.port) as proxy,
        TimerClient.connect(f"redis://127.0.0.1:{proxy.port}", login=login) as user,
    ):
        await peer.client.execute_command("ACL", "SETUSER", "kim", "resetpass", ">second")
        passwords.append("second")
        proxy.cut()

        async def is_back() -> bool:
            try:
                return await user.timers.get("acme", "a") is None
            except NoAnswerError:
                return False

        await until(is_back)


async def test_dead_letters(server: RedisServer, peer: RedisPeer) -> None:
    """They are listed newest first, of a tenant or of all, page by page, and sent again."""
    for number in range(250):
        headers = {"Timer-Error-Code": "INVALID_PAYLOAD", "Timer-Error-Message": "no", "Timer-Source-Sequence": number}
        fields: Any = {
            "tenant": f"t{number % 2}",
            "type": "schedule-timer",
            "id": number,
            "body": f"{number}",
            **headers,
        }
        await peer.client.xadd("timer:dlq", fields)
    async with TimerClient.connect(server.url) as client:
        letters = await client.dead_letters.list("t1", limit=60)
        assert [each.source_sequence for each in letters] == list(range(249, 129, -2))
        older = await client.dead_letters.list("t1", limit=1000, before=letters[-1].sequence)
        assert [each.source_sequence for each in older] == list(range(129, 0, -2))
        assert len(await client.dead_letters.list(limit=1000)) == 250
        letter = await client.dead_letters.get("*", letters[0].sequence)
        assert letter is not None
        assert (letter.body, letter.code, letter.tenant, letter.size) == ("249", "INVALID_PAYLOAD", "t1", 3)
        assert letter.headers["Timer-Error-Message"] == "no"
        assert await client.dead_letters.get("t0", letters[0].sequence) is None
        assert await client.dead_letters.get("t0", 1) is None
        peer.outcome = lambda _: None
        with pytest.raises(NoAnswerError, match="no outcome"):
            await client.dead_letters.resubmit(letter, timeout_seconds=0.1)
        assert [(each["tenant"], each["type"], each["body"]) for each in peer.commands] == [
            ("t1", "schedule-timer", "249")
        ]


async def test_a_server_without_room(server: RedisServer, peer: RedisPeer) -> None:
    """A command that the server refuses ends at once, with its reason."""
    await peer.client.config_set("maxmemory", "1")
    async with TimerClient.connect(server.url) as client:
        with pytest.raises(NoAnswerError, match=r"the command may not be stored: .*maxmemory"):
            await client.timers.schedule("acme", "a", DUE)
