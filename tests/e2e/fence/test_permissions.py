"""Tests of deploy/nats.conf: the service has least privilege, and tenants are isolated from each other.

A denied operation may cause an error or nothing at all. So these tests compare all streams before and after, and the
messages that each connection received. A round trip on the same connection makes sure that all effects are visible.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness.fence import (
    ACCOUNTS,
    PASSWORDS,
    PATIENCE_SECONDS,
    SERVICE_LOGIN,
    STREAMS,
    Operator,
    Peer,
    command,
    connect,
    deny_to_service,
)
from tests.harness.processes import NatsServer, Service
from tests.harness.raw_worker import RawWorker, complete, start_workflows
from timer_service.client import NewTimer, Outcome, TimerClient


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Return a server on which tenants may publish and subscribe to everything in their accounts."""
    async with NatsServer(tmp_path / "nats", config=ACCOUNTS, **PASSWORDS) as server:
        yield server


async def test_service_works_with_least_privilege(a: Peer, operator: Operator, service: Service) -> None:
    """The service creates streams, fires a timer, replies to queries and stores a dead letter without a violation."""
    (events,) = await a.subscribe("timer.evt.v1.tenant-a.*")
    assert (await a.schedule("tenant-a", "call-1"))["outcome"] == "scheduled"
    assert json.loads((await events.next_msg(PATIENCE_SECONDS)).data)["payload"]["serviceCallId"] == "call-1"
    assert (await a.request("timer.qry.v1.tenant-a.get-timer", b'{"serviceCallId": "call-1"}'))["dueAt"]
    await a.publish("timer.cmd.v1.tenant-a.schedule-timer", b"no JSON")
    assert json.loads((await events.next_msg(PATIENCE_SECONDS)).data)["payload"]["code"] == "INVALID_JSON"
    async with asyncio.timeout(PATIENCE_SECONDS):  # the dead letter has a relay of its own
        while not (letters := (await operator.count_messages())["TIMER_DLQ"]):
            await asyncio.sleep(0.02)
    assert letters == {"timer.dlq.v1.tenant-a.schedule-timer": 1}
    assert (await operator.request("$SRV.PING.timer-service"))["name"] == "timer-service"
    assert (await service.page("/readyz"))[0] == 200
    assert await service.terminate() == 0
    assert "violation" not in service.log.read_text().lower()


async def test_service_has_no_other_permissions(broker: NatsServer, operator: Operator, service: Service) -> None:
    """The service cannot publish commands, delete streams, read events, or receive what others send."""
    before = await operator.count_messages()
    peer = await connect(broker, "timer-service")
    received = await peer.subscribe("timer.cmd.>", "timer.evt.>", "timer.dlq.>", "_INBOX.tenant-b.>")
    await peer.publish("timer.cmd.v1.tenant-b.schedule-timer", command("tenant-b", "call-1"))
    for stream in STREAMS:
        for api in ("STREAM.DELETE", "STREAM.PURGE", "STREAM.SNAPSHOT", "DIRECT.GET", "CONSUMER.CREATE"):
            for prefix in ("$JS.API", "TIMERS.API"):
                assert await peer.request(f"{prefix}.{api}.{stream}") is None
    for stream in ("TIMER_EVT", "TIMER_DLQ"):
        assert await peer.request(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq": 1}') is None
    await operator.publish("_INBOX.tenant-b.any")
    assert await operator.count_messages() == before
    own = [("timer.cmd.v1.tenant-b.schedule-timer", command("tenant-b", "call-1"))]
    assert await peer.received(*received) == own
    await peer.connection.close()


async def test_tenants_have_no_access_to_hints(a: Peer, broker: NatsServer, operator: Operator) -> None:
    """Instances exchange wake-up hints. A tenant can neither receive nor send them."""
    one, other = [await connect(broker, "timer-service") for _ in range(2)]
    (hints,) = await other.subscribe("timer.wake.v1.*")
    tenant_subscriptions = await a.subscribe("timer.wake.>", ">")
    await one.publish("timer.wake.v1.timers", b"1")
    assert await a.received(*tenant_subscriptions) == []
    await a.publish("timer.wake.v1.timers", b"2")
    assert await other.received(hints) == [("timer.wake.v1.timers", b"1")]
    assert one.violations == other.violations == []
    await one.connection.close()
    await other.connection.close()


async def test_readiness_names_missing_permissions(tmp_path: Path) -> None:
    """A service without a permission that it needs is not ready, and says how to find all of them."""
    async with NatsServer(tmp_path / "nats", config=deny_to_service("timer.qry.>"), **PASSWORDS) as broker:
        service = Service(tmp_path / "service", broker.url, **SERVICE_LOGIN)
        service.launch()
        page = ""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "; `timer-service doctor` names every missing permission" not in page:
                with suppress(OSError):  # its HTTP server is not up yet
                    _, page = await service.page("/readyz")
                await asyncio.sleep(0.02)
        assert await service.terminate() == 0


async def test_tenant_uses_the_service(a: Peer, broker: NatsServer, operator: Operator, service: Service) -> None:
    """A tenant schedules timers with the client, receives the outcomes, and pulls and acknowledges its events."""
    login = {"user": "tenant-a", "password": PASSWORDS["TENANT_A_PASSWORD"], "inbox_prefix": "_INBOX.tenant-a"}
    js = a.connection.jetstream()
    pulling = await js.pull_subscribe_bind("tenant-a", stream="TIMER_EVT_tenant-a")
    (events,) = await a.subscribe("timer.evt.v1.tenant-a.due-time-reached")
    async with TimerClient.connect(broker.url, **login) as client:
        assert (await client.timers.schedule("tenant-a", "call-1", datetime.now(UTC))).name == "scheduled"
        many = [NewTimer("tenant-a", f"later-{index}", datetime(2100, 1, 1, tzinfo=UTC)) for index in range(1_500)]
        assert {each.name for each in await client.timers.schedule_many(many) if isinstance(each, Outcome)} == {
            "scheduled"
        }
        assert (await client.timers.count("tenant-a")).by_state["Scheduled"] >= len(many)
    (pulled,) = await pulling.fetch(1, timeout=PATIENCE_SECONDS)
    assert pulled.subject == "timer.evt.v1.tenant-a.due-time-reached"
    await pulled.ack_sync()
    assert (await events.next_msg(PATIENCE_SECONDS)).data == pulled.data
    assert await operator.unacknowledged("tenant-a") == 0


async def test_tenant_cannot_publish_for_another_tenant(a: Peer, operator: Operator) -> None:
    """No stream stores a message that A publishes for B or as the service, whatever its headers are."""
    before = await operator.count_messages()
    trace = {"Nats_Trace_Dest": "timer.evt.v1.tenant-b.due-time-reached"}
    for subject in (
        "timer.cmd.v1.tenant-b.schedule-timer",
        "timer.cmd.v1.*.schedule-timer",
        "timer.evt.v1.tenant-a.due-time-reached",
        "timer.evt.v1.tenant-b.due-time-reached",
        "timer.evt.v1.tenant-a.due-time-reached.unpaid",
        "timer.evt.v1.tenant-b.due-time-reached.unpaid",
        "timer.dlq.v1.tenant-b.schedule-timer",
    ):
        await a.publish(subject, command("tenant-b", "call-1"))
        await a.publish(subject, command("tenant-b", "call-1"), **trace)
    assert await operator.count_messages() == before


async def test_tenant_receives_nothing_of_another_tenant(a: Peer, b: Peer) -> None:
    """No subscription of A receives the commands, events, queries or inboxes of B."""
    wide = (">", "*.>", "timer.>", "timer.evt.>", "timer.*.v1.*.*", "timer.evt.v1.tenant-b.*", "_INBOX.>", "_R_.>")
    narrow = ("timer.cmd.v1.tenant-b.*", "timer.qry.v1.tenant-b.*", "timer.dlq.>", "$JS.ACK.>", "$JS.EVENT.>")
    listening = await a.subscribe(*wide, *narrow)
    events = await b.subscribe("timer.evt.v1.tenant-b.due-time-reached")
    assert (await b.schedule("tenant-b", "call-1"))["outcome"] == "scheduled"
    assert (await events[0].next_msg(PATIENCE_SECONDS)).data
    assert sum((await b.request("timer.qry.v1.tenant-b.count-timers"))["counts"].values()) == 1
    assert await a.received(*listening) == []


async def test_tenant_receives_its_topics_and_no_others(a: Peer, b: Peer, operator: Operator, service: Service) -> None:
    """Events with a topic reach their tenant alone: its subscriptions, its client and its stream."""
    wide = (
        "timer.evt.v1.*.*",
        "timer.evt.v1.*.*.*",
        "timer.evt.v1.*.>",
        "timer.evt.v1.tenant-b.*.unpaid",
        "*.*.*.*.*.*",
    )
    listening = await a.subscribe(*wide, "timer.evt.v1.tenant-b.due-time-reached.*", "timer.evt.v1.tenant-b.>")
    with_topic, without, any_event = await b.subscribe(
        "timer.evt.v1.tenant-b.due-time-reached.unpaid", "timer.evt.v1.tenant-b.*", "timer.evt.v1.tenant-b.>"
    )
    pulling = await b.connection.jetstream().pull_subscribe_bind("tenant-b", stream="TIMER_EVT_tenant-b")
    for call, fields in (("call-1", {"topic": "unpaid"}), ("call-2", {}), ("call-3", {"topic": "other"})):
        assert (await b.schedule("tenant-b", call, **fields))["outcome"] == "scheduled"
        assert (await any_event.next_msg(PATIENCE_SECONDS)).data
    pulled = [(await pulling.fetch(1, timeout=PATIENCE_SECONDS))[0] for _ in range(3)]
    for message in pulled:
        await message.ack_sync()
    fired = "timer.evt.v1.tenant-b.due-time-reached"
    assert [each.subject for each in pulled] == [f"{fired}.unpaid", fired, f"{fired}.other"]
    assert await b.received(with_topic, without) == [(each.subject, each.data) for each in pulled[:2]]
    assert await a.received(*listening) == []
    assert await operator.unacknowledged("tenant-b") == 0
    assert "violation" not in service.log.read_text().lower()


async def test_tenant_cannot_query_another_tenant(a: Peer, b: Peer) -> None:
    """A gets no reply to queries about B, and its own queries do not find the timers of B."""
    await b.schedule("tenant-b", "call-1")
    assert await a.request("timer.qry.v1.tenant-b.get-timer", b'{"serviceCallId": "call-1"}') is None
    reply = await a.request("timer.qry.v1.tenant-a.get-timer", b'{"serviceCallId": "call-1"}')
    assert reply["error"]["code"] == "NOT_FOUND"


B_EVENTS = "timer.evt.v1.tenant-b.>"
A_EVENTS = "timer.evt.v1.tenant-a.>"
API: list[tuple[str, Mapping[str, Any]]] = [
    ("STREAM.DELETE.TIMER_CMD", {}),
    ("STREAM.PURGE.TIMER_EVT", {}),
    ("STREAM.UPDATE.TIMER_EVT", {"name": "TIMER_EVT", "subjects": [B_EVENTS]}),
    ("STREAM.CREATE.THEFT", {"name": "THEFT", "sources": [{"name": "TIMER_EVT"}]}),
    ("STREAM.DELETE.TIMER_EVT_tenant-b", {}),
    ("STREAM.PURGE.TIMER_EVT_tenant-b", {}),
    ("STREAM.INFO.TIMER_EVT", {"subjects_filter": ">"}),
    ("STREAM.SNAPSHOT.TIMER_EVT", {"deliver_subject": "mine"}),
    ("STREAM.MSG.GET.TIMER_EVT", {"seq": 1}),
    ("STREAM.MSG.DELETE.TIMER_EVT", {"seq": 1}),
    ("DIRECT.GET.TIMER_EVT", {"seq": 1}),
    ("DIRECT.GET.TIMER_EVT.timer.evt.v1.tenant-b.due-time-reached", {}),
    ("CONSUMER.CREATE.TIMER_EVT", {}),
    ("CONSUMER.CREATE.TIMER_EVT", {"filter_subject": B_EVENTS}),
    ("CONSUMER.CREATE.TIMER_EVT.mine", {"name": "mine"}),
    ("CONSUMER.CREATE.TIMER_EVT.mine", {"name": "mine", "filter_subjects": [A_EVENTS, B_EVENTS]}),
    (f"CONSUMER.CREATE.TIMER_EVT.mine.{B_EVENTS}", {"name": "mine", "filter_subject": B_EVENTS}),
    (f"CONSUMER.CREATE.TIMER_EVT.tenant-a.{A_EVENTS}", {"name": "tenant-a", "filter_subject": A_EVENTS}),
    (f"CONSUMER.CREATE.TIMER_EVT_tenant-a.tenant-a.{A_EVENTS}", {"name": "tenant-a", "filter_subjects": [B_EVENTS]}),
    (f"CONSUMER.CREATE.TIMER_EVT_tenant-a.tenant-a.{A_EVENTS}", {"name": "tenant-a", "filter_subject": B_EVENTS}),
    (
        f"CONSUMER.CREATE.TIMER_EVT.mine.{A_EVENTS}",
        {"filter_subject": A_EVENTS, "deliver_subject": B_EVENTS[:-1] + "x"},
    ),
    ("CONSUMER.DURABLE.CREATE.TIMER_EVT.mine", {"durable_name": "mine"}),
    ("CONSUMER.DURABLE.CREATE.TIMER_EVT_tenant-b.tenant-b", {"durable_name": "tenant-b", "filter_subject": A_EVENTS}),
    ("CONSUMER.MSG.NEXT.TIMER_EVT_tenant-b.tenant-b", {"batch": 1, "no_wait": True}),
    ("CONSUMER.MSG.NEXT.TIMER_EVT_tenant-b.tenant-a", {"batch": 1, "no_wait": True}),
    ("CONSUMER.MSG.NEXT.TIMER_CMD.timer-service", {"batch": 1, "no_wait": True}),
    ("CONSUMER.DELETE.TIMER_CMD.timer-service", {}),
    ("CONSUMER.DURABLE.CREATE.TIMER_CMD.timer-service", {"durable_name": "timer-service"}),
    ("CONSUMER.INFO.TIMER_EVT_tenant-b.tenant-b", {}),
    ("CONSUMER.DELETE.TIMER_EVT_tenant-b.tenant-b", {}),
    ("CONSUMER.PAUSE.TIMER_EVT_tenant-b.tenant-b", {"pause_until": "2100-01-01T00:00:00Z"}),
    ("CONSUMER.RESET.TIMER_EVT_tenant-b.tenant-b", {}),
    ("CONSUMER.NAMES.TIMER_EVT", {}),
]


async def test_jetstream_api_gives_no_access_to_another_tenant(a: Peer, b: Peer, operator: Operator) -> None:
    """A cannot read, change or delete streams or a consumer of others, or create consumers, with any API request."""
    (events,) = await b.subscribe(B_EVENTS)
    await b.schedule("tenant-b", "call-1")
    await events.next_msg(PATIENCE_SECONDS)
    before = await operator.count_messages()
    for subject, config in API:
        content = {"stream_name": "TIMER_EVT", "config": config} if ".CREATE.TIMER_" in subject else config
        for prefix in ("$JS.API", "TIMERS.API"):
            reply = await a.request(f"{prefix}.{subject}", json.dumps(content).encode() if content else b"")
            assert reply is None, subject
    js = operator.connection.jetstream()
    for tenant in ("tenant-a", "tenant-b"):
        assert [each.name for each in await js.consumers_info(f"TIMER_EVT_{tenant}")] == [tenant]
    assert [each.name for each in await js.consumers_info("TIMER_CMD")] == ["timer-service"]
    consumers = await js.consumers_info("TIMER_EVT")
    assert all(each.config.durable_name is None for each in consumers)  # those of the streams of the tenants
    assert await operator.count_messages() == before


async def test_tenant_cannot_acknowledge_for_another_tenant(a: Peer, b: Peer, operator: Operator) -> None:
    """A cannot acknowledge a delivery of B, even if A knows its acknowledgement subject."""
    await b.schedule("tenant-b", "call-1")
    js = b.connection.jetstream()
    (pulled,) = await (await js.pull_subscribe_bind("tenant-b", stream="TIMER_EVT_tenant-b")).fetch(
        1, timeout=PATIENCE_SECONDS
    )
    await a.publish(pulled.reply, b"+TERM")
    await operator.count_messages()
    assert await operator.unacknowledged("tenant-b") == 1
    await pulled.ack_sync()
    assert await operator.unacknowledged("tenant-b") == 0


FOREIGN_SUBJECTS = [
    "timer.cmd.v1.tenant-b.cancel-timer",
    "timer.evt.v1.tenant-b.due-time-reached",
    "timer.evt.v1.tenant-a.due-time-reached",
    "$JS.API.STREAM.DELETE.TIMER_DLQ",
    "$JS.API.STREAM.PURGE.TIMER_EVT",
    "_INBOX.tenant-b.guessed",
]


async def test_replies_stay_in_the_account_of_the_request(a: Peer, b: Peer, operator: Operator) -> None:
    """The reply to a publish, a request, a query or a pull of A stays in the account of A.

    Inside one account, it would reach other users, because the server does not check permissions of reply subjects.
    """
    before = await operator.count_messages()
    everything = await b.subscribe(">")
    wanted = {"Nats_Expected_Last_Sequence": "1000000"}  # so that it is answered, but not stored
    for subject in FOREIGN_SUBJECTS:
        (replies,) = await a.subscribe(subject.replace("$JS.API", "TIMERS.API"))  # the account maps one to the other
        await a.publish("timer.cmd.v1.tenant-a.schedule-timer", b"{}", subject, **wanted)
        assert b"wrong last sequence" in (await replies.next_msg(PATIENCE_SECONDS)).data
        await a.publish("timer.wrk.v1.tenant-a.poll-tasks", POLL, subject)
        assert json.loads((await replies.next_msg(PATIENCE_SECONDS)).data) == {"tasks": []}
        await a.publish("timer.qry.v1.tenant-a.count-timers", b"", subject)
        assert b"counts" in (await replies.next_msg(PATIENCE_SECONDS)).data
        await a.publish(
            "TIMERS.API.CONSUMER.MSG.NEXT.TIMER_EVT_tenant-a.tenant-a", b'{"batch": 1, "no_wait": true}', subject
        )
        assert ((await replies.next_msg(PATIENCE_SECONDS)).headers or {})["Status"] == "404"
    assert await operator.count_messages() == before
    assert await b.received(*everything) == []


async def test_outcomes_are_sent_only_to_inboxes(a: Peer, b: Peer, operator: Operator) -> None:
    """The service sends outcomes only to inboxes, whatever `Timer-Reply-To` says.

    The sender chooses the inbox. So A can direct the outcome of its command to an inbox of B, but inbox names are
    random.
    """
    everything = await b.subscribe(">")
    for subject in (*FOREIGN_SUBJECTS, "_R_.any", "_INBOX_TIMER_SERVICE.any"):
        await a.publish(
            "timer.cmd.v1.tenant-a.schedule-timer",
            command("tenant-a", "call-1", "2100-01-01T00:00:00Z"),
            Timer_Reply_To=subject,
        )
    assert (await a.schedule("tenant-a", "call-1", "2100-01-01T00:00:00Z"))["outcome"] == "unchanged"
    counts = await operator.count_messages()
    assert counts == {
        "TIMER_CMD": {"timer.cmd.v1.tenant-a.schedule-timer": len(FOREIGN_SUBJECTS) + 3},
        "TIMER_EVT": {},
        "TIMER_DLQ": {},
    }
    assert [subject for subject, _ in await b.received(*everything)] == ["_INBOX.tenant-b.guessed"]


POLL = b'{"workerId": "w", "types": ["order"], "slots": 10, "waitMs": 0}'


async def test_tenant_cannot_execute_workflows_of_another(a: Peer, b: Peer, operator: Operator) -> None:
    """B executes its workflow across accounts. A reaches no request of B, and changes nothing with B's tokens."""
    (events,) = await b.subscribe("timer.evt.v1.tenant-b.workflow-completed")
    await start_workflows(b.connection, ["order-1"], "tenant-b")
    holder = RawWorker(b.connection, tenant="tenant-b")
    (task,) = await holder.poll()
    held = {"workflowId": task["workflowId"], "token": task["token"]}
    assert await a.request("timer.wrk.v1.tenant-b.poll-tasks", POLL) is None
    thief = RawWorker(a.connection, tenant="tenant-a")
    assert await thief.poll(wait_ms=0) == []
    assert await thief.report(task, complete("stolen")) == "lost"
    assert (await thief.request("renew-tasks", workerId=thief.id, tasks=[held]))["lost"] == [held]
    assert (await thief.request("get-effects", **held))["error"]["code"] == "NOT_FOUND"
    assert await holder.report(task, complete("ok")) == "completed"
    assert json.loads((await events.next_msg(PATIENCE_SECONDS)).data)["payload"]["result"] == "ok"
