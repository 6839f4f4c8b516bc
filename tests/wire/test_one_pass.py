import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.harness.builders import command, command_address, raw_command, schedule_timer
from tests.harness.clock import NOW, iso
from timer_service.app.slices import SLICES
from timer_service.core.intake.decoder import decode
from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.address import kebab
from timer_service.core.values.codec import decode_command, decode_envelope, decode_usual_command
from timer_service.core.values.data import dump_data
from timer_service.core.values.errors import Rejection
from timer_service.core.values.message import Command, CommandPayload, TenantPayload
from timer_service.core.values.raw_command import RawCommand
from timer_service.timers.messages import PlainTimer, ScheduleTimer

PAYLOADS = {payload.type: payload for each in SLICES for payload in each.commands}
MODELS = {kebab(name): model for name, model in PAYLOADS.items()}
NUMBERS = ("0", "-1", "1.0", "1e5", "1e999", "9" * 40, "NaN", "Infinity", "-Infinity", "01")
ODD = (
    *('""', '"a\\u0000"', '"\\u0085"', '"\\u00a0"', '"\\ud800"', '"A"', '"x" ', "null", "true", "{}", "[]"),
    *('{"a":1,"a":2}', "[" * 250 + "]" * 250),
)
TEXTS = (
    *("a-_0", "a" * 64, "a" * 65, "-a", "a\n", "a.b", "é"),
    *("acme", "other", "", "call-1", "ScheduleTimer", "CancelTimer", "PT5M", "P1M", "2026-11-21T10:00:00+01:00"),
    *("2026-11-21T10:00:00Z", "2026-11-21T10:00:00.123Z", "2026-11-21T10:00:00.1234Z", "2026-02-30T10:00:00Z"),
    *("0000-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z", "2026-11-21 10:00:00Z"),
)
VALUES = st.sampled_from((*NUMBERS, *ODD, *map(json.dumps, TEXTS)))
FIELDS = (
    *("tenantId", "serviceCallId", "dueAt", "dueIn", "expiresAt", "lateBy", "topic", "data"),
    *("service_call_id", "prefix", "x"),
)
ENVELOPE = ("id", "correlationId", "causationId", "timestampMs", "tenant_id", "x")


def in_steps(raw: RawCommand) -> Command | None:
    """Return the command, decoded in steps; None if they reject it."""
    try:
        return decode_command(raw, decode_envelope(raw.body), PAYLOADS)
    except Rejection:
        return None


def plain(payload: CommandPayload) -> PlainTimer:
    """Return the values that a plain decoder must find for a model."""
    assert isinstance(payload, ScheduleTimer)
    assert payload.expires_at is payload.late_by is None
    data = dump_data(payload.data) if "data" in payload.model_fields_set else None
    return PlainTimer(payload.tenant_id, payload.service_call_id, payload.due_at, payload.due_in, data, payload.topic)


def write(fields: list[tuple[str, str]]) -> str:
    """Return a JSON object. A name may occur twice, and a value may be no JSON."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields) + "}"


def draw_fields(draw: st.DrawFn, names: tuple[str, ...], usual: list[tuple[str, str]]) -> list[tuple[str, str]]:
    kept = [field for field in usual if draw(st.integers(0, 9))]
    more = draw(st.lists(st.tuples(st.sampled_from(names), VALUES), max_size=2))
    return draw(st.permutations([*kept, *more]))


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Draw a body that is like a ScheduleTimer. About half of them are valid."""
    usual = [("tenantId", '"acme"'), ("serviceCallId", '"call-1"'), ("dueAt", json.dumps(iso(NOW)))]
    payload = write(draw_fields(draw, FIELDS, usual)) if draw(st.integers(0, 19)) else draw(VALUES)
    envelope = [("type", '"ScheduleTimer"'), ("tenantId", '"acme"'), ("payload", payload)]
    return write(draw_fields(draw, ENVELOPE, envelope)) if draw(st.integers(0, 19)) else draw(VALUES)


def assert_agree(raw: RawCommand) -> Command | None:
    """Check that what one pass accepts is what the steps accept. Return it."""
    at_once = decode_usual_command(raw, MODELS)
    if at_once is not None:
        expected = in_steps(raw)
        assert expected is not None
        if isinstance(at_once.payload, PlainTimer):
            expected = expected._replace(payload=plain(expected.payload))
        else:
            assert isinstance(at_once.payload, TenantPayload)
            assert isinstance(expected.payload, TenantPayload)
            assert at_once.payload.model_fields_set == expected.payload.model_fields_set
        assert at_once == expected
        assert repr(at_once) == repr(expected)  # 1 and 1.0 and True are equal
        assert type(at_once.payload) is type(expected.payload)
    return at_once


@given(bodies())
@example('{"type":"ScheduleTimer","tenantId":"acme","x":NaN,"payload":{"serviceCallId":"c","dueIn":5}}')
@example('{"type":"ScheduleTimer","tenantId":"acme","payload":{"serviceCallId":"c","dueIn":5,"data":1e999}}')
@example('{"type":"ScheduleTimer","tenantId":"acme","payload":{"serviceCallId":"c","dueIn":5,"dueIn":6}}')
@example('{"type":"ScheduleTimer","tenantId":"acme","payload":{"serviceCallId":"c","dueIn":NaN,"dueIn":6}}')
@example('{"type":"ScheduleTimer","tenantId":"acme","payload":{"serviceCallId":"c","dueIn":Infinity,"dueIn":6}}')
@example(
    '{"type":"ScheduleTimer","tenantId":"acme","correlationId":"\\u0085","payload":{"serviceCallId":"c","dueIn":5}}'
)
@example('{"type":"ScheduleTimer","tenantId":"acme","payload":{"serviceCallId":"c","dueIn":5,"tenantId":null}}')
def test_one_pass_agrees_with_the_steps(text: str) -> None:
    """Whatever one pass accepts, the steps accept with the same values, and the other way round."""
    raw = raw_command(text.encode("utf-8", "surrogatepass"))
    assert (assert_agree(raw) is None) == (in_steps(raw) is None)


@pytest.mark.parametrize(
    "value", ['"other"', '"a\\u0001"', '""', "7", "null", "NaN", "-Infinity", "31622400000", "31622400001"]
)
@pytest.mark.parametrize(
    "field", ["payload.tenantId", "payload.dueIn", "payload.data", "id", "causationId", "tenantId"]
)
def test_one_pass_agrees_for_each_field(field: str, value: str) -> None:
    """One pass and the steps agree whichever value a field has: of another tenant, not printable, or at a limit."""
    payload, envelope = {"serviceCallId": '"c"', "dueIn": "5"}, {"type": '"ScheduleTimer"', "tenantId": '"acme"'}
    (payload if field.startswith("payload.") else envelope)[field.removeprefix("payload.")] = value
    raw = raw_command(write([*envelope.items(), ("payload", write([*payload.items()]))]).encode())
    assert (assert_agree(raw) is None) == (in_steps(raw) is None)


EXAMPLES: dict[str, dict[str, Any]] = {
    "ScheduleTimer": {"serviceCallId": "c", "dueIn": "PT5M", "lateBy": 5, "data": {"a": [1.5, None, "ü"]}},
    "CancelTimers": {"prefix": "c"},
    "CreateWorkItem": {"workItemId": "w", "status": "open"},
    "PutSchedule": {"scheduleId": "s", "cron": "0 8 * * *", "zone": "Europe/Berlin"},
    "BackfillSchedule": {"scheduleId": "s", "from": "2026-11-01T00:00:00Z", "to": "2026-11-08T00:00:00Z", "limit": 9},
    "StartRun": {"runId": "r", "jobs": [{"name": "a"}, {"name": "b", "needs": ["a"]}]},
}


@pytest.mark.parametrize("message_type", EXAMPLES)
@pytest.mark.parametrize("tenant", [{}, {"tenantId": "acme"}, {"tenantId": "other"}])
def test_commands_of_every_slice_are_decoded_in_one_pass(message_type: str, tenant: dict[str, str]) -> None:
    """A usual command is decoded in one pass, with and without the tenant in its payload. One of another is not."""
    body = command(message_type, {**EXAMPLES[message_type], **tenant}, envelope={"id": "1", "correlationId": "2"})
    for name in ("acme", "other"):
        raw = raw_command(body, address=command_address(name, kebab(message_type)))
        assert (assert_agree(raw) is not None) is (name == "acme" == tenant.get("tenantId", "acme"))


async def test_rejections_come_from_the_steps() -> None:
    """A command that one pass refuses gets the error of the steps, and the others of its batch are decoded."""
    batch = [raw_command(schedule_timer(dueAt="tomorrow")), raw_command(schedule_timer())]
    decoded = await decode(batch, PAYLOADS)
    with pytest.raises(Rejection) as expected:
        decode_command(batch[0], decode_envelope(batch[0].body), PAYLOADS)
    rejected, accepted = decoded
    assert isinstance(rejected, Rejected)
    assert rejected.rejection.faults == expected.value.faults
    assert isinstance(accepted, Command)
    assert isinstance(accepted.payload, PlainTimer)
