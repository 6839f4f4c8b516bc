"""How a test that hangs is ended: with the stacks of what it waits for, and with its servers stopped.

pytest-timeout does it with a signal, which raises in the test. To end the process instead would be surer, but it leaves
the servers running that the tests started. This adds to it what tests with an event loop need.
"""

import asyncio
import signal
import sys
from collections.abc import Generator, Iterable
from types import FrameType
from typing import Any

import pytest

FULL_SECONDS = 1800
"""How long a test may take that is marked `full` and says nothing itself."""

_AGAIN_SECONDS = 10
_SETTINGS = pytest.StashKey[Any]()


class Timeouts:
    """The hooks."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("full") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(FULL_SECONDS))

    @pytest.hookimpl(wrapper=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
        """Raise again and again: an event loop only logs what is raised in one of its callbacks."""
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
        """Start to count anew: the failure of a test has ended the timer, and its fixtures can hang too."""
        if settings := item.stash.get(_SETTINGS, None):
            item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
        return (yield)


def _print_tasks() -> None:
    """Print where each task of the running event loop waits, which the traceback of the loop does not show."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no event loop is running
        return
    for task in tasks:
        task.print_stack(file=sys.stderr)
