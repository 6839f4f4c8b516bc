"""Atomic batches of NATS JetStream, for the service and the client: their limits and headers."""

MAX_MESSAGES = 1000
"""The limit of the server for one batch."""
MAX_BYTES = 8 * 1024 * 1024
"""The server keeps a batch in memory until it is complete."""


def batch_headers(batch_id: str, sequence: int, *, last: bool) -> dict[str, str]:
    """Return the headers of the message number `sequence`, from 1, of a batch. The last message commits the batch."""
    headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(sequence)}
    return {**headers, "Nats-Batch-Commit": "1"} if last else headers
