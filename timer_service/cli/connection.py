"""Finds the broker for a command of the CLI, and calls the command with a connected client."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, NamedTuple, get_args

import typer

from timer_service.app.login import client_login
from timer_service.cli.output import one_line
from timer_service.cli.process import run_async
from timer_service.client import Broker, NoAnswerError, TimerClient, find_broker
from timer_service.client.lookup import url_without_login
from timer_service.config import Config, load_config
from timer_service.core.values.errors import StartError
from timer_service.dev_server import DevServer, find_dev_server, read_dev_server

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "--broker-url",
        metavar="URL",
        help="The broker, such as nats://host:4222. Default: TIMER_BROKER_URL, else the `dev` of this folder, else "
        "nats://localhost:4222.",
    ),
]

_REMEDY = "Check that it runs and accepts this login, or name another one with --server or TIMER_BROKER_URL."

_DATABASE_SETTINGS = {"db_path", "database_url", "database_url_file"}

Command = Callable[..., Awaitable[None]]


class Target(NamedTuple):
    """What a command connects to."""

    config: Config
    """The settings with the URL of the broker. If it is that of a `dev`, also with its database and its pages."""
    broker: Broker

    @property
    def url(self) -> str | None:
        """The URL for a client. None: the client finds the `dev` again, and never connects to another server."""
        return self.config.broker_url if self.broker.dev is None else None

    def options(self) -> dict[str, Any]:
        """Return the other arguments of a client, from the settings. Replies go to inboxes under TIMER_REPLY_PREFIX."""
        return {
            "subject_prefix": self.config.subject_prefix,
            "inbox_prefix": self.config.reply_prefix.removesuffix("."),
            **client_login(self.config),
        }


def add_command(
    app: typer.Typer,
    name: str,
    text: str | None,
    run: Command,
    parameters: Mapping[str, Any],
    *,
    check: Callable[..., None] | None = None,
    awaited: Callable[..., str] | None = None,
) -> None:
    """Add a command to `app`, with the option --server. `text` is its help.

    It calls `run` with a connected client and its parameters. `parameters`: the type of each, as typer reads it, or the
    type and the default. A ValueError is reported as wrong usage. `check` gets the same parameters before the
    connection is made, and raises `BadParameter` for a wrong combination. `awaited`, of a command that waits until
    Ctrl-C, gets them too, and returns what it waits for.
    """

    def command(*, server: str | None, **values: Any) -> None:
        if check is not None:
            check(**values)
        target = find_target(server)
        notice = awaited and f"Waiting for {awaited(**values)} at {target.broker}. Stop with Ctrl-C."
        run_async(_call(run, target, values, notice))

    # typer makes the arguments and options of a command from the signature of its function.
    signature_parameters = [_parameter(*each) for each in {**parameters, "server": Server}.items()]
    command.__signature__ = inspect.Signature(signature_parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in signature_parameters}
    command.__doc__ = text
    app.command(name)(command)


def broker_command(
    app: typer.Typer, name: str | None = None, *, check: Callable[..., None] | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that adds a function as a command, with the parameters that follow its client."""

    def register(function: Command) -> Command:
        _, *others = inspect.signature(function, eval_str=True).parameters.values()
        parameters = {each.name: (each.annotation, each.default) for each in others}
        add_command(app, name or function.__name__, function.__doc__, function, parameters, check=check)
        return function

    return register


def _parameter(name: str, declared: Any) -> inspect.Parameter:
    """Return a parameter of a command. `declared`: its type, or its type and its default."""
    annotation, default = declared if isinstance(declared, tuple) else (declared, _default_of(declared))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _default_of(annotation: Any) -> Any:
    """Return False for a flag and None for a type that allows it. Other parameters have no default."""
    (value_type, *_) = get_args(annotation)
    if value_type is bool:
        return False
    return None if type(None) in get_args(value_type) else inspect.Parameter.empty


def find_target(server: str | None) -> Target:
    """Return what a command connects to: `server`, or else the broker that every program of this folder uses.

    If there is none, as after the `dev` of this folder was stopped, this is wrong usage.
    """
    config = load_config() if server is None else _config_for(server)
    try:
        broker = find_broker(server)
    except NoAnswerError as error:
        raise typer.BadParameter(f"{error} or --server.") from error
    if broker.dev is not None:
        config = dev_config(config, broker.dev)
    return Target(config, broker)


def client_config(server: str | None) -> Config:
    """Return the settings of a command: see `find_target`."""
    return find_target(server).config


def dev_config(config: Config, dev: DevServer) -> Config:
    """Return settings that name the broker, the database and the pages of a `dev`."""
    update = {
        "broker_url": dev.broker_url,
        "db_path": dev.db_path,
        "database_url": None,
        "database_url_file": None,
        "http_host": dev.http_host,
        "http_port": dev.http_port,
    }
    return config.model_copy(update=update)


def database_config() -> Config:
    """Return the settings. If no database is named, they have that of the `dev` of this folder, which need not run.

    Raises `StartError` if the folder also has a database with the default name, and the `dev` does not run.
    """
    config = load_config()
    if config.model_fields_set & _DATABASE_SETTINGS or (dev := read_dev_server()) is None:
        return config
    if config.db_path.exists() and find_dev_server() is None:
        both = f"{config.db_path} and {dev.db_path}"
        raise StartError(f"this folder has two databases, {both}: name one with TIMER_DB_PATH")
    return dev_config(config, dev)


@asynccontextmanager
async def open_client(target: Target) -> AsyncIterator[TimerClient]:
    """Connect. Raises `NoAnswerError` with the URL and the remedy if the broker cannot be reached."""
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(TimerClient.connect(target.url, **target.options()))
        except NoAnswerError as error:
            raise NoAnswerError(f"{error}. {_REMEDY}") from error
        yield client


def _config_for(server: str) -> Config:
    """Return the settings with the broker of --server. If only this URL is wrong, the error names the option."""
    try:
        return load_config(broker_url=server)
    except StartError as error:
        name, _, reason = str(error).partition(": ")
        if name == "TIMER_BROKER_URL":
            raise typer.BadParameter(reason, param_hint="'--server'") from error
        raise


async def _call(function: Command, target: Target, values: Mapping[str, Any], notice: str | None) -> None:
    """Print `notice` and call a command with a connected client.

    Its errors name the wrong usage, or the broker that does not answer.
    """
    async with open_client(target) as client:
        if notice is not None:
            typer.echo(one_line(notice), err=True)
        try:
            await function(client, **values)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        except NoAnswerError as error:
            raise NoAnswerError(f"{error} (broker: {url_without_login(target.config.broker_url)})") from error
