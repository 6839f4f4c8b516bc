"""Whose fault a failed publish is, by the error of JetStream."""

import json

import pytest

from tests.harness.cases import case
from timer_service.adapters.nats.faults import STORED, Answer, Fault, classify, read_acknowledgement, to_results
from timer_service.core.ports.broker import PublishStatus
from timer_service.core.values.address import Kind

MESSAGE, NO_ROOM, NO_STORAGE, NOT_NOW, UNKNOWN = Fault

ERRORS = [
    (400, 10054, "message size exceeds maximum allowed", MESSAGE),
    (400, 10097, "header size exceeds maximum allowed of 64k", MESSAGE),
    (503, 10077, "maximum messages per subject exceeded", MESSAGE),
    (503, 10077, "message to large", MESSAGE),
    (400, 10176, "atomic publish batch is incomplete", UNKNOWN),
    (400, 10201, "atomic publish batch contains duplicate message id", UNKNOWN),
    (503, 10077, "maximum bytes exceeded", NO_ROOM),
    (503, 10077, "maximum messages exceeded", NO_ROOM),
    (503, 10077, "write /data/1.blk: no space left on device", NO_STORAGE),
    (503, 10023, "insufficient resources", NO_STORAGE),
    (500, 10047, "insufficient storage resources available", NO_STORAGE),
    (500, 10028, "insufficient memory resources available", NO_STORAGE),
    (400, 10002, "resource limits exceeded for account", NO_STORAGE),
    (503, 10077, "store is closed", NOT_NOW),
    (429, 10167, "too many requests", NOT_NOW),
    (429, 10210, "atomic publish too many inflight", NOT_NOW),
    (429, 99999, "a new kind of limit", NOT_NOW),
    (503, 10008, "JetStream system temporarily unavailable", NOT_NOW),
    (500, 10118, "stream is offline", NOT_NOW),
    (500, 99999, "a new kind of failure", NOT_NOW),
    (409, 10158, "duplicate message id is in process", NOT_NOW),
    (400, 10109, "invalid operation on sealed stream", NOT_NOW),
    (404, 10059, "stream not found", NOT_NOW),
    (503, 10039, "JetStream not enabled for account", NOT_NOW),
    (400, 99999, "a new kind of refusal", UNKNOWN),
    (None, None, "no code", NOT_NOW),
    ("400", [10054], "codes that are no numbers", NOT_NOW),
]


def test_error() -> None:
    """Each error is the fault of the message, of the room or of the moment, or it is not known."""
    for http, code, description, fault in ERRORS:
        with case(http, code, description, fault):
            acknowledgement = {"error": {"code": http, "err_code": code, "description": description}}
            assert classify(http, code, description) == Answer(fault, f"{description} ({code})")
            assert read_acknowledgement(json.dumps(acknowledgement).encode()).fault is fault


@pytest.mark.parametrize("body", [b'{"stream":"S","seq":7}', b'{"stream":"S","seq":7,"duplicate":true}'])
def test_stored(body: bytes) -> None:
    """An acknowledgement that names the stream means that the message is stored."""
    assert read_acknowledgement(body) == STORED


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"+OK", b"7", b"null", b"[]", b"{}", b"{", b"[" * 5000, b'{"error":"no"}', b'{"error":[]}'],
)
def test_unreadable_acknowledgement(body: bytes) -> None:
    """An acknowledgement that cannot be read raises no error and counts as not stored, without fault of the message."""
    assert read_acknowledgement(body) == Answer(NOT_NOW, "the broker sent an acknowledgement that cannot be read")


def statuses(*answers: tuple[Kind, Fault | None]) -> list[PublishStatus]:
    results = to_results([kind for kind, _ in answers], [Answer(fault) for _, fault in answers])
    return [result.status for result in results]


def test_unknown_refusal() -> None:
    """An unknown refusal is the message's fault only if the same stream stored another message."""
    event, letter = Kind.EVENT, Kind.DEAD_LETTER
    unavailable, refused, published = PublishStatus.UNAVAILABLE, PublishStatus.REFUSED, PublishStatus.PUBLISHED
    assert statuses((event, UNKNOWN), (event, UNKNOWN)) == [unavailable, unavailable]
    assert statuses((event, UNKNOWN), (event, None)) == [refused, published]
    assert statuses((event, UNKNOWN), (letter, None)) == [unavailable, published]
    assert statuses((event, UNKNOWN), (event, MESSAGE)) == [unavailable, refused]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (None, PublishStatus.PUBLISHED),
        (MESSAGE, PublishStatus.REFUSED),
        (NO_ROOM, PublishStatus.FULL),
        (NO_STORAGE, PublishStatus.FULL),
        (NOT_NOW, PublishStatus.UNAVAILABLE),
    ],
)
def test_result(fault: Fault | None, status: PublishStatus) -> None:
    """Only the fault of a message is a refusal. Wrong set-up and failed batches never count against a message."""
    assert statuses((Kind.EVENT, fault)) == [status]
