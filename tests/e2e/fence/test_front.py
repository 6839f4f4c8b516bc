"""A tenant with a server of its own in front: it uses the service, and cannot let the other server trace."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGSTOP
from typing import Any

import nats.errors
import pytest

from tests.harness.fence import PATIENCE_SECONDS, Operator, Peer, connect, password_of
from tests.harness.prepared import Front, Prepared
from tests.harness.processes import NatsServer, Service
from tests.harness.raw_nats import RawMessage, RawNats, header_block
from tests.harness.raw_worker import RawWorker, complete, start_workflows
from timer_service.app.slices import SLICES
from timer_service.client import NewTimer, Outcome, TimerClient
from timer_service.core.values.message import MAX_MESSAGE_BYTES, kebab

COUNT = "timer.qry.v1.tenant-a.count-timers"
CANCEL = "timer.cmd.v1.tenant-a.cancel-timer"
INBOX = "_INBOX.tenant-a.raw"
LATER = datetime(2100, 1, 1, tzinfo=UTC)
LOGIN = {"user": "tenant-a", "password": password_of("tenant-a"), "inbox_prefix": "_INBOX.tenant-a"}
HIDING = b"X: Nats-Trace-DestNats-Trace-Dest"
"""Because of this header, the server does not find the next `Nats-Trace-Dest` when it replaces its value."""
MANY = 500
LARGEST = 1020 * 1024
CONNECTIONS, SUBSCRIPTIONS = 20, 30
"""The limits of a tenant."""


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return Prepared.with_known_passwords(tmp_path / "prepared", "tenant-b", "--front", "tenant-a:4222")


@pytest.fixture
async def broker(prepared: Prepared, tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with prepared.broker(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def front(broker: NatsServer, prepared: Prepared, tmp_path: Path) -> AsyncIterator[Front]:
    async with prepared.front(tmp_path / "front") as server:
        yield server


@pytest.fixture
async def a(front: Front, operator: Operator) -> AsyncIterator[Peer]:
    peer = await connect(front, "tenant-a")
    yield peer
    await peer.connection.close()


async def until_answered(peer: Peer) -> Any:
    """Ask until the link is open. Return the reply."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (reply := await peer.request(COUNT, b"{}")) is None:
            await asyncio.sleep(0.02)
    return reply


async def test_client_works_through_a_front(a: Peer, front: Front, operator: Operator, broker: NatsServer) -> None:
    """A tenant gets outcomes, replies and events, pulls and acknowledges events, and executes workflows."""
    pulling = await a.connection.jetstream().pull_subscribe_bind("tenant-a", stream="TIMER_EVT_tenant-a")
    (events,) = await a.subscribe("timer.evt.v1.tenant-a.due-time-reached")
    async with TimerClient.connect(front.url, **LOGIN) as client:
        assert (await client.schedule("tenant-a", "call-1", datetime.now(UTC))).name == "scheduled"
        many = [NewTimer("tenant-a", f"later-{index}", LATER) for index in range(1_500)]
        assert {each.name for each in await client.schedule_many(many) if isinstance(each, Outcome)} == {"scheduled"}
        assert (await client.count("tenant-a")).by_state["Scheduled"] >= len(many)
    (pulled,) = await pulling.fetch(1, timeout=PATIENCE_SECONDS)
    await pulled.ack_sync()
    assert (await events.next_msg(PATIENCE_SECONDS)).data == pulled.data
    assert await operator.unacknowledged("tenant-a") == 0
    worker = RawWorker(a.connection, tenant="tenant-a")
    await start_workflows(a.connection, ["order-1"], "tenant-a")
    (task,) = await worker.poll()
    assert await worker.report(task, complete("ok")) == "completed"
    assert "violation" not in (front.log.read_text() + broker.log.read_text()).lower()


async def test_largest_event_passes_the_link(a: Peer, operator: Operator) -> None:
    """The server behind makes an event larger when the stream of the tenant takes it. It arrives all the same."""
    subject, data = "timer.evt.v1.tenant-a.due-time-reached", b"x" * (MAX_MESSAGE_BYTES - 64)
    await operator.connection.jetstream().publish(subject, data, headers={"Nats-Msg-Id": "1"})
    pulling = await a.connection.jetstream().pull_subscribe_bind("tenant-a", stream="TIMER_EVT_tenant-a")
    (pulled,) = await pulling.fetch(1, timeout=PATIENCE_SECONDS)
    assert len(pulled.data) == len(data)


async def test_client_works_after_the_link_was_lost(a: Peer, broker: NatsServer, front: Front) -> None:
    """The connections of a tenant survive a restart of the server behind. Meanwhile, nobody answers.

    The server in front then says so, and does not tell the subject that the link uses.
    """
    await until_answered(a)
    await broker.terminate()
    (replies,) = await a.subscribe(INBOX)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:  # it may still have the link
            await a.publish(COUNT, b"{}", INBOX)
            if replies.pending_msgs:
                break
    answer = (await replies.next_msg()).headers or {}
    assert (answer["Status"], answer["Nats-Subject"]) == ("503", COUNT)
    await broker.start()
    await until_answered(a)
    assert (await a.schedule("tenant-a", "call-1", "2100-01-01T00:00:00Z"))["outcome"] == "scheduled"


async def test_new_link_replaces_one_that_hangs(
    a: Peer, broker: NatsServer, front: Front, prepared: Prepared, tmp_path: Path
) -> None:
    """When the machine of the server in front was lost, another one with its file works at once."""
    await until_answered(a)
    front.signal(SIGSTOP)
    try:
        async with prepared.front(tmp_path / "second") as second:
            peer = await connect(second, "tenant-a")
            await until_answered(peer)
            await peer.connection.close()
        assert "Replacing connection from same server" in broker.log.read_text()
    finally:
        front.signal(SIGCONT)


async def test_reload_does_not_reach_the_link(a: Peer, broker: NatsServer, front: Front, tmp_path: Path) -> None:
    """Without its block, a tenant still gets events. With it again, it can send after the front has started again."""
    await until_answered(a)
    (events,) = await a.subscribe("timer.evt.v1.tenant-a.any")
    config = tmp_path / "nats" / "nats.conf"
    before = config.read_text()
    start = before.index("\ntenant-a {")
    end = before.index("\n}\n", start) + 2
    config.write_text(before[:start] + before[end:])
    await reload_twice(broker)
    service = await connect(broker, "timer-service")
    await service.publish("timer.evt.v1.tenant-a.any")
    await service.connection.close()
    await events.next_msg(PATIENCE_SECONDS)
    assert await a.request(COUNT, b"{}") is None
    config.write_text(before)
    await reload_twice(broker)
    assert await a.request(COUNT, b"{}") is None
    await front.terminate()
    await front.start()
    peer = await connect(front, "tenant-a")
    await until_answered(peer)
    await peer.connection.close()


async def reload_twice(broker: NatsServer) -> None:
    """Reload the configuration. The server connects new accounts with the others at the second reload."""
    for _ in range(2):
        count = broker.log.read_text().count("Reloaded server configuration")
        broker.signal(SIGHUP)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while broker.log.read_text().count("Reloaded server configuration") == count:
                await asyncio.sleep(0.02)


async def test_killed_front_loses_no_acknowledged_command(a: Peer, front: Front, operator: Operator) -> None:
    """Each command that a tenant has an acknowledgement for is stored, also if the server in front is killed."""
    js = a.connection.jetstream()
    sent = [asyncio.ensure_future(js.publish(CANCEL, b"no JSON", timeout=PATIENCE_SECONDS)) for _ in range(MANY)]
    await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
    await front.kill()
    await a.connection.close()
    for each in sent:
        each.cancel()
    await asyncio.wait(sent)
    acknowledged = [each for each in sent if not each.cancelled() and each.exception() is None]
    assert acknowledged
    assert (await operator.count_messages())["TIMER_CMD"][CANCEL] >= len(acknowledged)
    await front.start()
    peer = await connect(front, "tenant-a")
    await until_answered(peer)
    await peer.connection.close()


async def test_traces_are_made_only_in_front(a: Peer, front: Front, operator: Operator, prepared: Prepared) -> None:
    """The server behind sends no trace, whatever the headers are. The trace of the server in front is a command.

    With two hidden headers it would, if the tenant knew the secret.
    """
    (commands,) = await operator.subscribe(CANCEL)
    own = b"Nats-Trace-Dest: " + CANCEL.encode()
    for headers, makers in (
        ([own], ["in front"]),
        ([own, own], ["in front"]),
        ([HIDING, own], ["in front"]),
        ([own, HIDING, own], ["in front"]),
        ([HIDING, own, b"Nats-Trace-Only: true"], ["in front"]),
        ([own, HIDING, b"Nats-Trace-Dest: $JS.ACK.TIMER_EVT_tenant-a.tenant-a.x"], ["in front"]),
        ([own, HIDING, b"Nats-Trace-Dest: _INBOX.tenant-a.x"], ["in front"]),
        ([own, HIDING, b"Nats-Trace-Dest: _R_.x"], ["in front"]),
        ([own, HIDING, f"Nats-Trace-Dest: {prepared.secret}.{CANCEL}".encode()], ["in front", "behind"]),
    ):
        async with RawNats.connect(front.port, user="tenant-a", **{"pass": LOGIN["password"]}) as raw:
            await raw.publish([RawMessage(COUNT.encode(), b"{}", header_block(*headers))])
        await until_answered(a)
        traces = [json.loads(data) for _, data in await operator.received(commands)]
        assert sorted(maker(each) for each in traces) == sorted(makers), headers


# The server in front traces the first message and not the second. It removes `Nats-Request-Info`, so that the line
# before that hides from the other server why not.
@pytest.mark.parametrize(
    "headers",
    [
        [b"Nats-Trace-Dest: " + CANCEL.encode(), HIDING, b"Nats-Trace-Dest: $MQTT.x"],
        [HIDING, b"Nats-Trace-Dest: $MQTT.x", b"X", b"Nats-Request-Info: x", b"Nats-Trace-Origin-Account: x"],
    ],
)
async def test_server_behind_sends_no_trace_to_mqtt(
    a: Peer, broker: NatsServer, front: Front, headers: list[bytes]
) -> None:
    """The server behind refuses traces to subjects of MQTT, which each link may publish to unless they are denied."""
    async with RawNats.connect(front.port, user="tenant-a", **{"pass": LOGIN["password"]}) as raw:
        await raw.publish([RawMessage(COUNT.encode(), b"{}", header_block(*headers))])
    await until_answered(a)
    assert 'Publish Violation - Subject "$MQTT.x"' in broker.log.read_text()


def maker(trace: Any) -> str:
    return "in front" if trace["server"]["name"] == "front-tenant-a" else "behind"


async def test_tenant_does_not_learn_the_secret(a: Peer, prepared: Prepared) -> None:
    """No command that gets a trace tells the tenant what is in it."""
    (rejections, others) = await a.subscribe("timer.evt.v1.tenant-a.command-rejected", "_INBOX.>")
    names = [kebab(each.__name__) for slice_ in SLICES for each in slice_.commands]
    for name in names:
        await a.publish(COUNT, b"{}", INBOX, Nats_Trace_Dest=f"timer.cmd.v1.tenant-a.{name}", Timer_Reply_To=INBOX)
    events = [(await rejections.next_msg(PATIENCE_SECONDS)).data for _ in names]
    await until_answered(a)
    assert prepared.secret not in str([events, await a.received(rejections, others)])


async def test_traces_do_not_have_the_secret(a: Peer, operator: Operator, prepared: Prepared) -> None:
    """The server in front writes no secret into its traces: a tenant could find it out from their compressed size."""
    (commands,) = await operator.subscribe(CANCEL)
    traced = (
        "timer.cmd.v1.tenant-a.start-run",
        COUNT,
        "timer.wrk.v1.tenant-a.poll-tasks",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_EVT_tenant-a.tenant-a",
        "$JS.ACK.TIMER_EVT_tenant-a.tenant-a.x",
    )
    for subject in traced:
        await a.publish(subject, b"{}", INBOX, Nats_Trace_Dest=CANCEL)
        trace = (await commands.next_msg(PATIENCE_SECONDS)).data
        assert ("RELAY" in trace.decode(), prepared.secret in trace.decode()) == (True, False), trace


async def test_logins_belong_to_one_server(broker: NatsServer, front: Front, prepared: Prepared) -> None:
    """A tenant behind a front has no login at the other server. Others cannot open a link, nor use its login."""
    link = prepared.password("tenant-a.link")
    for user, password in (("tenant-a", password_of("tenant-a")), ("tenant-a.link", link)):
        assert b"Authorization Violation" in await log_in(broker.port, user, password)
    assert b"-ERR" not in await log_in(prepared.link_port, "tenant-a.link", link)
    for user in ("tenant-a", "tenant-b"):
        assert b"-ERR" in await log_in(prepared.link_port, user, password_of(user))


async def log_in(port: int, user: str, password: str) -> bytes:
    """Log in. Return what the server says until it answers a PING, or ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"CONNECT %b\r\nPING\r\n" % json.dumps({"user": user, "pass": password, "name": "other"}).encode())
    said = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while b"PONG\r\n" not in said and (new := await reader.read(1 << 16)):
            said += new
    writer.close()
    await writer.wait_closed()
    return said


async def test_all_subscriptions_of_a_tenant_fit_the_link(front: Front, operator: Operator) -> None:
    """A tenant with all of its connections and subscriptions keeps its link."""
    peers = [await connect(front, "tenant-a") for _ in range(CONNECTIONS)]
    for number, peer in enumerate(peers):
        await peer.subscribe(*(f"_INBOX.tenant-a.{number}.{each}" for each in range(SUBSCRIPTIONS - 2)))
    for peer in peers:
        await until_answered(peer)
        await peer.connection.close()
    assert front.log.read_text().count("Leafnode connection created") == 1


async def test_largest_messages_pass_the_link(
    a: Peer, front: Front, operator: Operator, service: Service, broker: NatsServer
) -> None:
    """A command and an event that are as large as they may be arrive. A larger command ends its connection only."""
    stored = await a.connection.jetstream().publish(CANCEL, b"x" * LARGEST)
    assert stored.stream == "TIMER_CMD"
    other = await connect(front, "tenant-a")
    with pytest.raises(nats.errors.Error):
        await other.connection.jetstream().publish(CANCEL, b"x" * (LARGEST + 1))
    await other.connection.close()
    (events,) = await a.subscribe("timer.evt.v1.tenant-a.any")
    await until_answered(a)
    assert await service.terminate() == 0
    publisher = await connect(broker, "timer-service")
    await publisher.publish("timer.evt.v1.tenant-a.any", b"x" * (1 << 20))
    assert len((await events.next_msg(PATIENCE_SECONDS)).data) == 1 << 20
    await publisher.connection.close()
    assert front.log.read_text().count("Leafnode connection created") == 1
