"""What a client does with channels of AMQP."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import aiormq

from timer_service.cancellation import own_cancellation
from timer_service.rabbit_client import ANSWER_SECONDS, ERRORS


async def new_channel(connection: aiormq.Connection, *, confirms: bool = False) -> aiormq.Channel:
    """Open a channel. Raises one of `ERRORS`."""
    return cast(aiormq.Channel, await connection.channel(publisher_confirms=confirms, timeout=ANSWER_SECONDS))


async def close_channel(channel: aiormq.Channel) -> None:
    """Close a channel, unless the connection is lost."""
    with suppress(*ERRORS), own_cancellation():
        if not channel.is_closed:
            await channel.close()


def number(value: object) -> int:
    """Return a header that is a number; 0 if it is something else, or missing."""
    return value if isinstance(value, int) else 0


def on_closed(channel: aiormq.Channel, call: Callable[[], None]) -> None:
    """Call a function when a channel is closed, for example because the broker has refused something."""
    channel.closing.add_done_callback(partial(_ignore, call))


def _ignore(call: Callable[[], None], closing: "asyncio.Future[Any]") -> None:
    if not closing.cancelled():
        closing.exception()
    call()
