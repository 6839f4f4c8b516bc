"""`timer-service listen`: runs a program for each event."""

import asyncio
import json
import os
import shlex
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from timer_service.cli.connection import Server, find_target
from timer_service.cli.output import one_line
from timer_service.cli.parameters import Tenant, read_tenant, read_topic
from timer_service.client import Event, TimerApp
from timer_service.client.events import EVENTS, message_of
from timer_service.logs import configure_logs

_BY_MESSAGE = {message_of(each): each for each in EVENTS}
EventName = StrEnum("EventName", {each: each for each in _BY_MESSAGE})  # type: ignore[misc]  # mypy wants a literal


class ProgramError(Exception):
    """The program ended with another code than 0."""


@dataclass(frozen=True)
class Command:
    """A program and its arguments."""

    words: Sequence[str]


def read_program(text: str) -> Command:
    """Return the program of a line. Raises `BadParameter` if there is no such program."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} cannot be read: {error}.") from error
    if not words or shutil.which(words[0]) is None:
        raise typer.BadParameter(f"{text!r}: there is no program {words[0]!r}." if words else "it is empty.")
    return Command(words)


Name = Annotated[
    str,
    typer.Argument(
        parser=read_tenant, metavar="NAME", help="The durable consumer: it remembers which events were handled."
    ),
]
Program = Annotated[
    Command,
    typer.Option(
        "--exec",
        metavar="PROGRAM",
        parser=read_program,
        help="Run this program for each event, without a shell. It reads the event as JSON from stdin. Exit code 0 "
        "acknowledges the event; with another one it is tried again.",
    ),
]
Kind = Annotated[
    list[EventName] | None,
    typer.Option(
        "--event",
        metavar="EVENT",
        help="An event such as run-completed. May be repeated. Default: due-time-reached.",
    ),
]
Topic = Annotated[str | None, typer.Option(parser=read_topic, metavar="TOPIC", help="Only events with this topic.")]
Concurrency = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Run at most N programs at a time.")]
Attempts = Annotated[int, typer.Option(min=1, metavar="N", help="Park an event after N attempts.")]
Stream = Annotated[
    str | None, typer.Option(metavar="STREAM", help="The stream of the tenant, on a server with accounts.")
]


def listen(
    tenant: Tenant,
    program: Program,
    name: Name = "listen",
    event: Kind = None,
    topic: Topic = None,
    concurrency: Concurrency = 1,
    attempts: Attempts = 10,
    stream: Stream = None,
    server: Server = None,
) -> None:
    """Run a program for each event of a tenant, until SIGTERM or Ctrl-C. No event is missed."""
    target = find_target(server)
    names = [str(each) for each in event] if event else ["due-time-reached"]
    try:
        app = TimerApp(
            target.url,
            tenant=tenant,
            name=name,
            concurrency=concurrency,
            attempts=attempts,
            stream=stream,
            **target.options(),
        )

        async def handle(found: Event) -> None:
            await run_program(program.words, found)

        for each in names:
            app.on(_BY_MESSAGE[each], topic)(handle)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    what = ", ".join(names) + ("" if topic is None else f" with the topic {topic}")
    where = f"as consumer {name} at {target.broker}"
    typer.echo(one_line(f"Waiting for {what} of tenant {tenant} {where}. Stop with Ctrl-C."), err=True)
    configure_logs(target.config)
    app.run()


async def run_program(command: Sequence[str], event: Event) -> None:
    """Run a program with an event. Raises `ProgramError` if it ends with another code than 0."""
    # In a session of its own, so that Ctrl-C in a terminal does not end it: it finishes its event.
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, start_new_session=True)
    try:
        await process.communicate(json.dumps(event.raw).encode() + b"\n")
    finally:
        if process.returncode is None:
            _kill(process)
    if process.returncode:
        raise ProgramError(f"{command[0]} ended with {process.returncode}")


def _kill(process: Process) -> None:
    """End the program and what it has started, because this process ends."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
