"""The publisher: events in atomic batches with one acknowledgement, other messages in windows of single publishes."""

import asyncio
import json
import secrets
from collections.abc import Sequence
from typing import Any

import nats.errors
from nats.aio.client import Client

from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.broker import PUBLISHED, PublishResult, PublishStatus
from timer_service.core.message import Kind, Message
from timer_service.nats_batches import batch_headers, split

_TIMEOUT_SECONDS = 5
_WINDOW = 500
_WINDOW_BYTES = 1024 * 1024  # the driver makes several copies of a message
_HEADER_ALLOWANCE = 16 * 1024

_STORAGE_FULL = {10023, 10028, 10047, 10077}
"""Insufficient resources, storage of the account or of the server exceeded, stream limit reached."""
_PER_SUBJECT = "per subject"
_UNAVAILABLE_HTTP = 503


class Publisher:
    """Stores messages in their streams."""

    def __init__(self, client: Client, subjects: Subjects, *, atomic: bool) -> None:
        self._client = client
        self._subjects = subjects
        self._atomic = atomic
        self._in_flight: set[asyncio.Task[PublishResult]] = set()

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store messages. Return one result each, in order."""
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
        for chunk in split(batched, lambda index: len(messages[index].body)):
            results.update(zip(chunk, await self._publish_batch([messages[index] for index in chunk]), strict=True))
        results.update(zip(single, await self._publish_singly([messages[index] for index in single]), strict=True))
        return [results[index] for index in range(len(messages))]

    def connection_lost(self) -> None:
        """Cancel the publishes in progress: no acknowledgement can arrive any more. Their results are UNAVAILABLE."""
        for task in self._in_flight:
            task.cancel()

    async def _publish_batch(self, messages: Sequence[Message]) -> list[PublishResult]:
        if len(messages) == 1:
            return await self._publish_singly(messages)
        result = await self._run_until_lost(self._commit(messages, secrets.token_hex(8)))
        if result.status is PublishStatus.REFUSED:
            # The server refuses a whole batch for one bad message or duplicate. Single publishes store the others.
            return await self._publish_singly(messages)
        if result.status is PublishStatus.FULL:
            return await self._publish_halves(messages)
        return [result] * len(messages)

    async def _publish_halves(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store one half after the other, and each half in halves again if the stream has no room for it."""
        half = len(messages) // 2
        first = await self._publish_batch(messages[:half])
        if all(result.status is PublishStatus.FULL for result in first):
            return [*first, *first[:1] * (len(messages) - half)]
        return [*first, *await self._publish_batch(messages[half:])]

    async def _commit(self, messages: Sequence[Message], batch_id: str) -> PublishResult:
        *body, last = messages
        for sequence, message in enumerate(body, 1):
            await self._client.publish(
                self._subjects.subject(message.address),
                message.body,
                headers=_headers(message, batch_headers(batch_id, sequence, last=False)),
            )
        return await self._request(last, batch_headers(batch_id, len(messages), last=True))

    async def _publish_singly(self, messages: Sequence[Message]) -> list[PublishResult]:
        results: list[PublishResult] = []
        for window in split(messages, lambda message: len(message.body), max_count=_WINDOW, max_bytes=_WINDOW_BYTES):
            requests = [self._request(message, {}) for message in window]
            results += await asyncio.gather(*map(self._run_until_lost, requests))
        return results

    async def _run_until_lost(self, request: Any) -> PublishResult:
        task: asyncio.Task[PublishResult] = asyncio.create_task(request)
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
            return _unavailable("no stream has this subject")
        except nats.errors.TimeoutError:
            return _unavailable("no acknowledgement in time")
        except (nats.errors.Error, OSError) as error:
            return _unavailable(str(error) or type(error).__name__)
        return _to_result(json.loads(reply.data))

    def _too_large(self, message: Message) -> bool:
        """Return whether a message must not be sent: the server closes the connection if a message is too large."""
        limit = self._client.max_payload
        if len(message.body) + _HEADER_ALLOWANCE <= limit and message.address.kind is Kind.EVENT:
            return False
        headers = sum(len(f"{name}: {value}\r\n".encode()) for name, value in message.headers.items())
        return len(message.body) + headers + len(message.id) + 200 > limit


def _headers(message: Message, extra: dict[str, str]) -> dict[str, str]:
    return {"Nats-Msg-Id": message.id, **message.headers, **extra}


def _to_result(acknowledgement: dict[str, Any]) -> PublishResult:
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
