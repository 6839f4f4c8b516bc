"""Snapshots of a stream, as `nats stream backup` and `nats stream restore` make them."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from nats.aio.client import Client

_SECONDS = 10


class Snapshot(NamedTuple):
    """A stream with its messages, their sequences and their times, but without consumers."""

    config: Mapping[str, Any]
    state: Mapping[str, Any]
    chunks: list[bytes]


async def take_snapshot(operator: Client, stream: str) -> Snapshot:
    """Return a snapshot of a stream."""
    subscription = await operator.subscribe(operator.new_inbox())
    body = {"deliver_subject": subscription.subject, "no_consumers": True}
    found = await _request(operator, f"$JS.API.STREAM.SNAPSHOT.{stream}", body)
    chunks: list[bytes] = []
    while (message := await subscription.next_msg(_SECONDS)).data:
        chunks.append(message.data)
        if message.reply:
            await message.respond(b"")  # so that the server goes on
    await subscription.unsubscribe()
    return Snapshot(found["config"], found["state"], chunks)


async def restore_snapshot(operator: Client, snapshot: Snapshot) -> None:
    """Create a stream from a snapshot. For the server it is a new one: its time of creation is now."""
    body = {"config": snapshot.config, "state": snapshot.state}
    target = (await _request(operator, f"$JS.API.STREAM.RESTORE.{snapshot.config['name']}", body))["deliver_subject"]
    for chunk in snapshot.chunks:
        await operator.request(target, chunk, timeout=_SECONDS)
    restored = json.loads((await operator.request(target, b"", timeout=_SECONDS)).data)
    assert "error" not in restored, restored


async def _request(operator: Client, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        (await operator.request(subject, json.dumps(body).encode(), timeout=_SECONDS)).data
    )
    assert "error" not in answer, answer
    return answer
