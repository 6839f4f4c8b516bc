"""The bodies of queries and requests: decodes the messages, and encodes the answers."""

from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import to_json

from timer_service.core.intake.rejection import error_body
from timer_service.core.ports.broker import QueryReply
from timer_service.core.values.address import MAX_MESSAGE_BYTES
from timer_service.core.values.codec import read_json, rejection_of
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Payload
from timer_service.core.values.stored_json import RawJson

_M = TypeVar("_M", bound=Payload)

ANSWERED = "answered"
"""The outcome of a query or a request in the metrics. The outcome of an error is its code."""
_MAX_FIELDS = 100
"""More fields than any message has. Each unknown field costs a fault, which takes longer to describe than to send."""


def decode(body: bytes, model: type[_M], *, what: str, most_bytes: int) -> _M:
    """Return the payload of a message. Raises `Rejection`, which names the fields at fault.

    `what` names the message: `query` or `request`. An empty body is an empty object.
    """
    document = read_json(body or b"{}", f"the {what}", most_bytes)
    if isinstance(document, dict) and len(document) > _MAX_FIELDS:
        raise Rejection(Code.INVALID_PAYLOAD, f"the {what} has {len(document)} fields; the limit is {_MAX_FIELDS}")
    try:
        return model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_PAYLOAD, f"the {what}", error) from error


def error_reply(rejection: Rejection) -> QueryReply:
    """Return the reply that carries an error."""
    return QueryReply(to_json({"error": error_body(rejection)}), rejection.code, rejection.message)


def encode_answer(answer: Payload | RawJson | Rejection) -> QueryReply:
    """Return the reply with an answer. An answer that is too large for the broker becomes an error."""
    if isinstance(answer, Rejection):
        return error_reply(answer)
    body = answer.encode() if isinstance(answer, RawJson) else answer.model_dump_json(exclude_none=True).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        message = f"the reply would have {len(body)} bytes; the limit is {MAX_MESSAGE_BYTES}"
        return error_reply(Rejection(Code.TOO_LARGE, message))
    return QueryReply(body)
