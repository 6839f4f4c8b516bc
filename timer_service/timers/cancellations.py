"""Cancellations of many timers by the prefix of their ids. Pure functions and values.

The command stores one row. `cancellation_worker` then cancels the timers. The row is also a tombstone: a ScheduleTimer
that is older than the cancellation and is handled later has no effect.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from timer_service.core.values.message import Command, Event, Position, Trace
from timer_service.timers.messages import CancelTimers, TimersCancelled
from timer_service.timers.rules import Key

SECOND_PASS_MS = 60_000
"""How long after the first pass the second one begins."""
_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)
_LONGEST_ID = 200


class CancellationKey(NamedTuple):
    """The key of a cancellation: the tenant, and the position of the command."""

    tenant_id: str
    position: Position


class CancelledPage(NamedTuple):
    """Some timers of a cancellation."""

    calls: Sequence[str]
    """Their ids, in order."""
    is_last: bool
    """Whether there are no timers after these."""


class Cancellation(NamedTuple):
    """One CancelTimers, and how far its passes are."""

    key: CancellationKey
    prefix: str
    command_id: str
    correlation_id: str | None
    trace: Trace
    added_at: int
    next_call_id: str
    """Where the next page begins."""
    available_at: int | None
    """When the pass may begin; None if the cancellation is finished. It stays during a pass, so a pass that has begun
    remains the oldest of its tenant."""
    pass_number: int = 1
    cancelled_count: int = 0
    """How many timers were cancelled."""
    finished_at: int | None = None

    @property
    def end(self) -> str:
        """The smallest text after all ids with the prefix."""
        return prefix_end(self.prefix)

    def after_page(self, page: CancelledPage, cancelled: int, passes: int, now: int) -> "Cancellation":
        """Return the cancellation after a page of which some timers were cancelled."""
        counted = self._replace(cancelled_count=self.cancelled_count + cancelled)
        if not page.is_last:
            return counted._replace(next_call_id=page.calls[-1])
        if self.pass_number < passes:
            return counted._replace(
                next_call_id=self.prefix, pass_number=self.pass_number + 1, available_at=now + SECOND_PASS_MS
            )
        return counted._replace(available_at=None, finished_at=now)

    def event(self, now: int) -> Event:
        """Return the event of a finished cancellation. Its id depends on the command, so it is always the same."""
        tenant, position = self.key
        cause = "\0".join((tenant, "timers-cancelled", *map(str, position)))
        payload = {
            "tenantId": tenant,
            "commandId": self.command_id,
            "prefix": self.prefix,
            "count": self.cancelled_count,
        }
        return Event(
            hashlib.blake2b(cause.encode(), digest_size=16).hexdigest(),
            TimersCancelled.type,
            tenant,
            payload,
            now,
            self.correlation_id,
            self.command_id,
            self.trace,
        )


def new_cancellation(command: Command, payload: CancelTimers, now: int) -> Cancellation:
    """Return the cancellation of a CancelTimers."""
    return Cancellation(
        CancellationKey(command.tenant, command.position),
        payload.prefix,
        command.id,
        command.correlation_id,
        command.trace,
        added_at=now,
        next_call_id=payload.prefix,
        available_at=now,
    )


def prefix_end(prefix: str) -> str:
    """Return the smallest text after all ids with a prefix. Code points have the same order as bytes of UTF-8."""
    kept = prefix.rstrip(_LAST_CHARACTER)
    if not kept:
        return _LAST_CHARACTER * (_LONGEST_ID + 1)
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


class PrefixPositions:
    """The newest positions of cancellations, by tenant and prefix."""

    def __init__(self, cancellations: Iterable[tuple[CancellationKey, str]] = ()) -> None:
        self._newest: dict[str, dict[int, dict[str, Position]]] = defaultdict(lambda: defaultdict(dict))
        """By tenant, by the length of the prefix, and by prefix: an id has few prefixes, and a tenant may have many."""
        for key, prefix in cancellations:
            self.add(key, prefix)

    def add(self, key: CancellationKey, prefix: str) -> None:
        """Add a cancellation."""
        positions = self._newest[key.tenant_id][len(prefix)]
        positions[prefix] = max(positions.get(prefix, key.position), key.position)

    def cancel_later(self, key: Key, position: Position) -> bool:
        """Return whether a cancellation that is newer than `position` concerns a timer."""
        call = key.service_call_id
        return key.tenant_id in self._newest and any(
            (newest := positions.get(call[:length])) is not None and newest > position
            for length, positions in self._newest[key.tenant_id].items()
        )
