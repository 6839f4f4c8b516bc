"""`timer-service dev`: everything in one place, to try it out."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from timer_service.app.startup import open_dev_app
from timer_service.cli.connecting import open_client
from timer_service.cli.running import run
from timer_service.cli.serve import run_until_signalled
from timer_service.cli.timers import event_line
from timer_service.config import Config
from timer_service.logs import configure_logs

_DEMO_DELAY = timedelta(seconds=3)


def dev(
    data_dir: Annotated[Path, typer.Option(help="Where the broker and the database keep their files.")] = Path(
        ".timer-service"
    ),
    demo: Annotated[bool, typer.Option("--demo", help="Schedule a timer and show it firing.")] = False,  # noqa: FBT002
) -> None:
    """Run the service with a NATS server and a SQLite database of its own."""
    run(_dev(data_dir, demo=demo))


async def _dev(data_dir: Path, *, demo: bool) -> None:
    async with open_dev_app(data_dir) as (app, config, notes):
        configure_logs(config)
        for note in notes:
            typer.echo(note)
        showing = asyncio.create_task(_show(config, demo=demo))
        try:
            await run_until_signalled(app)
        finally:
            showing.cancel()
    await asyncio.gather(showing, return_exceptions=True)
    typer.echo("Stopped; nothing is lost, start again any time.")


async def _show(config: Config, *, demo: bool) -> None:
    if demo:
        await _show_a_timer(config)
    http = f"http://{config.http_host}:{config.http_port}"
    typer.echo(_GUIDE.format(command=sys.argv[0], url=config.broker_url, http=http))


async def _show_a_timer(config: Config) -> None:
    async with open_client(config) as client:
        events = client.watch("demo")
        arriving = asyncio.ensure_future(anext(events))
        due_at = datetime.now(UTC) + _DEMO_DELAY
        outcome = await client.schedule("demo", f"hello-{due_at:%H%M%S}", due_at, data={"hello": "world"})
        typer.echo(f"\n{outcome.name}: a timer of tenant demo, due in {_DEMO_DELAY.seconds} seconds ...")
        typer.echo(f"fired:     {event_line(await arriving)}")


_GUIDE = """
Serving. From another terminal:

  export TIMER_BROKER_URL={url}
  {command} timers watch
  {command} timers schedule acme call-1 --in 10s --data '{{"any": "json"}}'

or with any NATS client:

  subscribe  timer.evt.v1.acme.due-time-reached
  publish    timer.cmd.v1.acme.schedule-timer
             {{"type": "ScheduleTimer", "tenantId": "acme", "payload":
              {{"tenantId": "acme", "serviceCallId": "call-1", "dueAt": "2030-01-01T09:00:00Z"}}}}

Metrics {http}/metrics, readiness {http}/readyz. Stop with Ctrl-C.
"""
