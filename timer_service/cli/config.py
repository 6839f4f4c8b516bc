"""`timer-service config`. It shows the settings, and connects to nothing."""

import json
import os

import typer

from timer_service.cli.output.settings import setting_table, settings_of
from timer_service.cli.output.table import terminal_width
from timer_service.cli.parameters import AsJson
from timer_service.config import load_config, unknown_settings

app = typer.Typer(help="The settings of this machine and folder.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make `show` a command of its own: a group with a single command would be this command."""


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show every setting with its value and its source. Passwords and other secrets are masked."""
    settings = settings_of(load_config())
    if as_json:
        typer.echo(json.dumps([each._asdict() for each in settings]))
    else:
        for line in setting_table(settings, terminal_width()):
            typer.echo(line)
    for warning in unknown_settings(os.environ):
        typer.echo(f"warning: {warning}", err=True)
