"""How commands reach the broker."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import typer

from timer_service.app.login import nats_login
from timer_service.client import TimerClient
from timer_service.config import Config, load_config

_T = TypeVar("_T")


def open_client(config: Config) -> AbstractAsyncContextManager[TimerClient]:
    """Connect as the settings say. Outcomes and answers come to inboxes under TIMER_REPLY_PREFIX."""
    return TimerClient.connect(
        config.broker_url,
        subject_prefix=config.subject_prefix,
        inbox_prefix=config.reply_prefix.removesuffix("."),
        **nats_login(config).options(),
    )


async def with_client(use: Callable[[TimerClient], Awaitable[_T]]) -> _T:
    """Do something over a connection; what the client can't use of it is wrong usage."""
    async with open_client(load_config()) as client:
        try:
            return await use(client)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
