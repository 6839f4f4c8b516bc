"""The committed contracts agree with the models and with the messages that the code sends."""

import json
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from tests.harness.builders import command, schedule_timer
from tests.harness.clock import NOW as START
from tests.harness.clock import ManualClock, after, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import Runs
from tests.harness.schedules import Schedules
from tests.harness.signals import Signals
from tests.harness.timers import Timers, fires
from tests.harness.wiring import MAX_ATTEMPTS
from tests.harness.workflows import (
    CONTINUE,
    PARK,
    Workflows,
    complete,
    done,
    fail,
    failed,
    release,
    report,
    seen,
    sleep,
    wait_for,
)
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.due_rows import DueRows
from timer_service.core.requests.query import Queries, QueryRoute
from timer_service.core.requests.requests import RequestRoute
from timer_service.core.values.address import Address, Kind, kebab
from timer_service.core.values.codec import decode_command, decode_envelope, encode
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Payload, Position, TenantPayload, Topic
from timer_service.core.values.raw_command import Headers, RawCommand
from timer_service.signals.events import failed_event
from timer_service.signals.firing_store import FIRINGS

CONTRACTS = Path(__file__).parents[2] / "contracts"
SCHEMAS = CONTRACTS / "schemas"
EXAMPLES = CONTRACTS / "examples"
GENERATED = runpy.run_path(str(CONTRACTS / "generate.py"))
COMMANDS: dict[str, type[TenantPayload]] = {payload.type: payload for payload in GENERATED["COMMANDS"]}
MESSAGES: dict[str, type[Payload]] = {kebab(each.type): each for each in (*GENERATED["COMMANDS"], *GENERATED["EVENTS"])}
QUERIES: tuple[QueryRoute, ...] = GENERATED["QUERIES"]
ASKED: tuple[QueryRoute | RequestRoute, ...] = (*QUERIES, *GENERATED["REQUESTS"])
REFUSED = GENERATED["QueryRefused"]
BODIES: dict[str, TypeAdapter[Any]] = {
    **{route.name: TypeAdapter(route.request) for route in ASKED},
    **{f"{route.name}-answer": TypeAdapter(route.reply | REFUSED) for route in ASKED},
    "command-outcome": TypeAdapter(GENERATED["CommandHandled"] | GENERATED["CommandRefused"]),
}
"""The bodies without an envelope, by the name of their schema."""


@cache
def validator_of(message: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{message}.v1.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:timer-service:{message}:v1"
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def fits_model(message: str, body: bytes) -> bool:
    try:
        if message in BODIES:
            BODIES[message].validate_json(body, by_alias=True, by_name=False)
        else:
            read(MESSAGES[message], body)
    except (Rejection, ValidationError):
        return False
    return True


def read(model: type[Payload], body: bytes) -> None:
    """Read a body: a command like the service, an event like a strict client."""
    envelope = decode_envelope(body)
    if model.type in COMMANDS:
        address = Address(Kind.COMMAND, envelope.tenant_id, kebab(model.type))
        raw = RawCommand(address, "the source", body, Headers(b""), Position(1, 42), len(body))
        decode_command(raw, envelope, COMMANDS)
        return
    if envelope.type != model.type or envelope.id is None or envelope.timestamp_ms is None:
        raise Rejection(Code.INVALID_ENVELOPE, "not the envelope of this event")
    if model.has_topic:
        TypeAdapter(Topic).validate_python(json.loads(body).get("topic", "none"))
    model.model_validate(envelope.payload, by_alias=True, by_name=False)


def judge(message: str, body: bytes) -> tuple[bool, bool]:
    """Return whether the schema and the model accept a body."""
    return validator_of(message).is_valid(json.loads(body)), fits_model(message, body)


def test_committed_schemas_are_current() -> None:
    """The committed schemas equal those of the models. If this fails, run `make contracts`."""
    assert {file.name: file.read_text("utf-8") for file in SCHEMAS.iterdir()} == GENERATED["schemas"]()
    assert (CONTRACTS / "asyncapi.yaml").read_text("utf-8") == GENERATED["asyncapi_text"]()
    assert {file.name for file in SCHEMAS.iterdir()} == {f"{message}.v1.json" for message in (*MESSAGES, *BODIES)}


@pytest.mark.parametrize(
    ("kind", "verdict", "fewest"),
    [("valid", (True, True), 1), ("invalid", (False, False), 2), ("invalid-beyond-schema", (True, False), 1)],
)
def test_examples(kind: str, verdict: tuple[bool, bool], fewest: int) -> None:
    """Every message has examples, and the schema and the model judge each as they should."""
    files = {folder.name: list(folder.glob("*.json")) for folder in (EXAMPLES / kind).iterdir()}
    assert kind == "invalid-beyond-schema" or files.keys() == {*MESSAGES, *BODIES}
    assert min(map(len, files.values())) >= fewest
    found = {file: judge(name, file.read_bytes()) for name, folder in files.items() for file in folder}
    assert [file for file, each in found.items() if each != verdict] == []


def test_the_asyncapi_document_stands_alone() -> None:
    """A copy of asyncapi.yaml alone is enough. It has all addresses, and judges examples like the schemas."""
    document = GENERATED["asyncapi"]()
    for kind in ("valid", "invalid"):
        for folder in (EXAMPLES / kind).iterdir():
            schema = {"$ref": f"#/components/schemas/{folder.name}", "components": document["components"]}
            validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
            for file in folder.iterdir():
                assert validator.is_valid(json.loads(file.read_bytes())) == (kind == "valid"), file
    commands = {kebab(each) for each in COMMANDS}
    served = {
        *(f"timer.cmd.v1.{{tenant}}.{each}" for each in commands),
        *(f"timer.evt.v1.{{tenant}}.{each}" for each in MESSAGES if each not in commands),
        *(
            f"timer.evt.v1.{{tenant}}.{each}.{{topic}}"
            for each in ("due-time-reached", "timer-expired", "schedule-fired")
        ),
        *(f"timer.qry.v1.{{tenant}}.{route.name}" for route in QUERIES),
        *(f"timer.wrk.v1.{{tenant}}.{route.name}" for route in GENERATED["REQUESTS"]),
        "timer.evt.v1.{tenant}.resubmitted.{consumer}",
        "timer.dlq.v1.{tenant}.{message}",
        None,  # inboxes
    }
    assert addresses_on(document, "nats").keys() == served


def test_the_asyncapi_document_has_every_message_on_each_broker() -> None:
    """On Redis and RabbitMQ, a channel of each kind has the messages that have channels of their own on NATS."""
    document = GENERATED["asyncapi"]()
    on_redis, on_rabbitmq = addresses_on(document, "redis"), addresses_on(document, "rabbitmq")
    assert on_redis.keys() == {"timer:cmd", "timer:evt:{tenant}", "timer:dlq", "timer:qry", "timer:wrk", None}
    assert on_rabbitmq.keys() == {"{tenant}.{message}", "{tenant}.{message}.{topic}", None}
    every_message = {*document["components"]["messages"]}
    for found in (on_redis, on_rabbitmq):
        assert {name for names in found.values() for name in names} == every_message
    exchanges = {
        each["bindings"]["amqp"]["exchange"]["name"] for each in document["channels"].values() if "bindings" in each
    }
    assert exchanges == {"timer.cmd", "timer.evt", "timer.dlq", "timer.qry", "timer.wrk"}


def addresses_on(document: Any, server: str) -> dict[str | None, set[str]]:
    """Return the addresses of the channels on a broker, each with its messages."""
    found: dict[str | None, set[str]] = {}
    for channel in document["channels"].values():
        if channel["servers"] == [{"$ref": f"#/servers/{server}"}]:
            found.setdefault(channel["address"], set()).update(channel["messages"])
    return found


def test_the_page_has_the_table_of_addresses() -> None:
    """README.md shows the addresses that the adapters have. If this fails, copy the table of `addresses.py`."""
    table: str = runpy.run_path(str(CONTRACTS / "addresses.py"))["table"]()
    assert table in (CONTRACTS / "README.md").read_text("utf-8"), table


class Sent:
    """What the service has sent during a test. Messages are written by hand for speed, so no model checks them."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.answers: list[tuple[str, Any]] = []

    async def ask(self, queries: Queries, *asked: tuple[str, dict[str, Any]]) -> list[Any]:
        """Ask queries. Return the answers."""
        bodies = [(name, (await queries.answer(name, "acme", to_json(fields))).body) for name, fields in asked]
        self.answers += [(f"{name}-answer", body) for name, body in bodies]
        return [json.loads(body) for _, body in bodies]

    def check(self, *, events: set[str], outcomes: int) -> None:
        """Check that all fit their schemas and models, and that these events and so many outcomes were sent."""
        sent = [*self.answers, *(("command-outcome", each.body) for each in self.broker.replies)]
        sent += [(each.address.message, each.body) for each in self.broker.events]
        assert [each for each in sent if judge(*each) != (True, True)] == []
        assert {each.address.message for each in self.broker.events} == events
        assert len(self.broker.replies) == outcomes


@pytest.fixture
def sent(memory_broker: MemoryBroker) -> Sent:
    return Sent(memory_broker)


async def test_messages_about_timers(sqlite: SqliteDatabase, clock: ManualClock, sent: Sent) -> None:
    """Every event, reply and outcome about timers of every state fits its schema."""
    timers = Timers(sqlite, sent.broker, clock)
    headers = {"Timer-Reply-To": "_INBOX.me"}
    envelope = {"id": "command-1", "correlationId": "order-4711"}
    sent.broker.refuses = fires("failed")
    for call, due_at in {"scheduled": after(hours=1), "reached": START, "failed": START, "cancelled": START}.items():
        timers.send(schedule_timer(call, due_at, data={"step": 1}, envelope=envelope), headers)
    for call, fields in {"expired": envelope, "expired, bare": {}}.items():
        timers.send(schedule_timer(call, after(hours=-1), lateBy="PT1H", envelope=fields), headers)
    timers.send(schedule_timer("reached, bare"))
    for call in ("cancelled", "nobody-knew"):
        cancel = command("CancelTimer", {"tenantId": "acme", "serviceCallId": call})
        timers.send(cancel, headers, message="cancel-timer")
    for body in (b"not JSON", command("ScheduleTimer", {}, envelope=envelope)):
        timers.send(body, headers)
    await timers.consume()
    for _ in range(MAX_ATTEMPTS):
        await timers.tick()
        clock.advance(minutes=10)
    calls = ["scheduled", "reached", "expired", "cancelled", "failed", "nobody"]
    answers = await sent.ask(
        timers.queries,
        *(("get-timer", {"serviceCallId": call}) for call in calls),
        *(("get-timer", {}), ("list-timers", {"limit": 2}), ("list-timers", {}), ("list-timers", {"limit": 0})),
        *(("count-timers", {}), ("count-timers", {"unknown": 1})),
    )
    states = [each.get("state") for each in answers[: len(calls)]]
    assert states == ["Scheduled", "Reached", "Expired", "Cancelled", "Failed", None]
    sent.check(events={"due-time-reached", "timer-expired", "command-rejected"}, outcomes=10)


async def test_messages_about_workflows(sqlite: SqliteDatabase, clock: ManualClock, sent: Sent) -> None:
    """Every reply, outcome, task and event about workflows fits its schema."""
    workflows = Workflows(sqlite, sent.broker, clock)
    task = await workflows.begin(
        input=[1], retry={"maxAttempts": 2}, concurrencyKey="k", deadlineIn="P1D", queue="default"
    )
    await workflows.send_to(data={"by": "kim"})
    waits = [sleep("nap", 0), wait_for("approval"), wait_for("other", 1000)]
    steps = [done("pay", None), failed("ship"), failed("ship:1", retryable=False)]
    asked = report(task, CONTINUE, steps=steps, seen=seen("pay"), waits=waits)
    sent.answers.append(("report-tasks-answer", await workflows.report_body(asked)))
    renewed = await workflows.renew(task, {**task, "workflowId": "x"})
    effects = await workflows.effects(task)
    await workflows.report(task, release("non_deterministic", "expected pay, found ship"))
    clock.advance(minutes=1)
    task = await workflows.take()
    shown = [await workflows.view()]
    replies = {"renew-tasks": renewed, "get-effects": effects, "poll-tasks": {"tasks": [task]}}
    await workflows.report(task, PARK)
    task = await workflows.take() if await workflows.status() == "waiting" else task
    await workflows.report(task, fail("no", "ship:1"))
    for number, then in enumerate((complete({"ok": 1}), complete(), PARK)):
        waits = [wait_for("approval")] if then is PARK else []
        await workflows.report(await workflows.begin(f"w{number}"), then, waits=waits)
    await workflows.about("Cancel", "w2", reason="not needed")
    shown += [await workflows.view(each) for each in ("w0", "w2", "x")]
    replies |= {name: await workflows.ask(name) for name in ("list-workflows", "count-workflows", "list-workers")}
    sent.answers += [(f"{name}-answer", to_json(each)) for name, each in replies.items()]
    sent.answers += [("get-workflow-answer", to_json(each)) for each in shown]
    await workflows.publish()
    sent.check(events={"workflow-completed", "workflow-failed", "workflow-cancelled"}, outcomes=6)


async def test_messages_about_signals(sqlite: SqliteDatabase, clock: ManualClock, sent: Sent) -> None:
    """Every event, reply and outcome about signals of every status, their firings and tasks fits its schema."""
    signals = Signals(sqlite, sent.broker, clock)
    for signal in ("fired", "paused", "cancelled", "resolved"):
        await signals.create(signal, f"item of {signal}", note="a\nnote")
    await signals.create("invalid", triggerSpec={})
    for item in ("fired", "paused"):
        await signals.transition(item=f"item of {item}")
    for signal in ("bare", "refused"):
        await signals.remind(iso(START), signal)
    for verb, signal in (("Pause", "paused"), ("Cancel", "cancelled"), ("Resolve", "resolved"), ("Resolve", "nobody")):
        await signals.about(verb, signal)
    async with sqlite.transaction() as tx:
        (row,) = await DueRows(FIRINGS).select(tx, START, 1)
    sent.broker.events.append(encode(failed_event(row, "refused", START)))
    await signals.run()
    await sent.ask(
        signals.queries,
        *(("get-signal", {"signalId": each}) for each in ("fired", "paused", "invalid", "nobody")),
        *(("list-signals", {}), ("list-signals", {"limit": 2, "status": "active"}), ("list-signals", {"limit": 0})),
        *(("list-firings", {"signalId": each}) for each in ("fired", "paused", "nobody")),
        *(("list-tasks", {"workItemId": "item of fired"}), ("list-tasks", {})),
    )
    sent.check(events={"work-signal-fired", "work-signal-failed"}, outcomes=13)


async def test_messages_about_runs(sqlite: SqliteDatabase, clock: ManualClock, sent: Sent) -> None:
    """Every event, outcome and reply about runs fits its schema."""
    runs = Runs(sqlite, sent.broker, clock)
    await runs.start({"a": [], "b": ["a", {"group": "g"}], "c": ["a"]}, "g")
    await runs.resolve("g", {"d": []})
    await runs.report("success", "a", outputs={"n": 1})
    await runs.report("failed", "c", "d")
    await runs.start({"a": ["a"]}, runId="cyclic")
    await runs.start({"a": [], "b": ["a"]}, runId="stuck")
    await runs.sql("UPDATE run_jobs SET status = 'success', settled_at = 0 WHERE run_id = 'stuck' AND job_name = 'a'")
    clock.advance(hours=1)
    await runs.sweep.tick(clock.now())
    await runs.request("CancelRun", runId="nobody")
    await runs.publish()
    await sent.ask(
        runs.queries,
        *(("get-run", {"runId": each}) for each in ("run-1", "cyclic", "stuck", "nobody")),
        *(("get-run", {"runId": "run-1", "limit": 2}), ("list-runs", {}), ("list-runs", {"limit": 0})),
        ("list-runs", {"status": "rejected", "limit": 1}),
    )
    sent.check(events={"job-ready", "job-skipped", "run-rejected", "run-completed", "run-stuck"}, outcomes=8)


async def test_messages_about_schedules(sqlite: SqliteDatabase, clock: ManualClock, sent: Sent) -> None:
    """Every event, outcome and reply about schedules of every status fits its schema."""
    schedules = Schedules(sqlite, sent.broker, clock)
    recurrence = {"startAt": "2026-11-21T00:00:00Z", "endAt": "2027-11-21T00:00:00Z"}
    await schedules.put("active", cron="* * * * *", zone="Europe/Berlin", data={"n": 1}, jitter=500, **recurrence)
    await schedules.put("late", catchUp={"lateBy": 1000}, envelope={"correlationId": "order-4711"})
    await schedules.put("ended", maxCount=1)
    await schedules.put("paused")
    await schedules.put("broken", cron="@daily")
    await schedules.about("Pause", "paused")
    await schedules.about("Trigger", "paused", data=None)
    await schedules.about("Delete", "nobody")
    await schedules.request("PutSchedule", cron="61 * * * *")
    await schedules.sql("UPDATE schedules SET zone = 'Mars/Olympus' WHERE schedule_id = 'broken'")
    await schedules.advance(days=1)
    answers = await sent.ask(
        schedules.queries,
        ("get-schedule", {"scheduleId": "broken"}),
        *(("get-schedule", {"scheduleId": each, "upcoming": 2}) for each in ("active", "ended", "paused", "nobody")),
        *(
            ("list-schedules", {}),
            ("list-schedules", {"status": "paused", "limit": 1}),
            ("list-schedules", {"limit": 0}),
        ),
        *(("preview-slots", {"every": 1000}), ("preview-slots", {"every": 1})),
    )
    assert "lastError" in answers[0]
    assert any(b"missedSince" in message.body for message in sent.broker.events)
    sent.check(events={"schedule-fired", "schedule-ended", "command-rejected"}, outcomes=9)
