"""The split of messages into atomic batches."""

from timer_service.core.values.parts import split
from timer_service.nats_batches import batch_headers


def test_split_by_count_and_size() -> None:
    """A part ends before it exceeds a limit. A larger item gets a part of its own. No items give no parts."""
    assert list(split("abcde", len, max_count=2, max_bytes=9)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(split(["aa", "b", "ccccc", "d"], len, max_count=9, max_bytes=3)) == [["aa", "b"], ["ccccc"], ["d"]]
    assert list(split([], len, max_bytes=1)) == []


def test_only_the_last_message_commits() -> None:
    """Every message of a batch has the id and its number. The last one also has the commit header."""
    assert batch_headers("id", 1, last=False) == {"Nats-Batch-Id": "id", "Nats-Batch-Sequence": "1"}
    assert batch_headers("id", 2, last=True)["Nats-Batch-Commit"] == "1"
