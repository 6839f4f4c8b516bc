"""Whose fault it is that a transaction of commands failed. This is the only place that decides it."""

from collections.abc import Hashable, Iterable
from enum import Enum, auto

from timer_service.core.values.errors import (
    ConflictError,
    DatabaseBlockedError,
    DatabaseBusyError,
    DatabaseSetupError,
    DatabaseUnavailableError,
)

_FAILURES_OF_THE_ENVIRONMENT = 2


class Blame(Enum):
    """What an error of a transaction is caused by. Only `COMMAND` ever counts against a command."""

    COMMAND = auto()
    """One of the commands: a bug in its handler, or a value that the database refuses."""
    CONFLICT = auto()
    """Other transactions that write the same rows. A smaller transaction conflicts less often."""
    BUSY = auto()
    """All connections are in use."""
    BLOCKED = auto()
    """A lock that another session holds, or a statement that takes too long. Other commands can be handled."""
    OUTAGE = auto()
    """The database is away."""
    SETUP = auto()
    """A missing table, column or grant. Commands that do not need it can be handled."""


OF_ENVIRONMENT = frozenset({Blame.OUTAGE, Blame.BUSY, Blame.SETUP})
"""Nothing can be applied then, and no command or row is at fault."""


_CAUSES = (
    (DatabaseSetupError, Blame.SETUP),
    (DatabaseBusyError, Blame.BUSY),
    (DatabaseBlockedError, Blame.BLOCKED),
    (DatabaseUnavailableError, Blame.OUTAGE),
    (ConflictError, Blame.CONFLICT),
)
"""The cause of each type of error. The first type that fits counts."""


def blame(error: Exception) -> Blame:
    """Return what an error is caused by."""
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), Blame.COMMAND)


class Evidence:
    """What is known about handlers whose commands failed alone, each in its own transaction.

    If two commands of a handler have failed since it last handled one, the fault is probably not in the commands.
    """

    def __init__(self) -> None:
        self._failed: dict[Hashable, frozenset[Hashable]] = {}

    def record(self, worked: Iterable[Hashable], failed: Iterable[tuple[Hashable, Hashable]]) -> None:
        """Record a batch: the handlers that handled at least one command, and each failed command with its handler."""
        for handler, command in failed:
            known = self._failed.get(handler, frozenset())
            if len(known) < _FAILURES_OF_THE_ENVIRONMENT:
                self._failed[handler] = known | {command}
        for handler in worked:
            self._failed.pop(handler, None)

    def forget(self, handler: Hashable, command: Hashable) -> None:
        """Forget a command that was given up."""
        self._failed[handler] = self._failed.get(handler, frozenset()) - {command}

    def is_environment(self, handler: Hashable) -> bool:
        """Return whether the failures of a handler are probably not the fault of its commands."""
        return len(self._failed.get(handler, ())) >= _FAILURES_OF_THE_ENVIRONMENT
