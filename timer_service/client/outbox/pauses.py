"""Which tenants wait because their commands could not be stored. Immutable."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

_FIRST_SECONDS = 1
_LONGEST_SECONDS = 30


class _Pause(NamedTuple):
    until: float
    seconds: float


class Pauses(NamedTuple):
    """The pauses of tenants, each twice as long as the one before it, up to 30 s."""

    of_tenants: Mapping[str, _Pause] = MappingProxyType({})

    def after(self, tenant: str, now: float, *, failed: bool) -> Self:
        """Return the pauses after the commands of a tenant were stored, or were not."""
        others = {name: pause for name, pause in self.of_tenants.items() if name != tenant}
        if not failed:
            return self._replace(of_tenants=others)
        last = self.of_tenants.get(tenant)
        seconds = _FIRST_SECONDS if last is None else min(2 * last.seconds, _LONGEST_SECONDS)
        return self._replace(of_tenants={**others, tenant: _Pause(now + seconds, seconds)})

    def waiting(self, now: float) -> list[str]:
        """Return the tenants whose pause has not ended."""
        return [tenant for tenant, pause in self.of_tenants.items() if pause.until > now]
