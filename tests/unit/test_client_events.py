"""Reading events as values: every event of the contracts, and messages that are none."""

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from timer_service.client.errors import TimerServiceError
from timer_service.client.events import EVENTS, DueTimeReached, Event, message_of, read_event

CONTRACTS = Path(__file__).parents[2] / "contracts"
FIRED: Mapping[str, Any] = {
    "id": "event-1",
    "type": "DueTimeReached",
    "tenantId": "acme",
    "timestampMs": 1_795_240_000_004,
    "topic": "unpaid",
    "payload": {
        "serviceCallId": "call-1",
        "dueAt": "2026-11-21T09:00:00.000+01:00",
        "reachedAt": "2026-11-21T08:00:01Z",
    },
}


def schema_of(kind: type[Event]) -> Mapping[str, Any]:
    """Return the schema of the payload of an event."""
    schema = json.loads((CONTRACTS / "schemas" / f"{message_of(kind)}.v1.json").read_text("utf-8"))
    payload = schema["properties"]["payload"]
    found: Mapping[str, Any] = schema["$defs"][payload["$ref"].rpartition("/")[2]] if "$ref" in payload else payload
    return found


def read_without(message: Mapping[str, Any], name: str) -> Event:
    """Read an event without one field of its payload."""
    payload = {other: value for other, value in message["payload"].items() if other != name}
    return read_event(json.dumps({**message, "payload": payload}).encode())


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_events_of_the_contracts(kind: type[Event]) -> None:
    """Each valid example is read as its class. It has every field of the schema, and needs the required ones."""
    schema = schema_of(kind)
    own = {each.name for each in fields(kind)} - {each.name for each in fields(Event)}
    assert len(own) == len(schema["properties"].keys() - {"tenantId"})
    for example in (CONTRACTS / "examples" / "valid" / message_of(kind)).iterdir():
        event = read_event(example.read_bytes())
        assert (type(event), event.type, event.id) == (kind, kind.wire_type, event.raw["id"])
        values = [getattr(event, name) for name in own]
        for name, value in event.raw["payload"].items():
            if "date-time" in json.dumps(schema["properties"].get(name)):
                assert datetime.fromisoformat(value) in values
            elif name != "tenantId":
                assert value in values
        for name in {*schema["required"]} - {"tenantId"}:
            with pytest.raises(TimerServiceError, match=f"{name} is missing or wrong"):
                read_without(event.raw, name)


def test_instants_are_in_utc() -> None:
    """Instants are datetimes in UTC, whatever offset the message has."""
    event = read_event(json.dumps(FIRED).encode())
    assert isinstance(event, DueTimeReached)
    assert (event.due_at, event.due_at.tzinfo) == (datetime(2026, 11, 21, 8, tzinfo=UTC), UTC)
    assert event.created_at == datetime.fromtimestamp(1_795_240_000.004, UTC)
    assert (event.topic, event.data, event.about) == ("unpaid", None, "timer call-1")


def test_unknown_types() -> None:
    """An event of a type that a newer service has added has the fields of all events, and the whole message."""
    event = read_event(json.dumps({**FIRED, "type": "TimerPaused"}).encode())
    assert (type(event), event.type, event.raw["payload"]["serviceCallId"]) == (Event, "TimerPaused", "call-1")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 60_000,
        b"[]",
        b"{}",
        json.dumps({**FIRED, "payload": []}).encode(),
        json.dumps({**FIRED, "id": 1}).encode(),
        json.dumps({**FIRED, "tenantId": None}).encode(),
        json.dumps({**FIRED, "timestampMs": "x"}).encode(),
        json.dumps({**FIRED, "timestampMs": 10**30}).encode(),
        json.dumps({**FIRED, "payload": {**FIRED["payload"], "dueAt": "2026-11-21T09:00:00"}}).encode(),
        json.dumps({**FIRED, "payload": {**FIRED["payload"], "dueAt": {}}}).encode(),
        json.dumps({**FIRED, "payload": {**FIRED["payload"], "serviceCallId": 7}}).encode(),
    ],
    ids=lambda body: body[:40],
)
def test_messages_that_are_no_events(body: bytes) -> None:
    """A message that is no event raises `TimerServiceError`."""
    with pytest.raises(TimerServiceError, match="this is no event"):
        read_event(body)
