"""The dead letters in the stream of dead letters."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from timer_service.client.errors import NoAnswerError
from timer_service.client.models import DeadLetter
from timer_service.nats_client import UNREADABLE_ANSWER

_CONSUMER_SECONDS = 10
"""How long the broker keeps a consumer that this client has not deleted, because it was killed."""
_FETCHED = 500


class DeadLetterStream:
    """Reads the stream of dead letters."""

    def __init__(self, client: Client, stream: str) -> None:
        self._client = client
        self._stream = stream

    async def list(self, subject: str, limit: int, before: int | None) -> Sequence[DeadLetter]:
        """Return the newest dead letters of a subject, newest first, without headers and bodies."""
        async with self._translated() as js:
            state = (await js.stream_info(self._stream)).state
            end = state.last_seq + 1 if before is None else min(before, state.last_seq + 1)
            start = await self._find_start(js, subject, state.first_seq, end, limit)
            letters = await self._fetch(js, subject, start, end)
        return letters[::-1][:limit]

    async def get(self, sequence: int) -> DeadLetter | None:
        """Return a dead letter with its headers and its body, or None."""
        async with self._translated() as js:
            try:
                message = await js.get_msg(self._stream, sequence)
            except nats.js.errors.NotFoundError:
                return None
            headers = message.headers or {}
            data = message.data or b""
            letter = _letter(str(message.subject), sequence, message.time, headers, len(data))
        return replace(letter, headers=headers, body=data.decode(errors="backslashreplace"))

    async def _find_start(self, js: JetStreamContext, subject: str, first: int, end: int, limit: int) -> int:
        """Return the highest sequence from which there are `limit` dead letters before `end`, or `first`.

        It is searched by halves: the broker counts from a sequence on, but it does not read backwards.
        """
        start, last = first, max(first, end - 1)
        while start < last:
            middle = (start + last + 1) // 2
            if await self._count_between(js, subject, middle, end) >= limit:
                start = middle
            else:
                last = middle - 1
        return start

    async def _count_between(self, js: JetStreamContext, subject: str, start: int, end: int) -> int:
        """Return how many dead letters there are from `start` until before `end`, or a few less.

        The newer ones are counted last: those that arrive meanwhile must not count as older ones.
        """
        async with self._consumer(js, subject, start) as (_, count):
            pass
        async with self._consumer(js, subject, end) as (_, newer):
            return count - newer

    async def _fetch(self, js: JetStreamContext, subject: str, start: int, end: int) -> Sequence[DeadLetter]:
        """Return the dead letters from `start` until before `end`, oldest first."""
        letters: list[DeadLetter] = []
        async with self._consumer(js, subject, start) as (name, count):
            subscription = await js.pull_subscribe_bind(consumer=name, stream=self._stream)
            while len(letters) < count and (not letters or letters[-1].sequence < end):
                wanted = min(_FETCHED, count - len(letters))
                letters += map(_read, await subscription.fetch(wanted, timeout=_CONSUMER_SECONDS))
            await subscription.unsubscribe()
        return [each for each in letters if each.sequence < end]

    @asynccontextmanager
    async def _consumer(self, js: JetStreamContext, subject: str, start: int) -> AsyncIterator[tuple[str, int]]:
        """Create a consumer from a sequence on. Yields its name, and how many messages it will deliver."""
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, start),
            filter_subject=subject,
            headers_only=True,
            inactive_threshold=_CONSUMER_SECONDS,
            mem_storage=True,
        )
        info = await js.add_consumer(self._stream, config)
        try:
            yield info.name, info.num_pending or 0
        finally:
            await js.delete_consumer(self._stream, info.name)

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[JetStreamContext]:
        """Give access to the stream. Errors of the broker become a `NoAnswerError` that says what is needed."""
        try:
            yield self._client.jetstream()
        except nats.js.errors.NotFoundError as error:
            raise NoAnswerError(f"the broker has no stream {self._stream} for this login") from error
        except UNREADABLE_ANSWER as error:
            reason = f"the broker sent an answer that this client cannot read ({type(error).__name__})"
            raise NoAnswerError(f"the stream {self._stream} cannot be read: {reason}") from error
        except (nats.errors.Error, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            if isinstance(error, nats.js.errors.APIError):
                reason = error.description or "JetStream does not answer"
            raise NoAnswerError(
                f"the stream {self._stream} cannot be read: {reason}; it needs the login of the operator"
            ) from error


def _read(message: Msg) -> DeadLetter:
    """Return a dead letter that was delivered without its body."""
    metadata = message.metadata
    headers = message.headers or {}
    size = int(headers.get("Nats-Msg-Size", 0))
    return _letter(message.subject, metadata.sequence.stream, metadata.timestamp, headers, size)


def _letter(subject: str, sequence: int, at: datetime | None, headers: Mapping[str, str], size: int) -> DeadLetter:
    """Return a dead letter without its headers and its body."""
    *_, tenant, message = subject.split(".")
    assert at is not None  # noqa: S101 - the server always sends it
    return DeadLetter(
        sequence=sequence,
        tenant=tenant,
        message=message,
        code=headers.get("Timer-Error-Code", ""),
        reason=headers.get("Timer-Error-Message", ""),
        stored_at=at,
        source_sequence=int(headers.get("Timer-Source-Sequence", 0)),
        size=size,
        headers={},
    )
