"""Wakes the loops of this process, and sends hints to the loops of other processes."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta

from timer_service.core.due.loop import Loop
from timer_service.core.ports.broker import Broker
from timer_service.core.ports.clock import Clock


class Wakeups:
    """The loops to wake when rows become available. A lost hint delays work by at most a poll interval."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        polling_interval: timedelta,
        loops: Iterable[Loop],
        *,
        alone: bool,
        listeners: Mapping[str, Callable[[int], None]] | None = None,
    ) -> None:
        """`loops` are the loops of this process. `alone`: no other process can have loops that use this database.

        `listeners` get the wake-ups of a loop instead of the loop itself, by its name.
        """
        self._alone = alone
        self._broker = broker
        self._clock = clock
        self._poll_ms = polling_interval // timedelta(milliseconds=1)
        self._wakes = {**{loop.name: loop.wake for loop in loops}, **(listeners or {})}

    async def subscribe(self) -> None:
        """Subscribe to other instances' hints if they can use the same database."""
        if not self._alone:
            await self._broker.subscribe_hints(self._wake)

    async def wake(self, loops: Collection[str], at: int) -> None:
        """Wake each named loop at an instant. A loop that is not in this process gets a hint instead.

        A loop of this process gets no hint in other processes. If every command woke every instance, most wake-ups
        would find nothing.
        """
        for loop in loops:
            if loop in self._wakes:
                self._wakes[loop](at)
            elif not self._alone and at < self._clock.now() + self._poll_ms:  # their next poll finds later rows in time
                await self._broker.hint(loop, at)

    def _wake(self, loop: str, at: int) -> None:
        if loop in self._wakes:
            self._wakes[loop](at)
