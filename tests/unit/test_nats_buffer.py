"""The buffer of commands that have arrived: batches bounded in count and in bytes."""

from nats.aio.client import Client
from nats.aio.msg import Msg

from timer_service.adapters.nats.buffer import Buffer
from timer_service.adapters.nats.stored import Receipt
from timer_service.core.broker import BATCH_BYTES
from timer_service.core.epochs import StoredCommand


def add(buffer: Buffer, size: int, headers: dict[str, str] | None = None, *, sequence: int = 1) -> None:
    message = Msg(_client=Client(), data=b"x" * size, headers=headers)
    buffer.append(message, Receipt(1, sequence, sequence, 1000 + sequence, 0))


def sizes(buffer: Buffer, limit: int) -> list[int]:
    return [len(message.data) for message, _ in buffer.take(limit)]


def test_batches_are_bounded_by_count() -> None:
    """A batch has at most the limit, in order of arrival."""
    buffer = Buffer()
    for size in (1, 2, 3):
        add(buffer, size)
    assert [buffer.fills_batch(3), buffer.fills_batch(4)] == [True, False]
    assert sizes(buffer, 2) == [1, 2]
    assert sizes(buffer, 2) == [3]
    assert not buffer


def test_headers_count_as_bytes() -> None:
    """The bytes of headers count too: a batch of messages with large headers is as bounded as one with large bodies."""
    buffer = Buffer()
    headers = {"a": "x" * (BATCH_BYTES // 2)}
    for _ in range(3):
        add(buffer, 0, headers)
    assert buffer.fills_batch(100)
    assert [len(buffer.take(100)) for _ in range(3)] == [1, 1, 1]


def test_a_command_larger_than_a_batch_is_alone() -> None:
    """A command that is larger than a batch is taken alone."""
    buffer = Buffer()
    for size in (BATCH_BYTES + 1, 1, 1):
        add(buffer, size)
    assert [len(buffer.take(10)) for _ in range(2)] == [1, 2]


def test_newest_command() -> None:
    """The buffer knows the newest command that was ever added, also after it was taken."""
    buffer = Buffer()
    for sequence in (7, 9, 8):
        add(buffer, 1, sequence=sequence)
    buffer.take(10)
    assert buffer.newest == StoredCommand(9, 1009)
