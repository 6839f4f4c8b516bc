"""Writes `contracts/schemas/` and `contracts/asyncapi.yaml` anew from the code; `make contracts` runs it."""

import inspect
import json
import runpy
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, create_model

from timer_service.core.errors import Code
from timer_service.core.message import Envelope, Identifier, Payload, kebab
from timer_service.core.rejection import CommandRejected, FieldFault
from timer_service.events.handler import PAYLOADS as EVENT_COMMANDS
from timer_service.events.handler import Verdict as EventVerdict
from timer_service.events.queries import QUERIES as EVENT_QUERIES
from timer_service.events.queries import BuriedEventPage
from timer_service.needs.handler import PAYLOADS as RUN_COMMANDS
from timer_service.needs.messages import JobReady, JobSkipped, RunCompleted, RunRejected, RunStuck
from timer_service.needs.queries import QUERIES as RUN_QUERIES
from timer_service.needs.queries import RunDetails, RunPage, RunView
from timer_service.needs.rules import Verdict as RunVerdict
from timer_service.signals.handler import PAYLOADS as SIGNAL_COMMANDS
from timer_service.signals.messages import WorkSignalFailed, WorkSignalFired
from timer_service.signals.queries import QUERIES as SIGNAL_QUERIES
from timer_service.signals.queries import FiringPage, SignalPage, SignalView, TaskPage
from timer_service.signals.rules import Verdict as SignalVerdict
from timer_service.timers.handler import PAYLOADS as TIMER_COMMANDS
from timer_service.timers.messages import DueTimeReached
from timer_service.timers.queries import QUERIES as TIMER_QUERIES
from timer_service.timers.queries import TimerCounts, TimerPage, TimerView
from timer_service.timers.rules import Verdict as TimerVerdict

CONTRACTS = Path(__file__).parent
SCHEMAS = CONTRACTS / "schemas"
_ASYNCAPI = runpy.run_path(str(CONTRACTS / "asyncapi.py"))


_VERDICTS = (*TimerVerdict, *SignalVerdict, *RunVerdict, *EventVerdict)
Verdict = StrEnum("Verdict", {each.name: each.value for each in _VERDICTS})
Verdict.__doc__ = "How a command ends."


class Refusal(Payload):
    """Why a command was rejected or a query can't be answered."""

    code: Code
    message: str
    errors: list[FieldFault] | None = None


class QueryRefused(Payload):
    """The query can't be answered."""

    error: Refusal


class CommandHandled(Payload):
    """The command is committed; the timer, signal or run it was about, if there is one, is as it stands now."""

    command_id: Identifier
    outcome: Verdict
    timer: TimerView | None = None
    signal: SignalView | None = None
    run: RunView | None = None


class CommandRefused(Payload):
    """The command was rejected and is kept in the dead letters."""

    command_id: Identifier
    error: Refusal


COMMANDS: tuple[type[Payload], ...] = (*TIMER_COMMANDS, *SIGNAL_COMMANDS, *RUN_COMMANDS, *EVENT_COMMANDS)
EVENTS: tuple[type[Payload], ...] = (
    DueTimeReached,
    WorkSignalFired,
    WorkSignalFailed,
    JobReady,
    JobSkipped,
    RunRejected,
    RunCompleted,
    RunStuck,
    CommandRejected,
)
QUERIES = (*TIMER_QUERIES, *SIGNAL_QUERIES, *RUN_QUERIES, *EVENT_QUERIES)
ANSWERS: dict[str, type[Payload]] = {
    "get-timer": TimerView,
    "list-timers": TimerPage,
    "count-timers": TimerCounts,
    "get-signal": SignalView,
    "list-signals": SignalPage,
    "list-firings": FiringPage,
    "list-tasks": TaskPage,
    "get-run": RunDetails,
    "list-runs": RunPage,
    "list-buried-events": BuriedEventPage,
}
"""What each query is answered with, if not with an error."""


def schemas() -> dict[str, str]:
    """Return the text of every schema by file name."""
    documents = {
        **{kebab(each.type): _message(each, _command(each)) for each in COMMANDS},
        **{kebab(each.type): _without_null(_message(each, _event(each))) for each in EVENTS},
        **{each.name: _document(each.name, each.question.__name__, each.question) for each in QUERIES},
        **{f"{name}-answer": _answer(f"{name}-answer", answer, QueryRefused) for name, answer in ANSWERS.items()},
        "command-outcome": _answer("command-outcome", CommandHandled, CommandRefused),
    }
    return {f"{name}.v1.json": _text(document) for name, document in documents.items()}


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI document."""
    document: dict[str, Any] = _ASYNCAPI["document"](COMMANDS, EVENTS, QUERIES)
    return document


def asyncapi_text() -> str:
    """Return the AsyncAPI document as YAML."""
    return "# Written by generate.py.\n" + "\n".join(_ASYNCAPI["yaml_lines"](asyncapi())) + "\n"


def _command(payload: type[Payload]) -> dict[str, Any]:
    return {"type": (Literal[payload.type], ...), "payload": (payload, ...)}


def _event(payload: type[Payload]) -> dict[str, Any]:
    return {**_command(payload), "id": (Identifier, ...), "timestamp_ms": (int, ...)}


def _message(payload: type[Payload], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a whole body: the envelope around one kind of payload."""
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
    """Take null from what the service may send: it leaves out what it doesn't know."""
    if isinstance(node, list):
        return [_without_null(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {name: _without_null(each) for name, each in node.items()}
    if {"type": "null"} in node.get("anyOf", ()):
        (only,) = (each for each in node.pop("anyOf") if each != {"type": "null"})
        return {**node, **only}
    return node


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every schema and the AsyncAPI document, and remove the schemas of messages that are gone."""
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
