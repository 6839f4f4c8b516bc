"""A plain model of the backfills of schedules: which slots a portion may fire, and how a backfill ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from tests.simulation.schedule_model import Definition, ScheduleName
from tests.simulation.schedule_slots import due_of, slots_after
from timer_service.core.values.message import Position


class Span(NamedTuple):
    """The slots that a BackfillSchedule wants: from `since` on, earlier than `until`, at most `limit`."""

    since: int
    until: int
    limit: int


class Ended(NamedTuple):
    """How a backfill ends: the slots of its last portion, the reason, and the first slot that is left."""

    slots: Sequence[int]
    reason: str
    next_slot: int | None = None


@dataclass(slots=True)
class BackfillModel:
    """A backfill that has not ended."""

    name: ScheduleName
    position: Position
    command_id: str
    definition: Definition
    """The definition when the command was handled."""
    span: Span
    after: int
    """Every slot of the span up to this instant has fired."""
    count: int = 0

    def left(self, now: int) -> list[int]:
        """Return the slots that are left, as far as they are due."""
        return list(takewhile(lambda slot: self._due_of(slot) <= now, self._in_span(self.after)))

    def portion(self, after: int, now: int) -> Sequence[int]:
        """Return the slots of a portion that has moved the cursor to an instant, and record them."""
        left = self.left(now)
        assert after in left, f"the cursor of {self} is at {after}, which is no slot that is left: {left}"
        slots = left[: left.index(after) + 1]
        self.after, self.count = after, self.count + len(slots)
        return slots

    def end(self, now: int) -> Ended:
        """Return how the backfill ends if its schedule is not deleted: all that may fire has fired."""
        left = self.left(now)
        slots = left[: self.span.limit - self.count]
        rest = next(self._in_span(slots[-1] if slots else self.after), None)
        return Ended(slots, "limit" if len(left) > len(slots) else "done", rest)

    def _in_span(self, after: int) -> Iterator[int]:
        return takewhile(lambda slot: slot < self.span.until, slots_after(self.definition.recurrence, after))

    def _due_of(self, slot: int) -> int:
        return due_of(*self.name, self.definition.recurrence, self.definition.jitter, slot)
