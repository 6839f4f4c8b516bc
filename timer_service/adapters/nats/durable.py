"""The durable consumer of commands, which all instances share: found or made, asked, and hurried after a crash.

Its settings are its owner's to choose: they are set when it is made, and left alone after that. Hurrying changes one
for a moment, and keeps what it was in the consumer's metadata, so that whatever ends this process, the next one to join
sets it back.
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

# Above what a commit stalls for, or commands would be handled twice for nothing; and those that were with an instance
# that was killed have to wait for it.
_ACK_WAIT = timedelta(seconds=30)
_MAX_ACK_PENDING = 20_000
# Above what a batch takes, so that few commands are handled twice meanwhile.
_HURRIED_ACK_WAIT = timedelta(milliseconds=500)
_KEPT_ACK_WAIT = "timer-service.ack-wait"
_REQUEST_SECONDS = 2


class InFlight(NamedTuple):
    """Commands that were handed over and not settled."""

    number: int
    last: int
    """The last sequence that was ever handed over: what comes up to here comes again."""


class DurableConsumer:
    """The consumer `timer-service` of the command stream."""

    def __init__(self, client: Client, subjects: Subjects) -> None:
        self._client = client
        self._pattern = subjects.pattern(Kind.COMMAND)
        self._stream = subjects.stream(Kind.COMMAND)

    async def stream(self) -> Mapping[str, Any]:
        """Return what JetStream says of the command stream."""
        return await self._request(f"STREAM.INFO.{self._stream}")

    async def info(self) -> Mapping[str, Any]:
        """Return what JetStream says of the consumer. Raises `NotFoundError` when there is none."""
        return await self._request(f"CONSUMER.INFO.{self._stream}.{DURABLE}")

    async def join(self) -> int:
        """Make sure that it is there, and not hurried; return the epoch of its stream (creation time in ms)."""
        created = (await self.stream())["created"]
        try:
            await self.calm()
        except NotFoundError:
            await self._write("create", self._wanted())
        return int(datetime.fromisoformat(created).timestamp() * 1000)

    async def hurry(self) -> InFlight | None:
        """Have what is handed over and not settled delivered again soon; return what that is, None for nothing.

        For an instance that knows that no other one can have it. `calm` ends it.
        """
        info = await self.info()
        if not info["num_ack_pending"]:
            return None
        config = info["config"]
        metadata = {**config.get("metadata", {}), _KEPT_ACK_WAIT: str(config["ack_wait"])}
        await self._write("update", {**config, "ack_wait": _nanoseconds(_HURRIED_ACK_WAIT), "metadata": metadata})
        return InFlight(info["num_ack_pending"], info["delivered"]["stream_seq"])

    async def calm(self) -> None:
        """End the hurry, if there is one, of this process or of one that died in it."""
        config = (await self.info())["config"]
        metadata = dict(config.get("metadata", {}))
        kept = metadata.pop(_KEPT_ACK_WAIT, None)
        if kept is not None:
            await self._write("update", {**config, "ack_wait": int(kept), "metadata": metadata})

    def _wanted(self) -> Mapping[str, Any]:
        return {
            "durable_name": DURABLE,
            "filter_subject": self._pattern,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": _nanoseconds(_ACK_WAIT),
            "max_ack_pending": _MAX_ACK_PENDING,
        }

    async def _write(self, action: str, config: Mapping[str, Any]) -> None:
        """As JSON, not as the driver's type, which would drop the settings that it does not know."""
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
