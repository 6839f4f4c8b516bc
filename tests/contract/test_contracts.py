"""The contracts as committed, the models and what the code really sends say the same."""

import json
import runpy
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import ValidationError

import timer_service
from timer_service.core.broker import Delivery
from timer_service.core.codec import decode_command, decode_envelope
from timer_service.core.errors import Code, Rejection
from timer_service.core.message import Address, Kind, Message, Payload, Position, kebab
from timer_service.core.rejection import Rejected
from timer_service.timers.handler import PAYLOADS
from timer_service.timers.worker import due_time_reached

CONTRACTS = Path(__file__).parents[2] / "contracts"
SCHEMAS = CONTRACTS / "schemas"
EXAMPLES = CONTRACTS / "examples"
COMMANDS = {payload.type: payload for payload in PAYLOADS}
NOW = 1_795_248_000_000


def message_types() -> dict[str, type[Payload]]:
    """Find every message of the code by its kebab name; they live in the core and in each slice's `messages`."""
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


def examples(kind: str) -> list[Any]:
    """Return the examples of a kind as (message, file) parameters."""
    files = sorted((EXAMPLES / kind).rglob("*.json"))
    return [pytest.param(file.parent.name, file, id=f"{file.parent.name}-{file.stem}") for file in files]


def fits_schema(message: str, body: bytes) -> bool:
    schema = json.loads((SCHEMAS / f"{message}.v1.json").read_text("utf-8"))
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return bool(validator.is_valid(json.loads(body)))


def fits_model(message: str, body: bytes) -> bool:
    try:
        read(MESSAGES[message], body)
    except (Rejection, ValidationError):
        return False
    return True


def read(model: type[Payload], body: bytes) -> None:
    """Read a body as the service reads a command, or as a careful user reads an event."""
    envelope = decode_envelope(body)
    if model.type in COMMANDS:
        decode_command(delivered(envelope.tenant_id, kebab(model.type), body), envelope, COMMANDS)
        return
    if envelope.type != model.type or envelope.id is None or envelope.timestamp_ms is None:
        raise Rejection(Code.INVALID_ENVELOPE, "not the envelope of such an event")
    model.model_validate(envelope.payload, by_alias=True, by_name=False)


def delivered(tenant: str, message: str, body: bytes) -> Delivery:
    return Delivery(
        address=Address(Kind.COMMAND, tenant, message),
        source=f"timer.cmd.v1.{tenant}.{message}",
        message_id="1795240000000-42",
        body=body,
        headers={},
        position=Position(1_795_240_000_000, 42),
        attempt=1,
        handle=None,
    )


def test_regenerating_gives_what_is_committed() -> None:
    """The schemas are those of today's models; if not, run `make contracts`."""
    generate = cast("Callable[[], dict[str, str]]", runpy.run_path(str(CONTRACTS / "generate.py"))["schemas"])
    assert {file.name: file.read_text("utf-8") for file in SCHEMAS.iterdir()} == generate()


def test_every_message_of_the_code_has_a_schema_and_the_other_way_round() -> None:
    """No message goes undocumented and no schema outlives its message."""
    assert {file.name for file in SCHEMAS.iterdir()} == {f"{message}.v1.json" for message in MESSAGES}


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_every_message_of_the_code_has_examples_and_the_other_way_round(kind: str) -> None:
    """Each message shows what passes and what does not."""
    folders = {folder.name: len(list(folder.glob("*.json"))) for folder in (EXAMPLES / kind).iterdir()}
    assert folders.keys() == MESSAGES.keys()
    assert min(folders.values()) > 1


@pytest.mark.parametrize("message", MESSAGES)
def test_schema_is_one(message: str) -> None:
    """Each file is a 2020-12 schema that names itself by a URN."""
    schema = json.loads((SCHEMAS / f"{message}.v1.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:timer-service:{message}:v1"


@pytest.mark.parametrize(("message", "file"), examples("valid"))
def test_valid_example_passes_schema_and_model(message: str, file: Path) -> None:
    """What is shown as valid is taken."""
    body = file.read_bytes()
    assert fits_schema(message, body)
    read(MESSAGES[message], body)


@pytest.mark.parametrize(("message", "file"), examples("invalid"))
def test_invalid_example_fails_schema_and_model(message: str, file: Path) -> None:
    """What is shown as invalid is refused, by schema and model alike."""
    body = file.read_bytes()
    assert (fits_schema(message, body), fits_model(message, body)) == (False, False)


@pytest.mark.parametrize(("message", "file"), examples("invalid-beyond-schema"))
def test_example_beyond_the_schema_fails_only_in_the_model(message: str, file: Path) -> None:
    """What no schema can express is refused all the same."""
    body = file.read_bytes()
    assert (fits_schema(message, body), fits_model(message, body)) == (True, False)


def sent_events() -> dict[str, Message]:
    """Return events as the code writes them, with everything they can carry and with as little as they can."""
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
    }
    known = {"data": '{"step":1}', "correlation_id": "order-4711", "causation_id": "command-1"}
    return {
        "due time reached, bare": due_time_reached(row, NOW),
        "due time reached, full": due_time_reached(row | known, NOW + 4),
        "command rejected, bare": rejected_event(b"not JSON"),
        "command rejected, full": rejected_event(
            b'{"id":"command-1","type":"ScheduleTimer","tenantId":"acme","correlationId":"order-4711","payload":{}}'
        ),
    }


def rejected_event(body: bytes) -> Message:
    delivery = delivered("acme", "schedule-timer", body)
    envelope = None
    try:
        envelope = decode_envelope(body)
        decode_command(delivery, envelope, COMMANDS)
    except Rejection as rejection:
        _, event = Rejected(delivery, rejection, envelope).messages(NOW)
        return event
    raise AssertionError(body)


@pytest.mark.parametrize("message", sent_events().values(), ids=sent_events())
def test_what_the_code_sends_fits_its_schema(message: Message) -> None:
    """Events are written by hand for speed, so they are held against their schema here."""
    assert fits_schema(message.address.message, message.body)
    read(MESSAGES[message.address.message], message.body)
