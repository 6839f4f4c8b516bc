"""The publisher: messages go to their streams in pipelines. The server answers each message by itself."""

import time
from collections.abc import Sequence

from redis.exceptions import OutOfMemoryError
from redis.typing import EncodableT

from timer_service.adapters.redis.streams import StreamUpkeep
from timer_service.core.ports.broker import PUBLISHED, TRANSIENT, PublishResult, PublishStatus
from timer_service.core.values.address import Kind
from timer_service.core.values.message import Message
from timer_service.core.values.parts import split
from timer_service.redis_client import ERRORS, Keys, RedisClient, reason_of

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The server takes up to 512 MiB. It and every reader hold a message in memory."""
_CALL_SECONDS = 10
"""After this time a call sends nothing more, so that a slow broker does not outlast the lease of the rows."""
_AT_ONCE = 500
_BYTES_AT_ONCE = 1024 * 1024
_HEADER_COST = 100
_NO_SPACE = "No space left"


class Publisher:
    """Stores messages in their streams."""

    def __init__(self, client: RedisClient, keys: Keys, streams: StreamUpkeep) -> None:
        self._client = client
        self._keys = keys
        self._streams = streams

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store messages. Return one result each, in order.

        If nothing of a part is stored for a reason that the messages did not cause, the next parts are not sent.
        """
        ends_at = time.monotonic() + _CALL_SECONDS
        results: list[PublishResult] = []
        blocked: PublishResult | None = None
        for part in split(messages, _size, max_count=_AT_ONCE, max_bytes=_BYTES_AT_ONCE):
            if blocked is None and time.monotonic() > ends_at:
                blocked = PublishResult(PublishStatus.UNAVAILABLE, "not sent: the Redis server is too slow")
            if blocked is not None:
                results += [blocked] * len(part)
                continue
            found = await self._publish_part(part)
            results += found
            blocked = found[0] if all(each.status in TRANSIENT for each in found) else None
        return results

    async def _publish_part(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store messages in one pipeline."""
        pipeline = self._client.pipeline(transaction=False)
        fitting = [len(each.body) <= MAX_MESSAGE_BYTES for each in messages]
        for message, fits in zip(messages, fitting, strict=True):
            if fits:
                pipeline.execute_command(*self._add(message))
        try:
            answers = iter(await pipeline.execute(raise_on_error=False))
        except ERRORS as error:
            return [PublishResult(PublishStatus.UNAVAILABLE, reason_of(error))] * len(messages)
        results = [
            self._result(message, next(answers)) if fits else _TOO_LARGE
            for message, fits in zip(messages, fitting, strict=True)
        ]
        full = next((each for each in results if each.status is PublishStatus.FULL), None)
        if full is not None or PUBLISHED in results:
            self._streams.record(None if full is None else full.reason)
        return results

    def _result(self, message: Message, answer: object) -> PublishResult:
        """Return how storing one message ended. The server refuses one for its own state, never for its content."""
        if not isinstance(answer, Exception):
            return PUBLISHED
        is_full = isinstance(answer, OutOfMemoryError) or _NO_SPACE in str(answer)
        status = PublishStatus.FULL if is_full else PublishStatus.UNAVAILABLE
        return PublishResult(status, f"{self._stream(message)}: {reason_of(answer)}")

    def _stream(self, message: Message) -> str:
        kind, tenant, _, _ = message.address
        return self._keys.stream(kind, tenant if kind is Kind.EVENT else "")

    def _add(self, message: Message) -> list[EncodableT]:
        """Return the call that stores a message, and deletes what is too old if the service manages the streams."""
        kind, tenant, name, topic = message.address
        call: list[EncodableT] = ["XADD", self._stream(message)]
        if (oldest := self._streams.oldest_ms(kind)) is not None:
            call += ["MINID", "~", oldest]
        call.append("*")
        if kind is not Kind.EVENT:
            call += ["tenant", tenant]
        call += ["type", name, "id", message.id]
        if topic is not None:
            call += ["topic", topic]
        for header in message.headers.items():
            call += header
        return [*call, "body", message.body]


_TOO_LARGE = PublishResult(PublishStatus.REFUSED, f"larger than {MAX_MESSAGE_BYTES} bytes")


def _size(message: Message) -> int:
    """Return how much of a pipeline a message takes."""
    return len(message.body) + _HEADER_COST * len(message.headers)
