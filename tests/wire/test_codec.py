import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.builders import command, command_address, raw_command, schedule_timer
from tests.harness.clock import NOW, iso
from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.codec import MAX_COMMAND_BYTES, REPLY_TO, decode_command, decode_envelope, encode
from timer_service.core.values.data import MAX_DATA_BYTES
from timer_service.core.values.errors import Code, Fault, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES, Address, Command, Event, Kind, Position, Trace, kebab
from timer_service.core.values.raw_command import RawCommand
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
    """A decoded command has every field of the body and the headers."""
    body = schedule_timer(
        "call-7",
        "2026-11-21T10:00:00+01:00",
        data={"a": [1, None]},
        envelope={"id": "cmd-1", "correlationId": "corr", "causationId": "cause", "timestampMs": NOW},
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


def test_smallest_command() -> None:
    """Optional fields may be omitted. The id is then that of the broker."""
    decoded = decode(raw_command(schedule_timer(), position=Position(1, 9)))
    assert (decoded.id, decoded.correlation_id, decoded.reply_to, decoded.trace) == ("message-9", None, None, Trace())


@pytest.mark.parametrize(("text", "is_set"), [("null", True), (None, False)])
def test_null_data_is_not_absent_data(text: str | None, is_set: bool) -> None:  # noqa: FBT001
    """`data: null` and no data are different, so that the event can repeat exactly what the command had."""
    body = schedule_timer() if text is None else with_data(text)
    payload = decode(raw_command(body)).payload
    assert isinstance(payload, ScheduleTimer)
    assert payload.data is None
    assert ("data" in payload.model_fields_set) is is_set


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'{"a": 1} {}',
        b'\xef\xbb\xbf{"a": 1}',
        b"\xff\xfe",
        schedule_timer(call="X").replace(b"X", b"\xff"),
        schedule_timer(call="X").replace(b"X", rb"\ud800"),
        with_data(r'"\ud800"'),
        with_data(r'{"\udfff": 1}'),
        with_data("NaN"),
        with_data("Infinity"),
        with_data("-Infinity"),
        with_data("[" * 10_000),
        with_data("9" * 5000),
    ],
    ids=range(15),
)
def test_invalid_json(body: bytes) -> None:
    """A body that is not strict JSON in UTF-8 is rejected. Lone surrogates, NaN and Infinity are not JSON."""
    assert rejection(raw_command(body)).code is Code.INVALID_JSON


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"null", "(body)"),
        (b"[]", "(body)"),
        (b'"ScheduleTimer"', "(body)"),
        (b"{}", "type"),
        (schedule_timer(envelope={"type": None}), "type"),
        (schedule_timer(envelope={"type": "a\0b"}), "type"),
        (schedule_timer(envelope={"payload": None}), "payload"),
        (schedule_timer(envelope={"payload": []}), "payload"),
        (schedule_timer(tenant=""), "tenantId"),
        (schedule_timer(tenant="a.b"), "tenantId"),
        (schedule_timer(tenant="é"), "tenantId"),
        (schedule_timer(tenant="acme\n"), "tenantId"),
        (schedule_timer(tenant="x" * 65), "tenantId"),
        (schedule_timer(envelope={"id": ""}), "id"),
        (schedule_timer(envelope={"id": 7}), "id"),
        (schedule_timer(envelope={"id": "x" * 201}), "id"),
        (schedule_timer(envelope={"id": "a\0"}), "id"),
        (schedule_timer(envelope={"correlationId": "\x7f"}), "correlationId"),
        (schedule_timer(envelope={"causationId": "a\nb"}), "causationId"),
        (schedule_timer(envelope={"timestampMs": "soon"}), "timestampMs"),
        (schedule_timer(envelope={"timestampMs": "5"}), "timestampMs"),
        (schedule_timer(envelope={"timestampMs": 5.0}), "timestampMs"),
    ],
    ids=range(22),
)
def test_invalid_envelope(body: bytes, path: str) -> None:
    """An envelope with a missing or wrong field is rejected, and the rejection names the field."""
    rejected = rejection(raw_command(body))
    assert rejected.code is Code.INVALID_ENVELOPE
    assert path in [fault.path for fault in rejected.faults]


def test_snake_case_envelope() -> None:
    """The names of the envelope's fields are camelCase only."""
    body = json.dumps({"type": "ScheduleTimer", "tenant_id": "acme", "payload": {}}).encode()
    assert rejection(raw_command(body)).faults == (Fault("tenantId", "is missing"),)


def test_unknown_envelope_field() -> None:
    """An unknown envelope field is ignored, so that v1 can get new fields."""
    assert decode(raw_command(schedule_timer(envelope={"priority": 1}))) == decode(raw_command(schedule_timer()))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ScheduleTimr", "did you mean 'ScheduleTimer'?"),
        ("scheduleTimer", "did you mean 'ScheduleTimer'?"),
        ("Zzz", "known types: "),
    ],
)
def test_unknown_type(name: str, hint: str) -> None:
    """The rejection of an unknown type names the nearest known type, or all of them."""
    rejected = rejection(raw_command(command(name, {}), address=command_address(message=kebab(name))))
    assert rejected.code is Code.UNKNOWN_TYPE
    assert hint in rejected.message
    assert "ScheduleTimer" in rejected.message


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"serviceCallId": ""}, "payload.serviceCallId"),
        ({"serviceCallId": "x" * 201}, "payload.serviceCallId"),
        ({"serviceCallId": "a\0b"}, "payload.serviceCallId"),
        ({"serviceCallId": "a\x9fb"}, "payload.serviceCallId"),
        ({"serviceCallId": 7}, "payload.serviceCallId"),
        ({"serviceCallId": None}, "payload.serviceCallId"),
        ({"tenantId": "a b"}, "payload.tenantId"),
        ({"tenantId": None}, "payload.tenantId"),
        ({"dueAt": NOW}, "payload.dueAt"),
        ({"dueAt": "tomorrow"}, "payload.dueAt"),
        ({"dueAt": "2026-11-21T09:00:00"}, "payload.dueAt"),
        ({"dueAt": None}, "payload.dueAt"),
        ({"due": iso(NOW)}, "payload.due"),
        ({"service_call_id": "a"}, "payload.service_call_id"),
    ],
    ids=range(14),
)
def test_invalid_payload(payload: dict[str, Any], path: str) -> None:
    """A payload with a wrong or unknown field is rejected, and the rejection names the field."""
    rejected = rejection(raw_command(schedule_timer(**payload)))
    assert rejected.code is Code.INVALID_PAYLOAD
    assert [fault.path for fault in rejected.faults] == [path]
    assert path in rejected.message


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        ({}, "dueAt", "is missing: give either dueAt or dueIn"),
        ({"dueIn": None}, "dueAt", "is missing: give either dueAt or dueIn"),
        ({"dueAt": iso(NOW), "dueIn": "PT1S"}, "dueAt", "cannot be combined with dueIn"),
        ({"dueIn": "90s"}, "dueIn", "must be an ISO 8601 duration"),
        ({"dueIn": "P367D"}, "dueIn", "must be from PT0S to P366D"),
        ({"dueIn": True}, "dueIn", "must be an ISO 8601 duration"),
    ],
)
def test_invalid_due_time(fields: dict[str, Any], path: str, reason: str) -> None:
    """A ScheduleTimer without a due time, with two, or with a wrong duration is rejected, and the field is named."""
    rejected = rejection(raw_command(command("ScheduleTimer", {"serviceCallId": "a", **fields})))
    (fault,) = rejected.faults
    assert (rejected.code, fault.path) == (Code.INVALID_PAYLOAD, f"payload.{path}")
    assert reason in fault.reason


def test_late_by_that_is_too_long() -> None:
    """A `lateBy` whose expiry would be after the year 9999 has a reason that says so."""
    rejected = rejection(raw_command(schedule_timer(due_at="9999-12-31T12:00:00Z", lateBy="P1D")))
    (fault,) = rejected.faults
    assert (rejected.code, fault.path) == (Code.DUE_AT_OUT_OF_RANGE, "payload.lateBy")
    assert fault.reason == "must be shorter: the expiry must be between 1970-01-01 and 9999-12-31 (UTC)"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"serviceCallId": ""}, "must be 1 to 200 characters without control characters"),
        ({"tenantId": "a b"}, "must be 1 to 64 letters, digits, dashes or underscores"),
    ],
)
def test_reason_of_a_wrong_id(fields: dict[str, Any], reason: str) -> None:
    """The reason says which ids are allowed, in the words of the command line."""
    assert [fault.reason for fault in rejection(raw_command(schedule_timer(**fields))).faults] == [reason]


def test_reason_of_a_body_that_is_no_object() -> None:
    """A body that is other JSON must be an object."""
    assert [fault.reason for fault in rejection(raw_command(b"[]")).faults] == ["must be an object"]


@pytest.mark.parametrize(("nanoseconds", "expected"), [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2)])
def test_command_time(nanoseconds: int, expected: int) -> None:
    """A command has the time when the broker stored it, rounded up to the millisecond."""
    assert decode(raw_command(schedule_timer(), stored_at=nanoseconds)).stored_at == expected


def test_snake_case_payload() -> None:
    """The names of the payload's fields are camelCase only. Other spellings are unknown fields."""
    body = command("ScheduleTimer", {"tenant_id": "acme", "service_call_id": "a", "due_at": iso(NOW)})
    rejected = rejection(raw_command(body))
    names = "serviceCallId", "dueAt", "tenant_id", "service_call_id", "due_at"
    assert (rejected.code, [fault.path for fault in rejected.faults]) == (
        Code.INVALID_PAYLOAD,
        [f"payload.{name}" for name in names],
    )


@pytest.mark.parametrize("number", ["1e999", "-1e999", "[1e400]"])
def test_number_that_json_cannot_hold(number: str) -> None:
    """A number that would become infinite is rejected, because no event could repeat it."""
    rejected = rejection(raw_command(with_data(number)))
    assert rejected.code is Code.INVALID_PAYLOAD
    assert [fault.path for fault in rejected.faults] == ["payload.data"]


@pytest.mark.parametrize("due_at", ["1969-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00"])
def test_due_at_out_of_range(due_at: str) -> None:
    """A due time outside the range has its own code, even if there are other faults."""
    rejected = rejection(raw_command(schedule_timer(due_at=due_at, call="")))
    assert rejected.code is Code.DUE_AT_OUT_OF_RANGE
    assert {fault.path for fault in rejected.faults} == {"payload.dueAt", "payload.serviceCallId"}


@pytest.mark.parametrize(("spare", "code"), [(0, Code.INVALID_ENVELOPE), (1, Code.TOO_LARGE)])
def test_largest_body(spare: int, code: Code) -> None:
    """A body of exactly the maximum size is decoded. A body with one byte more is not."""
    body = b"{" + b" " * (MAX_COMMAND_BYTES + spare - 2) + b"}"
    assert rejection(raw_command(body)).code is code


def test_largest_data() -> None:
    """Data may have exactly the maximum number of bytes as compact JSON. One byte more is too large."""
    fits = "é" * ((MAX_DATA_BYTES - 2) // 2)
    decoded = decode(raw_command(schedule_timer(data=fits)))
    rejected = rejection(raw_command(schedule_timer(data=fits + "x")))
    assert isinstance(decoded.payload, ScheduleTimer)
    assert decoded.payload.data == fits
    assert (rejected.code, [fault.path for fault in rejected.faults]) == (Code.TOO_LARGE, ["payload.data"])


def test_subject_of_another_tenant() -> None:
    """The address must name the command's tenant, because the broker checks permissions on addresses."""
    rejected = rejection(raw_command(schedule_timer(), address=command_address("other")))
    assert (rejected.code, rejected.faults) == (Code.TENANT_MISMATCH, (Fault("tenantId", "must be 'other'"),))


def test_payload_without_a_tenant() -> None:
    """A payload without a tenant belongs to the tenant of the envelope."""
    body = command("CancelTimer", {"serviceCallId": "call-7"}, tenant="other")
    decoded = decode(raw_command(body, address=command_address("other", "cancel-timer")))
    assert decoded.payload == CancelTimer(tenant_id="other", service_call_id="call-7")
    assert decoded.tenant == "other"


def test_payload_of_another_tenant() -> None:
    """The tenant of the payload, if present, must equal that of the envelope."""
    rejected = rejection(raw_command(schedule_timer(tenantId="other")))
    assert (rejected.code, rejected.faults) == (Code.TENANT_MISMATCH, (Fault("payload.tenantId", "must be 'acme'"),))


def test_subject_of_another_type() -> None:
    """The address must name the command's type."""
    rejected = rejection(raw_command(schedule_timer(), address=command_address(message="cancel-timer")))
    assert (rejected.code, rejected.faults) == (
        Code.TYPE_MISMATCH,
        (Fault("type", "must be published as 'schedule-timer'"),),
    )


def test_many_faults() -> None:
    """A rejection with many faults still fits into a header and an event."""
    unknown: dict[str, Any] = {f"field{n}" + "x" * 1000: n for n in range(100)}
    rejected = rejection(raw_command(schedule_timer(**unknown)))
    assert len(rejected.faults) == 20
    assert all(len(fault.path) <= 300 for fault in rejected.faults)
    assert len(rejected.message) < 1500


def test_field_name_with_a_line_break() -> None:
    """A field name with a line break cannot add a header to the dead letter."""
    unknown: dict[str, Any] = {"x\r\nNats-Rollup: all": 1}
    raw = raw_command(schedule_timer(**unknown))
    letter = Rejected(raw, rejection(raw), None).letter(MAX_MESSAGE_BYTES)
    assert all(value.isprintable() for value in letter.headers.values())


@pytest.mark.parametrize("header", [10, 58_000, 65_000])
@pytest.mark.parametrize("body", [0, 1000, MAX_MESSAGE_BYTES - 65_000, MAX_MESSAGE_BYTES - 100, MAX_MESSAGE_BYTES])
def test_dead_letter_fits(body: int, header: int) -> None:
    """A dead letter of any command fits into a message, and its headers name the omitted parts."""
    command = raw_command(b"x" * body, headers={"note": "y" * header})
    letter = Rejected(command, rejection(command), None).letter(MAX_MESSAGE_BYTES)
    headers = sum(len(name) + len(value) + 4 for name, value in letter.headers.items())
    whole = body + header < MAX_MESSAGE_BYTES - 5_000
    assert (headers < 61_000, len(letter.body) + headers < MAX_MESSAGE_BYTES - 500) == (True, True)
    assert letter.headers["Timer-Source-Sequence"] == str(command.position.sequence)
    kept = [name for name in ("Timer-Original-Headers", "Timer-Headers-Omitted") if name in letter.headers]
    assert kept == ["Timer-Original-Headers" if header < 60_000 else "Timer-Headers-Omitted"]
    assert letter.body == (b"" if "Timer-Body-Omitted" in letter.headers else command.body)
    assert not whole or "Timer-Body-Omitted" not in letter.headers


@pytest.mark.parametrize(
    ("headers", "trace"),
    [
        ({}, Trace()),
        ({"traceparent": TRACEPARENT}, Trace(TRACEPARENT)),
        ({"traceparent": TRACEPARENT, "tracestate": "a=b,c=d"}, Trace(TRACEPARENT, "a=b,c=d")),
        ({"traceparent": TRACEPARENT, "tracestate": ""}, Trace(TRACEPARENT)),
        ({"traceparent": TRACEPARENT, "tracestate": "x" * 513}, Trace(TRACEPARENT)),
        ({"traceparent": "01" + TRACEPARENT[2:] + "-more"}, Trace("01" + TRACEPARENT[2:] + "-more")),
        ({"traceparent": TRACEPARENT.upper()}, Trace()),
        ({"traceparent": TRACEPARENT + "\n-more"}, Trace()),
        ({"traceparent": "junk", "tracestate": "a=b"}, Trace()),
        ({"tracestate": "a=b"}, Trace()),
    ],
    ids=range(10),
)
def test_trace(headers: dict[str, str], trace: Trace) -> None:
    """A well-formed trace context is kept. A malformed one is ignored, and the command is still accepted."""
    assert decode(raw_command(schedule_timer(), headers=headers)).trace == trace


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": TRACEPARENT + "-\0"},
        {"traceparent": TRACEPARENT + "-\r"},
        {"traceparent": TRACEPARENT, "tracestate": "a=\0"},
        {"traceparent": TRACEPARENT, "tracestate": "a=b\r\nNats-Rollup: all"},
    ],
    ids=range(4),
)
def test_trace_with_control_characters(headers: dict[str, str]) -> None:
    """A trace context cannot contain characters that a database cannot store or that end a header."""
    trace = decode(raw_command(schedule_timer(), headers=headers)).trace
    assert all(part is None or part.isprintable() for part in trace)


@given(st.binary())
def test_arbitrary_bytes(body: bytes) -> None:
    """Random bytes are rejected, and decoding raises no other error."""
    with pytest.raises(Rejection):
        decode(raw_command(body))


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
    """An event has every field of the envelope, and its trace as headers."""
    event = Event("e-1", "work.signal.fired", "acme", {"a": None}, NOW, "corr", "cause", Trace(TRACEPARENT, "a=b"))
    message = encode(event)
    assert message.address == Address(Kind.EVENT, "acme", "work-signal-fired")
    assert message.id == "e-1"
    assert message.headers == {"traceparent": TRACEPARENT, "tracestate": "a=b"}
    assert json.loads(message.body) == {
        "id": "e-1",
        "type": "work.signal.fired",
        "tenantId": "acme",
        "correlationId": "corr",
        "causationId": "cause",
        "timestampMs": NOW,
        "payload": {"a": None},
    }


def test_event_without_extras() -> None:
    """Fields that an event does not have are omitted, not sent as null."""
    message = encode(Event("e-1", "DueTimeReached", "acme", {}, NOW))
    assert message.headers == {}
    assert set(json.loads(message.body)) == {"id", "type", "tenantId", "timestampMs", "payload"}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ScheduleTimer", "schedule-timer"),
        ("DueTimeReached", "due-time-reached"),
        ("work.signal.fired", "work-signal-fired"),
        ("A", "a"),
    ],
)
def test_kebab(name: str, part: str) -> None:
    """A type becomes one part of an address: words and dots are joined by dashes."""
    assert kebab(name) == part
