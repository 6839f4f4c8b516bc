"""Tests of deploy/nats.conf: the service has least privilege, and tenants are isolated from each other.

A denied operation may cause an error or nothing at all. So these tests compare all streams before and after, and the
messages that each connection received. A round trip on the same connection makes sure that all effects are visible.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js.api import ConsumerConfig

from tests.harness.databases import Databases
from tests.harness.nats_client import round_trip
from tests.harness.processes import NatsServer, Service, body
from timer_service.client import NewTimer, Outcome, TimerClient

CONFIG = (Path(__file__).parents[2] / "deploy" / "nats.conf").read_text()
PASSWORDS = {
    "TIMER_SERVICE_PASSWORD": "service-s3cret",
    "OPERATOR_PASSWORD": "operator-s3cret",
    "TENANT_A_PASSWORD": "tenant-a-s3cret",
    "TENANT_B_PASSWORD": "tenant-b-s3cret",
}
STREAMS = ("TIMER_CMD", "TIMER_EVT", "TIMER_DLQ")
MARKER = "marker"
PATIENCE_SECONDS = 20
LONG_AGO = "2020-01-01T00:00:00Z"


class Peer:
    """A connection of one user. `violations` are the permission errors that it received."""

    def __init__(self, connection: Client, violations: list[str]) -> None:
        self.connection = connection
        self.violations = violations

    async def subscribe(self, *subjects: str) -> list[Subscription]:
        """Subscribe. Return when the broker has processed the subscriptions."""
        made = [await self.connection.subscribe(subject) for subject in subjects]
        await round_trip(self.connection)
        return made

    async def publish(self, subject: str, content: bytes = b"", reply: str = "", **headers: str) -> None:
        """Publish a message. Return when the broker has accepted or refused it."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.connection.publish(subject, content, reply, headers=named or None)
        await round_trip(self.connection)

    async def received(self, *subscriptions: Subscription) -> list[tuple[str, bytes]]:
        """Return the messages that the subscriptions received so far."""
        await round_trip(self.connection)
        return [
            (message.subject, message.data)
            for subscription in subscriptions
            for message in [await subscription.next_msg(1) for _ in range(subscription.pending_msgs)]
        ]

    async def request(self, subject: str, content: bytes = b"") -> Any:
        """Return the reply to a request, or None if there is no reply."""
        try:
            return json.loads((await self.connection.request(subject, content, timeout=2)).data)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            return None

    async def schedule(self, tenant: str, call: str, due_at: str = LONG_AGO) -> Any:
        """Schedule a timer and return the outcome that arrives in an inbox of this peer."""
        inbox = self.connection.new_inbox()
        (replies,) = await self.subscribe(inbox)
        await self.connection.jetstream().publish(
            f"timer.cmd.v1.{tenant}.schedule-timer", command(tenant, call, due_at), headers={"Timer-Reply-To": inbox}
        )
        return json.loads((await replies.next_msg(PATIENCE_SECONDS)).data)


class Operator(Peer):
    """The connection of the operator, who has all permissions."""

    async def count_messages(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of messages by stream and subject, after everything sent before has arrived."""
        js = self.connection.jetstream()
        for kind in ("cmd", "evt", "dlq"):
            await js.publish(f"timer.{kind}.v1.{MARKER}.schedule-timer", command(MARKER, "any", "9000-01-01T00:00:00Z"))
        return {stream: await self._counts(stream) for stream in STREAMS}

    async def _counts(self, stream: str) -> Mapping[str, int]:
        info = await self.connection.jetstream().stream_info(stream, subjects_filter=">")
        return {subject: count for subject, count in (info.state.subjects or {}).items() if MARKER not in subject}

    async def create_consumer(self, tenant: str) -> None:
        """Create the consumer of a tenant, as described in docs/security.md."""
        config = ConsumerConfig(durable_name=tenant, filter_subject=f"timer.evt.v1.{tenant}.>")
        await self.connection.jetstream().add_consumer("TIMER_EVT", config)


def command(tenant: str, call: str, due_at: str = LONG_AGO) -> bytes:
    return body("ScheduleTimer", tenant, {"tenantId": tenant, "serviceCallId": call, "dueAt": due_at})


async def connect(broker: NatsServer, user: str, kind: type[Peer] = Peer) -> Any:
    violations: list[str] = []

    async def on_error(error: Exception) -> None:
        violations.append(str(error))

    connection = await nats.connect(
        broker.url,
        user=user,
        password=PASSWORDS[f"{user.upper().replace('-', '_')}_PASSWORD"],
        inbox_prefix=f"_INBOX.{user}" if user.startswith("tenant") else "_INBOX",
        allow_reconnect=False,
        error_cb=on_error,
    )
    return kind(connection, violations)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats", config=CONFIG, **PASSWORDS) as server:
        yield server


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Service]:
    login = {"TIMER_NATS_USER": "timer-service", "TIMER_NATS_PASSWORD": PASSWORDS["TIMER_SERVICE_PASSWORD"]}
    async with Service(tmp_path / "service", broker.url, **login, TIMER_LOG_FORMAT="json") as running:
        yield running


@pytest.fixture
async def operator(broker: NatsServer, service: Service) -> AsyncIterator[Operator]:
    peer = await connect(broker, "operator", Operator)
    await peer.create_consumer("tenant-a")
    await peer.create_consumer("tenant-b")
    yield peer
    await peer.connection.close()


@pytest.fixture
async def a(broker: NatsServer, operator: Operator) -> AsyncIterator[Peer]:
    peer = await connect(broker, "tenant-a")
    yield peer
    await peer.connection.close()


@pytest.fixture
async def b(broker: NatsServer, operator: Operator) -> AsyncIterator[Peer]:
    peer = await connect(broker, "tenant-b")
    yield peer
    await peer.connection.close()


async def test_service_works_with_least_privilege(a: Peer, operator: Operator, service: Service) -> None:
    """The service creates streams, fires a timer, replies to queries and stores a dead letter without a violation."""
    (events,) = await a.subscribe("timer.evt.v1.tenant-a.*")
    assert (await a.schedule("tenant-a", "call-1"))["outcome"] == "scheduled"
    assert json.loads((await events.next_msg(PATIENCE_SECONDS)).data)["payload"]["serviceCallId"] == "call-1"
    assert (await a.request("timer.qry.v1.tenant-a.get-timer", b'{"serviceCallId": "call-1"}'))["dueAt"]
    await a.publish("timer.cmd.v1.tenant-a.schedule-timer", b"no JSON")
    assert json.loads((await events.next_msg(PATIENCE_SECONDS)).data)["payload"]["code"] == "INVALID_JSON"
    assert (await operator.count_messages())["TIMER_DLQ"] == {"timer.dlq.v1.tenant-a.schedule-timer": 1}
    assert (await operator.request("$SRV.PING.timer-service"))["name"] == "timer-service"
    assert (await service.page("/readyz"))[0] == 200
    assert await service.terminate() == 0
    assert "violation" not in service.log.read_text().lower()


async def test_service_has_no_other_permissions(broker: NatsServer, operator: Operator, service: Service) -> None:
    """The service cannot publish commands, delete streams, read events, or subscribe to events and clients' inboxes."""
    before = await operator.count_messages()
    peer = await connect(broker, "timer-service")
    await peer.publish("timer.cmd.v1.tenant-b.schedule-timer", command("tenant-b", "call-1"))
    for stream in STREAMS:
        for api in ("STREAM.DELETE", "STREAM.PURGE", "DIRECT.GET", "CONSUMER.CREATE"):
            await peer.publish(f"$JS.API.{api}.{stream}", b"")
    for stream in ("TIMER_EVT", "TIMER_DLQ"):
        await peer.publish(f"$JS.API.STREAM.MSG.GET.{stream}", b"")
    denied_subjects = ("_INBOX.>", "timer.evt.>", "timer.cmd.>", ">")
    await peer.subscribe(*denied_subjects)
    assert len([each for each in peer.violations if "publish" in each]) == 1 + 4 * len(STREAMS) + 2
    assert len([each for each in peer.violations if "subscription" in each]) == len(denied_subjects)
    assert await operator.count_messages() == before
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


async def test_several_instances_work_with_least_privilege(
    tmp_path: Path, broker: NatsServer, databases: Databases
) -> None:
    """A handler and a worker on one Postgres exchange hints without a violation."""
    login = {"TIMER_NATS_USER": "timer-service", "TIMER_NATS_PASSWORD": PASSWORDS["TIMER_SERVICE_PASSWORD"]}
    async with databases.database() as url, AsyncExitStack() as stack:
        settings = {**login, "TIMER_DATABASE_URL": url, "TIMER_LOG_FORMAT": "json"}
        instances = [
            Service(tmp_path / role, broker.url, **settings, TIMER_ROLE=role) for role in ("handler", "worker")
        ]
        for each in instances:
            await stack.enter_async_context(each)
        a = await connect(broker, "tenant-a")
        (events,) = await a.subscribe("timer.evt.v1.tenant-a.*")
        assert (await a.schedule("tenant-a", "call-1"))["outcome"] == "scheduled"
        assert (await events.next_msg(PATIENCE_SECONDS)).data
        await a.connection.close()
        for each in instances:
            assert (await each.page("/readyz"))[0] == 200
            assert await each.terminate() == 0
            assert "violation" not in each.log.read_text().lower()


async def test_timers_fire_without_permission_for_hints(tmp_path: Path, databases: Databases) -> None:
    """Without permission for hints, the instances are ready and timers fire. The logs name the subject."""
    restricted = CONFIG.replace('"timer.wake.v1.*"', "")
    login = {"TIMER_NATS_USER": "timer-service", "TIMER_NATS_PASSWORD": PASSWORDS["TIMER_SERVICE_PASSWORD"]}
    async with NatsServer(tmp_path / "nats", config=restricted, **PASSWORDS) as broker, databases.database() as url:
        settings = {**login, "TIMER_LOG_FORMAT": "json", "TIMER_POLLING_INTERVAL": "500", "TIMER_DATABASE_URL": url}
        async with (
            Service(tmp_path / "handler", broker.url, **settings, TIMER_ROLE="handler") as handler,
            Service(tmp_path / "worker", broker.url, **settings, TIMER_ROLE="worker") as worker,
        ):
            a = await connect(broker, "tenant-a")
            (events,) = await a.subscribe("timer.evt.v1.tenant-a.*")
            assert (await a.schedule("tenant-a", "call-1"))["outcome"] == "scheduled"
            assert (await events.next_msg(PATIENCE_SECONDS)).data
            await a.connection.close()
            for instance, verb in ((handler, "publish"), (worker, "subscription")):
                assert (await instance.page("/readyz"))[0] == 200
                assert f'violation for {verb} to \\"timer.wake.v1.' in instance.log.read_text()


async def test_readiness_names_missing_permissions_after_a_reconnect(tmp_path: Path) -> None:
    """Readiness reports a missing permission, and reports it again after a reconnect."""
    restricted = CONFIG.replace('      "timer.qry.v1.*.*"\n', "")
    login = {"TIMER_NATS_USER": "timer-service", "TIMER_NATS_PASSWORD": PASSWORDS["TIMER_SERVICE_PASSWORD"]}
    denied = "; `timer-service doctor` names every missing permission"
    async with NatsServer(tmp_path / "nats", config=restricted, **PASSWORDS) as broker:
        service = Service(tmp_path / "service", broker.url, **login)
        service.launch()
        await until_readiness_says(service, denied)
        await broker.terminate()
        await until_readiness_says(service, "not connected")
        await broker.start()
        await until_readiness_says(service, denied)
        assert await service.terminate() == 0


async def until_readiness_says(service: Service, words: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(OSError):  # its HTTP server is not up yet
                status, text = await service.page("/readyz")
                if words in text:
                    break
            await asyncio.sleep(0.02)
    assert status == 503


async def test_tenant_uses_the_service(a: Peer, broker: NatsServer, service: Service) -> None:
    """A tenant schedules timers with the client, receives the outcomes, and pulls and acknowledges its events."""
    login = {"user": "tenant-a", "password": PASSWORDS["TENANT_A_PASSWORD"], "inbox_prefix": "_INBOX.tenant-a"}
    js = a.connection.jetstream(prefix="TIMERS.API")
    pulling = await js.pull_subscribe_bind("tenant-a", stream="TIMER_EVT")
    (events,) = await a.subscribe("timer.evt.v1.tenant-a.due-time-reached")
    async with TimerClient.connect(broker.url, **login) as client:
        assert (await client.schedule("tenant-a", "call-1", datetime.now(UTC))).name == "scheduled"
        many = [NewTimer("tenant-a", f"later-{index}", datetime(2100, 1, 1, tzinfo=UTC)) for index in range(1_500)]
        assert {each.name for each in await client.schedule_many(many) if isinstance(each, Outcome)} == {"scheduled"}
        assert (await client.count("tenant-a")).by_state["Scheduled"] >= len(many)
    (pulled,) = await pulling.fetch(1, timeout=PATIENCE_SECONDS)
    assert pulled.subject == "timer.evt.v1.tenant-a.due-time-reached"
    await pulled.ack_sync()
    assert (await events.next_msg(PATIENCE_SECONDS)).data == pulled.data
    assert (await js.consumer_info("TIMER_EVT", "tenant-a")).num_ack_pending == 0


async def test_command_line_uses_the_login(broker: NatsServer, operator: Operator, tmp_path: Path) -> None:
    """`timer-service timers` uses the login and the inbox prefix of the settings."""
    (tmp_path / "password").write_text(PASSWORDS["TENANT_A_PASSWORD"] + "\n")
    settings = {
        "TIMER_BROKER_URL": broker.url,
        "TIMER_NATS_USER": "tenant-a",
        "TIMER_NATS_PASSWORD_FILE": str(tmp_path / "password"),
        "TIMER_REPLY_PREFIX": "_INBOX.tenant-a.",
    }
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "timer_service", "timers", "schedule", "tenant-a", "call-1", "--in", "1h"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.returncode, ran.stdout[:10]) == (0, "scheduled:"), ran.stderr


async def test_tenant_cannot_publish_for_another_tenant(a: Peer, operator: Operator) -> None:
    """No stream stores a message that A publishes for B or as the service, whatever its headers are."""
    before = await operator.count_messages()
    trace = {"Nats_Trace_Dest": "timer.evt.v1.tenant-b.due-time-reached"}
    for subject in (
        "timer.cmd.v1.tenant-b.schedule-timer",
        "timer.cmd.v1.*.schedule-timer",
        "timer.evt.v1.tenant-a.due-time-reached",
        "timer.evt.v1.tenant-b.due-time-reached",
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
    (f"CONSUMER.CREATE.TIMER_EVT.tenant-a.{A_EVENTS}", {"name": "tenant-a", "filter_subjects": [B_EVENTS]}),
    (f"CONSUMER.CREATE.TIMER_EVT.tenant-a.{A_EVENTS}", {"name": "tenant-a", "filter_subject": B_EVENTS}),
    (
        f"CONSUMER.CREATE.TIMER_EVT.mine.{A_EVENTS}",
        {"filter_subject": A_EVENTS, "deliver_subject": B_EVENTS[:-1] + "x"},
    ),
    ("CONSUMER.DURABLE.CREATE.TIMER_EVT.mine", {"durable_name": "mine"}),
    ("CONSUMER.DURABLE.CREATE.TIMER_EVT.tenant-b", {"durable_name": "tenant-b", "filter_subject": A_EVENTS}),
    ("CONSUMER.MSG.NEXT.TIMER_EVT.tenant-b", {"batch": 1, "no_wait": True}),
    ("CONSUMER.MSG.NEXT.TIMER_CMD.timer-service", {"batch": 1, "no_wait": True}),
    ("CONSUMER.INFO.TIMER_EVT.tenant-b", {}),
    ("CONSUMER.DELETE.TIMER_EVT.tenant-b", {}),
    ("CONSUMER.PAUSE.TIMER_EVT.tenant-b", {"pause_until": "2100-01-01T00:00:00Z"}),
    ("CONSUMER.RESET.TIMER_EVT.tenant-b", {}),
    ("CONSUMER.NAMES.TIMER_EVT", {}),
]


async def test_jetstream_api_gives_no_access_to_another_tenant(a: Peer, b: Peer, operator: Operator) -> None:
    """A cannot read, change or delete streams or the consumer of B, or create consumers, with any API request."""
    (events,) = await b.subscribe(B_EVENTS)
    await b.schedule("tenant-b", "call-1")
    await events.next_msg(PATIENCE_SECONDS)
    before = await operator.count_messages()
    for subject, config in API:
        content = {"stream_name": "TIMER_EVT", "config": config} if ".CREATE.TIMER_" in subject else config
        for prefix in ("$JS.API", "TIMERS.API"):
            reply = await a.request(f"{prefix}.{subject}", json.dumps(content).encode() if content else b"")
            assert reply is None or reply["error"]["description"] == "JetStream not enabled for account", subject
    consumers = await operator.connection.jetstream().consumers_info("TIMER_EVT")
    assert {each.name: each.config.filter_subject for each in consumers} == {"tenant-a": A_EVENTS, "tenant-b": B_EVENTS}
    assert await operator.count_messages() == before


async def test_tenant_cannot_acknowledge_for_another_tenant(a: Peer, b: Peer, operator: Operator) -> None:
    """A cannot acknowledge a delivery of B, even if A knows its acknowledgement subject."""
    await b.schedule("tenant-b", "call-1")
    js = b.connection.jetstream(prefix="TIMERS.API")
    (pulled,) = await (await js.pull_subscribe_bind("tenant-b", stream="TIMER_EVT")).fetch(1, timeout=PATIENCE_SECONDS)
    await a.publish(pulled.reply, b"+TERM")
    await operator.count_messages()
    assert (await js.consumer_info("TIMER_EVT", "tenant-b")).num_ack_pending == 1
    await pulled.ack_sync()
    assert (await js.consumer_info("TIMER_EVT", "tenant-b")).num_ack_pending == 0


FOREIGN_SUBJECTS = [
    "timer.cmd.v1.tenant-b.cancel-timer",
    "timer.evt.v1.tenant-b.due-time-reached",
    "timer.evt.v1.tenant-a.due-time-reached",
    "$JS.API.STREAM.DELETE.TIMER_DLQ",
    "$JS.API.STREAM.PURGE.TIMER_EVT",
    "_INBOX.tenant-b.guessed",
]


async def test_replies_stay_in_the_account_of_the_request(a: Peer, b: Peer, operator: Operator) -> None:
    """The reply to a publish, a query or a pull of A stays in the account of A.

    Inside one account, it would reach other users, because the server does not check permissions of reply subjects.
    """
    before = await operator.count_messages()
    everything = await b.subscribe(">")
    wanted = {"Nats_Expected_Last_Sequence": "1000000"}  # so that it is answered, but not stored
    for subject in FOREIGN_SUBJECTS:
        (replies,) = await a.subscribe(subject)
        await a.publish("timer.cmd.v1.tenant-a.schedule-timer", b"{}", subject, **wanted)
        assert b"wrong last sequence" in (await replies.next_msg(PATIENCE_SECONDS)).data
        await a.publish("timer.qry.v1.tenant-a.count-timers", b"", subject)
        assert b"counts" in (await replies.next_msg(PATIENCE_SECONDS)).data
        await a.publish("TIMERS.API.CONSUMER.MSG.NEXT.TIMER_EVT.tenant-a", b'{"batch": 1, "no_wait": true}', subject)
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


async def test_query_replies_are_sent_only_to_inboxes(operator: Operator) -> None:
    """The service replies to queries only in inboxes. The server refuses its internal reply subjects."""
    before = await operator.count_messages()
    for subject in (*FOREIGN_SUBJECTS[:-1], "_R_.any"):
        await operator.publish("timer.qry.v1.tenant-a.count-timers", b"", subject)
    assert (await operator.request("timer.qry.v1.tenant-a.count-timers"))["overdue"] == 0
    assert await operator.count_messages() == before
    (violation,) = operator.violations
    assert "_r_.any" in violation


@pytest.mark.parametrize(
    ("original", "mistake"),
    [
        ('subject: "timer.cmd.v1.tenant-b.*"', 'subject: "timer.cmd.v1.tenant-a.*"'),
        ('subject: "timer.evt.v1.tenant-b.*"', 'subject: "timer.evt.v1.*.*"'),
        ('subject: "_INBOX.tenant-b.>"', 'subject: "_INBOX.tenant-a.>"'),
        ('NEXT.TIMER_EVT.tenant-b" }', 'NEXT.TIMER_EVT.tenant-a" }'),
        ('subject: "$JS.ACK.TIMER_EVT.tenant-b.>"', 'subject: "$JS.ACK.TIMER_EVT.tenant-a.>"'),
    ],
)
async def test_import_of_another_tenants_subject_is_refused(original: str, mistake: str, tmp_path: Path) -> None:
    """A server does not start if a tenant imports a subject of another tenant."""
    assert original in CONFIG
    server = NatsServer(tmp_path, config=CONFIG.replace(original, mistake), **PASSWORDS)
    with pytest.raises(AssertionError, match="ended with 1"):
        await server.start()


@pytest.mark.parametrize("setting", ["TIMER_NATS_PASSWORD", "TIMER_NATS_TOKEN"])
async def test_refused_login_ends_the_service(setting: str, broker: NatsServer, tmp_path: Path) -> None:
    """A service with a refused login exits with 1 within 10 s. Its log names the problem, not the password."""
    settings = {setting: "wr0ng-s3cret", **({"TIMER_NATS_USER": "timer-service"} if "PASS" in setting else {})}
    refused = Service(tmp_path / "service", broker.url, **settings)
    started = time.monotonic()
    refused.launch()
    assert await refused.wait() == 1
    assert time.monotonic() - started < 10, "the service retried the login"
    log = refused.log.read_text()
    assert "the broker refuses the login" in log
    assert "wr0ng" not in log
