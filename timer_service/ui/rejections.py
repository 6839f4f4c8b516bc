"""The newest commands that an instance rejected, for the operations page. The dead letters have all of them."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from timer_service.core.intake.rejection import Rejected
from timer_service.core.values.dead_letter import printable

_KEPT = 20
_LONGEST = 300
"""Longer texts are cut. All together have 24 Ki characters at most."""


class RejectedCommand(NamedTuple):
    """A rejected command, as an operator reads of it. Each text is short and has no control characters."""

    at: int
    """When it was rejected, in Unix milliseconds."""
    tenant: str
    command: str
    """The last part of its subject, such as `schedule-timer`."""
    command_id: str
    """The id from its sender, else empty. Only `dead-letters list` knows the number of the dead letter."""
    code: str
    reason: str


class NewestRejections:
    """Keeps the 20 newest rejected commands."""

    def __init__(self) -> None:
        self._kept: deque[RejectedCommand] = deque(maxlen=_KEPT)

    @property
    def all(self) -> Sequence[RejectedCommand]:
        """The commands, newest first."""
        return tuple(reversed(self._kept))

    def add(self, rejected: Rejected, now: int) -> None:
        """Add a command whose dead letter was stored now."""
        address, rejection = rejected.raw.address, rejected.rejection
        texts = (address.tenant, address.message, rejected.own_id or "", rejection.code.value, rejection.message)
        self._kept.append(RejectedCommand(now, *(printable(each, _LONGEST) for each in texts)))
