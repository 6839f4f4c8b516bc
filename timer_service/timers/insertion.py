"""Adds timers before those that exist are read. See docs/decisions/0057."""

from collections.abc import Sequence
from typing import NamedTuple

from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Admission
from timer_service.core.ports.database import Transaction
from timer_service.timers import store
from timer_service.timers.rules import Key
from timer_service.timers.store import NewRow
from timer_service.timers.usage import growth_by_rows


class Added(NamedTuple):
    """What was added before the timers that exist were read."""

    keys: frozenset[Key]
    """The timers that were added. Not filled in if `is_all`, for the whole batch."""
    results: Sequence[CommandResult | None]
    """The results of the first commands of the batch, until the time was up. Valid for the timers in `keys`."""
    is_all: bool
    """Whether all commands of the batch are done, so that all results are valid."""


NONE_ADDED = Added(frozenset(), (), is_all=False)


async def add_new(
    tx: Transaction,
    rows: Sequence[NewRow],
    results: Sequence[CommandResult | None],
    now: int,
    *,
    whole: bool,
    admission: Admission | None,
) -> Added:
    """Insert the timers of a batch that do not exist yet; none if their tenants may not have room for all of `rows`.

    `whole`: the batch has no other timers.
    """
    growth = growth_by_rows(rows, now) if admission else {}
    if admission and not await admission.reserve(growth):
        return NONE_ADDED
    inserted = await store.insert_new(tx, rows)
    are_all_new = len(inserted) == len(rows)
    is_all = whole and are_all_new
    keys = frozenset[Key]() if is_all else frozenset(Key(*values[:2]) for values in inserted)
    if admission:
        admission.keep(growth if are_all_new else growth_by_rows([row for row in rows if row[0][:2] in keys], now))
    return Added(keys, results, is_all)
