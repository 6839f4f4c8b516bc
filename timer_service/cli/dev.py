"""`timer-service dev`: the service with its own broker and database, to try it out."""

import asyncio
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from timer_service.app.startup import DevApp, open_dev_app
from timer_service.cli.connection import Target, open_client
from timer_service.cli.process import run_async, serve_until_signalled
from timer_service.cli.resources import event_line
from timer_service.client import find_broker
from timer_service.config import Config
from timer_service.core.values.errors import StartError
from timer_service.dev_server import DEFAULT_FOLDER, BrokerKind, announce_dev_server, find_dev_server
from timer_service.logs import configure_logs

DataDir = Annotated[Path, typer.Option(metavar="DIR", help="Where the broker and the database keep their files.")]
_USUAL_PORT = "Default: that of the last start"
Broker = Annotated[
    BrokerKind | None, typer.Option(help="The broker. Default: that of the last start, or nats.", show_default=False)
]
BrokerPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        metavar="PORT",
        help=f"The port of the broker. {_USUAL_PORT}, or the usual port of the broker.",
    ),
]
HttpPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, metavar="PORT", help=f"The port of the pages. {_USUAL_PORT}, or TIMER_HTTP_PORT, or 9464."
    ),
]
Demo = Annotated[bool, typer.Option("--demo", help="Schedule a timer and show its event.")]

_DEMO_DELAY = timedelta(seconds=3)


def dev(
    data_dir: DataDir = DEFAULT_FOLDER,
    broker: Broker = None,
    broker_port: BrokerPort = None,
    http_port: HttpPort = None,
    demo: Demo = False,
) -> None:
    """Run the service with its own broker and SQLite database.

    The broker and the ports are those of the last start. A port that is taken is replaced, unless an option names it.
    """
    if (running := find_dev_server(data_dir)) is not None:
        raise StartError(
            f"a `dev` already runs with its files in {data_dir} (process {running.pid}, broker {running.broker_url}). "
            "Use that one, stop it, or give another folder with --data-dir."
        )
    opened = open_dev_app(data_dir, broker=broker, broker_port=broker_port, http_port=http_port)
    run_async(_dev(opened, data_dir, demo=demo))


async def _dev(opened: DevApp, data_dir: Path, *, demo: bool) -> None:
    async with opened as (app, config, notes):
        # For people: the guide and the events are lines of text, too.
        configure_logs(config.model_copy(update={"log_format": config.log_format or "console"}))
        for note in notes:
            typer.echo(note)
        announce_dev_server(
            data_dir,
            broker_url=config.broker_url,
            db_path=config.db_path,
            http_host=config.http_host,
            http_port=config.http_port,
        )
        guide = asyncio.create_task(_print_guide(config, data_dir, demo=demo))
        try:
            await serve_until_signalled(app, config.shutdown_timeout)
        finally:
            guide.cancel()
    await asyncio.gather(guide, return_exceptions=True)
    typer.echo("Stopped. All timers are stored; the next start continues with them.")


async def _print_guide(config: Config, data_dir: Path, *, demo: bool) -> None:
    """Print how to use the service from another terminal, after the demo if it is wanted."""
    if demo:
        await _show_a_timer(config)
    url = shlex.quote(config.broker_url)  # the one of RabbitMQ has a question mark
    typer.echo(
        _GUIDE.format(
            command=own_command(sys.argv[0]),
            server="" if data_dir == DEFAULT_FOLDER else f" --server {url}",
            url=url,
            http=f"http://{config.http_host}:{config.http_port}",
        )
    )


def own_command(program: str) -> str:
    """Return how a shell starts this command line. `program` is the first argument of the process."""
    started_as_module = Path(program).name == "__main__.py"
    return shlex.join([sys.executable, "-m", "timer_service"] if started_as_module else [program])


async def _show_a_timer(config: Config) -> None:
    """Schedule a timer, and print its event."""
    async with open_client(Target(config, find_broker(config.broker_url))) as client:
        events = client.timers.watch("demo")
        event = asyncio.ensure_future(anext(events))
        due_at = datetime.now(UTC) + _DEMO_DELAY
        outcome = await client.timers.schedule("demo", f"hello-{due_at:%H%M%S}", due_at, data={"hello": "world"})
        typer.echo(f"\n{outcome.name}: a timer of tenant demo, due in {_DEMO_DELAY.seconds} seconds ...")
        typer.echo(f"fired:     {event_line(await event)}")


_GUIDE = """
Serving. From another terminal in this folder (elsewhere, add --server {url}):

  {command} timers watch{server}
  {command} timers schedule acme call-1 --in 10s --data '{{"any": "json"}}'{server}

Any other client of the broker can do the same: contracts/README.md shows the messages.
Operations page {http}/ui/, metrics {http}/metrics, readiness {http}/readyz. Stop with Ctrl-C.
"""
