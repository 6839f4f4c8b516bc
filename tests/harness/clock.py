"""Time that moves only when a test says so."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from timer_service.core.values.instant import format_instant

NOW = int(datetime(2026, 11, 21, 9, 0, tzinfo=UTC).timestamp() * 1000)
"""The instant at which tests begin."""

_T = TypeVar("_T")


def after(**duration: float) -> int:
    """Return `NOW` plus a duration (`minutes=5`)."""
    return NOW + timedelta(**duration) // timedelta(milliseconds=1)


def iso(at: int) -> str:
    """Return an instant in the format of the wire."""
    return format_instant(at)


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, at: int = NOW) -> None:
        self._at = at
        self.set_back_ms = 0

    def now(self) -> int:
        return self._at

    def set(self, at: int) -> None:
        self.set_back_ms += max(self._at - at, 0)
        self._at = at

    def advance(self, **duration: float) -> int:
        """Add a duration (`seconds=1`) and return the new instant."""
        self.set(self._at + timedelta(**duration) // timedelta(milliseconds=1))
        return self._at


class LoopClock:
    """The clock of the running event loop, for use with `in_virtual_time`."""

    set_back_ms = 0

    def now(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


class MachineClocks:
    """The two clocks of a machine, in microseconds: `monotonic` and `system`. A test moves both, or sets `system`."""

    def __init__(self) -> None:
        self._elapsed = 77_000_000
        self._system = NOW * 1000

    def monotonic(self) -> int:
        return self._elapsed

    def system(self) -> int:
        return self._system

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._elapsed += round(seconds * 1_000_000)
        self._system += round(seconds * 1_000_000)

    def jump(self, seconds: float) -> None:
        """Set the system clock forward, or back if `seconds` is negative."""
        self._system += round(seconds * 1_000_000)


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run `main` in an event loop that never sleeps: when it is idle, its time jumps to the next timer."""
    with asyncio.Runner(loop_factory=_VirtualTimeLoop) as runner:
        return runner.run(main())


class _VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.elapsed = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.elapsed


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: _VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("all tasks wait forever")
        if not ready and timeout is not None:
            self._loop.elapsed += max(timeout, 0)
        return ready
