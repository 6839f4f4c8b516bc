"""A plain model of schedules. It computes every due slot.

- A PutSchedule of other slots starts the schedule. Its cursor moves to the command time.
- A Resume moves the cursor if it finds the schedule paused.
- Of fixed times, the last one is remembered, so that it does not fire again if the rules of its zone change.
- A pass may fire any first part of the slots that the policy fires. The rest stays due, and the next pass decides
  again.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from tests.simulation.schedule_slots import Recurrence, due_of, is_fixed, next_slot, reading, slots_after, time_of
from timer_service.core.values.instant import parse_instant
from timer_service.core.values.message import Position

NOWHERE = Position(0, 0)
_MINUTE_MS = 60_000


class ScheduleName(NamedTuple):
    """The key of a schedule."""

    tenant: str
    schedule: str


class Definition(NamedTuple):
    """The content of a PutSchedule. Durations and instants are in ms."""

    recurrence: Recurrence
    max_count: int | None
    jitter: int
    policy: str
    late_by: int
    limit: int
    data: str | None
    topic: str | None

    @property
    def slots(self) -> Any:
        """The part that starts the schedule again if it changes."""
        return self.recurrence, self.max_count


class Seen(NamedTuple):
    """A command that was applied. `definition` is None unless it is a PutSchedule."""

    position: Position
    kind: str
    at: int
    """The command time."""
    definition: Definition | None = None


class Facts(NamedTuple):
    """The definition, the pause, and which PutSchedules were the first and the last one."""

    definition: Definition | None = None
    created_by: Position = NOWHERE
    """The first one since the schedule was deleted, if it ever was put."""
    defined_by: Position = NOWHERE
    is_paused: bool = False


class Progress(NamedTuple):
    """What has become of the slots."""

    after: int = 0
    """The cursor: every slot up to this instant has been fired or skipped."""
    fired_count: int = 0
    missed_since: int | None = None
    last_slot: int | None = None
    last_fired: int | None = None
    end: str | None = None
    """The reason of the end; None if the schedule has not ended."""
    wall: int | None = None
    """What the clocks showed at the cursor, if it is a slot of fixed times."""


class Firing(NamedTuple):
    """A possible result of a pass: the slots that fired, and the first slot that was skipped before them."""

    progress: Progress
    slots: Sequence[int]
    missed_since: int | None


def read_definition(payload: Mapping[str, Any]) -> Definition:
    """Return the definition in a PutSchedule."""
    catch_up = payload.get("catchUp", {})
    recurrence = Recurrence(
        cron=payload.get("cron"),
        every=read_duration(payload["every"]) if "every" in payload else None,
        days=_days(**payload["calendar"]) if "calendar" in payload else None,
        zone=payload.get("zone", "UTC"),
        start=parse_instant(payload["startAt"]) if "startAt" in payload else None,
        end=parse_instant(payload["endAt"]) if "endAt" in payload else None,
    )
    return Definition(
        recurrence=recurrence,
        max_count=payload.get("maxCount"),
        jitter=read_duration(payload.get("jitter", 0)),
        policy=catch_up.get("policy", "last"),
        late_by=read_duration(catch_up.get("lateBy", _MINUTE_MS)),
        limit=catch_up.get("limit", 100),
        data=json.dumps(payload["data"]) if "data" in payload else None,
        topic=payload.get("topic"),
    )


def _days(every: int, unit: str, anchor: str) -> tuple[int, str]:
    """Return a calendar interval of days or weeks in days, with its anchor."""
    return every * {"days": 1, "weeks": 7}[unit], anchor


def read_duration(value: str | int) -> int:
    """Return a duration in ms: whole milliseconds, or days, hours, minutes and seconds like P1DT2H3M4S."""
    if isinstance(value, int):
        return value
    units = {"D": 24 * 60 * _MINUTE_MS, "H": 60 * _MINUTE_MS, "M": _MINUTE_MS, "S": 1000}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([DHMS])", value))


def decide_facts(before: Facts, sent: Seen) -> Facts:
    """Return the facts after a command."""
    match sent.kind:
        case "PutSchedule":
            assert sent.definition is not None
            created_by = sent.position if before.definition is None else before.created_by
            return before._replace(definition=sent.definition, defined_by=sent.position, created_by=created_by)
        case "DeleteSchedule":
            return Facts(created_by=before.created_by)
        case kind:
            return before._replace(is_paused=kind == "PauseSchedule")


@dataclass(slots=True)
class ScheduleModel:
    """One schedule, or what is remembered for its id."""

    name: ScheduleName
    starts: int = 0
    """How many PutSchedules have started it."""
    is_known: bool = False
    """Whether it has a row: it was put or paused."""
    facts: Facts = field(default_factory=Facts)
    progress: Progress = field(default_factory=Progress)
    recent: Sequence[int] = ()
    """The slots up to the cursor by the rules before the new ones."""

    @property
    def status(self) -> str:
        if self.facts.definition is None:
            return "deleted"
        if self.progress.end is not None:
            return "ended"
        return "paused" if self.facts.is_paused else "active"

    @property
    def next_slot(self) -> int | None:
        """The next slot of an active schedule."""
        if self.status != "active" or self.facts.definition is None:
            return None
        return next(self._slots_left(self.facts.definition.recurrence), None)

    def _slots_left(self, recurrence: Recurrence) -> Iterator[int]:
        """Yield the slots after the cursor, without the fixed times that have fired by other rules."""
        wall = self.progress.wall
        for slot in slots_after(recurrence, self.progress.after):
            if wall is None or time_of(recurrence, slot) > wall:
                yield slot

    def due_of(self, slot: int) -> int:
        assert self.facts.definition is not None
        return due_of(*self.name, self.facts.definition.recurrence, self.facts.definition.jitter, slot)

    def is_due(self, now: int) -> bool:
        """Return whether a slot may fire."""
        return (slot := self.next_slot) is not None and self.due_of(slot) <= now

    # Commands

    def command(self, new: Seen) -> str:
        """Apply a command on the definition or the pause. Return its outcome."""
        before, status = self.facts, self.status
        self.facts = decide_facts(before, new)
        self.is_known |= self.facts != Facts()
        starts = _starts(before.definition, new.definition)
        if starts:
            begun = None if before.definition is None else self._begun(before.definition, new.at, status)
            is_kept = begun is not None and next_slot(self.facts.definition.recurrence, begun - 1) == begun  # type: ignore[union-attr]
            cursor = begun - 1 if begun is not None and is_kept else max(self.progress.after, new.at)
            self.progress = self.progress._replace(after=cursor, wall=None, fired_count=0, missed_since=None, end=None)
            self.starts += 1
        elif self.facts.definition is None:
            self.progress = Progress(after=self.progress.after)
        if new.kind == "ResumeSchedule" and before.is_paused:
            begun = None if before.definition is None else self._begun(before.definition, new.at, status)
            self.progress = self.progress._replace(
                after=max(self.progress.after, new.at) if begun is None else begun - 1
            )
        self._end_if_over()
        match new.kind:
            case "PutSchedule" if new.definition == before.definition:
                return "unchanged"
            case "PutSchedule" if starts and self.status == "ended":
                return "ended"
            case "PutSchedule":
                return "created" if status == "deleted" else "updated"
            case "DeleteSchedule" if status == "deleted":
                return "not_found" if before.created_by == NOWHERE else "unchanged"
            case "DeleteSchedule":
                return "deleted"
            case _:
                return _outcome_of_pause(new, before, status)

    def _begun(self, definition: Definition, at: int, status: str) -> int | None:
        """Return the slot that has begun and is not due because of its jitter: a Put or a Resume does not skip it."""
        if status not in {"active", "paused"} or not definition.jitter:
            return None
        slots = [*takewhile(lambda slot: slot <= at, self._slots_left(definition.recurrence))]
        due = [due_of(*self.name, definition.recurrence, definition.jitter, slot) for slot in slots[-1:]]
        return slots[-1] if due and due[0] > at else None

    def _end_if_over(self) -> None:
        definition, progress = self.facts.definition, self.progress
        if definition is None or progress.end is not None:
            return
        if progress.fired_count == definition.max_count:
            self.progress = progress._replace(end="max_count")
        elif next(self._slots_left(definition.recurrence), None) is None:
            self.progress = progress._replace(end="end_at")

    # New rules of the zone

    def remember_slots(self) -> None:
        """Remember the slots by the rules that are in force until now."""
        self.recent = self._slots_before_the_cursor()

    def follow_rules(self) -> None:
        """Move the cursor of an active schedule before the fixed times that new rules jump over.

        None is left before one that was a slot by the old rules too.
        """
        definition, progress = self.facts.definition, self.progress
        if definition is not None and progress.wall is not None and progress.after == progress.last_slot:
            same_wall = progress.wall - (reading(definition.recurrence.zone, progress.after) - progress.after)
            slots = [slot for slot in self._slots_before_the_cursor() if slot > same_wall]
            done = [s for s in slots if s in self.recent or time_of(definition.recurrence, s) <= progress.wall]
            after = max(done, default=slots[0] - 1) if slots else progress.after
            self.progress = progress._replace(after=after)
        self._end_if_over()

    def _slots_before_the_cursor(self) -> Sequence[int]:
        if self.facts.definition is None:
            return ()
        after = self.progress.after
        slots = slots_after(self.facts.definition.recurrence, after - 2 * 60 * _MINUTE_MS)
        return [*takewhile(lambda slot: slot <= after, slots)]

    # Passes

    def possible_firings(self, now: int) -> Iterator[Firing]:
        """Yield the possible results of a pass at `now`."""
        definition, progress = self.facts.definition, self.progress
        if self.status != "active" or definition is None:
            return
        recurrence = definition.recurrence
        slots = self._slots_left(recurrence)
        due = list(takewhile(lambda slot: self.due_of(slot) <= now, slots))
        fires = self._select(definition, due, now)
        skipped = due[: due.index(fires[0])] if fires else due
        missed_since = progress.missed_since or next(iter(skipped), None)
        fixed = is_fixed(recurrence)
        if due and not fires:
            wall = reading(recurrence.zone, due[-1]) if fixed else None
            yield Firing(progress._replace(after=due[-1], wall=wall, missed_since=missed_since), (), None)
        for count, last in enumerate(fires, 1):
            is_over = progress.fired_count + count == definition.max_count
            after = last if is_over or count < len(fires) else due[-1]
            fired = progress._replace(
                after=after,
                wall=reading(recurrence.zone, after) if fixed else None,
                fired_count=progress.fired_count + count,
                missed_since=None,
                last_slot=last,
                last_fired=now,
            )
            yield Firing(fired, fires[:count], missed_since)

    def fire(self, firing: Firing) -> None:
        """Apply a possible result of a pass."""
        self.progress = firing.progress
        self._end_if_over()

    def _select(self, definition: Definition, due: Sequence[int], now: int) -> Sequence[int]:
        """Return the due slots that the policy fires."""
        newest = due[-definition.limit :]
        if definition.policy != "all":
            in_time = [slot for slot in newest if now - self.due_of(slot) <= definition.late_by]
            newest = in_time or (due[-1:] if definition.policy == "last" else [])
        left = len(newest) if definition.max_count is None else definition.max_count - self.progress.fired_count
        return newest[:left]


def _starts(before: Definition | None, put: Definition | None) -> bool:
    """Return whether a PutSchedule starts the schedule. `put`: its definition; None if it is another command."""
    return put is not None and (before is None or before.slots != put.slots)


def _outcome_of_pause(new: Seen, before: Facts, status: str) -> str:
    pauses = new.kind == "PauseSchedule"
    if status in {"deleted", "ended"}:
        return {"deleted": "not_found", "ended": "already_ended"}[status]
    if before.is_paused == pauses:
        return "unchanged"
    return "paused" if pauses else "resumed"
