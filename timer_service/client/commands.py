"""Commands, and how they end."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from timer_service.client.answers import read_object
from timer_service.client.errors import CommandError, NoAnswerError
from timer_service.client.models import Outcome

HEADER_BYTES = 1024
"""More than the headers of a command have."""

Ended = Outcome | CommandError | NoAnswerError


class Command(NamedTuple):
    """A command, ready to publish."""

    id: str
    tenant: str
    message: str
    """The type in kebab case, such as `schedule-timer`."""
    body: bytes
    trace: Mapping[str, str] = MappingProxyType({})
    """The trace context of the span that stored the command. A command that is sent at once gets the current one."""


class Stored(NamedTuple):
    """What the broker has stored of some commands."""

    endings: Mapping[str, str | None]
    """By the id of a command: None if it was stored, or why it can never be stored."""
    error: str | None
    """Why the other commands were not stored, or may not have been. None if there are none."""


class Exchange:
    """Commands that are sent and wait for their outcomes."""

    def __init__(self, commands: Sequence[Command], progress: Callable[[int], object] | None) -> None:
        """`progress` is called with the number of commands that have ended, each time this number grows."""
        self.commands = commands
        self.trace = current_trace()
        """The headers of every command."""
        self._progress = progress
        self._ended = 0
        """How many commands have ended."""
        self._progress_error: Exception | None = None
        loop = asyncio.get_running_loop()
        self._ends: dict[str, asyncio.Future[Ended]] = {each.id: loop.create_future() for each in commands}
        """How each command ends, by its id."""

    async def wait(self) -> None:
        """Wait until every command has ended."""
        if self._ends:
            await asyncio.wait(self._ends.values())

    def receive(self, body: bytes) -> None:
        """Take an outcome from the service."""
        reply = read_object(body)
        error = reply.get("error")
        self._end(str(reply.get("commandId")), Outcome.read(reply) if error is None else CommandError.read(error))

    def refuse(self, command_id: str, reason: str) -> None:
        """End a command that the broker has refused."""
        self._end(command_id, NoAnswerError(reason))

    def endings(self, otherwise: str) -> list[Ended]:
        """Return how each command ended, or raise the error of `progress`.

        Commands without an outcome end now, with `NoAnswerError(otherwise)`.
        """
        for command in self.commands:
            self._end(command.id, NoAnswerError(otherwise))
        if self._progress_error is not None:
            raise self._progress_error
        return [self._ends[command.id].result() for command in self.commands]

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


def current_trace() -> Mapping[str, str]:
    """Return the headers with the trace context of the caller's span; none without a span."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:  # a program that has spans has imported it
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

        tracecontext.TraceContextTextMapPropagator().inject(headers)
    return headers
