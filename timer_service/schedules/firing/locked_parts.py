"""Divides the schedules of a pass that met a lock until each locked one is alone."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from timer_service.schedules.schedule import Key

_PARTS = 10
"""Of 1,000 schedules, one locked one is found in four tries."""
_MOST_OF_TENANT = 3
"""After so many locked schedules of a tenant, its others are not tried."""


class LockedParts:
    """The parts of a pass to try. The schedules of one tenant are together.

    The tenant whose schedule waits longest comes first. So after a pass that ended early, the next one goes on with the
    schedules that were not tried.
    """

    def __init__(self, keys: Sequence[Key], monotonic: Callable[[], float] = time.monotonic) -> None:
        """`keys`: in the order in which they became due."""
        self.locked: list[Key] = []
        """The schedules to try later: the locked ones, and those of a tenant with many locked ones."""
        self._parts: list[Sequence[Key]] = []
        self._of_tenant = Counter[str]()
        self._monotonic = monotonic
        self._began = monotonic()
        self.seconds = 0.0
        """How long the tries took that met a lock."""
        self._divide(_by_tenant(keys))

    def take(self) -> Sequence[Key] | None:
        """Return the next part to try now; None if none is left."""
        self._began = self._monotonic()
        while self._parts:
            part = self._parts.pop()
            self.locked += [key for key in part if self._is_given_up(key)]
            if kept := [key for key in part if not self._is_given_up(key)]:
                return kept
        return None

    def divide(self, part: Sequence[Key]) -> None:
        """Divide the part that was taken last and met a lock. A single schedule is the locked one."""
        self.seconds += self._monotonic() - self._began
        if len(part) > 1:
            self._divide(part)
            return
        self.locked += part
        self._of_tenant[part[0].tenant_id] += 1

    def _divide(self, keys: Sequence[Key]) -> None:
        size = -(-len(keys) // _PARTS)
        self._parts += reversed([keys[start : start + size] for start in range(0, len(keys), max(size, 1))])

    def _is_given_up(self, key: Key) -> bool:
        return self._of_tenant[key.tenant_id] >= _MOST_OF_TENANT


def _by_tenant(keys: Sequence[Key]) -> list[Key]:
    """Return keys with those of one tenant together, in the order of the first key of each tenant."""
    tenants = dict.fromkeys(key.tenant_id for key in keys)
    ranks = {tenant: rank for rank, tenant in enumerate(tenants)}
    return sorted(keys, key=lambda key: ranks[key.tenant_id])
