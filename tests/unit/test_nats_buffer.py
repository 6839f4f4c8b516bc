"""The buffer of commands that have arrived: batches bounded in count and in bytes."""

from nats.aio.client import Client
from nats.aio.msg import Msg

from timer_service.adapters.nats.buffer import Buffer
from timer_service.core.broker import BATCH_BYTES


def message(size: int, headers: dict[str, str] | None = None) -> Msg:
    return Msg(_client=Client(), data=b"x" * size, headers=headers)


def test_batches_are_bounded_by_count() -> None:
    """A batch has at most the limit, in order of arrival."""
    buffer = Buffer()
    for size in (1, 2, 3):
        buffer.append(message(size))
    assert [buffer.fills_batch(3), buffer.fills_batch(4)] == [True, False]
    assert [len(each.data) for each in buffer.take(2)] == [1, 2]
    assert [len(each.data) for each in buffer.take(2)] == [3]
    assert not buffer


def test_headers_count_as_bytes() -> None:
    """The bytes of headers count too: a batch of messages with large headers is as bounded as one with large bodies."""
    buffer = Buffer()
    headers = {"a": "x" * (BATCH_BYTES // 2)}
    for _ in range(3):
        buffer.append(message(0, headers))
    assert buffer.fills_batch(100)
    assert [len(buffer.take(100)) for _ in range(3)] == [1, 1, 1]


def test_a_command_larger_than_a_batch_is_alone() -> None:
    """A command that is larger than a batch is taken alone."""
    buffer = Buffer()
    for size in (BATCH_BYTES + 1, 1, 1):
        buffer.append(message(size))
    assert [len(buffer.take(10)) for _ in range(2)] == [1, 2]
