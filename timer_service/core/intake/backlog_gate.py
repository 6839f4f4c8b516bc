"""Lets workers decide by the time only after the commands of an outage have been handled.

A command that was sent while the service or the broker was away shall count before what became due meanwhile.
"""

import logging

from timer_service.core.ports.broker import Broker

log = logging.getLogger(__name__)

RECHECK_MS = 250
"""How often the broker is asked."""
LONGEST_WAIT_MS = 60_000
"""How long the gate stays closed, so that one command that is retried again and again cannot stop everything."""
_SHORT_BACKLOG_MS = 1_000
"""A backlog that took no longer hides no newer commands, so the gate does not count again."""


class BacklogGate:
    """Open after the commands have been handled that were stored before the start or before the last outage ended.

    If that takes more than a second, other commands were stored meanwhile, behind the backlog. Then the gate also waits
    for these: they were sent before what becomes due next.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._outages: int | None = None
        """The outages of the broker whose commands have been handled; None before the first ones were."""
        self._waiting_for: int | None = None
        """The outages for whose commands the gate waits; None: it does not wait."""
        self._backlog_from = 0
        """When the commands were counted for which the gate waits."""
        self._waited_ms = 0
        """How long the gate has waited for commands since it was last open, while the broker could be used."""
        self._looked_at: int | None = None
        """When the gate last looked for unhandled commands; None if it does not wait or the broker was away since."""
        self._overdue: int | None = None
        """The outages after which the gate opened by its limit. It stays open until another one, or until the commands
        have been handled."""

    async def is_open(self, now: int) -> bool:
        """Return whether what is due at `now` may be decided. If not, ask again after `RECHECK_MS`."""
        if not self._broker.health.usable:
            self._waiting_for = self._looked_at = None
            return False
        return await self._commands_are_handled(now)

    async def _commands_are_handled(self, now: int) -> bool:
        outages = self._broker.outages
        if outages == self._outages:
            return True
        if self._overdue not in {None, outages}:  # it was open: the commands of another outage have their own minute
            self._overdue, self._looked_at, self._waited_ms = None, None, 0
        if self._overdue is not None and self._looked_at is not None and 0 <= now - self._looked_at < RECHECK_MS:
            return True
        if self._looked_at is not None:  # the clock may have been set back
            self._waited_ms += max(now - self._looked_at, 0)
        self._looked_at = now
        restart, self._waiting_for = outages != self._waiting_for, outages
        if restart:
            self._backlog_from = now
        is_handled = await self._broker.caught_up(restart=restart)
        if is_handled and now - self._backlog_from > _SHORT_BACKLOG_MS:
            self._backlog_from = now
            is_handled = await self._broker.caught_up(restart=True)
        if is_handled:
            self._outages, self._waiting_for, self._looked_at = outages, None, None
            self._waited_ms, self._overdue = 0, None
            return True
        if self._waited_ms >= LONGEST_WAIT_MS and self._overdue is None:
            self._overdue = outages
            log.warning("commands from before the start or an outage are not handled; going on without them")
        return self._overdue is not None
