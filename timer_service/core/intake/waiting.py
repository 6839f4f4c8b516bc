"""Which commands wait: they were read from the log, and are applied later, in turns between the tenants. No I/O.

While the service keeps up with the log, almost every command is applied at once. While a tenant has waiting commands,
its next ones wait too, so that they keep their order.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.intake.decoder import LARGE_BYTES
from timer_service.core.intake.waiting_rows import ROW_COMMANDS, TenantWaits, may_begin, waiting_name
from timer_service.core.values.address import MAX_MESSAGE_BYTES
from timer_service.core.values.raw_command import RawCommand

MOST_BYTES = 1024 * 1024 * 1024
"""The log is not read while the waiting commands have more."""
FAR_BEHIND = 5000
"""If more commands are stored behind a batch, those of other tenants may be among them."""
LARGE_PART = 4
"""A tenant with more than this part of a batch then has more than its share."""


class Shares(NamedTuple):
    """How the commands of a batch are divided."""

    now: list[RawCommand]
    """Those to apply at once."""
    later: list[RawCommand]
    """Those to store. While a tenant has one, all its later commands are stored too."""


def divide(batch: Sequence[RawCommand], waiting: Collection[str], behind: int, stopped: Collection[str] = ()) -> Shares:
    """Divide a batch. `waiting`: the tenants with commands that wait. `behind`: how many commands are stored behind it.

    `stopped`: the names of the messages whose handler fails for every command.
    """
    if not waiting and not stopped and behind <= FAR_BEHIND and not any(map(_is_costly, batch)):
        return Shares(list(batch), [])
    heavy = _with_too_many(batch) if behind > FAR_BEHIND else frozenset()
    is_only_command = behind == 0 and len(batch) == 1
    shares = Shares([], [])
    tenants_stored: set[str] = set()
    for each in batch:
        tenant = each.address.tenant
        if (
            tenant in tenants_stored
            or tenant in heavy
            or each.address.message in stopped
            or each.left_bytes > 0
            or (_is_costly(each) and not is_only_command)  # others would wait until it is decoded
            or waiting_name(tenant) in waiting
        ):
            tenants_stored.add(tenant)
            shares.later.append(each)
        else:
            shares.now.append(each)
    return shares


def _is_costly(command: RawCommand) -> bool:
    """Return whether a command takes long to decode, or has a body that must be read from the log first."""
    return command.size > LARGE_BYTES or command.left_bytes > 0


def _with_too_many(batch: Sequence[RawCommand]) -> frozenset[str]:
    """Return the tenants with more than their share of a batch."""
    counts = Counter(each.address.tenant for each in batch)
    return frozenset(tenant for tenant, count in counts.items() if count > len(batch) // LARGE_PART)


class Waiting:
    """What this process knows of the waiting commands. Only the reader changes them, so it knows everything."""

    def __init__(self) -> None:
        self._tenants: dict[str, TenantWaits] = {}
        """In the order in which they have their turns."""
        self.number = self.size = 0
        """How many commands wait, and their bytes. The commands of a row count until the whole row is applied."""

    def load(self, tenants: Mapping[str, TenantWaits]) -> None:
        """Take over what the database has."""
        self._tenants = dict(tenants)
        self.number = sum(each.number for each in tenants.values())
        self.size = sum(each.size for each in tenants.values())

    @property
    def tenants(self) -> Collection[str]:
        """The tenants with waiting commands, in the order of their turns."""
        return self._tenants.keys()

    def has_ready(self, now: int) -> bool:
        """Return whether a command may be applied now."""
        return any(may_begin(each.available_at, now) for each in self._tenants.values())

    def next_at(self) -> int | None:
        """Return when the next commands may be applied; None if none wait."""
        return min((each.available_at for each in self._tenants.values()), default=None)

    def next_tenants(self, now: int, limit: int, most_bytes: int) -> list[str]:
        """Return the tenants whose turn it is, until their oldest rows have so many commands or bytes; at least one.

        How much these rows have is not known, but not more than a row may have.
        """
        chosen: list[str] = []
        number = size = 0
        for tenant, each in self._tenants.items():
            if may_begin(each.available_at, now):
                chosen.append(tenant)
                number += min(each.number, ROW_COMMANDS)
                size += min(each.size, MAX_MESSAGE_BYTES)
                if number >= limit or size >= most_bytes:
                    break
        return chosen

    def end_turn(self, tenants: Iterable[str]) -> None:
        """Put tenants behind all others."""
        for tenant in tenants:
            if tenant in self._tenants:
                self._tenants[tenant] = self._tenants.pop(tenant)

    def added(self, tenant: str, number: int, size: int) -> None:
        """Record rows that were committed. Their commands may be applied at once, unless the tenant is postponed."""
        self.number, self.size = self.number + number, self.size + size
        before = self._tenants.get(tenant, TenantWaits(0, 0, 0))
        self._tenants[tenant] = before._replace(number=before.number + number, size=before.size + size)

    def applied(self, tenant: str, number: int, size: int) -> None:
        """Record that commands were applied, and rows of `size` bytes deleted. The next ones may be applied at once."""
        self.number, self.size = self.number - number, self.size - size
        before = self._tenants[tenant]
        left = before._replace(number=before.number - number, size=before.size - size, available_at=0)
        if left.number > 0:
            self._tenants[tenant] = left
        else:
            del self._tenants[tenant]

    def postponed(self, tenant: str, available_at: int) -> None:
        """Record that the commands of a tenant must not be applied before an instant."""
        self._tenants[tenant] = self._tenants[tenant]._replace(available_at=available_at)

    def retry_all(self) -> None:
        """Let all tenants be tried at once: what made their commands fail is over."""
        self._tenants = {tenant: each._replace(available_at=0) for tenant, each in self._tenants.items()}
