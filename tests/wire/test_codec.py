import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.builders import command, command_address, raw_command, schedule_timer
from tests.harness.clock import NOW, iso
from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Address, Kind, kebab
from timer_service.core.values.codec import REPLY_TO, decode_command, decode_envelope, encode
from timer_service.core.values.data import MAX_DATA_BYTES
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import LATEST
from timer_service.core.values.message import Command, Event, Position, Trace
from timer_service.core.values.raw_command import MESSAGE_ID, RawCommand
from timer_service.timers import SLICE
from timer_service.timers.messages import CancelTimer, ScheduleTimer

COMMANDS = {payload.type: payload for payload in SLICE.commands}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def decode(raw: RawCommand) -> Command:
    return decode_command(raw, decode_envelope(raw.body), COMMANDS)


def rejection(raw: RawCommand) -> Rejection:
    with pytest.raises(Rejection) as caught:
        decode(raw)
    return caught.value


def with_data(text: str) -> bytes:
    """Return a command whose data is replaced by `text`, which may be invalid JSON."""
    return schedule_timer(data="DATA").replace(b'"DATA"', text.encode())


def test_whole_command() -> None:
    """A decoded command has every field of the body and the headers. Unknown fields of the envelope are ignored.

    Its time is when the broker stored it, rounded up to the millisecond.
    """
    body = schedule_timer(
        "call-7",
        "2026-11-21T10:00:00+01:00",
        data={"a": [1, None]},
        envelope={"id": "cmd-1", "correlationId": "corr", "causationId": "cause", "timestampMs": NOW, "priority": 1},
    )
    headers = {"traceparent": TRACEPARENT, "tracestate": "a=b", REPLY_TO: "_INBOX.x"}
    assert decode(raw_command(body, headers=headers, position=Position(3, 4), stored_at=76_000_001)) == Command(
        id="cmd-1",
        payload=ScheduleTimer(tenant_id="acme", service_call_id="call-7", due_at=iso(NOW), data={"a": [1, None]}),
        position=Position(3, 4),
        correlation_id="corr",
        trace=Trace(TRACEPARENT, "a=b"),
        reply_to="_INBOX.x",
        stored_at=77,
    )


@pytest.mark.parametrize(("message_id", "found"), [("x" * 200, "x" * 200), ("x" * 201, "3-4"), ("a\x7f", "3-4")])
def test_id_without_one_in_the_body(message_id: str, found: str) -> None:
    """A command has the id of its message if that is an identifier, and else its position."""
    raw = raw_command(schedule_timer(), headers={MESSAGE_ID: message_id}, position=Position(3, 4))
    assert decode(raw).id == found


@pytest.mark.parametrize(("text", "is_set"), [("null", True), (None, False)])
def test_null_data_is_not_absent_data(text: str | None, is_set: bool) -> None:  # noqa: FBT001
    """`data: null` and no data are different, so that the event can repeat exactly what the command had."""
    body = schedule_timer() if text is None else with_data(text)
    payload = decode(raw_command(body)).payload
    assert isinstance(payload, ScheduleTimer)
    assert payload.data is None
    assert ("data" in payload.model_fields_set) is is_set


INVALID_JSON = (
    *(b"", b"{", b"hello", b'{"a": 1} {}', b'\xef\xbb\xbf{"a": 1}', b"\xff\xfe"),
    *(schedule_timer(call="X").replace(b"X", each) for each in (b"\xff", rb"\ud800")),
    *map(with_data, (r'"\ud800"', r'{"\udfff": 1}', "NaN", "Infinity", "-Infinity", "[" * 10_000, "9" * 5000)),
)
ENVELOPES: tuple[tuple[bytes, str], ...] = (
    *((each, "(body)") for each in (b"null", b"[]", b'"ScheduleTimer"')),
    (b"{}", "type"),
    *((schedule_timer(tenant=each), "tenantId") for each in ("", "a.b", "é", "acme\n", "x" * 65)),
    *(
        (schedule_timer(envelope={field: value}), field)
        for field, values in {
            "type": (None, "a\0b"),
            "payload": (None, []),
            "id": ("", 7, "x" * 201, "a\0"),
            "correlationId": ("\x7f",),
            "causationId": ("a\nb",),
            "timestampMs": ("soon", "5", 5.0),
        }.items()
        for value in values
    ),
    (json.dumps({"type": "ScheduleTimer", "tenant_id": "acme", "payload": {}}).encode(), "tenantId"),
)
WRONG_FIELDS: dict[str, tuple[Any, ...]] = {
    "serviceCallId": ("", "x" * 201, "a\0b", "a\x9fb", 7, None),
    "tenantId": ("a b", None),
    "dueAt": (NOW, "tomorrow", "2026-11-21T09:00:00", None),
    "dueIn": ("90s", "P367D", True),
    "due": (iso(NOW),),
    "service_call_id": ("a",),
}
PAYLOADS = (
    *((schedule_timer(**{name: each}), f"payload.{name}") for name, values in WRONG_FIELDS.items() for each in values),
    (schedule_timer(dueIn="PT1S"), "payload.dueAt"),
    *((schedule_timer(expiresAt=iso(at)), "payload.expiresAt") for at in (NOW - 1, NOW)),
    *((schedule_timer(lateBy=each), "payload.lateBy") for each in (0, "P367D")),
    (schedule_timer(expiresAt=iso(NOW + 1), lateBy=1), "payload.lateBy"),
    (command("ScheduleTimer", {"serviceCallId": "a", "dueIn": 1, "expiresAt": iso(NOW)}), "payload.expiresAt"),
    *((with_data(number), "payload.data") for number in ("1e999", "-1e999", "[1e400]")),
    *((command("ScheduleTimer", {"serviceCallId": "a", **each}), "payload.dueAt") for each in ({}, {"dueIn": None})),
)
OUT_OF_RANGE = ("1969-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00")
OTHERS: tuple[tuple[RawCommand, Code, str], ...] = (
    *((raw_command(schedule_timer(due_at=at)), Code.DUE_AT_OUT_OF_RANGE, "payload.dueAt") for at in OUT_OF_RANGE),
    (
        raw_command(schedule_timer(due_at="9999-12-31T12:00:00Z", lateBy="P1D")),
        Code.DUE_AT_OUT_OF_RANGE,
        "payload.lateBy",
    ),
    (raw_command(schedule_timer(data="x" * (MAX_DATA_BYTES - 1))), Code.TOO_LARGE, "payload.data"),
    (raw_command(b"{" + b" " * (MAX_MESSAGE_BYTES - 1) + b"}"), Code.TOO_LARGE, ""),
    (raw_command(schedule_timer(), address=command_address("other")), Code.TENANT_MISMATCH, "tenantId"),
    (raw_command(schedule_timer(tenantId="other")), Code.TENANT_MISMATCH, "payload.tenantId"),
    (raw_command(schedule_timer(), address=command_address(message="cancel-timer")), Code.TYPE_MISMATCH, "type"),
)


@pytest.mark.parametrize(
    ("raw", "code", "path"),
    [
        *((raw_command(body), Code.INVALID_JSON, "") for body in INVALID_JSON),
        *((raw_command(body), Code.INVALID_ENVELOPE, path) for body, path in ENVELOPES),
        *((raw_command(body), Code.INVALID_PAYLOAD, path) for body, path in PAYLOADS),
        *OTHERS,
    ],
    ids=itertools.count(),
)
def test_rejections(raw: RawCommand, code: Code, path: str) -> None:
    """A command that is no strict JSON, or has a missing, wrong or unknown field, is rejected. The field is named."""
    rejected = rejection(raw)
    assert rejected.code is code
    assert [path] == [fault.path for fault in rejected.faults][:1] or not path
    assert path in rejected.message or code is not Code.INVALID_PAYLOAD


def test_command_without_an_address() -> None:
    """The reason of a command that something else has passed on says so."""
    rejected = rejection(raw_command(schedule_timer(), address=command_address("")))
    assert (rejected.code, "passed on" in rejected.message) == (Code.TENANT_MISMATCH, True)


def test_largest_command() -> None:
    """A body and data of exactly the maximum size are decoded. Data is counted as compact JSON."""
    fits = "é" * ((MAX_DATA_BYTES - 2) // 2)
    assert fits in str(decode(raw_command(schedule_timer(data=fits))).payload)
    assert rejection(raw_command(b"{" + b" " * (MAX_MESSAGE_BYTES - 2) + b"}")).code is Code.INVALID_ENVELOPE


def test_latest_expiry() -> None:
    """An expiry may be as late as a due time."""
    timer = decode(raw_command(schedule_timer(due_at=LATEST - 1, lateBy=1))).payload
    assert isinstance(timer, ScheduleTimer)
    assert (timer.due_at, timer.late_by) == (LATEST - 1, 1)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        *((name, "did you mean 'ScheduleTimer'?") for name in ("ScheduleTimr", "scheduleTimer")),
        ("Zzz", "known types: CancelTimer, CancelTimers, RetryTimer, ScheduleTimer"),
    ],
)
def test_unknown_type(name: str, hint: str) -> None:
    """The rejection of an unknown type names the nearest known type, or all of them."""
    rejected = rejection(raw_command(command(name, {}), address=command_address(message=kebab(name))))
    assert (rejected.code, hint in rejected.message) == (Code.UNKNOWN_TYPE, True)


def test_payload_without_a_tenant() -> None:
    """A payload without a tenant belongs to the tenant of the envelope."""
    body = command("CancelTimer", {"serviceCallId": "call-7"}, tenant="other")
    decoded = decode(raw_command(body, address=command_address("other", "cancel-timer")))
    assert decoded.payload == CancelTimer(tenant_id="other", service_call_id="call-7")
    assert decoded.tenant == "other"


def test_many_faults() -> None:
    """A rejection with many faults still fits into a header and an event. A line break in a name adds no header."""
    unknown: dict[str, Any] = {f"field{n}\r\nNats-Rollup: all" + "x" * 1000: n for n in range(100)}
    raw = raw_command(schedule_timer(**unknown))
    rejected = rejection(raw)
    assert (len(rejected.faults), len(rejected.message) < 1500) == (20, True)
    assert all(len(fault.path) <= 300 for fault in rejected.faults)
    assert all(
        value.isprintable() for value in Rejected(raw, rejected, None).letter(MAX_MESSAGE_BYTES).headers.values()
    )


MORE = "01" + TRACEPARENT[2:] + "-more"


@pytest.mark.parametrize(
    ("headers", "trace"),
    [
        ({}, Trace()),
        ({"traceparent": TRACEPARENT}, Trace(TRACEPARENT)),
        *(({"traceparent": TRACEPARENT, "tracestate": each}, Trace(TRACEPARENT)) for each in ("", "x" * 513, "a=\0")),
        ({"traceparent": MORE}, Trace(MORE)),
        *(
            ({"traceparent": each, "tracestate": "a=b"}, Trace())
            for each in (TRACEPARENT.upper(), TRACEPARENT + "\n-more", TRACEPARENT + "-\0", "junk")
        ),
        ({"tracestate": "a=b"}, Trace()),
    ],
    ids=itertools.count(),
)
def test_trace(headers: dict[str, str], trace: Trace) -> None:
    """A well-formed trace context is kept. A malformed one is ignored, and the command is still accepted."""
    assert decode(raw_command(schedule_timer(), headers=headers)).trace == trace


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FIELDS = "tenantId", "serviceCallId", "dueAt", "data", "id", "type", "payload", "correlationId", "timestampMs"
field_values = json_values | st.sampled_from(["acme", "call-1", iso(NOW), "ScheduleTimer", "0000-01-01T00:00:00Z"])


@given(
    st.dictionaries(st.sampled_from(FIELDS) | st.text(), field_values, max_size=5),
    st.dictionaries(st.sampled_from(FIELDS) | st.text(), field_values, max_size=3),
)
def test_arbitrary_fields(payload: dict[str, Any], envelope: dict[str, Any]) -> None:
    """A command with random fields is either decoded or rejected with a message."""
    body = {"type": "ScheduleTimer", "tenantId": "acme", "payload": {"tenantId": "acme", **payload}, **envelope}
    try:
        decoded = decode(raw_command(json.dumps(body).encode("utf-8", "surrogatepass")))
    except Rejection as rejected:
        assert rejected.message  # noqa: PT017 - a rejection is one of the two correct results
    else:
        assert decoded.tenant == "acme"


def test_event() -> None:
    """An event has every field of the envelope, and its trace as headers. Fields that it does not have are omitted."""
    ids = {"correlation_id": 'corr"', "causation_id": 'cause"'}
    event = Event('e"', "work.signal.fired", "acme", {"a": None}, NOW, **ids, trace=Trace(TRACEPARENT, "a=b"))
    message = encode(event)
    assert (message.address, message.id) == (Address(Kind.EVENT, "acme", "work-signal-fired"), 'e"')
    assert message.headers == {"traceparent": TRACEPARENT, "tracestate": "a=b"}
    bare = {"id": 'e"', "type": "work.signal.fired", "tenantId": "acme", "timestampMs": NOW, "payload": {"a": None}}
    assert json.loads(message.body) == {**bare, "correlationId": 'corr"', "causationId": 'cause"'}
    less = encode(event._replace(correlation_id=None, causation_id=None, trace=Trace()))
    assert (json.loads(less.body), less.headers) == (bare, {})
