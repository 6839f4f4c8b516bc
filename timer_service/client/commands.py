"""Publishes commands to JetStream and collects their outcomes in one inbox."""

import asyncio
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from timer_service.client.answers import read_object
from timer_service.client.calls import Calls, check_connected
from timer_service.client.errors import CommandError, NoAnswerError
from timer_service.client.models import Outcome
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
HEADER_BYTES = 1024
"""More than the headers of a command have."""

Ended = Outcome | CommandError | NoAnswerError


@dataclass(slots=True)
class Batches:
    """What a connection knows of the stream of commands."""

    taken: bool = True
    """Whether it takes atomic batches. A refused batch sets this to False."""


class Command(NamedTuple):
    """A command, ready to publish."""

    id: str
    subject: str
    body: bytes
    trace: Mapping[str, str] = MappingProxyType({})
    """The trace context of the span that stored the command. A command that is sent at once gets the current one."""


class Stored(NamedTuple):
    """What a stream has stored of some commands."""

    endings: Mapping[str, str | None]
    """By the id of a command: None if it was stored, or why it can never be stored."""
    error: str | None
    """Why the other commands were not stored, or may not have been. None if there are none."""


async def send_commands(
    connection: Client,
    calls: Calls,
    batches: Batches,
    commands: Sequence[Command],
    *,
    timeout_seconds: float,
    progress: Callable[[int], object] | None = None,
) -> list[Ended]:
    """Publish commands in order and return how each ended, in the same order.

    `progress` is called with the number of commands that have ended, each time this number grows. If it raises, so does
    this function.
    """
    try:
        check_connected(connection)
    except NoAnswerError as error:
        return [error for _ in commands]
    exchange = _Exchange(connection, commands, progress)
    reason = f"no outcome within {timeout_seconds} s; the command may be handled later"
    try:
        async with asyncio.timeout(timeout_seconds):
            await calls.run(exchange.run(batches))
    except TimeoutError:
        pass
    except (nats.errors.Error, NoAnswerError) as error:
        reason = str(error) or type(error).__name__
    finally:
        await exchange.close()
    return exchange.endings(reason)


class _Publisher:
    """Publishes commands, and takes the acknowledgements of the stream in an inbox."""

    def __init__(self, connection: Client) -> None:
        self._connection = connection
        self._inbox = connection.new_inbox()
        self._subscription: Any = None
        self._acknowledged: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        """The acknowledgements of the stream that are still to come, by the id of the command."""
        self._headers: dict[str, str] = {}
        """The headers of every command."""

    async def open(self) -> None:
        """Subscribe to the inbox."""
        # Without limits on pending messages, because the driver drops messages above them.
        self._subscription = await self._connection.subscribe(
            f"{self._inbox}.*", cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def close(self) -> None:
        """Unsubscribe from the inbox."""
        if self._subscription is not None and not self._connection.is_closed:
            await self._subscription.unsubscribe()

    async def publish(
        self, command: Command, headers: Mapping[str, str] = MappingProxyType({})
    ) -> asyncio.Future[Mapping[str, Any]]:
        """Publish a command. Return the future of its acknowledgement: the stream's answer as JSON."""
        acknowledged = self._acknowledged[command.id] = asyncio.get_running_loop().create_future()
        await self._publish(command, headers, reply=f"{self._inbox}.{command.id}")
        return acknowledged

    async def _publish(self, command: Command, headers: Mapping[str, str], reply: str = "") -> None:
        headers = {"Nats-Msg-Id": command.id, **self._headers, **command.trace, **headers}
        await self._connection.publish(command.subject, command.body, reply=reply, headers=headers)

    async def _receive(self, message: Msg) -> None:
        """Take an acknowledgement. The last token of its subject is the id of the command."""
        self._acknowledge(message.subject.rpartition(".")[2], message)

    def _acknowledge(self, command_id: str, message: Msg) -> None:
        """Take an acknowledgement. That no stream has the subject counts as an error of the stream."""
        waiting = self._acknowledged.pop(command_id, None)
        if waiting is None or waiting.done():
            return
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            waiting.set_result({"error": {"description": _NO_STREAM}})
        else:
            waiting.set_result(read_object(message.data))


class _Exchange(_Publisher):
    """Published commands that wait for their acknowledgements and outcomes."""

    def __init__(
        self, connection: Client, commands: Sequence[Command], progress: Callable[[int], object] | None
    ) -> None:
        super().__init__(connection)
        self._commands = commands
        self._progress = progress
        self._ended = 0
        """How many commands have ended."""
        self._progress_error: Exception | None = None
        loop = asyncio.get_running_loop()
        self._ends: dict[str, asyncio.Future[Ended]] = {each.id: loop.create_future() for each in commands}
        """How each command ends, by its id."""
        self._headers = {**current_trace(), "Timer-Reply-To": f"{self._inbox}.{_OUTCOME}"}

    async def run(self, batches: Batches) -> None:
        """Publish the commands, in atomic batches if the stream takes them, and wait until every command has ended.

        A batch is published to find this out: the client may not be allowed to read the configuration of the stream.
        """
        await self.open()
        chunks = split(self._commands, lambda each: len(each.body), max_count=MAX_MESSAGES, max_bytes=MAX_BYTES)
        for chunk in chunks:
            if len(chunk) > 1 and batches.taken:
                acknowledged = await self._publish_batch(chunk)
                if "batch" in acknowledged:
                    continue
                batches.taken = _may_take_batches(acknowledged)
            for start in range(0, len(chunk), _WINDOW):
                await self._publish_each(chunk[start : start + _WINDOW])
        if self._ends:
            await asyncio.wait(self._ends.values())

    def endings(self, otherwise: str) -> list[Ended]:
        """Return how each command ended, or raise the error of `progress`.

        Commands without an outcome end now, with `NoAnswerError(otherwise)`.
        """
        for command in self._commands:
            self._end(command.id, NoAnswerError(otherwise))
        if self._progress_error is not None:
            raise self._progress_error
        return [self._ends[command.id].result() for command in self._commands]

    async def _publish_batch(self, commands: Sequence[Command]) -> Mapping[str, Any]:
        """Publish an atomic batch and return its acknowledgement, which follows the last message."""
        *first_ones, last = commands
        batch_id = secrets.token_hex(8)
        for sequence, command in enumerate(first_ones, 1):
            await self._publish(command, batch_headers(batch_id, sequence, last=False))
        acknowledged = await self.publish(last, batch_headers(batch_id, len(commands), last=True))
        return await acknowledged

    async def _publish_each(self, commands: Sequence[Command]) -> None:
        """Publish single messages. A command that the stream refuses ends with `NoAnswerError`."""
        window = [(command, await self.publish(command)) for command in commands]
        for command, acknowledged in window:
            if "error" in (answer := await acknowledged):
                self._end(command.id, NoAnswerError(_why(answer["error"])))

    async def _receive(self, message: Msg) -> None:
        """Take an acknowledgement of the stream or an outcome from the service. The subject tells them apart."""
        token = message.subject.rpartition(".")[2]
        if token != _OUTCOME:
            self._acknowledge(token, message)
            return
        reply = read_object(message.data)
        error = reply.get("error")
        ended = Outcome.read(reply) if error is None else CommandError.read(error)
        self._end(str(reply.get("commandId")), ended)

    def _end(self, command_id: str, ended: Ended) -> None:
        """End a command that has not ended. Its first end counts."""
        waiting = self._ends.get(command_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(ended)
            self._ended += 1
            self._report_progress()

    def _report_progress(self) -> None:
        """Call `progress`, unless it has raised an error, which `endings` raises: here it would end in the driver."""
        if self._progress is None or self._progress_error is not None:
            return
        try:
            self._progress(self._ended)
        except Exception as error:  # noqa: BLE001 - code of the user
            self._progress_error = error


async def store_commands(
    connection: Client, calls: Calls, commands: Sequence[Command], *, timeout_seconds: float
) -> Stored:
    """Publish commands side by side, and wait until the stream has stored them, not for their outcomes.

    If the stream does not store one of them, it may have stored others that were published later. Raises
    `NoAnswerError` if there is no connection at the beginning.
    """
    check_connected(connection)
    # The server ends the connection if a message is too large.
    endings: dict[str, str | None] = {
        each.id: f"the command has {len(each.body)} bytes, more than the broker accepts"
        for each in commands
        if len(each.body) + HEADER_BYTES > connection.max_payload
    }
    publisher = _Publisher(connection)
    published: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
    why: str | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            await calls.run(_publish_all(publisher, [each for each in commands if each.id not in endings], published))
    except TimeoutError:
        why = f"no acknowledgement within {timeout_seconds:.0f} s; may this login publish commands of the tenant?"
    except (nats.errors.Error, NoAnswerError) as error:
        why = str(error) or type(error).__name__
    finally:
        await publisher.close()
    for command_id, acknowledged in published.items():
        if not acknowledged.done():
            continue
        refusal = acknowledged.result().get("error")
        if refusal is None:
            endings[command_id] = None
        elif isinstance(refusal, Mapping) and refusal.get("err_code") in _NEVER_STORED:
            endings[command_id] = _why(refusal)
        else:
            why = why or _why(refusal)
    return Stored(endings, why)


async def _publish_all(
    publisher: _Publisher, commands: Sequence[Command], published: dict[str, asyncio.Future[Mapping[str, Any]]]
) -> None:
    """Publish commands and add the future acknowledgement of each to `published`. Wait for all of them."""
    await publisher.open()
    for command in commands:
        published[command.id] = await publisher.publish(command)
    if published:
        await asyncio.wait(published.values())


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


def current_trace() -> Mapping[str, str]:
    """Return the headers with the trace context of the caller's span; none without a span."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:  # a program that has spans has imported it
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

        tracecontext.TraceContextTextMapPropagator().inject(headers)
    return headers
