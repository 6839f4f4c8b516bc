"""A plain model of schedules. It keeps every handled command, sorts them, and computes every due slot.

- The definition and the pause follow from the handled commands in stream order, whatever the order of their delivery.
- If, in stream order, a PutSchedule started the schedule later than its last start here, it starts again here. Its
  cursor moves to the command time of its definition.
- A Resume moves the cursor if it is the newest command on the pause and finds the schedule paused.
- A pass may fire any first part of the slots that the policy fires. The rest stays due, and the next pass decides
  again.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from tests.simulation.schedule_slots import Recurrence, due_of, next_slot, slots_after
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

    @property
    def slots(self) -> Any:
        """The part that starts the schedule again if it changes."""
        return self.recurrence, self.max_count


class Seen(NamedTuple):
    """A handled command. `definition` is None unless it is a PutSchedule."""

    position: Position
    kind: str
    at: int
    """The command time."""
    definition: Definition | None = None


class Facts(NamedTuple):
    """The facts that follow from a set of commands: the definition, the pause, and what decided them."""

    definition: Definition | None = None
    defined_by: Position = NOWHERE
    defined_at: int = 0
    started_by: Position = NOWHERE
    deleted_by: Position = NOWHERE
    paused_by: Position = NOWHERE
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
    started_by: Position = NOWHERE


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
    )


def read_duration(value: str | int) -> int:
    """Return a duration in ms: whole milliseconds, or days, hours, minutes and seconds like P1DT2H3M4S."""
    if isinstance(value, int):
        return value
    units = {"D": 24 * 60 * _MINUTE_MS, "H": 60 * _MINUTE_MS, "M": _MINUTE_MS, "S": 1000}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([DHMS])", value))


def decide_facts(seen: Iterable[Seen]) -> Facts:
    """Return the facts that follow from commands in stream order."""
    facts = Facts()
    for position, kind, at, definition in sorted(seen):
        match kind:
            case "PutSchedule":
                assert definition is not None
                starts = facts.definition is None or facts.definition.slots != definition.slots
                started_by = position if starts else facts.started_by
                facts = facts._replace(definition=definition, defined_by=position, defined_at=at, started_by=started_by)
            case "DeleteSchedule":
                facts = Facts(defined_by=position, deleted_by=position, paused_by=facts.paused_by)
            case _:
                facts = facts._replace(is_paused=kind == "PauseSchedule", paused_by=position)
    return facts


@dataclass(slots=True)
class ScheduleModel:
    """One schedule, or what is remembered for its id."""

    name: ScheduleName
    seen: dict[Position, Seen] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    progress: Progress = field(default_factory=Progress)

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
        return next_slot(self.facts.definition.recurrence, self.progress.after)

    def due_of(self, slot: int) -> int:
        assert self.facts.definition is not None
        return due_of(*self.name, self.facts.definition.recurrence, self.facts.definition.jitter, slot)

    def is_due(self, now: int) -> bool:
        """Return whether a slot may fire."""
        return (slot := self.next_slot) is not None and self.due_of(slot) <= now

    # Commands

    def command(self, new: Seen) -> str:
        """Apply a command that is no TriggerSchedule. Return its outcome."""
        before, status = self.facts, self.status
        self.seen[new.position] = new
        self.facts = decide_facts(self.seen.values())
        if self.facts.definition is None:
            self.progress = Progress(after=self.progress.after)
        elif self.facts.started_by > self.progress.started_by:
            cursor = max(self.progress.after, self.facts.defined_at)
            kept = self.progress._replace(after=cursor, fired_count=0, missed_since=None, end=None)
            self.progress = kept._replace(started_by=self.facts.defined_by)
        if new.kind == "ResumeSchedule" and new.position >= before.paused_by and before.is_paused:
            self.progress = self.progress._replace(after=max(self.progress.after, new.at))
        self._end_if_over()
        if new.kind in {"PutSchedule", "DeleteSchedule"}:
            return self._outcome_of_definition(new, before, status)
        return _outcome_of_pause(new, before, status)

    def _end_if_over(self) -> None:
        definition, progress = self.facts.definition, self.progress
        if definition is None or progress.end is not None:
            return
        if progress.fired_count == definition.max_count:
            self.progress = progress._replace(end="max_count")
        elif next_slot(definition.recurrence, progress.after) is None:
            self.progress = progress._replace(end="end_at")

    def _outcome_of_definition(self, new: Seen, before: Facts, status: str) -> str:
        if new.position < before.defined_by:
            return "ignored_stale"
        if new.position == before.defined_by:
            return "unchanged"
        if new.definition is None:
            never = before.defined_by == NOWHERE
            return ("not_found" if never else "unchanged") if status == "deleted" else "deleted"
        if new.definition == before.definition:
            return "unchanged"
        if self.facts.started_by == new.position and self.status == "ended":
            return "ended"
        return "created" if status == "deleted" else "updated"

    # Passes

    def possible_firings(self, now: int) -> Iterator[Firing]:
        """Yield the possible results of a pass at `now`."""
        definition, progress = self.facts.definition, self.progress
        if self.status != "active" or definition is None:
            return
        slots = slots_after(definition.recurrence, progress.after)
        due = list(takewhile(lambda slot: self.due_of(slot) <= now, slots))
        fires = self._select(definition, due, now)
        skipped = due[: due.index(fires[0])] if fires else due
        missed_since = progress.missed_since or next(iter(skipped), None)
        if due and not fires:
            yield Firing(progress._replace(after=due[-1], missed_since=missed_since), (), None)
        for count, last in enumerate(fires, 1):
            is_over = progress.fired_count + count == definition.max_count
            fired = progress._replace(
                after=last if is_over or count < len(fires) else due[-1],
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


def _outcome_of_pause(new: Seen, before: Facts, status: str) -> str:
    pauses = new.kind == "PauseSchedule"
    if new.position < max(before.paused_by, before.deleted_by):
        return "ignored_stale"
    if status in {"deleted", "ended"}:
        return {"deleted": "not_found", "ended": "already_ended"}[status]
    if before.is_paused == pauses:
        return "unchanged"
    return "paused" if pauses else "resumed"
