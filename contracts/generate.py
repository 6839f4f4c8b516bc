"""Writes `contracts/schemas/` and `contracts/asyncapi.yaml` from the models. `make contracts` runs this file."""

import inspect
import json
import runpy
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, create_model

from timer_service.app.slices import QUERIES, SLICES
from timer_service.core.intake.rejection import CommandRejected, FieldFault
from timer_service.core.values.address import kebab
from timer_service.core.values.errors import Code
from timer_service.core.values.message import Envelope, Identifier, Payload, Topic

CONTRACTS = Path(__file__).parent
SCHEMAS = CONTRACTS / "schemas"
_ASYNCAPI = runpy.run_path(str(CONTRACTS / "asyncapi.py"))


Outcome = StrEnum("Outcome", {name.name: name.value for each in SLICES for name in each.outcomes})
Outcome.__doc__ = "The outcome of a command."


class Refusal(Payload):
    """Why a command was rejected, or why a query failed."""

    code: Code
    message: str
    errors: list[FieldFault] | None = None


class QueryRefused(Payload):
    """The reply to a query or to a worker's request that failed."""

    error: Refusal


class CommandRefused(Payload):
    """The reply to a rejected command. The command is stored as a dead letter."""

    command_id: Identifier
    error: Refusal


class LimitExceeded(Payload):
    """The limit of its tenant that a command would exceed. See `TIMER_LIMITS_FILE`."""

    name: str
    most: int


CommandHandled = create_model(
    "CommandHandled",
    __base__=Payload,
    __doc__="The reply to a committed command, with its timer, signal, schedule, run or workflow as it is then.",
    command_id=(Identifier, ...),
    outcome=(Outcome, ...),
    limit=(LimitExceeded | None, None),
    **{name: (view | None, None) for each in SLICES for name, view in each.views.items()},
)

REQUESTS = tuple(request for each in SLICES for request in each.requests)
COMMANDS: tuple[type[Payload], ...] = tuple(command for each in SLICES for command in each.commands)
EVENTS: tuple[type[Payload], ...] = (*(event for each in SLICES for event in each.events), CommandRejected)


def schemas() -> dict[str, str]:
    """Return the text of every schema by file name."""
    return {f"{name}.v1.json": _text(document) for name, document in _documents().items()}


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI document."""
    document: dict[str, Any] = _ASYNCAPI["document"](COMMANDS, EVENTS, QUERIES, REQUESTS, _documents())
    return document


def asyncapi_text() -> str:
    """Return the AsyncAPI document as YAML."""
    return "# Written by generate.py.\n" + "\n".join(_ASYNCAPI["yaml_lines"](asyncapi())) + "\n"


def _documents() -> dict[str, dict[str, Any]]:
    """Return every schema by the name of its message."""
    asked = (*QUERIES, *REQUESTS)
    return {
        **{kebab(each.type): _tenant_optional(_message(each, _command(each)), each) for each in COMMANDS},
        **{kebab(each.type): _without_null(_message(each, _event(each))) for each in EVENTS},
        **{each.name: _document(each.name, each.request.__name__, each.request) for each in asked},
        **{f"{each.name}-answer": _answer(f"{each.name}-answer", each.reply, QueryRefused) for each in asked},
        "command-outcome": _answer("command-outcome", CommandHandled, CommandRefused),
    }


def _command(payload: type[Payload]) -> dict[str, Any]:
    return {"type": (Literal[payload.type], ...), "payload": (payload, ...)}


def _tenant_optional(document: dict[str, Any], payload: type[Payload]) -> dict[str, Any]:
    """Make the tenant of a command's payload optional. Decoding takes it from the envelope."""
    fields = document["$defs"][payload.__name__]
    required = [name for name in fields["required"] if name != "tenantId"]
    return {**document, "$defs": {**document["$defs"], payload.__name__: {**fields, "required": required}}}


def _event(payload: type[Payload]) -> dict[str, Any]:
    about: dict[str, Any] = {"topic": (Topic | None, None)} if payload.has_topic else {}
    return {**_command(payload), "id": (Identifier, ...), "timestamp_ms": (int, ...), **about}


def _message(payload: type[Payload], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a whole body: the envelope and one type of payload."""
    body = create_model(payload.type, __base__=Envelope, **fields)
    return {**_document(kebab(payload.type), payload.type, body), "description": inspect.getdoc(payload)}


def _answer(name: str, answer: type[Payload], refused: type[Payload]) -> dict[str, Any]:
    return _without_null(_document(name, name.replace("-", " "), answer | refused))


def _document(name: str, title: str, model: Any) -> dict[str, Any]:
    return {
        **_without_noise(TypeAdapter(model).json_schema()),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:timer-service:{name}:v1",
        "title": title,
    }


def _without_noise(node: Any) -> Any:
    """Remove the titles that pydantic makes of field names, `default: null`, and what JSON Schema does not have."""
    if isinstance(node, list):
        return [_without_noise(each) for each in node]
    if not isinstance(node, dict):
        return node
    noise: dict[str, type] = {"title": str, "default": type(None), "discriminator": dict}
    return {
        name: _without_noise(each)
        for name, each in node.items()
        if name not in noise or not isinstance(each, noise[name])
    }


def _without_null(node: Any) -> Any:
    """Remove null from every type. The service never sends null: it leaves unknown fields out."""
    if isinstance(node, list):
        return [_without_null(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {name: _without_null(each) for name, each in node.items()}
    if {"type": "null"} in node.get("anyOf", ()):
        rest = [each for each in node.pop("anyOf") if each != {"type": "null"}]
        return {**node, **rest[0]} if len(rest) == 1 else {**node, "anyOf": rest}
    return node


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every schema and the AsyncAPI document. Delete the schemas of messages that no longer exist."""
    SCHEMAS.mkdir(exist_ok=True)
    current = schemas()
    for old in SCHEMAS.glob("*.json"):
        if old.name not in current:
            old.unlink()
    for name, text in current.items():
        (SCHEMAS / name).write_text(text, "utf-8")
    (CONTRACTS / "asyncapi.yaml").write_text(asyncapi_text(), "utf-8")


if __name__ == "__main__":
    main()
