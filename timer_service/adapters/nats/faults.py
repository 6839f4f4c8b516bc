"""Whose fault is a failed publish? Reads the acknowledgements of JetStream and classifies their errors.

The error codes are those of `server/errors.json` in nats-server.
"""

import json
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from timer_service.core.ports.broker import PUBLISHED, PublishResult, PublishStatus
from timer_service.core.values.address import Kind


class Fault(Enum):
    """The cause of a failed publish."""

    MESSAGE = auto()
    """This message. The stream may store others."""
    NO_ROOM = auto()
    """The stream has no room. A smaller batch may fit."""
    NO_STORAGE = auto()
    """The account or the server has no room, so the other streams have none either. A smaller batch may fit."""
    NOT_NOW = auto()
    """The stream stores nothing now: the broker did not answer or has no leader, or the stream is missing or sealed."""
    UNKNOWN = auto()
    """Another refusal: of an atomic batch, whose messages may be stored one by one, or of a message.

    It is the fault of the message if the stream stored another one.
    """


class Answer(NamedTuple):
    """How one publish ended. `fault` is None if the message was stored."""

    fault: Fault | None
    reason: str = ""


STORED = Answer(None)
TRANSIENT = frozenset({Fault.NO_ROOM, Fault.NO_STORAGE, Fault.NOT_NOW})
"""The faults that neither a message nor a batch caused. Other messages to the same stream would meet them too."""

_FAULT_OF = {
    **dict.fromkeys((10054, 10097), Fault.MESSAGE),  # larger than the stream allows, headers larger than 64 KiB
    # Limits of the account, resources, memory or storage of the server.
    **dict.fromkeys((10002, 10023, 10028, 10047), Fault.NO_STORAGE),
    # The same message is being stored, no stream, a sealed one, no limits for the account, JetStream is disabled.
    **dict.fromkeys((10158, 10059, 10109, 10120, 10035, 10039, 10076), Fault.NOT_NOW),
}

_STORE_FAILED = 10077
_NO_ROOM_TEXTS = ("maximum bytes exceeded", "maximum messages exceeded")
_NO_STORAGE_TEXT = "no space left"
_MESSAGE_TEXTS = ("per subject", "message to large", "message too large")  # the typing error is the server's

_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500


def read_acknowledgement(data: bytes) -> Answer:
    """Return what an acknowledgement says. An acknowledgement that cannot be read counts as NOT_NOW."""
    try:
        acknowledgement = json.loads(data)
    except (ValueError, RecursionError):
        acknowledgement = None
    if isinstance(acknowledgement, dict):
        error = acknowledgement.get("error")
        if isinstance(error, dict):
            return classify(error.get("code"), error.get("err_code"), str(error.get("description")))
        if error is None and isinstance(acknowledgement.get("stream"), str):
            return STORED
    return Answer(Fault.NOT_NOW, "the broker sent an acknowledgement that cannot be read")


def classify(http: Any, code: Any, description: str) -> Answer:
    """Return whose fault an error is. `http` and `code` are its HTTP status and its error code, if they are numbers."""
    reason = f"{description} ({code})"
    if code == _STORE_FAILED:
        return Answer(_classify_text(description), reason)
    if isinstance(code, int) and (fault := _FAULT_OF.get(code)):
        return Answer(fault, reason)
    refused = isinstance(http, int) and http < _SERVER_ERRORS and http != _TOO_MANY_REQUESTS
    return Answer(Fault.UNKNOWN if refused else Fault.NOT_NOW, reason)


def _classify_text(description: str) -> Fault:
    """Return whose fault it is that a message could not be stored. The server gives the error of its file store."""
    if any(text in description for text in _MESSAGE_TEXTS):
        return Fault.MESSAGE
    if _NO_STORAGE_TEXT in description:
        return Fault.NO_STORAGE
    return Fault.NO_ROOM if any(text in description for text in _NO_ROOM_TEXTS) else Fault.NOT_NOW


def to_results(kinds: Sequence[Kind], answers: Sequence[Answer]) -> list[PublishResult]:
    """Return the results of the messages of one publish call, whose kinds are `kinds`. Each kind has its own stream."""
    storing = {kind for kind, answer in zip(kinds, answers, strict=True) if answer.fault is None}
    return [_to_result(answer, storing=kind in storing) for kind, answer in zip(kinds, answers, strict=True)]


def _to_result(answer: Answer, *, storing: bool) -> PublishResult:
    """Return the result of one message. `storing`: its stream stored another message of the call."""
    match answer.fault:
        case None:
            return PUBLISHED
        case Fault.NO_ROOM | Fault.NO_STORAGE:
            return PublishResult(PublishStatus.FULL, answer.reason)
        case Fault.MESSAGE:
            return PublishResult(PublishStatus.REFUSED, answer.reason)
        case Fault.UNKNOWN if storing:
            return PublishResult(PublishStatus.REFUSED, answer.reason)
        case _:
            return PublishResult(PublishStatus.UNAVAILABLE, answer.reason)
