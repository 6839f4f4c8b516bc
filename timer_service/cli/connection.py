"""Finds the broker for a command of the CLI, and calls the command with a connected client."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, get_args

import typer

from timer_service.app.login import nats_login
from timer_service.cli.dev_server import find_dev_server
from timer_service.cli.process import run_async
from timer_service.client import NoAnswerError, TimerClient
from timer_service.client.connection import url_without_login
from timer_service.config import Config, load_config
from timer_service.core.values.errors import StartError

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "--broker-url",
        metavar="URL",
        help="The broker, such as nats://host:4222. Default: TIMER_BROKER_URL, else the `dev` of this folder if it "
        "runs, else nats://localhost:4222.",
    ),
]

_REMEDY = "Check that it runs and accepts this login, or name another one with --server or TIMER_BROKER_URL."

Command = Callable[..., Awaitable[None]]


def add_command(
    app: typer.Typer,
    name: str,
    text: str | None,
    run: Command,
    parameters: Mapping[str, Any],
    *,
    check: Callable[..., None] | None = None,
) -> None:
    """Add a command to `app`, with the option --server. `text` is its help.

    It calls `run` with a connected client and its parameters. `parameters`: the type of each, as typer reads it, or the
    type and the default. A ValueError is reported as wrong usage. `check` gets the same parameters before the
    connection is made, and raises `BadParameter` for a wrong combination.
    """

    def command(*, server: str | None, **values: Any) -> None:
        if check is not None:
            check(**values)
        run_async(_call(run, client_config(server), values))

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


def client_config(server: str | None) -> Config:
    """Return the settings of a client. The broker is `server`, TIMER_BROKER_URL or the `dev` of this folder."""
    if server is not None:
        return _config_for(server)
    config = load_config()
    if "broker_url" not in config.model_fields_set and (dev := find_dev_server()) is not None:
        return dev.configure(config)
    return config


@asynccontextmanager
async def open_client(config: Config) -> AsyncIterator[TimerClient]:
    """Connect as the settings say. Replies go to inboxes under TIMER_REPLY_PREFIX.

    Raises `NoAnswerError` with the URL and the remedy if the broker cannot be reached.
    """
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(
                TimerClient.connect(
                    config.broker_url,
                    subject_prefix=config.subject_prefix,
                    inbox_prefix=config.reply_prefix.removesuffix("."),
                    **nats_login(config).options(),
                )
            )
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


async def _call(function: Command, config: Config, values: Mapping[str, Any]) -> None:
    """Call a command with a connected client. Its errors name the wrong usage, or the broker that does not answer."""
    async with open_client(config) as client:
        try:
            await function(client, **values)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        except NoAnswerError as error:
            raise NoAnswerError(f"{error} (broker: {url_without_login(config.broker_url)})") from error
