"""`timer-service config`. It shows the settings as in `.env.example`, without secrets, and the broker of commands."""

import json
import os
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import typer
from pydantic import ByteSize, SecretStr
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource

from timer_service.cli.output import one_line, print_table
from timer_service.cli.parameters import AsJson
from timer_service.client import NoAnswerError, find_broker
from timer_service.client.lookup import url_without_login
from timer_service.config import Config, load_config, unknown_settings

app = typer.Typer(help="The settings of this machine and folder.", no_args_is_help=True)

MASK = "********"
_MILLISECOND = timedelta(milliseconds=1)


class Setting(NamedTuple):
    """One setting."""

    name: str
    value: str | None
    """As in `.env.example`; None if it is not set and has no default."""
    source: str
    """`environment`, `.env` or `default`."""


def settings_of(config: Config) -> list[Setting]:
    """Return the settings. `config` was read from the environment and the folder of this process."""
    environment, file = EnvSettingsSource(Config)(), DotEnvSettingsSource(Config)()
    settings = []
    for field in Config.model_fields:
        source, written = "default", None
        if field in environment:
            source, written = "environment", environment[field]
        elif field in file:
            source, written = ".env", file[field]
        settings.append(Setting(f"TIMER_{field.upper()}", _text(field, getattr(config, field), written), source))
    return settings


@app.callback()
def _group() -> None:
    """Make `show` a command of its own: a group with a single command would be this command."""


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show every setting with its value and its source, and which broker the commands of this folder use.

    Passwords and other secrets are masked.
    """
    settings = settings_of(load_config())
    try:
        broker = find_broker()
    except NoAnswerError as error:
        url, reason, text = None, str(error), f"Commands of this folder use no broker: {error} or --server."
    else:
        url, reason = url_without_login(broker.url), broker.reason
        text = f"Commands of this folder use the broker {broker}."
    if as_json:
        document = {"settings": [each._asdict() for each in settings], "broker": {"url": url, "reason": reason}}
        typer.echo(json.dumps(document))
    else:
        rows = [(each.name, each.source, "not set" if each.value is None else each.value) for each in settings]
        print_table(("SETTING", "SOURCE", "VALUE"), rows, {"environment": "cyan", ".env": "cyan"})
        typer.echo("\n" + one_line(text))
    for warning in unknown_settings(os.environ):
        typer.echo(f"warning: {warning}", err=True)


def _text(field: str, value: Any, written: str | None) -> str | None:
    """Return the text of a value, with secrets masked; None if it is not set. `written`: the text that the user set.

    Of a file that was read, this is its path.
    """
    if value is None:
        return None
    if field.endswith("_file"):
        return written
    match field, value:
        case "broker_url", _:
            return ",".join(map(_mask_broker, value.split(",")))
        case "database_url", SecretStr():
            return _mask_database(value.get_secret_value())
        case _, SecretStr():
            return MASK
        case _, bool():
            return str(value).lower()
        case _, timedelta():
            return str(value // _MILLISECOND)
        case _, ByteSize():
            return value.human_readable().replace(".0", "")
        case _, float():
            return f"{value:g}"
    return str(value)


def _mask_broker(url: str) -> str:
    """Mask the whole login. A token looks like a user."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{MASK}@{rest.rpartition('@')[2]}" if "@" in rest else url


def _mask_database(url: str) -> str:
    """Mask the password, also if it is a parameter."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    netloc = f"{user}{colon}{MASK if colon else ''}{at}{host}"
    # sslpassword is a parameter, too.
    pairs = [(name, MASK if "password" in name.lower() else value) for name, value in parse_qsl(parts.query)]
    query = urlencode(pairs, safe="*,:/@", quote_via=quote)
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")
