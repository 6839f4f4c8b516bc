"""Lets slots fire only after the commands that were stored during an outage have been handled.

A PauseSchedule that was sent while the service or the broker was away shall stop the slots that became due meanwhile.
"""

import logging

from timer_service.core.broker import Broker

log = logging.getLogger(__name__)

RECHECK_MS = 250
"""How often the broker is asked."""
LONGEST_WAIT_MS = 60_000
"""How long slots wait, so that one command that is retried again and again cannot stop every schedule."""


class BacklogGate:
    """Open after the commands have been handled that were stored before the start or before the last outage ended."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._outages: int | None = None
        """The outages of the broker whose commands have been handled; None before the first ones were."""
        self._waiting_for: int | None = None
        """The outages for whose commands the gate waits; None: it does not wait."""
        self._since = 0

    async def is_open(self, now: int) -> bool:
        """Return whether slots may fire at `now`. If not, ask again after `RECHECK_MS`."""
        if not self._broker.health.usable:
            self._waiting_for = None
            return False
        outages = self._broker.outages
        if outages == self._outages:
            return True
        restart = outages != self._waiting_for
        if restart:
            self._waiting_for, self._since = outages, now
        self._since = min(self._since, now)  # the clock may have been set back
        if not await self._broker.caught_up(restart=restart):
            if now - self._since < LONGEST_WAIT_MS:
                return False
            log.warning("commands from before the start or an outage are not handled; schedules fire without them")
        self._outages, self._waiting_for = outages, None
        return True
