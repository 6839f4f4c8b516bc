"""Which slots of a schedule fire, and which are skipped. Pure: the current time is an argument."""

from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from timer_service.core.requests.computing import Steps
from timer_service.schedules.calendar.recurrence import newest_slots, next_slot, slots_between
from timer_service.schedules.messages import Policy, SkipReason
from timer_service.schedules.schedule import Definition, Schedule, aim

_PIECE = 50
"""How many slots are computed at a time. A slot takes about 0.1 ms."""
_MOST_COUNTED = 100
"""Counting the skipped slots of a cron expression stops there. Each must be computed."""
_NONE: Mapping[int, SkipReason] = MappingProxyType({})


class Decision(NamedTuple):
    """What becomes of the due slots of a schedule."""

    schedule: Schedule
    """The schedule afterwards, if all of `slots` fire. If more slots are due than it may fire, the rest stays due."""
    after_at: int
    """The cursor afterwards."""
    slots: tuple[int, ...] = ()
    """The slots that fire."""
    missed_since: int | None = None
    """The first slot that was skipped since the firing before the first of `slots`."""
    skipped: int = 0
    """How many slots were skipped. Counting stops at 100 for a cron expression."""


def decide_in_steps(schedule: Schedule, now: int, most: int) -> Steps[Decision]:
    """Decide which slots of an active schedule fire at `now`, at most `most` of them.

    Raises whatever the recurrence raises if this instance cannot compute it.
    """
    definition = schedule.definition
    assert definition is not None  # noqa: S101 - only schedules are active
    recurrence = definition.recurrence
    first = next_slot(recurrence, schedule.after_at) if schedule.last_error else schedule.slot_at
    if first is None or schedule.due_of(first) > now:
        return Decision(aim(schedule, now), schedule.after_at)
    slots, newest = yield from _find_due(schedule, definition, first, now)
    fires = _select(schedule, definition, slots, now)
    if definition.max_count is not None:
        fires = fires[: definition.max_count - schedule.fired_count]
    fired, rest = fires[:most], fires[most:]
    is_used_up = fired and definition.max_count == schedule.fired_count + len(fired)
    skipped = _count_skipped(definition, first, fires[0] if fires else None, newest)
    missed_since = schedule.missed_since if schedule.missed_since is not None or not skipped else first
    after_at = fired[-1] if rest or is_used_up else newest  # a later Put may fire what maxCount left over
    after = settle(schedule, Decision(schedule, after_at, fired, missed_since), now)
    return Decision(after, after_at, fired, missed_since, skipped)


def settle(before: Schedule, decision: Decision, now: int, not_started: Mapping[int, SkipReason] = _NONE) -> Schedule:
    """Return a schedule after a decision. The slots of `not_started`, in order, have started no workflow.

    Such a slot does not count for `maxCount`. So the schedule may go on although the decision ended it.
    """
    fired = [slot for slot in decision.slots if slot not in not_started] if not_started else decision.slots
    missed = [slot for slot in (decision.missed_since, *not_started) if slot is not None]
    since = (slot for slot in missed if not fired or slot > fired[-1])
    after = before._replace(
        after_at=decision.after_at,
        fired_count=before.fired_count + len(fired),
        missed_since=next(since, None),
        last_slot_at=fired[-1] if fired else before.last_slot_at,
        last_fired_at=now if fired else before.last_fired_at,
    )
    for slot, reason in not_started.items():
        after = after._replace(last_skipped_at=slot, last_skip_reason=reason)
    after = aim(after, now)
    if after.available_at is not None and after.available_at < now:  # the rest waits behind other schedules
        return after._replace(available_at=now)
    return after


def _find_due(schedule: Schedule, definition: Definition, first: int, now: int) -> Steps[tuple[tuple[int, ...], int]]:
    """Return the due slots that can fire, in order, and the newest due slot. `first` is due.

    They are found from the newest one back. Slots that no policy fires may be among them.
    """
    recurrence = definition.recurrence
    second = next_slot(recurrence, first)
    if second is None or second > now or schedule.due_of(second) > now:
        return (first,), first
    after = first - 1
    if definition.policy is not Policy.ALL:  # later slots are all that can fire, except for the newest one
        after = max(after, now - definition.late_by_ms - definition.jitter_ms - 1)
    slots = newest_slots(recurrence, first - 1, now, 2)
    newest = slots[-1] if schedule.due_of(slots[-1]) <= now else slots[0]  # jitter keeps the order of slots
    found: list[int] = []
    until = newest
    while until > after and (missing := definition.limit - len(found)) > 0:
        piece = newest_slots(recurrence, after, until, min(missing, _PIECE))
        if not piece:
            break
        found[:0] = piece
        until = piece[0] - 1
        yield
    return tuple(found) or (newest,), newest


def _select(schedule: Schedule, definition: Definition, slots: tuple[int, ...], now: int) -> tuple[int, ...]:
    """Return the due slots that the policy fires."""
    if definition.policy is Policy.ALL:
        return slots
    earliest = now - definition.late_by_ms
    in_time = tuple(slot for slot in slots if slot >= earliest or schedule.due_of(slot) >= earliest)
    return in_time or (slots[-1:] if definition.policy is Policy.LAST else ())


def _count_skipped(definition: Definition, first: int, fires: int | None, newest: int) -> int:
    """Return how many due slots are older than the first one that fires."""
    recurrence = definition.recurrence
    last = newest if fires is None else fires - 1
    if last < first:
        return 0
    if recurrence.every_ms is not None:
        return (last - first) // recurrence.every_ms + 1
    return sum(1 for _ in islice(slots_between(recurrence, first - 1, last), _MOST_COUNTED))
