"""The text of the protocol for the messages of an atomic batch."""

import pytest
from nats.errors import BadHeaderError

from timer_service.adapters.nats.publisher import write_frames
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.values.message import Address, Kind, Message

SUBJECT = "timer.evt.v1.acme.something"


def frames(*messages: Message, first: int = 1) -> str:
    return write_frames(messages, "batch", first, Subjects("timer").subject).decode()


def message(message_id: str = "id", body: str = "{}", headers: dict[str, str] | None = None) -> Message:
    return Message(Address(Kind.EVENT, "acme", "something"), message_id, body.encode(), headers or {})


def block(message_id: str, number: int, more: str = "") -> str:
    lines = f"Nats-Msg-Id: {message_id}\r\n{more}Nats-Batch-Id: batch\r\nNats-Batch-Sequence: {number}"
    return f"NATS/1.0\r\n{lines}\r\n\r\n"


def test_messages_of_a_batch() -> None:
    """Each message has its id, the id of the batch and its number. Sizes are in bytes."""
    text = frames(message("a", "1"), message("b", "ü"), first=9)
    headers = block("a", 9), block("b", 10)
    assert text == (
        f"HPUB {SUBJECT} {len(headers[0])} {len(headers[0]) + 1}\r\n{headers[0]}1\r\n"
        f"HPUB {SUBJECT} {len(headers[1])} {len(headers[1]) + 2}\r\n{headers[1]}ü\r\n"
    )


@pytest.mark.parametrize("hostile", ["a\r\nb: c", "a\nb: c", "a\rb: c"])
def test_line_ends_in_values(hostile: str) -> None:
    """A line end in an id or in a header begins no other header."""
    text = frames(message(hostile), message("id", headers={"name": hostile}))
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert not any(line.startswith("b:") for line in lines)


@pytest.mark.parametrize("name", ["bad name", "", "ü", "a\r\nb"])
def test_name_that_cannot_be_sent(name: str) -> None:
    """A header whose name the protocol does not allow is an error, as with the driver."""
    with pytest.raises(BadHeaderError):
        frames(message(headers={name: "x"}))
