"""Writes `contracts/schemas/` anew from the models; `make contracts` runs it."""

import inspect
import json
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import create_model

from timer_service.core.message import Envelope, Identifier, Payload, kebab
from timer_service.core.rejection import CommandRejected
from timer_service.timers.handler import PAYLOADS
from timer_service.timers.messages import DueTimeReached

COMMANDS: tuple[type[Payload], ...] = PAYLOADS
EVENTS: tuple[type[Payload], ...] = (DueTimeReached, CommandRejected)
SCHEMAS = Path(__file__).parent / "schemas"


def schemas() -> dict[str, str]:
    """Return the text of every schema by file name."""
    documents = {
        **{each.type: _document(each, _command(each)) for each in COMMANDS},
        **{each.type: _without_null(_document(each, _event(each))) for each in EVENTS},
    }
    return {f"{kebab(name)}.v1.json": _text(document) for name, document in documents.items()}


def _command(payload: type[Payload]) -> dict[str, Any]:
    return {"type": (Literal[payload.type], ...), "payload": (payload, ...)}


def _event(payload: type[Payload]) -> dict[str, Any]:
    return {**_command(payload), "id": (Identifier, ...), "timestamp_ms": (int, ...)}


def _document(payload: type[Payload], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a whole body: the envelope around one kind of payload."""
    body = create_model(payload.type, __base__=Envelope, **fields)
    document = cast("dict[str, Any]", _without_noise(body.model_json_schema()))
    return {
        **document,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:timer-service:{kebab(payload.type)}:v1",
        "title": payload.type,
        "description": inspect.getdoc(payload),
    }


def _without_noise(node: Any) -> Any:
    """Drop what pydantic adds and nobody reads: titles made of field names, `default: null`."""
    if isinstance(node, list):
        return [_without_noise(each) for each in node]
    if not isinstance(node, dict):
        return node
    noise: dict[str, type] = {"title": str, "default": type(None)}
    return {
        name: _without_noise(each)
        for name, each in node.items()
        if name not in noise or not isinstance(each, noise[name])
    }


def _without_null(node: Any) -> Any:
    """Take null from what an event's field may be: the service leaves out what it doesn't know."""
    if not isinstance(node, dict):
        return node
    if "anyOf" in node:
        (only,) = (each for each in node["anyOf"] if each != {"type": "null"})
        return {**{name: each for name, each in node.items() if name != "anyOf"}, **only}
    return {name: _without_null(each) for name, each in node.items()}


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every schema and remove those of messages that are gone."""
    SCHEMAS.mkdir(exist_ok=True)
    current = schemas()
    for old in SCHEMAS.glob("*.json"):
        if old.name not in current:
            old.unlink()
    for name, text in current.items():
        (SCHEMAS / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
