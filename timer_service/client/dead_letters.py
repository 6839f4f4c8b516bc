"""The methods of the client for what failed: buried and parked events, and dead letters at the broker."""

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

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
from timer_service.client.models import BuriedEvent, DeadLetter, Outcome, ParkedEvent
from timer_service.client.resource import Resource
from timer_service.core.values.address import BODY_OMITTED, UNREADABLE

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
    """Methods for dead letters, as `TimerClient.dead_letters`. They read the log of dead letters at the broker.

    If the broker separates the tenants, they need the login of the operator. They raise `NoAnswerError` without a log
    or a permission.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self, tenant: str = "*", *, limit: int = 50, before: int | None = None) -> Sequence[DeadLetter]:
        """Return the newest dead letters of a tenant or of all, newest first, without their bodies.

        `before`: only older ones than the dead letter with this sequence.
        """
        _check_tenant_or_all(tenant)
        check_whole("limit", limit)
        optional(check_whole, "before", before)
        link = self._connection.link
        link.check()
        return await link.run(link.dead_letters(tenant, limit, before))

    async def get(self, tenant: str, sequence: int) -> DeadLetter | None:
        r"""Return a dead letter with its headers and its body, or None if the tenant has none with this sequence.

        `tenant`: `*` for any.
        A byte of the body that is not UTF-8 is written as in Python, such as `\xff`. This is not JSON either, so the
        command does not become another one.
        """
        _check_tenant_or_all(tenant)
        if not 0 < check_whole("sequence", sequence) <= _MOST_SEQUENCE:
            return None
        link = self._connection.link
        link.check()
        letter = await link.run(link.dead_letter(sequence))
        return letter if letter is not None and tenant in {"*", letter.tenant} else None

    async def resubmit(self, letter: DeadLetter, *, timeout_seconds: float = 10) -> Outcome:
        """Send the command of a dead letter again, as a new command, and return its outcome.

        The dead letter must come from `get`. It stays in the log. Raises `CommandError` if the command is rejected
        again, and ValueError if the dead letter lacks the command.
        """
        check_seconds("timeout_seconds", timeout_seconds)
        check_type("letter", letter, DeadLetter, "a DeadLetter")
        if letter.headers.get(BODY_OMITTED) or letter.body is None:
            raise ValueError(
                f"dead letter {letter.sequence} lacks the command: it was too large. It is message "
                f"{letter.source_sequence} of {self._connection.link.command_log}"
            )
        if UNREADABLE in {letter.tenant, letter.message}:
            raise ValueError(f"dead letter {letter.sequence} was sent to a subject that no command can have")
        command_id = secrets.token_hex(16)
        body = _with_id(letter.body, command_id).encode()
        command = Command(command_id, letter.tenant, letter.message, body)
        return await self._connection.send_command(command, timeout_seconds)


def _check_tenant_or_all(tenant: str) -> str:
    """Return a tenant that a dead letter can have, or `*`."""
    return tenant if tenant in ("*", UNREADABLE) else check_tenant(tenant)


def _with_id(body: str, command_id: str) -> str:
    """Return a command with another id. The broker drops a message whose id it knows, and replies name the id."""
    try:
        envelope = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return json.dumps({**envelope, "id": command_id}) if isinstance(envelope, dict) else body
