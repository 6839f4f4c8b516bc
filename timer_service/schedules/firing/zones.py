"""Computes the next slots again whose time zone has other rules than before, after an update of the time zone data.

The slot is an instant, and its row has a hash of the data of the zone. Each instance reads all schedules once at its
start, and again a minute later, because a row may have been locked. Instances with different data do not change rows in
turns: after that, a slot keeps its rules until it fires or a command changes the schedule.
"""

import logging
from collections.abc import Collection, Sequence
from functools import partial

from timer_service.core.events import outbox
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.instant import format_optional
from timer_service.schedules import store
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.zones import load_zone
from timer_service.schedules.events import ended_event
from timer_service.schedules.messages import Status
from timer_service.schedules.schedule import Key, Schedule, aim, has_old_rules

log = logging.getLogger(__name__)

_PAGE = 1000
_PORTION = 100
"""How many slots a transaction computes. One takes up to 4 ms."""
_AGAIN_MS = 60_000
_START = Key("", "")


class ZoneScan:
    """Reads the schedules, a page in each step, and computes those again whose zone has other rules."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._after = _START
        self._scans_left = 2
        self._begin_at = 0
        self._stale: list[Key] = []
        """The schedules of the page that are left."""

    async def step(self, now: int) -> int | None:
        """Do one portion. Return when the next one has work; None if there is none any more."""
        if not self._stale and (not self._scans_left or now < self._begin_at):
            return self._begin_at if self._scans_left else None
        if not self._stale:
            await self._read_page(now)
        if self._stale:
            portion = self._stale[:_PORTION]
            moved = await in_transaction(self._database, partial(_compute_again, keys=portion, now=now))
            del self._stale[:_PORTION]
            _log_moved(moved)
        if self._stale:
            return now
        return max(now, self._begin_at) if self._scans_left else None

    async def _read_page(self, now: int) -> None:
        page = await store.page_of_zones(self._database.reader, self._after, _PAGE)
        self._stale = [key for key, zone, rules in page if rules is not None and _differs(zone, rules)]
        self._after = page[-1][0] if page else _START
        if len(page) < _PAGE:
            self._after = _START
            self._begin_at, self._scans_left = now + _AGAIN_MS, self._scans_left - 1


def _differs(zone: str, rules: str) -> bool:
    try:
        return load_zone(zone).rules != rules
    except RecurrenceError:  # another instance may know the zone
        return False


async def _compute_again(tx: Transaction, keys: Collection[Key], now: int) -> Sequence[tuple[Schedule, Schedule]]:
    """Compute the next slots of schedules, except locked ones. Return those that have moved, before and after it."""
    stale = [each for each in await store.lock_active(tx, keys) if has_old_rules(each)]
    pairs = [(before, aim(before, now)) for before in stale]
    await store.advance(tx, [after for _, after in pairs])
    await outbox.add(tx, [ended_event(after, now) for _, after in pairs if after.status is Status.ENDED], now)
    return [(before, after) for before, after in pairs if before.slot_at != after.slot_at]


def _log_moved(moved: Sequence[tuple[Schedule, Schedule]]) -> None:
    for before, after in moved[:1]:
        assert before.definition is not None  # noqa: S101 - only schedules are active
        about = {
            "count": len(moved),
            "tenant": before.key.tenant_id,
            "schedule_id": before.key.schedule_id,
            "zone": before.definition.recurrence.zone,
            "slot_before": format_optional(before.slot_at),
            "slot": format_optional(after.slot_at),
        }
        log.warning("next slots have moved, because the rules of their time zones have changed", extra=about)
