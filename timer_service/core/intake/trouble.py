"""What happens to a command whose transaction failed. It is a row of the waiting commands then, and nothing else."""

import logging
from collections.abc import Iterable
from datetime import timedelta

from timer_service.core.due.blame import Blame, Evidence
from timer_service.core.intake.route import Route
from timer_service.core.ports.health import Health, OutageLog, RecentFailure
from timer_service.core.values.address import kebab
from timer_service.core.values.delays import Delays
from timer_service.core.values.error_text import error_text
from timer_service.core.values.message import Command, Position
from timer_service.core.values.raw_command import RawCommand

log = logging.getLogger(__name__)

_UNHEALTHY_SECONDS = 5
_MOST_ATTEMPTS = 2
"""A command is tried once more alone, and then becomes a dead letter."""
_MOST_ATTEMPTS_IF_ALL_FAIL = 100
"""With growing delays, an operator has more than an hour to repair a fault that no error names."""
_MILLISECOND = timedelta(milliseconds=1)


class Trouble:
    """Decides about commands that failed alone in a transaction."""

    def __init__(self, outages: OutageLog) -> None:
        self._outages = outages
        self._evidence = Evidence()
        self._delays = Delays()
        self._failure = RecentFailure(_UNHEALTHY_SECONDS)
        self.has_failed = False
        """Whether a command has failed or was blocked since this process began."""
        self._failing: dict[Route | Blame, str] = {}
        """The handlers that fail for every command, and the reasons; `BLOCKED` if every command waits for a lock."""

    @property
    def health(self) -> Health:
        """Down with the first reason while commands cannot be applied for a reason outside the commands."""
        reasons = list(self._failing.values())
        return Health.down(reasons[0]) if reasons else self._failure.health

    @property
    def stopped(self) -> frozenset[str]:
        """The names of the messages whose handler fails for every command. These wait, and are tried one by one."""
        routes = [each for each in self._failing if isinstance(each, Route)]
        return frozenset(kebab(payload.type) for route in routes for payload in route.payloads)

    def record_outage(self, error: Exception) -> None:
        """Record that nothing can be applied now. The reason stays in the health for some seconds.

        The health of the database is not enough: a small write may succeed while those of the reader fail.
        """
        self._outages.record_failure(str(error), part="commands")
        self._failure.record(f"commands cannot be handled: {error}")

    def record_applied(self, routes: Iterable[Route]) -> bool:
        """Record the handlers of a transaction. Return whether one works again that failed for every command."""
        worked: set[Route | Blame] = {*routes}
        if worked:
            worked.add(Blame.BLOCKED)  # not every command is blocked
        self._evidence.record(worked, ())
        again = worked & self._failing.keys()
        for each in again:
            del self._failing[each]
        return bool(again)

    def delay(self, position: Position) -> int:
        """Return the delay in ms of the next attempt of a command that failed alone, or was blocked."""
        return self._delays.next(position) // _MILLISECOND

    def record_blocked(self, raw: RawCommand, error: Exception) -> None:
        """Record that a command alone was blocked. That is not its fault, and it is tried until it succeeds."""
        self.has_failed = True
        self._evidence.record((), [(Blame.BLOCKED, raw.position)])
        about = {"tenant": raw.address.tenant, "message_id": raw.message_id, "sequence": raw.position.sequence}
        log.warning("command blocked; its tenant waits", extra={**about, "reason": error_text(error)})
        if self._evidence.is_environment(Blame.BLOCKED):
            self._failing[Blame.BLOCKED] = f"every command waits for a lock or a slow statement: {error_text(error)}"

    def record_failure(self, route: Route, command: Command, error: Exception, attempt: int) -> bool:
        """Record that a command has failed alone for the `attempt`-th time. Return whether it becomes a dead letter.

        If a handler applies no command any more, the fault is probably not in the commands, so they are tried longer.
        """
        self.has_failed = True
        self._evidence.record((), [(route, command.position)])
        about = {"tenant": command.tenant, "command_id": command.id, "type": command.payload.type, "attempt": attempt}
        log.error("command failed", exc_info=error, extra=about)
        if not self._evidence.is_environment(route):
            return attempt >= _MOST_ATTEMPTS
        self._failing[route] = f"every command fails: {error_text(error)}"
        return attempt >= _MOST_ATTEMPTS_IF_ALL_FAIL
