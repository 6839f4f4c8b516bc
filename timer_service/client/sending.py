"""Sends commands through JetStream and gathers their outcomes through one inbox."""

import asyncio
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from timer_service.client.errors import CommandError, NoAnswerError
from timer_service.client.views import Outcome

_WINDOW = 500
_BATCH_MESSAGES = 1000  # the server's limit
_BATCH_BYTES = 8 * 1024 * 1024  # the server holds a batch in memory until it is whole
_OUTCOME = "outcome"
_NO_RESPONDERS = "503"
_ATOMIC_DISABLED = 10174

Ended = Outcome | CommandError | NoAnswerError


class Command(NamedTuple):
    """One command, ready to be sent."""

    id: str
    subject: str
    body: bytes


class Sender:
    """Sends commands over one connection."""

    def __init__(self, connection: Client) -> None:
        self._connection = connection
        self._atomic = True

    async def send(self, commands: Sequence[Command], timeout_seconds: float) -> list[Ended]:
        """Send commands in order; return how each ended."""
        exchange = _Exchange(self._connection, commands)
        reason = f"no outcome within {timeout_seconds} s; the command may be handled later"
        try:
            async with asyncio.timeout(timeout_seconds):
                await exchange.open()
                for chunk in _chunks(commands):
                    await self._publish(exchange, chunk)
                await exchange.wait()
        except TimeoutError:
            pass
        except nats.errors.Error as error:
            reason = str(error) or type(error).__name__
        finally:
            await exchange.close()
        return exchange.endings(reason)

    async def _publish(self, exchange: "_Exchange", commands: Sequence[Command]) -> None:
        """Publish as an atomic batch; where the stream refuses that, in windows of single messages.

        Whether the stream allows it is found out by trying: whoever may publish may not be permitted to look at it.
        """
        if self._atomic and len(commands) > 1:
            acknowledged = await exchange.publish_batch(commands)
            if "batch" in acknowledged:
                return
            # Not allowed here, or a server too old to notice; any other error is about these commands only.
            self._atomic = acknowledged.get("error", {}).get("err_code", _ATOMIC_DISABLED) != _ATOMIC_DISABLED
        for start in range(0, len(commands), _WINDOW):
            await exchange.publish_each(commands[start : start + _WINDOW])


class _Exchange:
    """Some commands on their way, with what came back for them."""

    def __init__(self, connection: Client, commands: Sequence[Command]) -> None:
        self._connection = connection
        self._commands = commands
        self._inbox = connection.new_inbox()
        self._interest: Any = None
        loop = asyncio.get_running_loop()
        self._ends: dict[str, asyncio.Future[Ended]] = {each.id: loop.create_future() for each in commands}
        self._acknowledged: dict[str, asyncio.Future[Mapping[str, Any]]] = {}

    async def open(self) -> None:
        """Begin to listen."""
        # No limits of the client's own: it would drop what exceeds them.
        self._interest = await self._connection.subscribe(
            f"{self._inbox}.*", cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def close(self) -> None:
        """Stop listening."""
        if self._interest is not None and not self._connection.is_closed:
            await self._interest.unsubscribe()

    async def publish_batch(self, commands: Sequence[Command]) -> Mapping[str, Any]:
        """Publish an atomic batch; return its acknowledgement."""
        *body, last = commands
        batch_id = secrets.token_hex(8)
        for sequence, command in enumerate(body, 1):
            await self._publish(command, {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(sequence)})
        closing = {
            "Nats-Batch-Id": batch_id,
            "Nats-Batch-Sequence": str(len(commands)),
            "Nats-Batch-Commit": "1",
        }
        return await (await self._publish_acknowledged(last, closing))

    async def publish_each(self, commands: Sequence[Command]) -> None:
        """Publish a window of single messages; those the stream refuses have ended."""
        window = [(command, await self._publish_acknowledged(command, {})) for command in commands]
        for command, acknowledged in window:
            if "error" in (answer := await acknowledged):
                self._end(command.id, NoAnswerError(_why(answer["error"])))

    async def wait(self) -> None:
        """Wait until every command has ended."""
        await asyncio.gather(*self._ends.values())

    def endings(self, otherwise: str) -> list[Ended]:
        """Return how each command ended; `otherwise` says why the rest has not."""
        return [
            self._ends[each.id].result() if _is_done(self._ends[each.id]) else NoAnswerError(otherwise)
            for each in self._commands
        ]

    async def _publish_acknowledged(
        self, command: Command, headers: dict[str, str]
    ) -> asyncio.Future[Mapping[str, Any]]:
        acknowledged = self._acknowledged[command.id] = asyncio.get_running_loop().create_future()
        await self._publish(command, headers, reply=f"{self._inbox}.{command.id}")
        return acknowledged

    async def _publish(self, command: Command, headers: dict[str, str], reply: str = "") -> None:
        headers = {"Nats-Msg-Id": command.id, "Timer-Reply-To": f"{self._inbox}.{_OUTCOME}", **headers}
        await self._connection.publish(command.subject, command.body, reply=reply, headers=headers)

    async def _receive(self, message: Msg) -> None:
        token = message.subject.rpartition(".")[2]
        if token != _OUTCOME:
            self._acknowledge(token, message)
            return
        reply = json.loads(message.data)
        self._end(reply["commandId"], CommandError.read(reply["error"]) if "error" in reply else Outcome.read(reply))

    def _acknowledge(self, command_id: str, message: Msg) -> None:
        waiting = self._acknowledged.pop(command_id, None)
        if waiting is None or waiting.done():
            return
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            waiting.set_result({"error": {"description": "no stream takes commands: is the service running there?"}})
        else:
            waiting.set_result(json.loads(message.data))

    def _end(self, command_id: str, ended: Ended) -> None:
        waiting = self._ends.get(command_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(ended)


def _is_done(future: asyncio.Future[Ended]) -> bool:
    return future.done() and not future.cancelled()


def _why(error: Mapping[str, Any]) -> str:
    code = f" ({error['err_code']})" if "err_code" in error else ""
    return f"{error['description']}{code}"


def _chunks(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    start, size = 0, 0
    for index, command in enumerate(commands):
        size += len(command.body)
        if index > start and (index - start == _BATCH_MESSAGES or size > _BATCH_BYTES):
            yield commands[start:index]
            start, size = index, len(command.body)
    if commands:
        yield commands[start:]
