"""Runs the service in this process until it is told to stop."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from timer_service.app import App

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine, on uvloop where it is installed (extra `speed`)."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


async def run_until_signalled(app: App) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, app.stop)
    await app.run()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
