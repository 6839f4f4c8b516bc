"""Finds the broker for a command of the CLI, and calls the command with a connected client."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

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


def broker_command(
    app: typer.Typer, name: str | None = None, *, check: Callable[..., None] | None = None
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Return a decorator that registers a coroutine function as a command of `app`.

    The function gets a connected `TimerClient` as its first argument. Its other parameters become the arguments and
    options of the command, which also has the option --server. A ValueError is reported as wrong usage. `check` gets
    the same options before the connection is made, and raises `BadParameter` for a wrong combination.
    """

    def register(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        def command(*, server: str | None, **values: Any) -> None:
            if check is not None:
                check(**values)
            run_async(_call(function, client_config(server), values))

        _, *parameters = inspect.signature(function, eval_str=True).parameters.values()
        parameters.append(inspect.Parameter("server", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Server))
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__doc__ = function.__doc__
        app.command(name or function.__name__)(command)
        return function

    return register


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
    try:
        return load_config(broker_url=server)
    except StartError as error:
        name, _, reason = str(error).partition(": ")
        if name == "TIMER_BROKER_URL":
            raise typer.BadParameter(reason, param_hint="'--server'") from error
        raise


async def _call(function: Callable[..., Awaitable[None]], config: Config, values: Mapping[str, Any]) -> None:
    async with open_client(config) as client:
        try:
            await function(client, **values)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        except NoAnswerError as error:
            raise NoAnswerError(f"{error} (broker: {url_without_login(config.broker_url)})") from error
