"""Mutants of schedules that the history simulation must find."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.draws import Scenario
from tests.simulation.intake_mutants import Mutate
from tests.simulation.schedule_scenarios import (
    schedules_one_by_one,
    schedules_read_late,
    schedules_with_faults,
    schedules_with_new_rules,
)
from timer_service.core.events import outbox
from timer_service.core.intake import backlog
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.message import Event
from timer_service.schedules import backfills, firings, handler, rules, schedule
from timer_service.schedules import decision as firing
from timer_service.schedules.backfill import store as backfill_store
from timer_service.schedules.backfill import worker as backfill_worker
from timer_service.schedules.calendar import cron, interval, recurrence
from timer_service.schedules.firing import transaction as firing_pass
from timer_service.schedules.firing import worker as firing_worker
from timer_service.schedules.firing import zones as firing_zones
from timer_service.schedules.messages import PutSchedule, ResumeSchedule


def cursor_moved_before_the_outbox_write(patch: pytest.MonkeyPatch) -> None:
    """The events of a pass are written in a second transaction, after the cursors."""
    held: list[Event] = []

    async def hold(_tx: Any, new: Sequence[Event], _now: int) -> None:
        held.extend(new)

    begin, tick = firing_worker.FiringWorker.__init__, firing_worker.FiringWorker.tick

    def begin_with_database(self: Any, parts: Any, start: Any) -> None:
        self.database = parts.database
        begin(self, parts, start)

    async def tick_and_then_write(self: Any, now: int) -> Any:
        held.clear()
        passed = await tick(self, now)
        await in_transaction(self.database, lambda tx: outbox.add(tx, held, now))
        return passed

    patch.setattr(firing_pass, "outbox", SimpleNamespace(add=hold))
    patch.setattr(firing_worker.FiringWorker, "__init__", begin_with_database)
    patch.setattr(firing_worker.FiringWorker, "tick", tick_and_then_write)


def event_id_from_the_count(patch: pytest.MonkeyPatch) -> None:
    """The id of a slot is its number since the start of the schedule, not its instant."""
    counts: dict[Any, int] = {}
    decide, fire = firing.decide_in_steps, firings.fire

    def decide_and_count(found: Any, now: int, most: int) -> Any:
        counts[found.key] = found.fired_count
        return decide(found, now, most)

    async def fire_and_number(tx: Any, firings: Any, start: Any, now: int) -> Any:
        fired = await fire(tx, firings, start, now)
        return [
            ended._replace(
                events=[
                    event._replace(id=_id(*of.schedule, "slot", counts[of.schedule] + number))
                    for number, event in enumerate(ended.events, 1)
                ]
            )
            for of, ended in zip(firings, fired, strict=True)
        ]

    patch.setattr(firing_pass, "decide_in_steps", decide_and_count)
    patch.setattr(firing_pass, "fire", fire_and_number)


def _id(*about: object) -> str:
    return hashlib.blake2b("\0".join(map(str, about)).encode(), digest_size=16).hexdigest()


def catch_up_without_bound(patch: pytest.MonkeyPatch) -> None:
    """`limit` is not obeyed."""
    decide = firing.decide_in_steps

    def decide_without_limit(found: Any, now: int, most: int) -> Any:
        return decide(found._replace(definition=found.definition._replace(limit=10**6)), now, most)

    patch.setattr(firing_pass, "decide_in_steps", decide_without_limit)


def jitter_that_reorders(patch: pytest.MonkeyPatch) -> None:
    """A slot may be due after the next one."""
    due_of = recurrence.due_of

    def due_without_bound(of: Any, slot: int, *rest: Any) -> int:
        return due_of(of._replace(end_at=slot + 1), slot, *rest)

    patch.setattr(schedule, "due_of", due_without_bound)


def classes_of_cron_swapped(patch: pytest.MonkeyPatch) -> None:
    """Fixed times follow the rule of wildcards at a clock change, and wildcards that of fixed times."""
    is_fixed = cron.is_fixed
    patch.setattr(recurrence, "is_fixed", lambda text: not is_fixed(text))
    _without_cache(patch)


def _without_cache(patch: pytest.MonkeyPatch) -> None:
    """Compute each slot again. The cache has slots that were found without the mutant."""
    uncached = recurrence.next_slot.__wrapped__
    for module in (recurrence, schedule, firing):
        patch.setattr(module, "next_slot", uncached)


def command_in_the_jitter_skips_the_slot(patch: pytest.MonkeyPatch) -> None:
    """A Put or a Resume skips a slot that has begun and is not due yet because of its jitter."""
    patch.setattr(rules, "begun_slot", lambda *_: None)


def intervals_as_wildcards(patch: pytest.MonkeyPatch) -> None:
    """A calendar interval follows the rule of wildcards at a clock change."""
    patch.setattr(recurrence, "_is_fixed", lambda of: of.calendar is None and cron.is_fixed(of.cron or ""))
    _without_cache(patch)


def intervals_without_anchor(patch: pytest.MonkeyPatch) -> None:
    """A calendar interval counts its days from 1970 on, and not from its anchor."""
    find = interval.anchor_second
    patch.setattr(interval, "anchor_second", lambda of: find(of) % (of.every * 86_400))
    _without_cache(patch)


def rules_not_followed(patch: pytest.MonkeyPatch) -> None:
    """A next slot that was computed from other rules of its zone is kept."""
    patch.setattr(firing_zones, "_differs", lambda *_: False)
    patch.setattr(rules, "has_old_rules", lambda _: False)
    for module in (firing, firing_pass):
        patch.setattr(module, "has_old_rules", lambda _: False)


def jumped_times_lost(patch: pytest.MonkeyPatch) -> None:
    """The cursor stays where it is, although new rules put a time before it that has not fired."""
    find = recurrence.after_wall
    patch.setattr(schedule, "after_wall", lambda *of, is_slot: max(of[1], find(*of, is_slot=is_slot)))


def jumped_instants_fire_again(patch: pytest.MonkeyPatch) -> None:
    """An instant before the cursor fires again if new rules show another time of the clock at it."""
    patch.setattr(recurrence, "_was_handled", lambda *_: False)


def times_fire_again(patch: pytest.MonkeyPatch) -> None:
    """A time of the clock fires again if new rules put it after the cursor."""
    patch.setattr(schedule, "after_wall", lambda _of, after, _wall, **_: after)


def put_resumes(patch: pytest.MonkeyPatch) -> None:
    """A PutSchedule ends the pause."""
    apply = rules.apply

    def apply_and_resume(before: Any, command: Any, now: int) -> Any:
        applied = apply(before, command, now)
        if not isinstance(command.payload, PutSchedule):
            return applied
        return applied._replace(schedule=schedule.aim(applied.schedule._replace(is_paused=False), now))

    patch.setattr(rules, "apply", apply_and_resume)


def count_kept_after_a_new_start(patch: pytest.MonkeyPatch) -> None:
    """A PutSchedule that starts the schedule again keeps the count of fired slots, unless it has ended."""
    start = schedule.start

    def start_and_count_on(before: Any, *more: Any) -> Any:
        most = None if before.definition is None else before.definition.max_count
        kept = before.fired_count if most is None else min(before.fired_count, most - 1)
        return start(before, *more)._replace(fired_count=kept)

    patch.setattr(rules, "start", start_and_count_on)


def slots_of_a_pause_fire_later(patch: pytest.MonkeyPatch) -> None:
    """A ResumeSchedule does not move the cursor."""
    apply = rules.apply

    def apply_without_cursor(before: Any, command: Any, now: int) -> Any:
        resumes = isinstance(command.payload, ResumeSchedule)
        return apply(before, command._replace(stored_at=0) if resumes else command, now)

    patch.setattr(rules, "apply", apply_without_cursor)


def late_from_the_slot(patch: pytest.MonkeyPatch) -> None:
    """A slot is late by the time since the slot, not since its due."""
    decide = firing.decide_in_steps

    def decide_by_slot(found: Any, now: int, most: int) -> Any:
        jitter = 0 if found.slot_at is None else found.due_of(found.slot_at) - found.slot_at
        definition = found.definition._replace(late_by_ms=found.definition.late_by_ms - jitter)
        return decide(found._replace(definition=definition), now, most)

    patch.setattr(firing_pass, "decide_in_steps", decide_by_slot)


def missed_slots_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A pass that fires no slot does not keep the first slot that it skipped."""
    decide = firing.decide_in_steps

    def decide_and_forget(*arguments: Any) -> Any:
        decision = yield from decide(*arguments)
        return decision._replace(schedule=decision.schedule._replace(missed_since=None))

    patch.setattr(firing_pass, "decide_in_steps", decide_and_forget)


def slots_fire_before_the_backlog(patch: pytest.MonkeyPatch) -> None:
    """After a start or an outage, slots fire before the commands that were stored until then are handled."""

    async def are_handled(_gate: Any, _now: int) -> bool:
        return True

    patch.setattr(backlog.Backlog, "is_applied", are_handled)


def backfill_cursor_one_slot_behind(patch: pytest.MonkeyPatch) -> None:
    """The last slot of each portion of a backfill fires again."""
    after = backfills.Backfill.after

    def after_less(self: Any, slots: Sequence[int], skipped: int) -> Any:
        moved = after(self, slots, skipped)
        return moved._replace(after_at=slots[-1] - 1) if slots else moved

    patch.setattr(backfills.Backfill, "after", after_less)


def backfill_after_a_delete(patch: pytest.MonkeyPatch) -> None:
    """A DeleteSchedule does not end a backfill."""

    async def find_created(_tx: Any, keys: Any) -> Any:
        return dict.fromkeys(keys, schedule.NEVER)

    patch.setattr(backfill_store, "find_created", find_created)


def backfill_without_the_topic(patch: pytest.MonkeyPatch) -> None:
    """A backfill loses the topic that the schedule had when the command was accepted."""
    make = backfills.new_backfill
    patch.setattr(handler, "new_backfill", lambda *found: make(*found)._replace(topic=None))


def topic_of_an_update_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A PutSchedule for a known schedule keeps the topic."""
    apply = rules.apply

    def apply_without_topic(before: Any, command: Any, now: int) -> Any:
        if isinstance(command.payload, PutSchedule) and before.definition is not None:
            kept = command.payload.model_copy(update={"topic": before.definition.topic})
            command = command._replace(payload=kept)
        return apply(before, command, now)

    patch.setattr(rules, "apply", apply_without_topic)


def backfill_into_the_future(patch: pytest.MonkeyPatch) -> None:
    """A backfill fires slots that are not due yet."""
    slots = backfills.Backfill.slots
    patch.setattr(backfills.Backfill, "slots", lambda self, now: slots(self, now + 7_200_000))
    make = backfills.new_backfill

    def new_backfill(found: Any, command: Any, now: int) -> Any:
        return make(found, command, now)._replace(to_at=command.payload.to)

    patch.setattr(handler, "new_backfill", new_backfill)


def backfill_before_the_backlog(patch: pytest.MonkeyPatch) -> None:
    """After a start or an outage, a backfill goes on before older commands are handled."""

    async def is_open(_gate: Any, _now: int) -> bool:
        return True

    patch.setattr(backfill_worker, "FiringGate", lambda *_: SimpleNamespace(is_open=partial(is_open, None)))


_ALL = (schedules_one_by_one, schedules_read_late, schedules_with_faults)
SCHEDULE_MUTANTS: Mapping[Mutate, Sequence[Scenario]] = {
    cursor_moved_before_the_outbox_write: [schedules_with_faults],
    event_id_from_the_count: _ALL,
    catch_up_without_bound: _ALL,
    jitter_that_reorders: _ALL,
    classes_of_cron_swapped: _ALL,
    command_in_the_jitter_skips_the_slot: _ALL,
    intervals_as_wildcards: _ALL,
    intervals_without_anchor: _ALL,
    rules_not_followed: [schedules_with_new_rules],
    jumped_times_lost: [schedules_with_new_rules],
    jumped_instants_fire_again: [schedules_with_new_rules],
    times_fire_again: [schedules_with_new_rules],
    put_resumes: _ALL,
    count_kept_after_a_new_start: _ALL,
    slots_of_a_pause_fire_later: _ALL,
    late_from_the_slot: _ALL,
    missed_slots_forgotten: _ALL,
    slots_fire_before_the_backlog: [schedules_with_faults],
    backfill_cursor_one_slot_behind: _ALL,
    backfill_after_a_delete: _ALL,
    backfill_without_the_topic: _ALL,
    topic_of_an_update_is_ignored: _ALL,
    backfill_into_the_future: _ALL,
    backfill_before_the_backlog: [schedules_with_faults],
}
