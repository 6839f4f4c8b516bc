"""Atomic batches of NATS JetStream, for the service and the client: limits, headers and the split of messages."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

MAX_MESSAGES = 1000
"""The limit of the server for one batch."""
MAX_BYTES = 8 * 1024 * 1024
"""The server keeps a batch in memory until it is complete."""


def batch_headers(batch_id: str, sequence: int, *, last: bool) -> dict[str, str]:
    """Return the headers of the message number `sequence`, from 1, of a batch. The last message commits the batch."""
    headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(sequence)}
    return {**headers, "Nats-Batch-Commit": "1"} if last else headers


def split(
    items: Iterable[_T], size: Callable[[_T], int], *, max_count: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
) -> Iterator[list[_T]]:
    """Split items into lists within both limits. An item that is larger than `max_bytes` gets a list of its own."""
    part: list[_T] = []
    total = 0
    for item in items:
        total += size(item)
        if part and (len(part) == max_count or total > max_bytes):
            yield part
            part, total = [], size(item)
        part.append(item)
    if part:
        yield part
