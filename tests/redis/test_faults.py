"""What happens to the Redis server of a running service: all deleted, an older copy, no memory, another primary."""

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.harness.processes import Service
from tests.harness.redis import RedisServer, RedisWire
from tests.harness.waiting import until
from timer_service.core.values.address import Address, Kind

COMMAND = Address(Kind.COMMAND, "acme", "schedule-timer")
LOOKS = 'timer_polling_duration_seconds_count{loop="streams"}'
pytestmark = pytest.mark.slow


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path / "redis") as running:
        yield running


@pytest.fixture
async def service(tmp_path: Path, server: RedisServer) -> AsyncIterator[Service]:
    async with Service(tmp_path / "service", server.url) as running:
        yield running


@pytest.fixture
async def user(server: RedisServer) -> AsyncIterator[RedisWire]:
    async with RedisWire.connect(server.url, lambda _number, _body: None) as wire:
        yield wire


async def schedule(user: RedisWire, call: str, seconds: float = 0) -> None:
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    fields = {"serviceCallId": call, "dueAt": due.isoformat(timespec="milliseconds")}
    body = json.dumps({"type": "ScheduleTimer", "tenantId": "acme", "payload": fields}).encode()
    await user.publish(COMMAND, body, {}, None)


async def fired(user: RedisWire) -> list[str]:
    return [json.loads(each.body)["payload"]["serviceCallId"] for each in await user.stored(Kind.EVENT, "acme")]


async def until_fired(user: RedisWire, *calls: str) -> None:
    async def all_fired() -> bool:
        return set(calls) <= set(await fired(user))

    await until(all_fired, seconds=30, pause=0.05)


async def find(user: RedisWire, call: str) -> object:
    return json.loads(await user.ask(Kind.QUERY, "get-timer", "acme", json.dumps({"serviceCallId": call}).encode()))


async def test_everything_is_deleted(server: RedisServer, service: Service, user: RedisWire) -> None:
    """After FLUSHALL, the timers that the service knows fire, new ones are scheduled, and queries are answered."""
    await schedule(user, "known", 3)
    await until(lambda: service_has_scheduled(service, 1))
    await user.client.flushall()
    await schedule(user, "new")
    await until_fired(user, "new", "known")
    found = await find(user, "known")
    assert isinstance(found, dict)
    assert found["state"] == "Reached"
    await until(lambda: "the command log is another one" in service.log.read_text(), seconds=15)
    await service.until_page("/readyz", 200)


async def service_has_scheduled(service: Service, count: int) -> bool:
    sample = 'timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}'
    return await service.metric(sample) >= count


async def test_an_older_copy_is_restored(
    tmp_path: Path, server: RedisServer, service: Service, user: RedisWire
) -> None:
    """After an older copy of the files was restored, commands that are sent then are handled, and it is said."""
    await schedule(user, "old")
    await until_fired(user, "old")
    await server.terminate()
    shutil.copytree(tmp_path / "redis", tmp_path / "copy")
    await server.start()
    await schedule(user, "lost", 3)
    await schedule(user, "also lost", 3)
    await until(lambda: service_has_scheduled(service, 3))
    await server.kill()
    shutil.rmtree(tmp_path / "redis" / "appendonlydir")
    shutil.copytree(tmp_path / "copy" / "appendonlydir", tmp_path / "redis" / "appendonlydir")
    await server.start()
    await schedule(user, "new")
    await until_fired(user, "new", "lost", "also lost")
    assert "the command log is another one" in service.log.read_text()


async def test_no_memory(server: RedisServer, service: Service, user: RedisWire) -> None:
    """While the server has no room, events wait and the service says so. Then they are published."""
    await schedule(user, "waits", 1.5)
    await until(lambda: service_has_scheduled(service, 1))
    await user.client.config_set("maxmemory", "1mb")
    text = await service.until_page("/readyz", 503)
    assert "the Redis server has no room" in text
    assert (await service.page("/livez"))[0] == 200
    await asyncio.sleep(2)  # the timer is due meanwhile
    assert await fired(user) == []
    await user.client.config_set("maxmemory", "0")
    await until_fired(user, "waits")
    await service.until_page("/readyz", 200)
    assert await fired(user) == ["waits"]


async def test_a_replica_is_promoted(tmp_path: Path, server: RedisServer, service: Service, user: RedisWire) -> None:
    """A replica takes the place of its primary, without the last commands. Those that are sent then are handled."""
    async with RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port)) as replica:
        await user.client.config_set("repl-diskless-sync-delay", 0)
        await schedule(user, "before", 10)
        await until(lambda: service_has_scheduled(service, 1))
        async with RedisWire.connect(replica.url, lambda _number, _body: None) as copy:
            await until(lambda: has_written_commands(copy, 1))
            await copy.client.execute_command("REPLICAOF", "NO", "ONE")
            await schedule(user, "not copied", 10)
            await until(lambda: service_has_scheduled(service, 2))
            await server.kill()
        await replica.kill()
    promoted = RedisServer(tmp_path / "replica", port=server.port)
    async with promoted:
        await schedule(user, "after")
        await until_fired(user, "before", "not copied", "after")
        await service.until_page("/readyz", 200)


async def has_written_commands(copy: RedisWire, count: int) -> bool:
    """Return whether a replica has commands, and has written its copy to its files."""
    info = await copy.client.info("persistence")
    is_writing = info["loading"] or info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]
    length: int = await copy.client.xlen("timer:cmd")
    return length >= count and not is_writing


@pytest.mark.parametrize("options", [("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")])
async def test_a_server_that_may_delete_streams(tmp_path: Path, options: Sequence[str]) -> None:
    """The service does not start, and says which setting is wrong."""
    async with RedisServer(tmp_path / "redis", *options) as server:
        service = Service(tmp_path / "service", server.url)
        service.launch()
        assert await service.wait() == 1
    assert "maxmemory-policy allkeys-lru" in service.log.read_text()


async def test_an_id_in_the_future(user: RedisWire, service: Service) -> None:
    """A command whose sender chose an id in the far future is handled as one of now, and so are those behind it."""
    fields = {"serviceCallId": "future", "dueIn": 100}
    body = json.dumps({"type": "ScheduleTimer", "tenantId": "acme", "payload": fields})
    command = {"tenant": "acme", "type": "schedule-timer", "body": body}
    await user.client.xadd("timer:cmd", command, id="9300000000000-5")
    await schedule(user, "behind it")
    await until_fired(user, "future", "behind it")


async def test_a_key_of_a_tenant_that_is_no_stream(user: RedisWire, service: Service) -> None:
    """It stops only this tenant, and the log names the key."""
    await user.client.sadd("timer:tenants", "wrong", "right")
    await user.client.set("timer:cmd:wrong", "x")
    fields = {"serviceCallId": "moved", "dueIn": 0}
    body = json.dumps({"type": "ScheduleTimer", "tenantId": "right", "payload": fields})
    await user.client.xadd("timer:cmd:right", {"type": "schedule-timer", "body": body})
    await schedule(user, "other")
    await until_fired(user, "other")

    async def is_moved() -> bool:
        return bool(await user.stored(Kind.EVENT, "right"))

    await until(is_moved, seconds=15)
    await until(lambda: '"key": "timer:cmd:wrong"' in service.log.read_text(), seconds=15)
    await service.until_page("/readyz", 200)


async def test_commands_that_were_removed_unread(server: RedisServer, service: Service, user: RedisWire) -> None:
    """While the service runs, their number is logged once, and later commands and a restart are as usual."""
    await schedule(user, "before")
    await until_fired(user, "before")
    service.signal(signal.SIGSTOP)
    for number in range(20):
        await schedule(user, f"removed {number}", 3600)
    await user.client.xtrim("timer:cmd", maxlen=0, approximate=False)
    await schedule(user, "kept", 3600)
    service.signal(signal.SIGCONT)
    await until(lambda: service_has_scheduled(service, 3))
    await schedule(user, "after")
    await until_fired(user, "after")
    text = "commands were removed from the log before they were read"
    await until(lambda: text in service.log.read_text(), seconds=15)
    await service.terminate()
    await service.start()
    assert service.log.read_text().count(text) == 1
    assert '"count": 19' in service.log.read_text()  # the first one was on its way already


async def test_start_without_room(tmp_path: Path, server: RedisServer, user: RedisWire) -> None:
    """The service starts, says what is wrong, and works when there is room."""
    await user.client.config_set("maxmemory", "1mb")
    service = Service(tmp_path / "other", server.url)
    service.launch()
    try:
        await until(lambda: service.log.exists() and '"serving"' in service.log.read_text())
        assert "the Redis server has no room" in await service.until_page("/readyz", 503)
        await user.client.config_set("maxmemory", "0")
        await schedule(user, "later")
        await until_fired(user, "later")
    finally:
        await service.terminate()


async def test_streams_of_silent_tenants_are_shortened(user: RedisWire, service: Service) -> None:
    """Old events are deleted also if their tenant gets no new ones."""
    old = int((datetime.now(UTC) - timedelta(days=9)).timestamp() * 1000)
    for number in range(3):
        await user.client.xadd("timer:evt:quiet", {"body": "{}"}, id=f"{old}-{number}")

    async def is_empty() -> bool:
        length: int = await user.client.xlen("timer:evt:quiet")
        return length == 0

    await until(is_empty, seconds=20, pause=0.1)


async def test_old_commands_that_are_not_handled_yet(user: RedisWire, service: Service) -> None:
    """The service deletes no command before it is handled, however old it is and whatever it has read already."""
    old = int((datetime.now(UTC) - timedelta(days=8)).timestamp() * 1000)
    with service.locked_database():
        for number in range(1500):
            body = json.dumps({"type": "ScheduleTimer", "tenantId": "acme", "payload": {"serviceCallId": str(number)}})
            entry = {"tenant": "acme", "type": "schedule-timer", "body": body}
            await user.client.xadd("timer:cmd", entry, id=f"{old}-{number}")
        looks = await service.metric(LOOKS)
        await service.until_metric(LOOKS, at_least=looks + 3)
        assert await user.client.xlen("timer:cmd") == 1500
        await service.kill()
    await service.start()
    rejected = 'timer_commands_received_total{outcome="rejected",type="ScheduleTimer"}'
    await service.until_metric(rejected, at_least=1500)


async def test_due_in_behind_an_id_in_the_future(user: RedisWire, service: Service) -> None:
    """Its time is not known, so `dueIn` counts from when the command is handled. A restart is as fast as ever."""
    fields = {"serviceCallId": "future", "dueIn": 2000}
    body = json.dumps({"type": "ScheduleTimer", "tenantId": "acme", "payload": fields})
    begun = datetime.now(UTC)
    await user.client.xadd(
        "timer:cmd", {"tenant": "acme", "type": "schedule-timer", "body": body}, id="9300000000000-5"
    )
    await until_fired(user, "future")
    assert datetime.now(UTC) - begun >= timedelta(seconds=2)
    await service.kill()
    await service.start()
    await schedule(user, "later")
    await until_fired(user, "later")


async def test_dead_letters_that_cannot_be_written(user: RedisWire, service: Service) -> None:
    """The page of the health names their stream. They are written when they can be."""
    await user.client.set("timer:dlq", "x")
    await user.publish(COMMAND, b"{", {}, None)
    await until(lambda: page_has(service, "cannot be stored: timer:dlq: WRONGTYPE"), seconds=15)
    await user.client.delete("timer:dlq")

    async def is_written() -> bool:
        return len(await user.stored(Kind.DEAD_LETTER, "acme")) == 1

    await until(is_written, seconds=15)
    await service.until_page("/readyz", 200)


async def page_has(service: Service, text: str) -> bool:
    return text in (await service.page("/readyz"))[1]


async def test_the_login_of_the_service_is_deleted(tmp_path: Path, server: RedisServer, user: RedisWire) -> None:
    """The page of the health says that the login is refused. With the login, the service works again by itself."""
    add = ["ACL", "SETUSER", "service", "on", ">secret", "~*", "&*", "+@all"]
    await user.client.execute_command(*add)
    login = {"TIMER_BROKER_USER": "service", "TIMER_BROKER_PASSWORD": "secret"}
    async with Service(tmp_path / "service", server.url, **login) as service:
        await user.client.execute_command("ACL", "DELUSER", "service")
        text = "not connected to the Redis server: invalid username-password pair or user is disabled"
        await until(lambda: page_has(service, text), seconds=15)
        await user.client.execute_command(*add)
        await service.until_page("/readyz", 200)
        await schedule(user, "after")
        await until_fired(user, "after")
