"""How the process of a command runs: its event loop, and serving until a signal."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from timer_service.sigterm import LastResort, hangs_at_the_end
from timer_service.supervisor import Supervisor
from timer_service.user_code import end_loop

if TYPE_CHECKING:  # a short command spends most of its time importing
    from timer_service.app.service import App

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_NEW_OBJECTS_PER_COLLECTION = 20_000
_SWITCH_SECONDS = 0.0001
"""How long the event loop goes on while a thread of the database waits to run Python.

Python's default is 5 ms. A busy loop with turns of 1 ms then hardly ever gives way, see docs/decisions/0071.
"""
_CLOSE_SECONDS = 2


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine, on uvloop if it is installed (extra `speed`)."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


async def run_code_of_users(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that calls code of users. After it, such code keeps the process for a few seconds at most."""
    try:
        await main
    finally:
        await end_loop()
        LastResort(0, hangs_at_the_end).start()  # its threads and generators can hang, too


async def serve_until_signalled(app: "App", shutdown_timeout: timedelta) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    The process ends at most two seconds after `shutdown_timeout`, even if a part hangs.
    """
    loop = asyncio.get_running_loop()
    last_resort = LastResort(shutdown_timeout.total_seconds() + _CLOSE_SECONDS)

    def stop(*_: object) -> None:
        last_resort.start()
        loop.call_soon_threadsafe(app.stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)  # a handler of the event loop would not run while the event loop hangs
    collect_rarely()
    sys.setswitchinterval(_SWITCH_SECONDS)
    await app.run(Supervisor(os.environ), on_draining=last_resort.start)


def collect_rarely() -> None:
    """Make Python search for cycles less often: commands and tasks have none. Modules live as long as the process."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes event loops of uvloop, or None for those of asyncio."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
