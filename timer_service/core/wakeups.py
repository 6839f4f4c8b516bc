"""Who is woken when rows become available: this process's loops, and by a hint those of others."""

from collections.abc import Collection, Iterable
from datetime import timedelta

from timer_service.core.broker import Broker
from timer_service.core.clock import Clock
from timer_service.core.loop import Loop


class Wakeups:
    """Passes wakes on. One that is lost costs at most a poll interval, for every loop looks that often by itself."""

    def __init__(
        self, broker: Broker, clock: Clock, polling_interval: timedelta, loops: Iterable[Loop], *, alone: bool
    ) -> None:
        """`loops` are those of this process; `alone`: no other one can have loops that look at this database."""
        self._alone = alone
        self._broker = broker
        self._clock = clock
        self._poll_ms = polling_interval // timedelta(milliseconds=1)
        self._loops = {loop.name: loop for loop in loops}

    async def hear(self) -> None:
        """Begin to hear the hints of others, where there can be any."""
        if not self._alone:
            await self._broker.subscribe_hints(self._wake)

    async def wake(self, loops: Collection[str], at: int) -> None:
        """Say that loops have something to do at an instant: those of this process, or else those of others.

        Not both: woken by everybody's every command, the loops of a fleet would mostly look in vain.
        """
        for loop in loops:
            if loop in self._loops:
                self._loops[loop].wake(at)
            elif not self._alone and at < self._clock.now() + self._poll_ms:  # they look before any later one
                await self._broker.hint(loop, at)

    def _wake(self, loop: str, at: int) -> None:
        if loop in self._loops:
            self._loops[loop].wake(at)
