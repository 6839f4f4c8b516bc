"""`doctor` on RabbitMQ: what it finds, and what it says to do."""

import asyncio
from pathlib import Path

import aiormq
import pytest

from tests.harness.processes import unused_port
from tests.harness.rabbit_harness import RabbitHarness
from tests.harness.rabbitmq import RabbitServer, memory_alarm
from timer_service.cli.doctor.finding import Finding, Status
from timer_service.cli.doctor.rabbitmq import check_rabbitmq, check_version
from timer_service.config import Config
from timer_service.core.values.address import Kind


async def check(rabbit: RabbitHarness, **settings: object) -> dict[str, Finding]:
    config = Config.model_validate({"broker_url": rabbit.server.url, "subject_prefix": rabbit.prefix, **settings})
    return {each.check: each for each in await check_rabbitmq(config) if isinstance(each, Finding)}


async def test_findings_on_a_server(rabbit: RabbitHarness) -> None:
    """Each part of a server that works is ok. The service creates what is missing, and nobody reads yet."""
    found = await check(rabbit)
    prefix = rabbit.prefix
    parts = {f"stream {prefix}.{kind}.log" for kind in ("cmd", "evt", "dlq")} | {"broker", "room"}
    assert {name for name, each in found.items() if each.status is Status.OK} == parts
    assert {name for name, each in found.items() if each.status is Status.NOTE} == {"durability", "clock"}
    requests = {f"{part} {prefix}.{kind}" for part in ("exchange", "queue") for kind in ("qry", "wrk")}
    assert {name for name, each in found.items() if each.status is Status.WARN} == {*requests, "reader", "size"}
    assert found[f"queue {prefix}.qry"].message == f"NOT_FOUND - no queue '{prefix}.qry' in vhost '/'"


async def test_missing_parts(rabbit: RabbitHarness) -> None:
    """A missing stream or binding is named, with the remedy for a service that creates nothing."""
    channel = await rabbit.user.channel()
    await channel.queue_delete(f"{rabbit.prefix}.dlq.log")
    queue = await channel.get_queue(f"{rabbit.prefix}.evt.log")
    await queue.unbind(f"{rabbit.prefix}.evt", "#")
    found = await check(rabbit, manage_streams=False)
    missing, unbound = found[f"queue {rabbit.prefix}.dlq.log"], found[f"stream {rabbit.prefix}.evt.log"]
    assert (missing.status, unbound.status) == (Status.FAIL, Status.FAIL)
    assert "TIMER_MANAGE_STREAMS is off" in missing.message
    assert f"is not bound to exchange {rabbit.prefix}.evt" in unbound.message


async def test_wrong_types(rabbit: RabbitHarness) -> None:
    """An exchange and a stream that exist with another type are named, with the words of the server."""
    channel = await rabbit.user.channel()
    await channel.exchange_delete(f"{rabbit.prefix}.evt")
    await channel.declare_exchange(f"{rabbit.prefix}.evt", "fanout", durable=True)
    await channel.queue_delete(f"{rabbit.prefix}.cmd.log")
    await channel.declare_queue(f"{rabbit.prefix}.cmd.log", durable=True)
    found = await check(rabbit)
    exchange, queue = found[f"exchange {rabbit.prefix}.evt"], found[f"queue {rabbit.prefix}.cmd.log"]
    assert (exchange.status, queue.status) == (Status.FAIL, Status.FAIL)
    assert "current is 'fanout'" in exchange.message
    assert "x-queue-type" in queue.message


@pytest.mark.slow
async def test_stream_that_the_server_has_lost(tmp_path: Path) -> None:
    """A server that is killed in the second after it has created a stream knows its name, but not where it is."""
    async with RabbitServer(tmp_path) as server:
        connection = await aiormq.connect(server.url)
        channel = await connection.channel()
        await channel.queue_declare("timer.cmd.log", durable=True, arguments={"x-queue-type": "stream"})
        await connection.close()
        await server.kill()
        server.lose_streams()
        await server.start()
        found = await check_rabbitmq(Config(broker_url=server.url))
    (finding,) = [each for each in found if isinstance(each, Finding) and each.check == "queue timer.cmd.log"]
    assert finding.status is Status.FAIL
    assert finding.message.startswith("NOT_FOUND - home node")
    assert "reset" in (finding.remedy or "")


async def test_stream_port(rabbit: RabbitHarness) -> None:
    """A wrong stream port is named: without it, the service reads no commands."""
    port = unused_port()
    found = await check(rabbit, broker_url=rabbit.server.url.replace(str(rabbit.server.stream_port), str(port)))
    finding = found[f"stream {rabbit.prefix}.cmd.log"]
    assert finding.status is Status.FAIL
    assert str(port) in finding.message


async def test_login_that_may_not_read(rabbit: RabbitHarness) -> None:
    """With the login of a tenant, the finding names the login: the plugin and its port are right."""
    name = f"tenant-{rabbit.prefix}"
    await asyncio.to_thread(rabbit.server.ctl, "add_user", name, "secret")
    await asyncio.to_thread(rabbit.server.ctl, "set_permissions", name, "^$", ".*", "^$")
    url = rabbit.server.url.replace("guest:guest", f"{name}:secret")
    finding = (await check(rabbit, broker_url=url))[f"stream {rabbit.prefix}.cmd.log"]
    assert "AccessRefused" in finding.message
    assert str(finding.remedy).startswith("Use the login of the service")


async def test_size(rabbit: RabbitHarness) -> None:
    """A server that refuses messages of more than 4 MB is ok. One with the limit of RabbitMQ is not."""
    await rabbit.server.limit_messages(4_194_304)
    try:
        limited = await check(rabbit)
    finally:
        await rabbit.server.limit_messages(134_217_728)
    assert limited["size"].status is Status.OK
    assert (await check(rabbit))["size"].remedy == "Set max_message_size = 4194304 in rabbitmq.conf."


async def test_alarm(rabbit: RabbitHarness) -> None:
    """While the server has an alarm, it takes no messages. The other checks are done."""
    async with memory_alarm(rabbit.server):
        found = await check(rabbit)
    assert (found["room"].status, found["broker"].status) == (Status.FAIL, Status.OK)
    assert "alarm" in found["room"].message


async def test_reader(rabbit: RabbitHarness) -> None:
    """A database that has read commands, and instances that serve queries, are seen."""
    await rabbit.broker.log.open(None, "database")
    without = await check(rabbit)
    await rabbit.broker.serve(Kind.QUERY, [], lambda _request: [])
    served = await check(rabbit)
    assert (without["reader"].status, served["reader"].status) == (Status.WARN, Status.OK)
    assert "no service serves queries" in without["reader"].message


@pytest.mark.parametrize("broken", ["port", "password", "scheme"])
async def test_server_that_cannot_be_used(rabbit: RabbitHarness, broken: str) -> None:
    """The finding names the address and the reason, without the password."""
    port = unused_port()
    change = {
        "port": (str(rabbit.server.port), str(port)),
        "password": ("guest:guest", "guest:s3cret"),
        "scheme": ("amqp://", "amqps://"),
    }
    url = rabbit.server.url.replace(*change[broken])
    found = await check(rabbit, broker_url=url)
    finding = found["broker"]
    assert (len(found), finding.status) == (1, Status.FAIL)
    reason = {"port": str(port), "password": "ACCESS_REFUSED", "scheme": "a port of amqps://?"}
    assert reason[broken] in finding.message
    assert "guest:" not in finding.message
    assert "s3cret" not in finding.message


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("3.10.8", Status.OK),
        ("4.0.5", Status.OK),
        ("3.9.1", Status.FAIL),
        ("None", Status.FAIL),
        ("4.1.0", Status.WARN),
    ],
)
def test_version(version: str, status: Status) -> None:
    """RabbitMQ 3.10 to 4.0 are supported. Later ones were not tested."""
    assert check_version(version, "here:5672").status is status
