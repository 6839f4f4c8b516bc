"""Publishing: events as atomic batches with one acknowledgement, everything else in windows of single publishes."""

import asyncio
import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import nats.errors
from nats.aio.client import Client

from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.broker import PUBLISHED, PublishResult, PublishStatus
from timer_service.core.message import Kind, Message

_TIMEOUT_SECONDS = 5
_WINDOW = 500
_WINDOW_BYTES = 1024 * 1024  # the driver copies what it sends several times
_BATCH_MESSAGES = 1000  # the server's limit
_BATCH_BYTES = 8 * 1024 * 1024  # the server holds a batch in memory until it is whole
_HEADER_ALLOWANCE = 16 * 1024

_STORAGE_FULL = {10023, 10028, 10047, 10077}
"""Insufficient resources, account or server storage exceeded, stream limit reached."""
_PER_SUBJECT = "per subject"
_UNAVAILABLE_HTTP = 503


class Publisher:
    """Stores messages in their streams and says of each how that ended."""

    def __init__(self, client: Client, subjects: Subjects, *, atomic: bool) -> None:
        self._client = client
        self._subjects = subjects
        self._atomic = atomic
        self._in_flight: set[asyncio.Task[PublishResult]] = set()

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store messages; return one result each, in order."""
        results: dict[int, PublishResult] = {}
        batched: list[int] = []
        single: list[int] = []
        for index, message in enumerate(messages):
            if self._too_large(message):
                results[index] = PublishResult(PublishStatus.REFUSED, "larger than the server's max_payload")
            elif self._atomic and message.address.kind is Kind.EVENT:
                batched.append(index)
            else:
                single.append(index)
        for chunk in _chunks(batched, messages, most=_BATCH_MESSAGES, most_bytes=_BATCH_BYTES):
            results.update(zip(chunk, await self._batch([messages[index] for index in chunk]), strict=True))
        results.update(zip(single, await self._singles([messages[index] for index in single]), strict=True))
        return [results[index] for index in range(len(messages))]

    def connection_lost(self) -> None:
        """End what waits for an acknowledgement: none will come over this connection."""
        for task in self._in_flight:
            task.cancel()

    async def _batch(self, messages: Sequence[Message]) -> list[PublishResult]:
        if len(messages) == 1:
            return await self._singles(messages)
        result = await self._tracked(self._commit(messages, secrets.token_hex(8)))
        if result.status is PublishStatus.REFUSED:
            # One bad message or one duplicate refuses a whole batch: find out which.
            return await self._singles(messages)
        if result.status is PublishStatus.FULL:
            return await self._halves(messages)
        return [result] * len(messages)

    async def _halves(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store as much of a batch as there is room for; all of it might never fit at once."""
        half = len(messages) // 2
        first = await self._batch(messages[:half])
        if all(result.status is PublishStatus.FULL for result in first):
            return [*first, *first[:1] * (len(messages) - half)]
        return [*first, *await self._batch(messages[half:])]

    async def _commit(self, messages: Sequence[Message], batch_id: str) -> PublishResult:
        *body, last = messages
        for sequence, message in enumerate(body, 1):
            await self._client.publish(
                self._subjects.subject(message.address),
                message.body,
                headers=_headers(message, {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(sequence)}),
            )
        closing = {
            "Nats-Batch-Id": batch_id,
            "Nats-Batch-Sequence": str(len(messages)),
            "Nats-Batch-Commit": "1",
        }
        return await self._request(last, closing)

    async def _singles(self, messages: Sequence[Message]) -> list[PublishResult]:
        results: list[PublishResult] = []
        for window in _chunks(range(len(messages)), messages, most=_WINDOW, most_bytes=_WINDOW_BYTES):
            results += await asyncio.gather(*(self._tracked(self._request(messages[index], {})) for index in window))
        return results

    async def _tracked(self, publishing: Any) -> PublishResult:
        task: asyncio.Task[PublishResult] = asyncio.create_task(publishing)
        self._in_flight.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._in_flight.discard(task)
            task.cancel()
        return _unavailable("connection lost") if task.cancelled() else task.result()

    async def _request(self, message: Message, extra: dict[str, str]) -> PublishResult:
        subject = self._subjects.subject(message.address)
        try:
            reply = await self._client.request(
                subject, message.body, timeout=_TIMEOUT_SECONDS, headers=_headers(message, extra)
            )
        except nats.errors.NoRespondersError:
            return _unavailable("no stream takes this subject")
        except nats.errors.TimeoutError:
            return _unavailable("no acknowledgement in time")
        except (nats.errors.Error, OSError) as error:
            return _unavailable(str(error) or type(error).__name__)
        return _verdict(json.loads(reply.data))

    def _too_large(self, message: Message) -> bool:
        """The server closes the connection over a message that is too large, so it must not be sent."""
        limit = self._client.max_payload
        if len(message.body) + _HEADER_ALLOWANCE <= limit and message.address.kind is Kind.EVENT:
            return False
        headers = sum(len(f"{name}: {value}\r\n".encode()) for name, value in message.headers.items())
        return len(message.body) + headers + len(message.id) + 200 > limit


def _headers(message: Message, extra: dict[str, str]) -> dict[str, str]:
    return {"Nats-Msg-Id": message.id, **message.headers, **extra}


def _verdict(acknowledgement: dict[str, Any]) -> PublishResult:
    error = acknowledgement.get("error")
    if error is None:
        return PUBLISHED
    reason = f"{error.get('description')} ({error.get('err_code')})"
    if error.get("err_code") in _STORAGE_FULL and _PER_SUBJECT not in reason:
        return PublishResult(PublishStatus.FULL, reason)
    if error.get("code") == _UNAVAILABLE_HTTP:
        return _unavailable(reason)
    return PublishResult(PublishStatus.REFUSED, reason)


def _unavailable(reason: str) -> PublishResult:
    return PublishResult(PublishStatus.UNAVAILABLE, reason)


def _chunks(indices: Sequence[int], messages: Sequence[Message], *, most: int, most_bytes: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    size = 0
    for index in indices:
        size += len(messages[index].body)
        if chunk and (len(chunk) == most or size > most_bytes):
            yield chunk
            chunk, size = [], len(messages[index].body)
        chunk.append(index)
    if chunk:
        yield chunk
