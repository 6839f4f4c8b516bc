"""A small client for users: schedule timers and watch them fire, over the broker only."""

import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client

from timer_service.core.message import TENANT_PATTERN

_UNSET: Any = object()


class CommandError(Exception):
    """The service rejected a command; `code` and `errors` are those of contracts/README.md."""

    def __init__(self, code: str, message: str, errors: list[dict[str, str]]) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.errors = errors


class NoAnswerError(Exception):
    """Nobody took the command or told its outcome in time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: its id and the outcome's name."""

    command_id: str
    name: str


class TimerClient:
    """Speaks the contracts over one NATS connection. Make one with `TimerClient.connect`."""

    def __init__(self, connection: Client, subject_prefix: str) -> None:
        self._connection = connection
        self._prefix = subject_prefix

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str = "nats://localhost:4222", *, subject_prefix: str = "timer"
    ) -> AsyncIterator["TimerClient"]:
        """Connect for the length of a block. Raises `NoAnswerError` when no server answers."""
        try:
            connection = await nats.connect(
                url.split(","), name="timer-client", allow_reconnect=False, connect_timeout=5, error_cb=_ignore
            )
        except (nats.errors.Error, OSError) as error:
            raise NoAnswerError(f"can't connect to the broker: {str(error) or type(error).__name__}") from error
        try:
            yield cls(connection, subject_prefix)
        finally:
            await connection.close()

    async def schedule(
        self, tenant: str, call: str, due_at: datetime, *, data: Any = _UNSET, timeout_seconds: float = 10
    ) -> Outcome:
        """Schedule a timer and wait for the outcome.

        `due_at` must carry a timezone; `data` is any JSON value and comes back in the event. Raises `CommandError` when
        the service rejects it, `NoAnswerError` when no outcome comes in time (the command may still be stored then, and
        scheduling again does no harm), ValueError for a `due_at` without a timezone or a `tenant` no subject can hold.
        """
        if not re.fullmatch(TENANT_PATTERN, tenant):
            raise ValueError("tenant must be 1 to 64 letters, digits, dashes or underscores")
        if due_at.tzinfo is None:
            raise ValueError("due_at must carry a timezone")
        payload: dict[str, Any] = {"tenantId": tenant, "serviceCallId": call, "dueAt": due_at.isoformat()}
        if data is not _UNSET:
            payload["data"] = data
        return await self._command(tenant, "ScheduleTimer", "schedule-timer", payload, timeout_seconds)

    async def watch(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Yield the `DueTimeReached` events of a tenant (default: all) as they are published from now on."""
        subscription = await self._connection.subscribe(f"{self._prefix}.evt.v1.{tenant}.due-time-reached")
        await self._connection.flush()
        async for message in subscription.messages:
            event: dict[str, Any] = json.loads(message.data)
            yield event

    async def _command(
        self, tenant: str, message_type: str, message: str, payload: dict[str, Any], timeout_seconds: float
    ) -> Outcome:
        command_id = secrets.token_hex(16)
        body = {"id": command_id, "type": message_type, "tenantId": tenant, "payload": payload}
        inbox = self._connection.new_inbox()
        answers = await self._connection.subscribe(inbox, max_msgs=1)
        try:
            await self._connection.jetstream().publish(
                f"{self._prefix}.cmd.v1.{tenant}.{message}",
                json.dumps(body).encode(),
                timeout=timeout_seconds,
                headers={"Nats-Msg-Id": command_id, "Timer-Reply-To": inbox},
            )
            answer = json.loads((await answers.next_msg(timeout_seconds)).data)
        except nats.js.errors.NoStreamResponseError as error:
            raise NoAnswerError("no stream takes commands: is the service running there?") from error
        except nats.errors.TimeoutError as error:
            raise NoAnswerError(f"no outcome within {timeout_seconds} s; the command may be handled later") from error
        except nats.errors.Error as error:
            raise NoAnswerError(str(error) or type(error).__name__) from error
        if "error" in answer:
            raise CommandError(answer["error"]["code"], answer["error"]["message"], answer["error"].get("errors", []))
        return Outcome(answer["commandId"], answer["outcome"])


async def _ignore(_: Exception) -> None:
    """Errors reach the caller through what it awaits."""
