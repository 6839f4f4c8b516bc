"""The durable consumer of commands, which all instances share.

The service sets the consumer's settings only when it creates the consumer. After that the operator owns them. There is
one exception: after a crash the service shortens `ack_wait` for some seconds. The operator's value is kept in the
consumer's metadata. If this process dies before it restores the value, the next process to join restores it.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError

from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.message import Kind

DURABLE = "timer-service"
"""The name of the consumer."""

# Longer than the longest commit: otherwise commands are handled twice for no reason. Not much longer: the commands of a
# killed instance wait this long.
_ACK_WAIT = timedelta(seconds=30)
_MAX_ACK_PENDING = 20_000
# Longer than a batch takes, so that few commands are handled twice while it applies.
_SHORT_ACK_WAIT = timedelta(milliseconds=500)
_SAVED_ACK_WAIT = "timer-service.ack-wait"
"""The metadata key that holds the operator's `ack_wait` while it is shortened."""
_REQUEST_SECONDS = 2


class InFlight(NamedTuple):
    """The commands that were delivered and not settled."""

    number: int
    last: int
    """The last sequence that was ever delivered. A command up to this sequence is delivered again."""


class DurableConsumer:
    """The consumer `timer-service` of the command stream."""

    def __init__(self, client: Client, subjects: Subjects) -> None:
        self._client = client
        self._pattern = subjects.pattern(Kind.COMMAND)
        self._stream = subjects.stream(Kind.COMMAND)

    async def stream(self) -> Mapping[str, Any]:
        """Return the JetStream info of the command stream."""
        return await self._request(f"STREAM.INFO.{self._stream}")

    async def info(self) -> Mapping[str, Any]:
        """Return the JetStream info of the consumer. Raises `NotFoundError` if it does not exist."""
        return await self._request(f"CONSUMER.INFO.{self._stream}.{DURABLE}")

    async def join(self) -> int:
        """Create the consumer if it is missing, and restore `ack_wait`. Return the epoch of the stream.

        The epoch is the time when the stream was created, in epoch milliseconds.
        """
        created = (await self.stream())["created"]
        try:
            await self.restore_ack_wait()
        except NotFoundError:
            await self._write("create", self._new_config())
        return int(datetime.fromisoformat(created).timestamp() * 1000)

    async def shorten_ack_wait(self) -> InFlight | None:
        """Shorten `ack_wait` so that unsettled commands come again soon. Return them, or None if there are none.

        Only for an instance that shares the commands with no other instance. `restore_ack_wait` ends it.
        """
        info = await self.info()
        if not info["num_ack_pending"]:
            return None
        config = info["config"]
        metadata = {**config.get("metadata", {}), _SAVED_ACK_WAIT: str(config["ack_wait"])}
        await self._write("update", {**config, "ack_wait": _nanoseconds(_SHORT_ACK_WAIT), "metadata": metadata})
        return InFlight(info["num_ack_pending"], info["delivered"]["stream_seq"])

    async def restore_ack_wait(self) -> None:
        """Restore `ack_wait` if this process, or one that died, has shortened it."""
        config = (await self.info())["config"]
        metadata = dict(config.get("metadata", {}))
        saved = metadata.pop(_SAVED_ACK_WAIT, None)
        if saved is not None:
            await self._write("update", {**config, "ack_wait": int(saved), "metadata": metadata})

    def _new_config(self) -> Mapping[str, Any]:
        return {
            "durable_name": DURABLE,
            "filter_subject": self._pattern,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": _nanoseconds(_ACK_WAIT),
            "max_ack_pending": _MAX_ACK_PENDING,
        }

    async def _write(self, action: str, config: Mapping[str, Any]) -> None:
        """Create or update the consumer. The driver's own type would drop settings that the driver does not know."""
        body = {"stream_name": self._stream, "config": config, "action": action}
        await self._request(f"CONSUMER.DURABLE.CREATE.{self._stream}.{DURABLE}", json.dumps(body).encode())

    async def _request(self, subject: str, body: bytes = b"") -> Mapping[str, Any]:
        reply = await self._client.request(f"$JS.API.{subject}", body, timeout=_REQUEST_SECONDS)
        answer: Mapping[str, Any] = json.loads(reply.data)
        if "error" in answer:
            APIError.from_error(answer["error"])  # raises
        return answer


def _nanoseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000
