"""Decodes commands and encodes events. Pure functions; input that cannot be read raises a `Rejection`."""

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

from pydantic import ValidationError, create_model
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, from_json

from timer_service.core.values.address import MAX_MESSAGE_BYTES, TENANT_PATTERN, TOPIC_PATTERN, Address, Kind, kebab
from timer_service.core.values.errors import Code, Fault, Rejection
from timer_service.core.values.message import Command, CommandPayload, Envelope, Event, Message, TenantPayload, Trace
from timer_service.core.values.raw_command import Headers, RawCommand
from timer_service.core.values.stored_json import quote, write

MAX_BRACKETS = 128 * 1024
"""The most arrays and objects of a command. Each takes up to 200 bytes of memory, however few it has on the wire."""
MAX_FIELDS = 1000
"""The most fields of a payload, so that unknown fields cannot cost more than the rest of the command."""
_MAX_FAULTS = 20
_MAX_COUNTED_FAULTS = 1000
"""Above this, faults are counted and not described. Describing 100,000 faults takes 80 MiB and a second."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?")
_TRACESTATE = re.compile(r"[ -~]{1,512}")
_PHRASES = {
    "Extra inputs are not permitted": "is not a known field",
    "Unexpected keyword argument": "is not a known field",
    "Field required": "is missing",
    f"String should match pattern '{TENANT_PATTERN}'": "must be 1 to 64 letters, digits, dashes or underscores",
    f"String should match pattern '{TOPIC_PATTERN}'": (
        "must be 1 to 64 lower-case letters, digits, dashes or underscores, and begin with a letter or digit"
    ),
    r"String should match pattern '^[^\x00]*$'": "must not contain the character U+0000",
}
_REWORDED = (
    (re.compile(r"Input should be a (valid )?dictionary( or (an )?instance of \w+)?"), "must be an object"),
    (
        re.compile(r"String should match pattern '\^\[\^\\x00-\\x1f\\x7f-\\x9f\]\{1,(\d+)\}\$'"),
        r"must be 1 to \1 characters without control characters",
    ),
    (
        re.compile(r"String should match pattern '\^\[\^\\x00-\\x1f\\x7f-\\x9f:\]\{1,(\d+)\}\$'"),
        r"must be 1 to \1 characters without colons and control characters",
    ),
    (re.compile(r"String should match pattern '\^\[0-9a-f\]\{(\d+)\}\$'"), r"must be \1 hex digits"),
    (
        re.compile(r"String should match pattern '\^.*\(:\[1-9\].*\$'"),
        "must be a name, or a name with a colon and a number such as pay:1",
    ),
    (re.compile(r"(\w+)' does not match any of the expected tags:"), r"needs \1 to be one of"),
    (re.compile(r"Unable to extract tag using discriminator '(\w+)'"), r"must be an object with \1"),
    (re.compile(r" after validation, not \d+"), ""),
)
_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
"""The types of the faults whose path ends with a name that the user wrote."""
_TAG, _FOUND_TAG = "Input tag '", "' found using '"
"""What stands before and behind the only value of a user in a message of the validation library."""
_LONGEST_REASON = 1000
"""It takes 10 µs to reword, whatever it quotes."""
_SHOULD = re.compile(r"^(Input|Value|String|List|Tuple|Dictionary|Number) should ")
_NO_TRACE = Trace()

REPLY_TO = "Timer-Reply-To"
_NANOSECONDS_PER_MILLISECOND = 1_000_000
_MOST_BYTES_IN_ONE_PASS = 16 * 1024
"""A larger body is decoded in steps: a hostile one must not cost twice."""


def decode_command(raw: RawCommand, envelope: Envelope, payloads: Mapping[str, type[TenantPayload]]) -> Command:
    """Return the command in an envelope. `payloads` maps each known type to its model. Raises `Rejection`."""
    model = payloads.get(envelope.type)
    if model is None:
        near = difflib.get_close_matches(envelope.type, payloads, n=1)
        suggestion = f"did you mean {near[0]!r}?" if near else f"known types: {', '.join(sorted(payloads))}"
        raise Rejection(Code.UNKNOWN_TYPE, f"unknown type {envelope.type!r}; {suggestion}")
    _check_address(raw.address, envelope)
    return _command(raw, envelope.id, envelope.correlation_id, _payload(model, envelope))


def decode_usual_command(raw: RawCommand, models: Mapping[str, type[TenantPayload]]) -> Command | None:
    """Return a command, decoded in one pass; None if it must be decoded in steps, which name its faults.

    `models` has the model of each known type by its name in addresses.
    """
    tenant = raw.address.tenant
    if (model := models.get(raw.address.message)) is None:
        return None
    if (plain := model.decode_plain(raw.body)) is not None:
        command_id, correlation_id, payload = plain
        return _command(raw, command_id, correlation_id, payload) if payload.tenant_id == tenant else None
    envelope = _decode_in_one_pass(raw.body, model)
    if envelope is None or envelope.tenant_id != tenant or envelope.payload.tenant_id != tenant:
        return None
    return _command(raw, envelope.id, envelope.correlation_id, envelope.payload)


class _TypedEnvelope(Envelope):
    """An envelope whose payload is the model of the command's type."""

    payload: Any


def _decode_in_one_pass(body: bytes, model: type[TenantPayload]) -> _TypedEnvelope | None:
    """Return the envelope of a command with its valid payload; None if the body must be decoded in steps.

    The steps name every fault. One pass is quicker, and refuses what is unusual. Both use the same models, so they take
    the same commands. If the payload names no tenant, it gets that of the envelope. It may name another one.
    """
    if len(body) > _MOST_BYTES_IN_ONE_PASS:
        return None
    try:
        document = from_json(body, allow_inf_nan=False)
        document["payload"].setdefault("tenantId", document["tenantId"])
        # `model_validate` calls only this, and takes 0.3 µs more.
        envelope: _TypedEnvelope = _typed(model).__pydantic_validator__.validate_python(
            document, by_alias=True, by_name=False
        )
    except (ValueError, LookupError, TypeError, AttributeError):  # not JSON, not valid, or not objects
        return None
    return envelope


@cache
def _typed(model: type[TenantPayload]) -> type[_TypedEnvelope]:
    """Return the model of an envelope whose payload is of one type."""
    fields: Any = {"type": (Literal[model.type], ...), "payload": (model, ...)}
    return create_model(f"{model.__name__}Envelope", __base__=_TypedEnvelope, **fields)


def _command(raw: RawCommand, command_id: str | None, correlation_id: str | None, payload: CommandPayload) -> Command:
    """Return a command with what its body has, and what the broker and the headers say about it."""
    headers = raw.headers
    return Command(  # without the names of the fields, because this is called for each command
        command_id or raw.message_id,
        payload,
        raw.position,
        correlation_id,
        read_trace(headers),
        headers.get(REPLY_TO),
        -(-raw.stored_at // _NANOSECONDS_PER_MILLISECOND),  # rounded up
    )


def decode_envelope(body: bytes) -> Envelope:
    """Return the envelope of a command. Raises `Rejection`."""
    document = read_json(body, "the body", MAX_MESSAGE_BYTES)
    try:
        return Envelope.model_validate(document)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_ENVELOPE, "the envelope", error) from error


def read_json(body: bytes, subject: str, most_bytes: int) -> Any:
    """Return the JSON of a message. Raises `Rejection` if it is none or too large; `subject` names the message."""
    if len(body) > most_bytes:
        raise Rejection(Code.TOO_LARGE, f"{subject} has {len(body)} bytes; the limit is {most_bytes}")
    # A shorter body cannot have too many. Brackets in strings count too.
    brackets = body.count(b"[") + body.count(b"{") if len(body) > MAX_BRACKETS else 0
    if brackets > MAX_BRACKETS:
        raise Rejection(Code.TOO_LARGE, f"{subject} has {brackets} arrays and objects; the limit is {MAX_BRACKETS}")
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Rejection(Code.INVALID_JSON, f"the body is not JSON: {error}") from error


def encode(event: Event) -> Message:
    """Return the message that carries an event."""
    return encode_event(
        event.id,
        event.type,
        event.tenant,
        write(event.payload).text,
        event.timestamp_ms,
        event.correlation_id,
        event.causation_id,
        *event.trace,
        event.topic,
    )


def encode_event(  # noqa: PLR0917 - a relay calls this for each row, and building an `Event` takes 2 us
    event_id: str,
    message_type: str,
    tenant: str,
    payload: str,
    timestamp_ms: int,
    correlation_id: str | None,
    causation_id: str | None,
    traceparent: str | None,
    tracestate: str | None,
    topic: str | None,
) -> Message:
    """Return the message of an event whose payload is JSON text."""
    about = "" if topic is None else f',"topic":"{topic}"'
    correlation = "" if correlation_id is None else f',"correlationId":{quote(correlation_id)}'
    causation = "" if causation_id is None else f',"causationId":{quote(causation_id)}'
    body = (
        f'{{"id":{quote(event_id)},"type":"{message_type}","tenantId":{quote(tenant)}{about}{correlation}{causation},'
        f'"timestampMs":{timestamp_ms},"payload":{payload}}}'
    )
    headers = {}
    if traceparent is not None:
        headers["traceparent"] = traceparent
    if tracestate is not None:
        headers["tracestate"] = tracestate
    return Message(_event_address(tenant, message_type, topic), event_id, body.encode(), headers)


@lru_cache(maxsize=1024)
def _event_address(tenant: str, message_type: str, topic: str | None) -> Address:
    return Address(Kind.EVENT, tenant, kebab(message_type), topic)


def _check_address(address: Address, envelope: Envelope) -> None:
    """Raise a `Rejection` if an envelope names another tenant or type than the address of the command."""
    if address.tenant != envelope.tenant_id:
        named = f"names tenant {address.tenant!r}" if address.tenant else "names no tenant (was the command passed on?)"
        raise Rejection(
            Code.TENANT_MISMATCH,
            f"the address {named}, but tenantId is {envelope.tenant_id!r}",
            [Fault("tenantId", f"must be {address.tenant!r}")],
        )
    if address.message != kebab(envelope.type):
        raise Rejection(
            Code.TYPE_MISMATCH,
            f"the address names message {address.message!r}, but type is {envelope.type!r}",
            [Fault("type", f"must be published as {kebab(envelope.type)!r}")],
        )


def _payload(model: type[TenantPayload], envelope: Envelope) -> TenantPayload:
    """Return the valid payload of an envelope. Raises `Rejection`, also if it names another tenant."""
    if len(envelope.payload) > MAX_FIELDS:
        reason = f"has {len(envelope.payload)} fields; the limit is {MAX_FIELDS}"
        raise Rejection(Code.INVALID_PAYLOAD, f"the payload {reason}", [Fault("payload", reason)])
    fields = {"tenantId": envelope.tenant_id, **envelope.payload}  # a command may omit it
    try:
        payload = model.model_validate(fields, by_alias=True, by_name=False)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_PAYLOAD, "the payload", error, "payload") from error
    if payload.tenant_id != envelope.tenant_id:
        raise Rejection(
            Code.TENANT_MISMATCH,
            f"the payload names tenant {payload.tenant_id!r}, but the envelope names {envelope.tenant_id!r}",
            [Fault("payload.tenantId", f"must be {envelope.tenant_id!r}")],
        )
    return payload


def rejection_of(code: Code, subject: str, error: ValidationError, *prefix: str) -> Rejection:
    """Return the rejection with the faults that a model found, at most 20; `prefix` is the start of each path."""
    if error.error_count() > _MAX_COUNTED_FAULTS:
        return Rejection(code, f"{subject} is invalid: it has {error.error_count()} faults")
    details = error.errors(include_url=False, include_context=False, include_input=False)
    faults = list(dict.fromkeys(_fault(each, prefix) for each in details[:_MAX_FAULTS]))
    summary = "; ".join(f"{fault.path}: {fault.reason}" for fault in faults[:3])
    return Rejection(_special_code(details) or code, f"{subject} is invalid: {summary}", faults)


def _special_code(details: Sequence[ErrorDetails]) -> Code | None:
    """Return the first code that is the type of a fault, such as `due_at_out_of_range`, or None."""
    named = (each["type"].upper() for each in details)
    return next((Code(name) for name in named if name in Code.__members__), None)


def _fault(detail: ErrorDetails, prefix: Sequence[str]) -> Fault:
    """Return a fault with its reason in plain words, and the path to its field as the user wrote it."""
    loc = detail["loc"]
    if loc and detail["type"] != "extra_forbidden":  # an invalid default has the name of the field in the model
        loc = (to_camel(str(loc[0])), *loc[1:])
    of_user = len(loc) - 1 if detail["type"] in _UNKNOWN_FIELD else len(loc)  # the name of an unknown field is shown
    fields = (part for index, part in enumerate(loc) if index >= of_user or not _is_form(part))
    path = ".".join(map(str, (*prefix, *fields))) or "(body)"
    return Fault(path[:300], plain_words(detail["msg"]))


def _is_form(part: int | str) -> bool:
    """Return whether a part of a path is no field, but a form that the value may have, such as a class."""
    return isinstance(part, str) and ("-" in part or part[:1].isupper())


def plain_words(message: str) -> str:
    """Return a message of the validation library in plain words, cut off after 1,000 characters."""
    if message.startswith(_TAG):  # it quotes a value of any length: cut the value off before the searches below
        message = message.rpartition(_FOUND_TAG)[2]
    message = _PHRASES.get(message, message)[:_LONGEST_REASON].removeprefix("Value error, ")
    message = message.partition(", unable to")[0]  # what follows is about the library
    for form, words in _REWORDED:
        message = form.sub(words, message)
    return _SHOULD.sub("must ", message)


def read_trace(headers: Headers) -> Trace:
    """Return the trace context. A malformed one is ignored, as W3C demands, and the command is still accepted."""
    traceparent = headers.get("traceparent")
    if traceparent is None or not _TRACEPARENT.fullmatch(traceparent):
        return _NO_TRACE
    tracestate = headers.get("tracestate")
    return Trace(traceparent, tracestate if tracestate and _TRACESTATE.fullmatch(tracestate) else None)
