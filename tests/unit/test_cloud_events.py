"""The attributes of CloudEvents in the headers of events."""

import json

import pytest

from tests.harness.cases import case
from timer_service.app.slices import SLICES
from timer_service.core.events.cloud_events import describe
from timer_service.core.intake.rejection import CommandRejected
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.codec import encode
from timer_service.core.values.message import Event, Message, Trace

AT = 1_764_386_280_123
ATTRIBUTES = {
    "ce-specversion": "1.0",
    "ce-id": "event-1",
    "ce-type": "DueTimeReached",
    "ce-source": "timer-service/acme",
    "ce-time": "2025-11-29T03:18:00.123Z",
    "ce-datacontenttype": "application/json",
}
LOOKS_LIKE_A_TIME = {"x": '","timestampMs":5,"payload":', "timestampMs": 5, "payload": {"timestampMs": 6, "payload": 7}}


def event(event_id: str = "event-1", message_type: str = "DueTimeReached", correlation_id: str | None = None) -> Event:
    return Event(event_id, message_type, "acme", LOOKS_LIKE_A_TIME, AT, correlation_id)


def test_every_event() -> None:
    """Each type of event has its attributes, beside its other headers. The address, id and body stay."""
    types = [*(each.type for slice_ in SLICES for each in slice_.events), CommandRejected.type]
    for message_type in types:
        with case(message_type):
            message = encode(event("event-1", message_type)._replace(trace=Trace("parent", "state"), topic="t"))
            described = describe(message)
            assert described.headers == {**ATTRIBUTES, "ce-type": message_type, **message.headers}
            assert described == message._replace(headers=described.headers)
            assert message.headers == {"traceparent": "parent", "tracestate": "state"}


@pytest.mark.parametrize(
    ("event_id", "value"),
    [
        ("a:b/c-1.2_3", "a:b/c-1.2_3"),
        ("!#$&'()*+,;<=>?@[]^`{|}~", "!#$&'()*+,;<=>?@[]^`{|}~"),
        ('a "b" 5%\\ü', "a%20%22b%22%205%25\\%C3%BC"),
        ('","timestampMs":5,"payload":', "%22,%22timestampMs%22:5,%22payload%22:"),
    ],
)
def test_id_of_any_characters(event_id: str, value: str) -> None:
    """What a header cannot have is percent-encoded. No text in an envelope is taken for the time."""
    for correlation_id in ("order-1", '","timestampMs":5,"payload":', "\\"):
        headers = describe(encode(event(event_id, correlation_id=correlation_id))).headers
        assert headers == {**ATTRIBUTES, "ce-id": value}


@pytest.mark.parametrize(
    ("envelope", "time"),
    [
        ({"timestampMs": AT}, ATTRIBUTES["ce-time"]),
        ({"timestampMs": AT, "x": LOOKS_LIKE_A_TIME}, ATTRIBUTES["ce-time"]),
        ({}, None),
        ({"timestampMs": None}, None),
        ({"timestampMs": -1}, None),
        ({"timestampMs": 10**15}, None),
        ({"timestampMs": "now"}, None),
    ],
)
def test_body_of_another_address(envelope: dict[str, object], time: str | None) -> None:
    """An event that is published again to another address has the attributes of its body, as far as it has them."""
    body = {"id": "event-1", "type": "DueTimeReached", **envelope, "payload": LOOKS_LIKE_A_TIME}
    message = Message(Address(Kind.EVENT, "acme", "resubmitted", "Orders"), "other", json.dumps(body).encode(), {})
    found = {name: value for name, value in describe(message).headers.items() if name != "ce-time"}
    assert found == {name: value for name, value in ATTRIBUTES.items() if name != "ce-time"}
    assert describe(message).headers.get("ce-time") == time
    compact = message._replace(body=json.dumps(body, separators=(",", ":")).encode())
    assert describe(compact).headers == describe(message).headers


def test_dead_letter() -> None:
    """A message that is no event has no attributes."""
    letter = Message(Address(Kind.DEAD_LETTER, "acme", "schedule-timer"), "dlq-1", b"no JSON", {"a": "b"})
    assert describe(letter) is letter
