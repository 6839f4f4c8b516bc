"""What workers and apps do at SIGTERM and SIGINT. A loop has one handler for a signal, so they share it."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_stops: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]] = WeakKeyDictionary()
"""What to call at a signal."""


@contextmanager
def at_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM and SIGINT, where signals can be handled: in the main thread."""
    loop = asyncio.get_running_loop()
    stops = _stops.setdefault(loop, [])
    stops.append(stop)
    if len(stops) == 1:  # the first worker sets the handler, and the last one removes it
        for number in _SIGNALS:
            with suppress(NotImplementedError, RuntimeError, ValueError):  # another thread, or Windows
                loop.add_signal_handler(number, _stop_all, stops)
    try:
        yield
    finally:
        stops.remove(stop)
        if not stops:
            for number in _SIGNALS:
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(number)


def _stop_all(stops: list[Callable[[], None]]) -> None:
    for stop in list(stops):
        stop()
