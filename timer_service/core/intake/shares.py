"""Which commands of a batch are applied at once, and which wait. Pure.

While the service keeps up with the log, almost every command is applied at once.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from timer_service.core.intake.decoder import LARGE_BYTES
from timer_service.core.intake.waiting import waiting_name
from timer_service.core.values.raw_command import RawCommand

FAR_BEHIND = 5000
"""If more commands are stored behind a batch, those of other tenants may be among them."""
_PART = 4
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
    alone = behind == 0 and len(batch) == 1
    shares = Shares([], [])
    stored: set[str] = set()
    for each in batch:
        tenant, message = each.address[1:]
        waits = (
            tenant in stored
            or tenant in heavy
            or message in stopped
            or (_is_costly(each) and not alone)
            or each.left_bytes > 0
            or waiting_name(tenant) in waiting
        )
        if waits:
            stored.add(tenant)
        (shares.later if waits else shares.now).append(each)
    return shares


def _is_costly(command: RawCommand) -> bool:
    return command.size > LARGE_BYTES or command.left_bytes > 0


def _with_too_many(batch: Sequence[RawCommand]) -> frozenset[str]:
    counts = Counter(each.address.tenant for each in batch)
    return frozenset(tenant for tenant, count in counts.items() if count > len(batch) // _PART)
