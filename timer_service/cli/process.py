"""How the process of a command runs: its event loop, and serving until a signal."""

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # a short command spends most of its time importing
    from timer_service.app.service import App

_T = TypeVar("_T")

_NEW_OBJECTS_PER_COLLECTION = 20_000
"""With Python's default of 700, a batch of commands triggers several searches for cycles, and commands have none."""


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine, on uvloop if it is installed (extra `speed`)."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


async def serve_until_signalled(app: "App") -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.stop)
    gc.freeze()  # modules and models live as long as the process
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)
    await app.run()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
