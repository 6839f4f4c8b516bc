"""Commands as JetStream delivers and stores them, decoded to deliveries."""

import re
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from timer_service.adapters.nats.headers import RawHeaders, decode_text
from timer_service.adapters.nats.intake_client import ReadMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.epochs import Epochs
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import IDENTIFIER_PATTERN, Kind

ACKNOWLEDGEMENT = "$JS.ACK."
_TOKENS_WITHOUT_DOMAIN = 9
_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
_FRACTION = re.compile(r"\.(\d{1,9})")
_NO_HEADERS = RawHeaders(b"")


class Receipt(NamedTuple):
    """What the reply subject of a delivered message says."""

    attempt: int
    sequence: int
    delivery: int
    """The number of the delivery. The consumer counts all deliveries."""
    stored_at: int
    """In nanoseconds of the broker's clock."""
    waiting: int
    """How many commands the consumer had not delivered yet."""


def read_receipt(reply: str) -> Receipt:
    """Parse `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<sequence>.<delivery>.<time>.<waiting>`.

    Raises `ValueError` if it is something else. The driver's `Msg.metadata` takes ten times as long.
    """
    tokens = reply.split(".")
    first = 4 if len(tokens) == _TOKENS_WITHOUT_DOMAIN else 6
    return Receipt(*map(int, tokens[first : first + len(Receipt._fields)]))


def reply_for(reply: str, sequence: int, delivery: int) -> str:
    """Return the reply subject of another command of the same consumer. `reply`: that of a delivered command."""
    tokens = reply.split(".")
    first = 4 if len(tokens) == _TOKENS_WITHOUT_DOMAIN else 6
    tokens[first : first + 3] = "1", str(sequence), str(delivery)
    return ".".join(tokens)


class StoredMessage(NamedTuple):
    """A message of the command stream."""

    subject: str
    body: bytes
    headers: RawHeaders
    receipt: Receipt
    reply: str
    """Where to settle it; empty if the consumer did not deliver it."""
    size: int
    """See `core.broker.Delivery.size`."""

    @classmethod
    def delivered(cls, message: ReadMessage) -> "StoredMessage":
        """Return a message that the consumer delivered. Raises `ValueError` if another sender did."""
        subject, reply, headers, body = message
        text = decode_text(reply)
        raw = RawHeaders(headers) if headers else _NO_HEADERS
        return cls(_read_subject(subject), body, raw, read_receipt(text), text, len(subject) + len(body) + raw.size)

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> "StoredMessage":
        """Return a message that was read from the stream directly."""
        receipt = Receipt(1, answer["seq"], 0, nanoseconds(answer["time"]), 0)
        headers = RawHeaders(b64decode(answer.get("hdrs", "")))
        subject, body = answer["subject"], b64decode(answer.get("data", ""))
        return cls(subject, body, headers, receipt, "", len(subject) + len(body) + headers.size)

    def delivery(self, epochs: Epochs, subjects: Subjects, handle: Any) -> Delivery:
        """Return the message as a delivery."""
        subject, body, headers, receipt, _, size = self
        position = epochs.position(receipt.sequence)
        message_id = headers.get("Nats-Msg-Id") or ""
        return Delivery(  # without the names of the fields, because this is called for each command
            subjects.address(Kind.COMMAND, subject),
            subject,
            message_id if _IDENTIFIER.fullmatch(message_id) else f"{position.epoch}-{position.sequence}",
            body,
            headers,
            position,
            receipt.attempt,
            handle,
            size,
            receipt.stored_at,
            epochs.newest.epoch,
        )


_read_subject = lru_cache(maxsize=1024)(decode_text)


def nanoseconds(text: str) -> int:
    """Return an instant of JetStream, such as `2026-11-22T09:00:00.123456789Z`, in Unix nanoseconds."""
    fraction = _FRACTION.search(text)
    seconds = int(datetime.fromisoformat(_FRACTION.sub("", text)).timestamp())
    return seconds * 1_000_000_000 + (int(fraction[1].ljust(9, "0")) if fraction else 0)
