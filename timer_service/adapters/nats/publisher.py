"""The publisher: many events in atomic batches with one acknowledgement each, other messages in windows of singles."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from nats import errors

from timer_service.adapters.nats.api import write_headers
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.adapters.nats.faults import TRANSIENT, Answer, Fault, read_acknowledgement, to_results
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.ports.broker import PublishResult
from timer_service.core.ports.turns import Turns
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Message
from timer_service.core.values.parts import split
from timer_service.nats_batches import MAX_BYTES, MAX_MESSAGES, batch_headers

_TIMEOUT_SECONDS = 5
_CALL_SECONDS = 10
"""After this time a call sends nothing more, so that a slow broker does not outlast the lease of the rows."""
_FEW = 10
"""So many messages are published singly. The server needs 2 ms for the smallest batch, and 0.15 ms for a single message
that it syncs."""
_WINDOW = 500
_WINDOW_BYTES = 1024 * 1024  # the driver makes several copies of a message
_BYTES_AT_ONCE = 256 * 1024
_MESSAGES_AT_ONCE = 200  # take about 0.3 ms
_HEADER_COST = 100
"""The bytes that each header counts in addition, because the driver encodes each by itself."""
_HEADER_ALLOWANCE = 16 * 1024
_is_plain = re.compile(r"[!-~]+").fullmatch
_REFUSED_BATCH = frozenset({Fault.MESSAGE, Fault.UNKNOWN, Fault.NO_ROOM, Fault.NO_STORAGE})
_DRIVER_ERRORS = (errors.Error, OSError, ValueError)
"""The errors of a publish. The driver raises `ValueError` for headers that it cannot encode."""


class Publisher:
    """Stores messages in their streams."""

    def __init__(
        self,
        client: GuardedClient,
        subjects: Subjects,
        *,
        atomic: Collection[Kind],
        on_answers: Callable[[Kind, Collection[Answer]], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`atomic`: the kinds whose streams accept atomic batches. `on_answers`: gets the answers for each kind."""
        self._client = client
        self._subjects = subjects
        self._atomic = atomic
        self._on_answers = on_answers
        self._monotonic = monotonic
        self._in_flight: set[asyncio.Task[Answer]] = set()

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store messages. Return one result each, in order."""
        ends_at = self._monotonic() + _CALL_SECONDS
        answers: dict[int, Answer] = {}
        sendable: dict[Kind, list[int]] = {}
        for index, message in enumerate(messages):
            if self._too_large(message):
                answers[index] = Answer(Fault.MESSAGE, "larger than the server's max_payload")
            else:
                sendable.setdefault(message.address.kind, []).append(index)
        for kind, indexes in sendable.items():
            sent = [messages[index] for index in indexes]
            if kind in self._atomic:
                batches = split(sent, _size, max_count=MAX_MESSAGES, max_bytes=MAX_BYTES)
                results = await self._publish_parts(batches, partial(self._publish_batch, ends_at), ends_at)
            else:
                results = await self._publish_singly(ends_at, sent)
            self._on_answers(kind, results)
            answers.update(zip(indexes, results, strict=True))
        return to_results([message.address.kind for message in messages], [answers[n] for n in range(len(messages))])

    def connection_lost(self) -> None:
        """Cancel the publishes in progress: no acknowledgement can arrive any more. Their results are UNAVAILABLE."""
        for task in self._in_flight:
            task.cancel()

    async def _publish_parts(
        self,
        parts: Iterable[list[Message]],
        publish: Callable[[list[Message]], Awaitable[list[Answer]]],
        ends_at: float,
    ) -> list[Answer]:
        """Publish one part after the other.

        If nothing of a part is stored for a reason that the messages did not cause, the next parts are not sent.
        """
        answers: list[Answer] = []
        blocked: Answer | None = None
        for part in parts:
            if blocked is None and self._monotonic() > ends_at:
                blocked = _not_now("not sent: the broker is too slow")
            if blocked is None:
                answers += await publish(part)
                blocked = _find_blocking(answers[-len(part) :])
            else:
                answers += [blocked] * len(part)
        return answers

    async def _publish_batch(self, ends_at: float, messages: Sequence[Message]) -> list[Answer]:
        """Store messages in one atomic batch, or one by one if they are few or the batch is refused."""
        if _are_few(messages):
            return await self._publish_window(messages)
        answer = await self._run_until_lost(self._commit(messages, secrets.token_hex(8)))
        if answer.fault in _REFUSED_BATCH:
            # The server refuses a whole batch without room for all of it, or for one bad message or duplicate.
            return await self._publish_singly(ends_at, messages)
        return [answer] * len(messages)

    async def _commit(self, messages: Sequence[Message], batch_id: str) -> Answer:
        """Send an atomic batch. Only its last message, which commits it, gets an answer: the one for all of them."""
        *body, last = messages
        turns = Turns(_BYTES_AT_ONCE)
        first = 1
        for part in split(body, _size, max_count=_MESSAGES_AT_ONCE, max_bytes=_BYTES_AT_ONCE):
            await turns.take(sum(map(_size, part)))
            try:
                await self._client.send(write_frames(part, batch_id, first, self._subjects.subject))
            except _DRIVER_ERRORS as error:
                return _read_error(error)
            first += len(part)
        return await self._request(last, batch_headers(batch_id, len(messages), last=True))

    async def _publish_singly(self, ends_at: float, messages: Sequence[Message]) -> list[Answer]:
        """Store messages one by one, a window of them at a time."""
        windows = split(messages, _size, max_count=_WINDOW, max_bytes=_WINDOW_BYTES)
        return await self._publish_parts(windows, self._publish_window, ends_at)

    async def _publish_window(self, messages: Sequence[Message]) -> list[Answer]:
        """Send messages one by one, without waiting for the answers in between."""
        requests = [self._request(message, {}) for message in messages]
        return await asyncio.gather(*map(self._run_until_lost, requests))

    async def _run_until_lost(self, request: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the answer to a request, or NOT_NOW as soon as the connection is lost."""
        task: asyncio.Task[Answer] = asyncio.create_task(request)
        self._in_flight.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._in_flight.discard(task)
            task.cancel()  # if this wait is cancelled, so is the request; otherwise the request has ended
        # Only `connection_lost` has cancelled it then.
        return _not_now("connection lost") if task.cancelled() else task.result()

    async def _request(self, message: Message, extra: dict[str, str]) -> Answer:
        """Send one message, and return how it ended. An error of the driver is an answer too."""
        if not self._client.is_connected:
            # The driver would send it after the outage. Its row may have been released long before.
            return _not_now("connection lost")
        subject = self._subjects.subject(message.address)
        headers = {"Nats-Msg-Id": message.id, **message.headers, **extra}
        try:
            reply = await self._client.request(subject, message.body, timeout=_TIMEOUT_SECONDS, headers=headers)
        except _DRIVER_ERRORS as error:
            return _read_error(error)
        return read_acknowledgement(reply.data)

    def _too_large(self, message: Message) -> bool:
        """Return whether a message must not be sent: the server closes the connection if a message is too large."""
        limit = self._client.max_payload
        if message.address.kind is Kind.EVENT and len(message.body) + _HEADER_ALLOWANCE <= limit:
            return False  # no event has so many bytes of headers
        headers = sum(len(f"{name}: {value}\r\n".encode(errors="replace")) for name, value in message.headers.items())
        return len(message.body) + headers + len(message.id) + 200 > limit


def _size(message: Message) -> int:
    """Return how much of a window or a batch a message takes."""
    headers = message.headers
    if not headers:  # most events have none, and this is called twice for each
        return len(message.body)
    return len(message.body) + sum(_HEADER_COST + len(name) + len(value) for name, value in headers.items())


def _are_few(messages: Sequence[Message]) -> bool:
    """Return whether messages are published sooner singly, in one window, than in a batch."""
    return len(messages) == 1 or (len(messages) <= _FEW and sum(map(_size, messages)) <= _WINDOW_BYTES)


def _find_blocking(answers: Sequence[Answer]) -> Answer | None:
    """Return the answer that the next messages would get too; None if one was stored, or was itself at fault."""
    return answers[0] if all(answer.fault in TRANSIENT for answer in answers) else None


def _read_error(error: Exception) -> Answer:
    """Return whose fault an error of the driver is."""
    reason = str(error) or type(error).__name__
    match error:
        case errors.NoRespondersError():
            return _not_now("no stream has this subject")
        case errors.TimeoutError():
            return _not_now("no acknowledgement in time")
        case errors.BadHeaderError() | errors.BadSubjectError() | errors.MaxPayloadError() | ValueError():
            return Answer(Fault.MESSAGE, f"cannot be sent: {reason}")
        case _:
            return _not_now(reason)


def _not_now(reason: str) -> Answer:
    return Answer(Fault.NOT_NOW, reason)


def write_frames(messages: Sequence[Message], batch_id: str, first: int, subject: Callable[[Address], str]) -> bytes:
    """Return the protocol text of messages of a batch that have the numbers from `first` on. None commits the batch.

    Raises `BadHeaderError` for a header that cannot be sent, as the driver does.
    """
    subjects: dict[Address, bytes] = {}
    frames: list[bytes] = []
    for number, (address, message_id, body, headers) in enumerate(messages, first):
        if headers or not _is_plain(message_id):
            block = write_headers({"Nats-Msg-Id": message_id, **headers, **batch_headers(batch_id, number, last=False)})
        else:
            block = (
                f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n"
                f"Nats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: {number}\r\n\r\n"
            ).encode()
        if (to := subjects.get(address)) is None:
            to = subjects[address] = subject(address).encode()
        frames.append(b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(block), len(block) + len(body), block, body))
    return b"".join(frames)
