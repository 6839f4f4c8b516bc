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
def stop_at_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` at SIGTERM and SIGINT, and cancel the task at a second one. Signals reach only the main thread."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    stops = _stops.setdefault(loop, [])

    def stop_or_cancel() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    stops.append(stop_or_cancel)
    if len(stops) == 1:  # the first worker sets the handler, and the last one removes it
        for number in _SIGNALS:
            with suppress(NotImplementedError, RuntimeError, ValueError):  # another thread, or Windows
                loop.add_signal_handler(number, _stop_all, stops)
    try:
        yield
    finally:
        stops.remove(stop_or_cancel)
        if not stops:
            for number in _SIGNALS:
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(number)


def _stop_all(stops: list[Callable[[], None]]) -> None:
    for stop in list(stops):
        stop()
