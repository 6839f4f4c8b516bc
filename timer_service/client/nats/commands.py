"""Publishes commands to JetStream, and takes their acknowledgements and outcomes in an inbox."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from timer_service.client.answers import read_object
from timer_service.client.commands import Command, Exchange
from timer_service.client.errors import NoAnswerError
from timer_service.core.values.address import Kind
from timer_service.core.values.parts import split
from timer_service.nats_batches import MAX_BYTES, MAX_MESSAGES, batch_headers

_WINDOW = 500
_OUTCOME = "outcome"
_NO_RESPONDERS = "503"
_NO_STREAM = (
    "no stream accepts commands of this tenant here; is timer-service running, and has the tenant a stream if the "
    "tenants are separated?"
)

_ATOMIC_DISABLED = 10174
_NEVER_STORED = {10054, 10097}
"""The errors of the stream about a message that is larger than it allows, or has larger headers."""

Subject = Callable[[Kind, str, str], str]
"""Returns the subject of messages of a kind, a tenant and a type."""
_Acknowledged = asyncio.Future[Mapping[str, Any]]
"""The answer of the stream to a message, as JSON."""


class _Inbox:
    """Takes the acknowledgements of the stream, and the outcomes from the service. The subject tells them apart."""

    def __init__(self, subject: str, receive_outcome: Callable[[bytes], None] | None) -> None:
        self.subject = subject
        self._receive_outcome = receive_outcome
        self._acknowledged: dict[str, _Acknowledged] = {}
        """The acknowledgements that are still to come, by the id of the command."""

    def expect(self, command_id: str) -> _Acknowledged:
        """Return the future acknowledgement of a command."""
        acknowledged = self._acknowledged[command_id] = asyncio.get_running_loop().create_future()
        return acknowledged

    async def receive(self, message: Msg) -> None:
        """Take a message. That no stream has the subject of a command counts as an error of the stream."""
        token = message.subject.rpartition(".")[2]
        if token == _OUTCOME and self._receive_outcome is not None:
            self._receive_outcome(message.data)
            return
        waiting = self._acknowledged.pop(token, None)
        if waiting is None or waiting.done():
            return
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            waiting.set_result({"error": {"description": _NO_STREAM}})
        else:
            waiting.set_result(read_object(message.data))


class Publisher:
    """Publishes the commands of a connection."""

    def __init__(self, client: Client, subject: Subject) -> None:
        self._client = client
        self._subject = subject
        self._takes_batches = True
        """Whether the stream takes atomic batches. A refused batch sets this to False."""

    async def exchange(self, exchange: Exchange) -> None:
        """Publish commands, in atomic batches if the stream takes them, and wait until every command has ended.

        A batch is published to find this out: the client may not be allowed to read the configuration of the stream.
        """
        commands = exchange.commands
        async with self._open_inbox(exchange.receive) as inbox:
            headers = {**exchange.trace, "Timer-Reply-To": f"{inbox.subject}.{_OUTCOME}"}
            for chunk in split(commands, lambda each: len(each.body), max_count=MAX_MESSAGES, max_bytes=MAX_BYTES):
                if len(chunk) > 1 and self._takes_batches:
                    acknowledged = await self._publish_batch(inbox, chunk, headers)
                    if "batch" in acknowledged:
                        continue
                    self._takes_batches = _may_take_batches(acknowledged)
                for start in range(0, len(chunk), _WINDOW):
                    window = chunk[start : start + _WINDOW]
                    published = [(each.id, await self._publish_one(inbox, each, headers)) for each in window]
                    for command_id, waiting in published:
                        if "error" in (answer := await waiting):
                            exchange.refuse(command_id, _why(answer["error"]))
            await exchange.wait()

    async def store(self, commands: Sequence[Command], endings: dict[str, str | None]) -> None:
        """See `Link.store`."""
        published: dict[str, _Acknowledged] = {}
        why = ""
        try:
            async with self._open_inbox() as inbox:
                for command in commands:
                    published[command.id] = await self._publish_one(inbox, command)
                if published:
                    await asyncio.wait(published.values())
        finally:  # also of those that were acknowledged before a cancellation
            for command_id, acknowledged in published.items():
                refusal = acknowledged.result().get("error") if acknowledged.done() else "no acknowledgement"
                if refusal is None:
                    endings[command_id] = None
                elif isinstance(refusal, Mapping) and refusal.get("err_code") in _NEVER_STORED:
                    endings[command_id] = _why(refusal)
                else:
                    why = why or _why(refusal)
        if why:
            raise NoAnswerError(why)

    @asynccontextmanager
    async def _open_inbox(self, receive_outcome: Callable[[bytes], None] | None = None) -> AsyncIterator[_Inbox]:
        """Subscribe to a new inbox during the block."""
        inbox = _Inbox(self._client.new_inbox(), receive_outcome)
        # Without limits on pending messages, because the driver drops messages above them.
        subscription = await self._client.subscribe(
            f"{inbox.subject}.*", cb=inbox.receive, pending_msgs_limit=0, pending_bytes_limit=0
        )
        try:
            yield inbox
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    async def _publish_batch(
        self, inbox: _Inbox, commands: Sequence[Command], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Publish an atomic batch and return its acknowledgement, which follows the last message."""
        *first_ones, last = commands
        batch_id = secrets.token_hex(8)
        for sequence, command in enumerate(first_ones, 1):
            await self._publish(command, {**headers, **batch_headers(batch_id, sequence, last=False)})
        end = batch_headers(batch_id, len(commands), last=True)
        return await (await self._publish_one(inbox, last, {**headers, **end}))

    async def _publish_one(
        self, inbox: _Inbox, command: Command, headers: Mapping[str, str] = MappingProxyType({})
    ) -> _Acknowledged:
        """Publish a command. Return the future of its acknowledgement."""
        acknowledged = inbox.expect(command.id)
        await self._publish(command, headers, reply=f"{inbox.subject}.{command.id}")
        return acknowledged

    async def _publish(self, command: Command, headers: Mapping[str, str], reply: str = "") -> None:
        subject = self._subject(Kind.COMMAND, command.tenant, command.message)
        headers = {"Nats-Msg-Id": command.id, **command.trace, **headers}
        await self._client.publish(subject, command.body, reply=reply, headers=headers)


def _why(error: object) -> str:
    """Return the text of an error of the stream."""
    if not isinstance(error, Mapping):
        return f"JetStream refused the command: {error}"
    code = f" ({error['err_code']})" if "err_code" in error else ""
    return f"{error.get('description')}{code}"


def _may_take_batches(refusal: Mapping[str, Any]) -> bool:
    """Return False if the stream or the server takes no batches. Other errors are about one batch."""
    error = refusal.get("error")
    return isinstance(error, Mapping) and error.get("err_code", _ATOMIC_DISABLED) != _ATOMIC_DISABLED
