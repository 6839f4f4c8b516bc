"""The methods of the client for what failed: buried and parked events, and dead letters in the stream of the broker."""

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from timer_service.client.checks import (
    check_count,
    check_mapping,
    check_name,
    check_reason,
    check_seconds,
    check_tenant,
    check_type,
    check_whole,
    optional,
)
from timer_service.client.commands import Command
from timer_service.client.connection import Connection
from timer_service.client.errors import NoAnswerError
from timer_service.client.models import BuriedEvent, DeadLetter, Outcome, ParkedEvent
from timer_service.client.resource import Resource
from timer_service.core.values.address import BODY_OMITTED, UNREADABLE, Kind
from timer_service.nats_client import UNREADABLE_ANSWER

_CONSUMER_SECONDS = 10
"""How long the broker keeps a consumer that this client has not deleted, because it was killed."""
_FETCHED = 500
_MOST_SEQUENCE = 2**64 - 1


class Events(Resource):
    """Methods for events that were given up, as `TimerClient.events`.

    A buried event could not be published by the service. A parked event could not be handled by a consumer.
    """

    _id = ("eventId", "event_id")

    def buried(self, tenant: str, *, timeout_seconds: float = 10) -> AsyncIterator[BuriedEvent]:
        """Iterate over the buried events of a tenant, oldest first."""
        return self._list("list-buried-events", "events", BuriedEvent, tenant, timeout_seconds)

    async def retry(self, tenant: str, event_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Publish a buried event again, under the same id."""
        return await self._send("RetryEvent", tenant, event_id, timeout_seconds)

    def parked(
        self, tenant: str, consumer: str | None = None, *, timeout_seconds: float = 10
    ) -> AsyncIterator[ParkedEvent]:
        """Iterate over the parked events of a tenant, or of one of its consumers, oldest first, without `event`."""
        chosen = optional(check_name, "consumer", consumer)
        return self._list("list-parked-events", "events", ParkedEvent, tenant, timeout_seconds, consumer=chosen)

    async def get_parked(
        self, tenant: str, consumer: str, event_id: str, *, timeout_seconds: float = 10
    ) -> ParkedEvent | None:
        """Return a parked event with the whole `event`, or None if the consumer has not parked it."""
        chosen = check_name("consumer", consumer)
        return await self._find("get-parked-event", ParkedEvent, tenant, event_id, timeout_seconds, consumer=chosen)

    async def park(
        self,
        tenant: str,
        consumer: str,
        event: Mapping[str, Any],
        *,
        reason: str,
        attempts: int,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Store an event that a consumer gives up after some attempts, until it is resubmitted or dropped.

        `event` is the whole event as it was received. Raises `CommandError` if the service rejects the command.
        """
        fields = {
            "consumer": check_name("consumer", consumer),
            "event": check_mapping("event", event),
            "reason": check_reason(reason),
            "attempts": check_count("attempts", attempts),
        }
        return await self._connection.send("ParkEvent", tenant, fields, timeout_seconds)

    async def resubmit(self, tenant: str, consumer: str, event_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Publish a parked event again, to its consumer only."""
        chosen = check_name("consumer", consumer)
        return await self._send("ResubmitEvent", tenant, event_id, timeout_seconds, consumer=chosen)

    async def drop(self, tenant: str, consumer: str, event_id: str, *, timeout_seconds: float = 10) -> Outcome:
        """Delete a parked event."""
        chosen = check_name("consumer", consumer)
        return await self._send("DropEvent", tenant, event_id, timeout_seconds, consumer=chosen)


class DeadLetters:
    """Methods for dead letters, as `TimerClient.dead_letters`. They read the stream TIMER_DLQ.

    On a server with accounts, they need the login of the operator. They raise `NoAnswerError` without a stream or a
    permission.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stream = connection.stream(Kind.DEAD_LETTER)

    async def list(self, tenant: str = "*", *, limit: int = 50, before: int | None = None) -> Sequence[DeadLetter]:
        """Return the newest dead letters of a tenant or of all, newest first, without their bodies.

        `before`: only older ones than the dead letter with this sequence.
        """
        _check_tenant_or_all(tenant)
        subject = self._connection.subject(Kind.DEAD_LETTER, tenant, "*")
        check_whole("limit", limit)
        optional(check_whole, "before", before)
        async with self._translated() as js:
            state = (await js.stream_info(self._stream)).state
            end = state.last_seq + 1 if before is None else min(before, state.last_seq + 1)
            start = await self._find_start(js, subject, state.first_seq, end, limit)
            letters = await self._fetch(js, subject, start, end)
        return letters[::-1][:limit]

    async def get(self, tenant: str, sequence: int) -> DeadLetter | None:
        r"""Return a dead letter with its headers and its body, or None if the tenant has none with this sequence.

        `tenant`: `*` for any.
        A byte of the body that is not UTF-8 is written as in Python, such as `\xff`. This is not JSON either, so the
        command does not become another one.
        """
        _check_tenant_or_all(tenant)
        if not 0 < check_whole("sequence", sequence) <= _MOST_SEQUENCE:
            return None
        async with self._translated() as js:
            try:
                message = await js.get_msg(self._stream, sequence)
            except nats.js.errors.NotFoundError:
                return None
            headers = message.headers or {}
            data = message.data or b""
            letter = _letter(str(message.subject), sequence, message.time, headers, len(data))
        if tenant not in {"*", letter.tenant}:
            return None
        return replace(letter, headers=headers, body=data.decode(errors="backslashreplace"))

    async def resubmit(self, letter: DeadLetter, *, timeout_seconds: float = 10) -> Outcome:
        """Send the command of a dead letter again, as a new command, and return its outcome.

        The dead letter must come from `get`. It stays in the stream. Raises `CommandError` if the command is rejected
        again, and ValueError if the dead letter lacks the command.
        """
        check_seconds("timeout_seconds", timeout_seconds)
        check_type("letter", letter, DeadLetter, "a DeadLetter")
        if letter.headers.get(BODY_OMITTED) or letter.body is None:
            raise ValueError(
                f"dead letter {letter.sequence} lacks the command: it was too large. It is message "
                f"{letter.source_sequence} of the stream {self._connection.stream(Kind.COMMAND)}"
            )
        if UNREADABLE in {letter.tenant, letter.message}:
            raise ValueError(f"dead letter {letter.sequence} was sent to a subject that no command can have")
        command_id = secrets.token_hex(16)
        subject = self._connection.subject(Kind.COMMAND, letter.tenant, letter.message)
        command = Command(command_id, subject, _with_id(letter.body, command_id).encode())
        return await self._connection.send_command(command, timeout_seconds)

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
            yield self._connection.jetstream()
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


def _check_tenant_or_all(tenant: str) -> str:
    """Return a tenant that a dead letter can have, or `*`."""
    return tenant if tenant in ("*", UNREADABLE) else check_tenant(tenant)


def _read(message: Msg) -> DeadLetter:
    """Return a dead letter that was delivered without its body."""
    metadata = message.metadata
    headers = message.headers or {}
    size = int(headers.get("Nats-Msg-Size", 0))
    return _letter(message.subject, metadata.sequence.stream, metadata.timestamp, headers, size)


def _letter(subject: str, sequence: int, stored_at: datetime | None, headers: dict[str, Any], size: int) -> DeadLetter:
    """Return a dead letter without its headers and its body."""
    *_, tenant, message = subject.split(".")
    assert stored_at is not None  # noqa: S101 - the server always sends it
    return DeadLetter(
        sequence=sequence,
        tenant=tenant,
        message=message,
        code=headers.get("Timer-Error-Code", ""),
        reason=headers.get("Timer-Error-Message", ""),
        stored_at=stored_at,
        source_sequence=int(headers.get("Timer-Source-Sequence", 0)),
        size=size,
        headers={},
    )


def _with_id(body: str, command_id: str) -> str:
    """Return a command with another id. The broker drops a message whose id it knows, and replies name the id."""
    try:
        envelope = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return json.dumps({**envelope, "id": command_id}) if isinstance(envelope, dict) else body
