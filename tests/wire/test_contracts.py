"""The committed contracts agree with the models and with the messages that the code sends."""

import json
import runpy
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

import timer_service
from tests.harness.builders import command, schedule_timer
from tests.harness.cases import case
from tests.harness.clock import NOW as START
from tests.harness.clock import ManualClock, after
from tests.harness.metrics import RecordingMetrics
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
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.rejection import Rejected
from timer_service.core.requests.query import Queries, QueryRoute
from timer_service.core.requests.requests import RequestRoute
from timer_service.core.values.codec import decode_command, decode_envelope, encode
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import (
    Address,
    Kind,
    Message,
    Payload,
    Position,
    TenantPayload,
    kebab,
)
from timer_service.core.values.raw_command import Headers, RawCommand
from timer_service.signals.events import failed_event, fired_event
from timer_service.timers.events import timer_event

CONTRACTS = Path(__file__).parents[2] / "contracts"
SCHEMAS = CONTRACTS / "schemas"
EXAMPLES = CONTRACTS / "examples"
NOW = 1_795_248_000_000


def message_types() -> dict[str, type[Payload]]:
    """Return every message of the core and of each slice's `messages` module, by its kebab name."""
    for module in walk_packages(timer_service.__path__, "timer_service."):
        if module.name.startswith("timer_service.core.") or module.name.endswith(".messages"):
            import_module(module.name)
    return {kebab(each.type): each for each in descendants(Payload) if "type" in vars(each)}


def descendants(model: type[Payload]) -> Iterator[type[Payload]]:
    for child in model.__subclasses__():
        if child.__module__.startswith("timer_service."):
            yield child
        yield from descendants(child)


MESSAGES = message_types()
GENERATED = runpy.run_path(str(CONTRACTS / "generate.py"))
COMMANDS: dict[str, type[TenantPayload]] = {payload.type: payload for payload in GENERATED["COMMANDS"]}
QUERIES: tuple[QueryRoute, ...] = GENERATED["QUERIES"]
ASKED: tuple[QueryRoute | RequestRoute, ...] = (*QUERIES, *GENERATED["REQUESTS"])
REFUSED = GENERATED["QueryRefused"]
BODIES: dict[str, TypeAdapter[Any]] = {
    **{route.name: TypeAdapter(route.request) for route in ASKED},
    **{f"{route.name}-answer": TypeAdapter(route.reply | REFUSED) for route in ASKED},
    "command-outcome": TypeAdapter(GENERATED["CommandHandled"] | GENERATED["CommandRefused"]),
}
"""The bodies without an envelope, by the name of their schema."""


def examples(kind: str) -> list[Path]:
    """Return the folders of examples of a kind. Each has the name of a message."""
    return sorted((EXAMPLES / kind).iterdir())


def judged(folder: Path) -> dict[str, tuple[bool, bool]]:
    """Return for each example of a folder whether the schema and the model accept it."""
    bodies = {file.stem: file.read_bytes() for file in folder.iterdir()}
    return {name: (fits_schema(folder.name, body), fits_model(folder.name, body)) for name, body in bodies.items()}


@cache
def validator_of(message: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{message}.v1.json").read_text("utf-8"))
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def fits_schema(message: str, body: bytes) -> bool:
    return bool(validator_of(message).is_valid(json.loads(body)))


def fits_model(message: str, body: bytes) -> bool:
    try:
        read_any(message, body)
    except (Rejection, ValidationError):
        return False
    return True


def read_any(message: str, body: bytes) -> None:
    if message in BODIES:
        BODIES[message].validate_json(body, by_alias=True, by_name=False)
    else:
        read(MESSAGES[message], body)


def read(model: type[Payload], body: bytes) -> None:
    """Read a body: a command like the service, an event like a strict client."""
    envelope = decode_envelope(body)
    if model.type in COMMANDS:
        decode_command(stored(envelope.tenant_id, kebab(model.type), body), envelope, COMMANDS)
        return
    if envelope.type != model.type or envelope.id is None or envelope.timestamp_ms is None:
        raise Rejection(Code.INVALID_ENVELOPE, "not the envelope of this event")
    model.model_validate(envelope.payload, by_alias=True, by_name=False)


def stored(tenant: str, message: str, body: bytes) -> RawCommand:
    return RawCommand(
        address=Address(Kind.COMMAND, tenant, message),
        source=f"timer.cmd.v1.{tenant}.{message}",
        body=body,
        headers=Headers(b""),
        position=Position(1_795_240_000_000, 42),
        size=len(body),
    )


def test_committed_schemas_are_current() -> None:
    """The committed schemas equal those of the models. If this fails, run `make contracts`."""
    assert {file.name: file.read_text("utf-8") for file in SCHEMAS.iterdir()} == GENERATED["schemas"]()
    assert (CONTRACTS / "asyncapi.yaml").read_text("utf-8") == GENERATED["asyncapi_text"]()


def test_messages_and_schemas_correspond() -> None:
    """Every message has a schema, and every schema has a message."""
    assert {file.name for file in SCHEMAS.iterdir()} == {f"{message}.v1.json" for message in (*MESSAGES, *BODIES)}


def test_tenant_of_a_payload() -> None:
    """The payload of a command may omit its tenant. The payload of an event always has it."""
    for message in MESSAGES:
        with case(message):
            model = MESSAGES[message]
            fields = json.loads((SCHEMAS / f"{message}.v1.json").read_text("utf-8"))["$defs"][model.__name__]
            assert issubclass(model, TenantPayload) == ("tenantId" in fields["properties"])
            assert ("tenantId" in fields["required"]) == (
                issubclass(model, TenantPayload) and model.type not in COMMANDS
            )


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_messages_and_examples_correspond(kind: str) -> None:
    """Every message has valid and invalid examples, and every example has a message."""
    folders = {folder.name: len(list(folder.glob("*.json"))) for folder in (EXAMPLES / kind).iterdir()}
    assert folders.keys() == {*MESSAGES, *BODIES}
    fewest = 1 if kind == "valid" else 2  # CountTimers has no fields
    assert min(folders.values()) >= fewest


def test_schema_is_valid() -> None:
    """Each file is a JSON Schema 2020-12 with a URN as its id."""
    for message in [*MESSAGES, *BODIES]:
        with case(message):
            schema = json.loads((SCHEMAS / f"{message}.v1.json").read_text("utf-8"))
            Draft202012Validator.check_schema(schema)
            assert schema["$id"] == f"urn:timer-service:{message}:v1"


def test_valid_example_passes_schema_and_model() -> None:
    """A valid example is accepted by the schema and by the model."""
    for folder in examples("valid"):
        with case(folder.name):
            for file in sorted(folder.iterdir()):
                body = file.read_bytes()
                assert fits_schema(folder.name, body), file
                read_any(folder.name, body)


def test_invalid_example_fails_schema_and_model() -> None:
    """An invalid example is rejected by the schema and by the model."""
    for folder in examples("invalid"):
        with case(folder.name):
            assert {name: verdicts for name, verdicts in judged(folder).items() if verdicts != (False, False)} == {}


def test_example_beyond_the_schema_fails_only_in_the_model() -> None:
    """An example that is invalid for a reason beyond JSON Schema is rejected by the model only."""
    for folder in examples("invalid-beyond-schema"):
        with case(folder.name):
            assert {name: verdicts for name, verdicts in judged(folder).items() if verdicts != (True, False)} == {}


def sent_events() -> dict[str, Message]:
    """Return events as the code writes them, once with all optional fields and once with none."""
    row = {
        "tenant_id": "acme",
        "service_call_id": "order-4711/payment",
        "due_at": NOW,
        "data": None,
        "correlation_id": None,
        "causation_id": None,
        "traceparent": None,
        "tracestate": None,
        "event_id": "3b1a55a7c7b94f3f9c0d1b1f0e7a2c44",
        "expires_at": None,
    }
    firing = {
        "tenant_id": "acme",
        "signal_id": "remind-me",
        "firing_id": "3b1a55a7c7b94f3f9c0d1b1f0e7a2c44",
        "dedupe_key": "event-9",
        "work_item_id": None,
        "attempt": 3,
        **dict.fromkeys(("correlation_id", "causation_id", "traceparent", "tracestate")),
    }
    cause = {"work_item_id": "ticket-7", "correlation_id": "order-4711", "causation_id": "command-1"}
    known = {"data": '{"step":1}', "correlation_id": "order-4711", "causation_id": "command-1"}
    return {
        "due time reached, bare": timer_event(row, NOW),
        "due time reached, full": timer_event(row | known, NOW + 4),
        "timer expired, bare": timer_event(row | {"expires_at": NOW + 1}, NOW + 1),
        "timer expired, full": timer_event(row | known | {"expires_at": NOW + 1}, NOW + 4),
        "work signal fired, bare": encode(fired_event(firing, NOW)),
        "work signal fired, full": encode(fired_event(firing | cause, NOW)),
        "work signal failed, bare": encode(failed_event(firing, "refused", NOW)),
        "work signal failed, full": encode(failed_event(firing | cause, "refused", NOW)),
        "command rejected, bare": rejected_event(b"not JSON"),
        "command rejected, full": rejected_event(
            b'{"id":"command-1","type":"ScheduleTimer","tenantId":"acme","correlationId":"order-4711","payload":{}}'
        ),
    }


def rejected_event(body: bytes) -> Message:
    raw = stored("acme", "schedule-timer", body)
    envelope = None
    try:
        envelope = decode_envelope(body)
        decode_command(raw, envelope, COMMANDS)
    except Rejection as rejection:
        event = Rejected(raw, rejection, envelope).event(NOW)
        assert event is not None
        return encode(event)
    raise AssertionError(body)


@pytest.mark.parametrize("message", sent_events().values(), ids=sent_events())
def test_events_fit_their_schemas(message: Message) -> None:
    """Every event fits its schema. Events are written by hand for speed, so no model checks them."""
    assert fits_schema(message.address.message, message.body)
    read(MESSAGES[message.address.message], message.body)


async def test_replies_about_timers_fit_their_schemas(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Every reply and outcome about timers of every state fits its schema."""
    timers = await timers_of_every_state(sqlite, memory_broker, clock)
    queries = Queries(sqlite, clock, QUERIES, RecordingMetrics())
    calls = ["scheduled", "reached", "expired", "cancelled", "failed", "nobody"]
    asked: list[tuple[str, Any]] = [
        *(("get-timer", {"serviceCallId": call}) for call in calls),
        ("get-timer", {}),
        ("list-timers", {"limit": 2}),
        ("list-timers", {}),
        ("list-timers", {"limit": 0}),
        ("count-timers", {}),
        ("count-timers", {"unknown": 1}),
    ]
    answers = [(name, (await queries.answer(name, "acme", to_json(question))).body) for name, question in asked]
    for name, body in answers:
        assert fits_schema(f"{name}-answer", body), body
        read_any(f"{name}-answer", body)
    states = [json.loads(body).get("state") for _, body in answers[: len(calls)]]
    assert states == ["Scheduled", "Reached", "Expired", "Cancelled", "Failed", None]
    assert len(timers.broker.replies) == len(calls) + 2
    for reply in timers.broker.replies:
        assert fits_schema("command-outcome", reply.body), reply.body
        read_any("command-outcome", reply.body)


async def timers_of_every_state(sqlite: SqliteDatabase, broker: MemoryBroker, clock: ManualClock) -> Timers:
    """Create a timer in each state with commands that request a reply, and send one invalid command."""
    timers = Timers(sqlite, broker, clock)
    headers = {"Timer-Reply-To": "_INBOX.me"}
    envelope = {"correlationId": "order-4711"}
    broker.refuses = fires("failed")
    for call, due_at in {"scheduled": after(hours=1), "reached": START, "failed": START, "cancelled": START}.items():
        timers.send(schedule_timer(call, due_at, data={"step": 1}, envelope=envelope), headers)
    timers.send(schedule_timer("expired", after(hours=-1), lateBy="PT1H"), headers)
    for call in ("cancelled", "nobody-knew"):
        cancel = command("CancelTimer", {"tenantId": "acme", "serviceCallId": call})
        timers.send(cancel, headers, message="cancel-timer")
    timers.send(b"not JSON", headers)
    await timers.consume()
    for _ in range(MAX_ATTEMPTS):
        await timers.tick()
        clock.advance(minutes=10)
    return timers


async def test_replies_about_workflows_fit_their_schemas(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Every reply, outcome, task and event about workflows fits its schema."""
    workflows = Workflows(sqlite, memory_broker, clock)
    retry = {"maxAttempts": 2}
    task = await workflows.begin(input=[1], retry=retry, concurrencyKey="k", deadlineIn="P1D", queue="default")
    await workflows.send_to(data={"by": "kim"})
    waits = [sleep("nap", 0), wait_for("approval"), wait_for("other", 1000)]
    steps = [done("pay", None), failed("ship"), failed("ship:1", retryable=False)]
    asked = report(task, CONTINUE, steps=steps, seen=seen("pay"), waits=waits)
    replies = [("report-tasks-answer", await workflows.report_body(asked))]
    replies.append(("renew-tasks-answer", to_json(await workflows.renew(task, {**task, "workflowId": "x"}))))
    replies.append(("get-effects-answer", to_json(await workflows.effects(task))))
    await workflows.report(task, release("non_deterministic", "expected pay, found ship"))
    clock.advance(minutes=1)
    task = await workflows.take()
    replies.append(("poll-tasks-answer", to_json({"tasks": [task]})))
    shown = [await workflows.view()]
    await workflows.report(task, PARK)
    task = await workflows.take() if await workflows.status() == "waiting" else task
    await workflows.report(task, fail("no", "ship:1"))
    for number, then in enumerate((complete({"ok": 1}), complete(), PARK)):
        waits = [wait_for("approval")] if then is PARK else []
        await workflows.report(await workflows.begin(f"w{number}"), then, waits=waits)
    await workflows.about("Cancel", "w2", reason="not needed")
    shown += [await workflows.view(), await workflows.view("w0"), await workflows.view("w2"), await workflows.view("x")]
    replies += [("get-workflow-answer", to_json(each)) for each in shown]
    for name in ("list-workflows", "count-workflows", "list-workers"):
        replies.append((f"{name}-answer", to_json(await workflows.ask(name))))
    replies += [("command-outcome", each.body) for each in memory_broker.replies]
    for name, body in replies:
        assert fits_schema(name, body), body
        read_any(name, body)
    stored = await workflows.stored()
    assert {each.address.message for each in stored} == {
        "workflow-completed",
        "workflow-failed",
        "workflow-cancelled",
    }
    for each in stored:
        assert fits_schema(each.address.message, each.body), each.body
        read(MESSAGES[each.address.message], each.body)


async def test_replies_about_signals_fit_their_schemas(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Every reply and outcome about signals of every status, their firings and tasks fits its schema."""
    signals = Signals(sqlite, memory_broker, clock)
    for signal in ("fired", "paused", "cancelled", "resolved"):
        await signals.create(signal, f"item of {signal}", note="a\nnote")
    await signals.create("invalid", triggerSpec={})
    for item in ("fired", "paused"):
        await signals.transition(item=f"item of {item}")
    for verb, signal in (("Pause", "paused"), ("Cancel", "cancelled"), ("Resolve", "resolved"), ("Resolve", "nobody")):
        await signals.about(verb, signal)
    await signals.run()
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("get-signal", {"signalId": each}) for each in ("fired", "paused", "invalid", "nobody")),
        ("list-signals", {}),
        ("list-signals", {"limit": 2, "status": "active"}),
        ("list-signals", {"limit": 0}),
        *(("list-firings", {"signalId": each}) for each in ("fired", "paused", "nobody")),
        ("list-tasks", {"workItemId": "item of fired"}),
        ("list-tasks", {}),
    ]
    for name, question in asked:
        body = (await signals.queries.answer(name, "acme", to_json(question))).body
        assert fits_schema(f"{name}-answer", body), body
        read_any(f"{name}-answer", body)
    for reply in signals.broker.replies:
        assert fits_schema("command-outcome", reply.body), reply.body
        read_any("command-outcome", reply.body)


def refs(node: Any) -> Iterator[str]:
    """Yield every $ref of a document."""
    if isinstance(node, dict):
        yield from (value for name, value in node.items() if name == "$ref")
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from refs(each)


def resolves(ref: str, document: Any) -> bool:
    """Return whether a reference names a part of this document."""
    file, _, path = ref.partition("#")
    node = document
    for part in path.split("/")[1:]:
        node = node.get(part, {})
    return not file and bool(node)


def test_every_reference_resolves() -> None:
    """Every $ref leads to a part of its own document, and the AsyncAPI document refers to every schema."""
    document = GENERATED["asyncapi"]()
    assert all(resolves(ref, document) for ref in refs(document))
    for file in SCHEMAS.iterdir():
        schema = json.loads(file.read_text("utf-8"))
        assert all(resolves(ref, schema) for ref in refs(schema))
    bundled = {f"#/components/schemas/{file.name.removesuffix('.v1.json')}" for file in SCHEMAS.iterdir()}
    assert bundled <= set(refs(document))


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_the_asyncapi_document_judges_examples_like_the_schemas(kind: str) -> None:
    """A copy of asyncapi.yaml alone is enough to validate a message."""
    document = GENERATED["asyncapi"]()
    for folder in (EXAMPLES / kind).iterdir():
        schema = {"$ref": f"#/components/schemas/{folder.name}", "components": document["components"]}
        validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        for file in folder.iterdir():
            assert validator.is_valid(json.loads(file.read_bytes())) == (kind == "valid"), file


def test_addresses_of_the_code_and_of_asyncapi_correspond() -> None:
    """The AsyncAPI document has exactly the addresses of the messages, queries and requests of the code."""
    commands = {kebab(each) for each in COMMANDS}
    served = {
        *(f"timer.cmd.v1.{{tenant}}.{each}" for each in commands),
        *(f"timer.evt.v1.{{tenant}}.{each}" for each in MESSAGES if each not in commands),
        *(f"timer.qry.v1.{{tenant}}.{route.name}" for route in QUERIES),
        *(f"timer.wrk.v1.{{tenant}}.{route.name}" for route in GENERATED["REQUESTS"]),
        "timer.dlq.v1.{tenant}.{message}",
        None,  # inboxes
    }
    assert {each["address"] for each in GENERATED["asyncapi"]()["channels"].values()} == served


async def test_messages_about_runs_fit_their_schemas(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Every event, outcome and reply about runs fits its schema."""
    runs = Runs(sqlite, memory_broker, clock)
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
    assert {message.address.message for message in runs.broker.events} == {
        "job-ready",
        "job-skipped",
        "run-rejected",
        "run-completed",
        "run-stuck",
    }
    for message in runs.broker.events:
        assert fits_schema(message.address.message, message.body), message.body
        read(MESSAGES[message.address.message], message.body)
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("get-run", {"runId": each}) for each in ("run-1", "cyclic", "stuck", "nobody")),
        ("get-run", {"runId": "run-1", "limit": 2}),
        ("list-runs", {}),
        ("list-runs", {"status": "rejected", "limit": 1}),
        ("list-runs", {"limit": 0}),
    ]
    for name, question in asked:
        body = (await runs.queries.answer(name, "acme", to_json(question))).body
        assert fits_schema(f"{name}-answer", body), body
        read_any(f"{name}-answer", body)
    assert len(runs.broker.replies) == 8
    for reply in runs.broker.replies:
        assert fits_schema("command-outcome", reply.body), reply.body
        read_any("command-outcome", reply.body)


async def test_messages_about_schedules_fit_their_schemas(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Every event, outcome and reply about schedules of every status fits its schema."""
    schedules = Schedules(sqlite, memory_broker, clock)
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
    types = {message.address.message for message in schedules.broker.events}
    assert types == {"schedule-fired", "schedule-ended", "command-rejected"}
    assert any(b"missedSince" in message.body for message in schedules.broker.events)
    for message in schedules.broker.events:
        assert fits_schema(message.address.message, message.body), message.body
        read(MESSAGES[message.address.message], message.body)
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("get-schedule", {"scheduleId": each, "upcoming": 2}) for each in ("active", "ended", "paused", "nobody")),
        ("get-schedule", {"scheduleId": "broken"}),
        ("list-schedules", {}),
        ("list-schedules", {"status": "paused", "limit": 1}),
        ("list-schedules", {"limit": 0}),
        ("preview-slots", {"every": 1000}),
        ("preview-slots", {"every": 1}),
    ]
    answers = [
        (name, (await schedules.queries.answer(name, "acme", to_json(question))).body) for name, question in asked
    ]
    assert b"lastError" in answers[4][1]
    for name, body in answers:
        assert fits_schema(f"{name}-answer", body), body
        read_any(f"{name}-answer", body)
    assert len(schedules.broker.replies) == 9
    for reply in schedules.broker.replies:
        assert fits_schema("command-outcome", reply.body), reply.body
        read_any("command-outcome", reply.body)
