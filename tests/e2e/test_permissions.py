"""deploy/nats.conf: the service lives with least privilege, and tenants are fenced from each other.

What is not permitted shows as an error or as nothing at all, so these tests look at what really happened: at every
stream before and after, and at what each side was sent. Round trips on the same connection say when that can be seen.
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

from tests.harness.barrier import barrier
from tests.harness.databases import Databases
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
    """One user of the broker: what it can do, and what the broker told it that it can't."""

    def __init__(self, connection: Client, violations: list[str]) -> None:
        self.connection = connection
        self.violations = violations

    async def listen(self, *subjects: str) -> list[Subscription]:
        """Subscribe, and see the subscriptions reach the broker."""
        made = [await self.connection.subscribe(subject) for subject in subjects]
        await barrier(self.connection)
        return made

    async def publish(self, subject: str, content: bytes = b"", reply: str = "", **headers: str) -> None:
        """Publish, and see the broker take it or refuse it."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.connection.publish(subject, content, reply, headers=named or None)
        await barrier(self.connection)

    async def heard(self, *subscriptions: Subscription) -> list[tuple[str, bytes]]:
        """Return everything that was sent here up to now."""
        await barrier(self.connection)
        return [
            (message.subject, message.data)
            for subscription in subscriptions
            for message in [await subscription.next_msg(1) for _ in range(subscription.pending_msgs)]
        ]

    async def answer(self, subject: str, content: bytes = b"") -> Any:
        """Return the answer to a request, or None when nobody is there to give it."""
        try:
            return json.loads((await self.connection.request(subject, content, timeout=2)).data)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            return None

    async def schedule(self, tenant: str, call: str, due_at: str = LONG_AGO) -> Any:
        """Schedule a timer; return its outcome as it comes to an inbox of this peer."""
        inbox = self.connection.new_inbox()
        (answers,) = await self.listen(inbox)
        await self.connection.jetstream().publish(
            f"timer.cmd.v1.{tenant}.schedule-timer", command(tenant, call, due_at), headers={"Timer-Reply-To": inbox}
        )
        return json.loads((await answers.next_msg(PATIENCE_SECONDS)).data)


class Operator(Peer):
    """The user who may do everything."""

    async def world(self) -> Mapping[str, Mapping[str, int]]:
        """Count the messages of every stream by subject, once all that was sent before has arrived."""
        js = self.connection.jetstream()
        for kind in ("cmd", "evt", "dlq"):
            await js.publish(f"timer.{kind}.v1.{MARKER}.schedule-timer", command(MARKER, "any", "9000-01-01T00:00:00Z"))
        return {stream: await self._counts(stream) for stream in STREAMS}

    async def _counts(self, stream: str) -> Mapping[str, int]:
        info = await self.connection.jetstream().stream_info(stream, subjects_filter=">")
        return {subject: count for subject, count in (info.state.subjects or {}).items() if MARKER not in subject}

    async def make_consumer(self, tenant: str) -> None:
        """Make the consumer of a tenant, as docs/security.md tells."""
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
    await peer.make_consumer("tenant-a")
    await peer.make_consumer("tenant-b")
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


async def test_the_service_lives_with_least_privilege(a: Peer, operator: Operator, service: Service) -> None:
    """Streams made, a timer fired, a query answered, a dead letter stored, found as a micro service; nothing denied."""
    (events,) = await a.listen("timer.evt.v1.tenant-a.*")
    assert (await a.schedule("tenant-a", "call-1"))["outcome"] == "scheduled"
    assert json.loads((await events.next_msg(PATIENCE_SECONDS)).data)["payload"]["serviceCallId"] == "call-1"
    assert (await a.answer("timer.qry.v1.tenant-a.get-timer", b'{"serviceCallId": "call-1"}'))["dueAt"]
    await a.publish("timer.cmd.v1.tenant-a.schedule-timer", b"no JSON")
    assert json.loads((await events.next_msg(PATIENCE_SECONDS)).data)["payload"]["code"] == "INVALID_JSON"
    assert (await operator.world())["TIMER_DLQ"] == {"timer.dlq.v1.tenant-a.schedule-timer": 1}
    assert (await operator.answer("$SRV.PING.timer-service"))["name"] == "timer-service"
    assert (await service.page("/readyz"))[0] == 200
    assert await service.terminate() == 0
    assert "violation" not in service.log.read_text().lower()


async def test_the_service_can_do_no_more(broker: NatsServer, operator: Operator, service: Service) -> None:
    """Its user can't publish commands, remove or read streams, or listen to events and to clients' inboxes."""
    before = await operator.world()
    peer = await connect(broker, "timer-service")
    await peer.publish("timer.cmd.v1.tenant-b.schedule-timer", command("tenant-b", "call-1"))
    for stream in STREAMS:
        for api in ("STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.GET", "DIRECT.GET", "CONSUMER.CREATE"):
            await peer.publish(f"$JS.API.{api}.{stream}", b"")
    unheard = ("_INBOX.>", "timer.evt.>", "timer.cmd.>", ">")
    await peer.listen(*unheard)
    assert len([each for each in peer.violations if "publish" in each]) == 1 + 5 * len(STREAMS)
    assert len([each for each in peer.violations if "subscription" in each]) == len(unheard)
    assert await operator.world() == before
    await peer.connection.close()


async def test_hints_are_the_services_own(a: Peer, broker: NatsServer, operator: Operator) -> None:
    """Instances hear each other's wake hints; a tenant neither hears nor gives any."""
    one, other = [await connect(broker, "timer-service") for _ in range(2)]
    (heard,) = await other.listen("timer.wake.v1.*")
    overheard = await a.listen("timer.wake.>", ">")
    await one.publish("timer.wake.v1.timers", b"1")
    assert await a.heard(*overheard) == []
    await a.publish("timer.wake.v1.timers", b"2")
    assert await other.heard(heard) == [("timer.wake.v1.timers", b"1")]
    assert one.violations == other.violations == []
    await one.connection.close()
    await other.connection.close()


async def test_several_instances_live_with_least_privilege(
    tmp_path: Path, broker: NatsServer, databases: Databases
) -> None:
    """A handler and a worker on one Postgres, with hints between them, are denied nothing."""
    login = {"TIMER_NATS_USER": "timer-service", "TIMER_NATS_PASSWORD": PASSWORDS["TIMER_SERVICE_PASSWORD"]}
    async with databases.database() as url, AsyncExitStack() as stack:
        settings = {**login, "TIMER_DATABASE_URL": url, "TIMER_LOG_FORMAT": "json"}
        parts = [Service(tmp_path / role, broker.url, **settings, TIMER_ROLE=role) for role in ("handler", "worker")]
        for each in parts:
            await stack.enter_async_context(each)
        a = await connect(broker, "tenant-a")
        (events,) = await a.listen("timer.evt.v1.tenant-a.*")
        assert (await a.schedule("tenant-a", "call-1"))["outcome"] == "scheduled"
        assert (await events.next_msg(PATIENCE_SECONDS)).data
        await a.connection.close()
        for each in parts:
            assert (await each.page("/readyz"))[0] == 200
            assert await each.terminate() == 0
            assert "violation" not in each.log.read_text().lower()


async def test_hints_that_are_denied_cost_punctuality_only(tmp_path: Path, databases: Databases) -> None:
    """Without permission for hints instances are ready and timers fire; their logs name the subject."""
    fenced = CONFIG.replace('"timer.wake.v1.*"', "")
    login = {"TIMER_NATS_USER": "timer-service", "TIMER_NATS_PASSWORD": PASSWORDS["TIMER_SERVICE_PASSWORD"]}
    async with NatsServer(tmp_path / "nats", config=fenced, **PASSWORDS) as broker, databases.database() as url:
        settings = {**login, "TIMER_LOG_FORMAT": "json", "TIMER_POLLING_INTERVAL": "500", "TIMER_DATABASE_URL": url}
        async with (
            Service(tmp_path / "handler", broker.url, **settings, TIMER_ROLE="handler") as handler,
            Service(tmp_path / "worker", broker.url, **settings, TIMER_ROLE="worker") as worker,
        ):
            a = await connect(broker, "tenant-a")
            (events,) = await a.listen("timer.evt.v1.tenant-a.*")
            assert (await a.schedule("tenant-a", "call-1"))["outcome"] == "scheduled"
            assert (await events.next_msg(PATIENCE_SECONDS)).data
            await a.connection.close()
            for instance, verb in ((handler, "publish"), (worker, "subscription")):
                assert (await instance.page("/readyz"))[0] == 200
                assert f'violation for {verb} to \\"timer.wake.v1.' in instance.log.read_text()


async def test_denied_anew_after_a_reconnect(tmp_path: Path) -> None:
    """What the service may not do is told by its readiness, and again after a reconnect."""
    fenced = CONFIG.replace('      "timer.qry.v1.*.*"\n', "")
    login = {"TIMER_NATS_USER": "timer-service", "TIMER_NATS_PASSWORD": PASSWORDS["TIMER_SERVICE_PASSWORD"]}
    denied = "; `timer-service doctor` names every missing permission"
    async with NatsServer(tmp_path / "nats", config=fenced, **PASSWORDS) as broker:
        service = Service(tmp_path / "service", broker.url, **login)
        service.launch()
        await until_readiness_tells(service, denied)
        await broker.terminate()
        await until_readiness_tells(service, "not connected")
        await broker.start()
        await until_readiness_tells(service, denied)
        assert await service.terminate() == 0


async def until_readiness_tells(service: Service, words: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(OSError):  # it does not listen yet
                status, text = await service.page("/readyz")
                if words in text:
                    break
            await asyncio.sleep(0.02)
    assert status == 503


async def test_a_tenant_is_served(a: Peer, broker: NatsServer, service: Service) -> None:
    """A tenant schedules with the client, is told the outcome in its own inbox, and pulls and settles its events."""
    login = {"user": "tenant-a", "password": PASSWORDS["TENANT_A_PASSWORD"], "inbox_prefix": "_INBOX.tenant-a"}
    js = a.connection.jetstream(prefix="TIMERS.API")
    pulling = await js.pull_subscribe_bind("tenant-a", stream="TIMER_EVT")
    (events,) = await a.listen("timer.evt.v1.tenant-a.due-time-reached")
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


async def test_the_command_line_logs_in(broker: NatsServer, operator: Operator, tmp_path: Path) -> None:
    """`timer-service timers` takes the login, and its inboxes, from the settings."""
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


async def test_no_commands_and_events_in_anothers_name(a: Peer, operator: Operator) -> None:
    """What A publishes for B, or as the service, is stored nowhere, whatever its headers ask for."""
    before = await operator.world()
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
    assert await operator.world() == before


async def test_nothing_of_another_tenant_is_heard(a: Peer, b: Peer) -> None:
    """No core subscription, however wide, shows A the commands, events, queries and inboxes of B."""
    wide = (">", "*.>", "timer.>", "timer.evt.>", "timer.*.v1.*.*", "timer.evt.v1.tenant-b.*", "_INBOX.>", "_R_.>")
    narrow = ("timer.cmd.v1.tenant-b.*", "timer.qry.v1.tenant-b.*", "timer.dlq.>", "$JS.ACK.>", "$JS.EVENT.>")
    listening = await a.listen(*wide, *narrow)
    events = await b.listen("timer.evt.v1.tenant-b.due-time-reached")
    assert (await b.schedule("tenant-b", "call-1"))["outcome"] == "scheduled"
    assert (await events[0].next_msg(PATIENCE_SECONDS)).data
    assert sum((await b.answer("timer.qry.v1.tenant-b.count-timers"))["counts"].values()) == 1
    assert await a.heard(*listening) == []


async def test_nothing_of_another_tenant_is_asked(a: Peer, b: Peer) -> None:
    """A's queries about B are answered by nobody, and B's timers are not found by A's own."""
    await b.schedule("tenant-b", "call-1")
    assert await a.answer("timer.qry.v1.tenant-b.get-timer", b'{"serviceCallId": "call-1"}') is None
    told = await a.answer("timer.qry.v1.tenant-a.get-timer", b'{"serviceCallId": "call-1"}')
    assert told["error"]["code"] == "NOT_FOUND"


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


async def test_no_way_around_through_jetstream(a: Peer, b: Peer, operator: Operator) -> None:
    """A can't read, change or remove a stream or B's consumer, nor make consumers, by any form of the API."""
    (events,) = await b.listen(B_EVENTS)
    await b.schedule("tenant-b", "call-1")
    await events.next_msg(PATIENCE_SECONDS)
    before = await operator.world()
    for subject, config in API:
        content = {"stream_name": "TIMER_EVT", "config": config} if ".CREATE.TIMER_" in subject else config
        for prefix in ("$JS.API", "TIMERS.API"):
            answer = await a.answer(f"{prefix}.{subject}", json.dumps(content).encode() if content else b"")
            assert answer is None or answer["error"]["description"] == "JetStream not enabled for account", subject
    consumers = await operator.connection.jetstream().consumers_info("TIMER_EVT")
    assert {each.name: each.config.filter_subject for each in consumers} == {"tenant-a": A_EVENTS, "tenant-b": B_EVENTS}
    assert await operator.world() == before


async def test_no_settling_for_another_tenant(a: Peer, b: Peer, operator: Operator) -> None:
    """B's delivery stays B's to acknowledge, even when A knows its acknowledgement subject."""
    await b.schedule("tenant-b", "call-1")
    js = b.connection.jetstream(prefix="TIMERS.API")
    (pulled,) = await (await js.pull_subscribe_bind("tenant-b", stream="TIMER_EVT")).fetch(1, timeout=PATIENCE_SECONDS)
    await a.publish(pulled.reply, b"+TERM")
    await operator.world()
    assert (await js.consumer_info("TIMER_EVT", "tenant-b")).num_ack_pending == 1
    await pulled.ack_sync()
    assert (await js.consumer_info("TIMER_EVT", "tenant-b")).num_ack_pending == 0


ELSEWHERE = [
    "timer.cmd.v1.tenant-b.cancel-timer",
    "timer.evt.v1.tenant-b.due-time-reached",
    "timer.evt.v1.tenant-a.due-time-reached",
    "$JS.API.STREAM.DELETE.TIMER_DLQ",
    "$JS.API.STREAM.PURGE.TIMER_EVT",
    "_INBOX.tenant-b.guessed",
]


async def test_answers_go_to_the_asking_account_only(a: Peer, b: Peer, operator: Operator) -> None:
    """The reply subject of a publish, a query or a pull reaches nothing outside of A's own account.

    Among users of one account it would: the server does not ask whether a reply subject is permitted.
    """
    before = await operator.world()
    everything = await b.listen(">")
    wanted = {"Nats_Expected_Last_Sequence": "1000000"}  # so that it is answered, but not stored
    for elsewhere in ELSEWHERE:
        (answers,) = await a.listen(elsewhere)
        await a.publish("timer.cmd.v1.tenant-a.schedule-timer", b"{}", elsewhere, **wanted)
        assert b"wrong last sequence" in (await answers.next_msg(PATIENCE_SECONDS)).data
        await a.publish("timer.qry.v1.tenant-a.count-timers", b"", elsewhere)
        assert b"counts" in (await answers.next_msg(PATIENCE_SECONDS)).data
        await a.publish("TIMERS.API.CONSUMER.MSG.NEXT.TIMER_EVT.tenant-a", b'{"batch": 1, "no_wait": true}', elsewhere)
        assert ((await answers.next_msg(PATIENCE_SECONDS)).headers or {})["Status"] == "404"
    assert await operator.world() == before
    assert await b.heard(*everything) == []


async def test_outcomes_go_to_inboxes_only(a: Peer, b: Peer, operator: Operator) -> None:
    """`Timer-Reply-To` makes the service publish nowhere but to inboxes; which inbox, the sender chooses.

    So A can have an outcome of its own command sent to an inbox of B, if it knows one: inbox names are random.
    """
    everything = await b.listen(">")
    for elsewhere in (*ELSEWHERE, "_R_.any", "_INBOX_TIMER_SERVICE.any"):
        await a.publish(
            "timer.cmd.v1.tenant-a.schedule-timer",
            command("tenant-a", "call-1", "2100-01-01T00:00:00Z"),
            Timer_Reply_To=elsewhere,
        )
    assert (await a.schedule("tenant-a", "call-1", "2100-01-01T00:00:00Z"))["outcome"] == "unchanged"
    world = await operator.world()
    assert world == {
        "TIMER_CMD": {"timer.cmd.v1.tenant-a.schedule-timer": len(ELSEWHERE) + 3},
        "TIMER_EVT": {},
        "TIMER_DLQ": {},
    }
    assert [subject for subject, _ in await b.heard(*everything)] == ["_INBOX.tenant-b.guessed"]


async def test_queries_are_answered_to_inboxes_only(operator: Operator) -> None:
    """In the service's own account too, a query's reply subject must be an inbox; the server's own can't be named."""
    before = await operator.world()
    for elsewhere in (*ELSEWHERE[:-1], "_R_.any"):
        await operator.publish("timer.qry.v1.tenant-a.count-timers", b"", elsewhere)
    assert (await operator.answer("timer.qry.v1.tenant-a.count-timers"))["overdue"] == 0
    assert await operator.world() == before
    (violation,) = operator.violations
    assert "_r_.any" in violation


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ('subject: "timer.cmd.v1.tenant-b.*"', 'subject: "timer.cmd.v1.tenant-a.*"'),
        ('subject: "timer.evt.v1.tenant-b.*"', 'subject: "timer.evt.v1.*.*"'),
        ('subject: "_INBOX.tenant-b.>"', 'subject: "_INBOX.tenant-a.>"'),
        ('NEXT.TIMER_EVT.tenant-b" }', 'NEXT.TIMER_EVT.tenant-a" }'),
        ('subject: "$JS.ACK.TIMER_EVT.tenant-b.>"', 'subject: "$JS.ACK.TIMER_EVT.tenant-a.>"'),
    ],
)
async def test_a_slip_in_the_imports_is_refused(written: str, instead: str, tmp_path: Path) -> None:
    """A server whose tenant imports what is another's does not start."""
    assert written in CONFIG
    server = NatsServer(tmp_path, config=CONFIG.replace(written, instead), **PASSWORDS)
    with pytest.raises(AssertionError, match="ended with 1"):
        await server.start()


@pytest.mark.parametrize("setting", ["TIMER_NATS_PASSWORD", "TIMER_NATS_TOKEN"])
async def test_wrong_password(setting: str, broker: NatsServer, tmp_path: Path) -> None:
    """A login that is refused ends the service with 1 in seconds; it names the problem and not the password."""
    settings = {setting: "wr0ng-s3cret", **({"TIMER_NATS_USER": "timer-service"} if "PASS" in setting else {})}
    refused = Service(tmp_path / "service", broker.url, **settings)
    started = time.monotonic()
    refused.launch()
    assert await refused.wait() == 1
    assert time.monotonic() - started < 10, "as long as for a server that doesn't answer"
    told = refused.log.read_text()
    assert "the broker refuses the login" in told
    assert "wr0ng" not in told
