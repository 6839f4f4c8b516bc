"""The text of the protocol for the messages of an atomic batch, and the addresses of subjects."""

import pytest
from nats.errors import BadHeaderError

from timer_service.adapters.nats.publisher import write_frames
from timer_service.adapters.nats.subjects import Subjects, read_subject
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Message

SUBJECT = "timer.evt.v1.acme.something"


def frames(*messages: Message, first: int = 1) -> str:
    return write_frames(messages, "batch", first, Subjects("timer").subject).decode()


def message(message_id: str = "id", body: str = "{}", headers: dict[str, str] | None = None) -> Message:
    return Message(Address(Kind.EVENT, "acme", "something"), message_id, body.encode(), headers or {})


def test_messages_of_a_batch() -> None:
    """Each message has its id, its headers, the id of the batch and its number. Sizes are in bytes."""
    text = frames(message("a", "1"), message("b", "ü", {"tracestate": "ä=1"}), first=9)
    more = ("", "tracestate: ä=1\r\n")
    blocks = [
        f"NATS/1.0\r\nNats-Msg-Id: {name}\r\n{lines}Nats-Batch-Id: batch\r\nNats-Batch-Sequence: {number}\r\n\r\n"
        for name, lines, number in zip("ab", more, (9, 10), strict=True)
    ]
    sizes = [len(each.encode()) for each in blocks]
    assert text == (
        f"HPUB {SUBJECT} {sizes[0]} {sizes[0] + 1}\r\n{blocks[0]}1\r\n"
        f"HPUB {SUBJECT} {sizes[1]} {sizes[1] + 2}\r\n{blocks[1]}ü\r\n"
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


@pytest.mark.parametrize(
    ("subject", "tenant", "message"),
    [("timer.cmd.v1.acme.schedule-timer", "acme", "schedule-timer"), ("legacy.tick", "legacy", "tick"), ("t", "", "t")],
)
def test_addresses_of_subjects(subject: str, tenant: str, message: str) -> None:
    """A subject that no command has still has an address, so that the message becomes a dead letter."""
    assert read_subject(Kind.COMMAND, subject.encode())[1] == Address(Kind.COMMAND, tenant, message)
