"""What the commands `watch` share."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer

from timer_service.cli.output.text import one_line

AsJsonLines = Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")]


async def print_events(
    events: AsyncIterator[Mapping[str, Any]],
    to_line: Callable[[Mapping[str, Any]], str],
    tenant: str,
    *,
    about: str = "",
    as_json: bool,
) -> None:
    """Print events until Ctrl-C. `tenant` and `about` say which ones the command waits for."""
    whose = "all tenants" if tenant == "*" else f"tenant {tenant}"
    typer.echo(one_line(f"Waiting for events of {whose}{about}. Stop with Ctrl-C."), err=True)
    with suppress(asyncio.CancelledError):  # Ctrl-C
        async for event in events:
            if as_json:
                typer.echo(json.dumps(event))
                continue
            try:
                line = to_line(event)
            except Exception:  # noqa: BLE001 - on a broker without accounts, others can publish what is no event
                typer.echo(one_line(f"Cannot be read as an event: {json.dumps(event)}"), err=True)
            else:
                typer.echo(line)
