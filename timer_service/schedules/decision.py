"""Which slots of a schedule fire, and which are skipped. Pure: the current time is an argument."""

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from timer_service.core.requests.computing import Steps
from timer_service.schedules.calendar.recurrence import newest_slots, next_slot, slots_between
from timer_service.schedules.messages import Policy, SkipReason
from timer_service.schedules.schedule import Definition, Schedule, aim, has_old_rules, last_done, move_cursor

_PIECE = 50
"""How many slots are computed at a time. A slot takes about 0.1 ms."""
_MOST_COUNTED = 100
"""Counting the skipped slots of a cron expression stops there. Each must be computed."""


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
    """Decide which slots of an active schedule fire at `now`, at most `most` of them. The others stay due.

    Raises whatever the recurrence raises if this instance cannot compute it.
    """
    definition = schedule.definition
    assert definition is not None  # noqa: S101 - only schedules are active
    recurrence = definition.recurrence
    is_wrong = schedule.last_error or has_old_rules(schedule)
    first = next_slot(recurrence, last_done(schedule)) if is_wrong else schedule.slot_at
    if first is None or schedule.due_of(first) > now:  # its slot was computed again, and may be later
        return Decision(aim(schedule, now), schedule.after_at)
    due, newest = yield from _find_due(schedule, definition, first, now)
    to_fire = _apply_policy(schedule, definition, due, now)
    if definition.max_count is not None:
        to_fire = to_fire[: definition.max_count - schedule.fired_count]
    fires, rest = to_fire[:most], to_fire[most:]
    reaches_max_count = fires and schedule.fired_count + len(fires) == definition.max_count
    skipped = _count_skipped(definition, first, to_fire[0] if to_fire else None, newest)
    missed_since = schedule.missed_since
    if missed_since is None and skipped:
        missed_since = first
    after_at = fires[-1] if rest or reaches_max_count else newest  # a later Put may fire what maxCount left over
    decision = Decision(schedule, after_at, fires, missed_since, skipped)
    return decision._replace(schedule=settle(schedule, decision, now, {}))


def settle(before: Schedule, decision: Decision, now: int, not_started: Mapping[int, SkipReason]) -> Schedule:
    """Return a schedule after a decision. The slots of `not_started`, in order, have started no workflow.

    Such a slot does not count for `maxCount`. So the schedule may go on although the decision ended it.
    """
    fired = [slot for slot in decision.slots if slot not in not_started]
    missed = [slot for slot in (decision.missed_since, *not_started) if slot is not None]
    if fired:  # an event has named the slots that were missed before it
        missed = [slot for slot in missed if slot > fired[-1]]
    after = move_cursor(before, decision.after_at)._replace(
        fired_count=before.fired_count + len(fired),
        missed_since=missed[0] if missed else None,
        last_slot_at=fired[-1] if fired else before.last_slot_at,
        last_fired_at=now if fired else before.last_fired_at,
    )
    if not_started:
        last_skipped = max(not_started)
        after = after._replace(last_skipped_at=last_skipped, last_skip_reason=not_started[last_skipped])
    after = aim(after, now)
    if after.available_at is not None and after.available_at < now:  # the rest waits behind other schedules
        return after._replace(available_at=now)
    return after


def _find_due(schedule: Schedule, definition: Definition, first: int, now: int) -> Steps[tuple[tuple[int, ...], int]]:
    """Return the newest due slots, in order, and the newest one of all. `first` is due.

    Slots that are certainly too late for the policy, and those beyond its limit, are not computed.
    """
    recurrence = definition.recurrence
    second = next_slot(recurrence, first)
    if second is None or schedule.due_of(second) > now:
        return (first,), first
    after = first - 1
    if definition.policy is not Policy.ALL:  # slots up to this instant are too late, even with the longest jitter
        after = max(after, now - definition.late_by_ms - definition.jitter_ms - 1)
    last_two = newest_slots(recurrence, first - 1, now, 2)
    newest = last_two[-1] if schedule.due_of(last_two[-1]) <= now else last_two[0]  # a jitter ends before the next slot
    found: tuple[int, ...] = ()
    until = newest
    while until > after and (missing := definition.limit - len(found)) > 0:
        piece = newest_slots(recurrence, after, until, min(missing, _PIECE))
        if not piece:
            break
        found = (*piece, *found)
        until = piece[0] - 1
        yield
    return found or (newest,), newest


def _apply_policy(schedule: Schedule, definition: Definition, slots: tuple[int, ...], now: int) -> tuple[int, ...]:
    """Return the due slots that the policy fires."""
    if definition.policy is Policy.ALL:
        return slots
    earliest = now - definition.late_by_ms
    # A slot is due at its instant or later, and computing its jitter takes time.
    in_time = tuple(slot for slot in slots if slot >= earliest or schedule.due_of(slot) >= earliest)
    return in_time or (slots[-1:] if definition.policy is Policy.LAST else ())


def _count_skipped(definition: Definition, first: int, first_to_fire: int | None, newest: int) -> int:
    """Return how many due slots are older than the first one that fires; all of them if none fires."""
    recurrence = definition.recurrence
    last = newest if first_to_fire is None else first_to_fire - 1
    if last < first:
        return 0
    if recurrence.every_ms is not None:
        return (last - first) // recurrence.every_ms + 1
    return sum(1 for _ in islice(slots_between(recurrence, first - 1, last), _MOST_COUNTED))
