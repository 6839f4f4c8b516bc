"""How a test that hangs is ended: the stacks of its tasks are printed, and its servers are stopped.

pytest-timeout sends a signal, which raises an error in the test. Ending the process would be more reliable, but the
servers of the tests would keep running. This module adds what tests with an event loop need.
"""

import asyncio
import signal
import sys
from collections.abc import Generator, Iterable
from types import FrameType
from typing import Any

import pytest

FULL_SECONDS = 1800
"""The timeout of a test that is marked `full` and has no timeout of its own."""

_AGAIN_SECONDS = 10
_SETTINGS = pytest.StashKey[Any]()


class Timeouts:
    """The hooks of pytest and pytest-timeout."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("full") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(FULL_SECONDS))

    @pytest.hookimpl(wrapper=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
        """Raise the error repeatedly, because an event loop only logs errors of its callbacks."""
        result = yield
        item.stash[_SETTINGS] = settings
        fail: Any = signal.getsignal(signal.SIGALRM)

        def print_tasks_and_fail(number: int, frame: FrameType | None) -> None:
            _print_tasks()
            fail(number, frame)

        if settings.method == "signal":
            signal.signal(signal.SIGALRM, print_tasks_and_fail)
            signal.setitimer(signal.ITIMER_REAL, settings.timeout, _AGAIN_SECONDS)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Start the timer again. The end of the test stopped it, but its fixtures can hang too."""
        if settings := item.stash.get(_SETTINGS, None):
            item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
        return (yield)


def _print_tasks() -> None:
    """Print the stack of each task of the running event loop. The traceback does not show them."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no event loop is running
        return
    for task in tasks:
        task.print_stack(file=sys.stderr)
