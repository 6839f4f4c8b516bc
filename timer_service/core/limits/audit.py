"""The audit log: a line for each command that is rejected, over quota or of an operator, within a limit."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from timer_service.core.due.loop import Pass
from timer_service.core.values.dead_letter import printable

log = logging.getLogger(__name__)

REJECTED = "command rejected"
REFUSED = "command over quota"
OPERATOR_ACTION = "operator action"

_SECONDS = 1.0
_LINES_OF_TENANT = 10
_LINES = 100
_LONGEST_TENANT = 64


class AuditLog:
    """Writes at most 10 lines of a kind a second for a tenant, and 100 in all. Then it counts, and writes the counts.

    A flood of rejected commands would fill the disk of the log otherwise. The stream of dead letters has all of them.
    Each kind has lines of its own, so that a flood of rejected commands hides no action of an operator.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began_at = -_SECONDS
        self._written = defaultdict[str, Counter[str]](Counter)
        """How many lines of a kind each tenant has had since then."""
        self._left_out = Counter[str]()

    def record(self, line: str, tenant: str, **about: Any) -> None:
        """Write a line about a tenant, or count it. `about` must contain no payload."""
        tenant = printable(tenant, _LONGEST_TENANT)
        now = self._monotonic()
        if now - self._began_at >= _SECONDS:
            self.write_counts()
            self._began_at = now
            self._written.clear()
        written = self._written[line]
        if written[tenant] < _LINES_OF_TENANT and written.total() < _LINES:
            written[tenant] += 1
            log.info(line, extra={"tenant": tenant, **about})
        else:
            self._left_out[line] += 1

    async def tick(self, now: int) -> Pass:  # noqa: ARG002 - part of the protocol
        """Write the counts, so that the count of a flood that has ended is written too."""
        self.write_counts()
        return Pass(0)

    def write_counts(self) -> None:
        """Write how many lines of each kind were left out since the last call."""
        for line, count in self._left_out.items():
            log.warning("audit lines left out", extra={"line": line, "count": count})
        self._left_out.clear()
