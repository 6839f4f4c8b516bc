"""One transaction of the firing worker: it decides on locked schedules, writes their cursors and adds their events.

Schedules with `start` start workflows in it. It raises `DatabaseBlockedError` if one of them is locked.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from timer_service.core.due.isolate import Retry
from timer_service.core.events import outbox
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.service.workflow_start import Started, WorkflowStart
from timer_service.core.values.budget import MIB
from timer_service.core.values.error_text import error_text
from timer_service.core.values.message import Event
from timer_service.schedules import store
from timer_service.schedules.decision import Decision, decide_in_steps
from timer_service.schedules.events import ended_event, fired_events
from timer_service.schedules.firing.left_to_others import Left, LeftToOthers
from timer_service.schedules.firing.pass_order import PassOrder, has_rest
from timer_service.schedules.messages import SkipReason, Status
from timer_service.schedules.schedule import RETRY_MS, Key, Schedule, fail
from timer_service.schedules.starts import Start, has_start, settle, slot_starts

MOST_SLOTS = 1000
MOST_SLOTS_OF_SCHEDULE = 100
MOST_DATA = 2 * MIB
MOST_COMPUTING_SECONDS = 0.02
"""The bounds of one transaction. Slots beyond them stay due. A single slot may have more data, or take longer."""
_COST_OF_START = 4
"""A slot that starts a workflow counts as so many: 1,000 of them took 0.25 s, in which nothing else is written."""
_PIECE_SECONDS = 0.005
"""How long slots are computed before other tasks get a turn."""


class Firing(NamedTuple):
    """A schedule before the transaction, and how its due slots ended."""

    before: Schedule
    decision: Decision
    data_size: int
    """The number of characters of its data."""


@dataclass(slots=True)
class Fired:
    """What one transaction has done."""

    firings: list[Firing] = field(default_factory=list)
    failed: list[Schedule] = field(default_factory=list)
    """The schedules whose slots cannot be computed or fired. They wait a minute."""
    unreadable: dict[Key, str] = field(default_factory=dict)
    """The schedules whose rows cannot be read, and the errors. They wait a minute too."""
    left: int = 0
    """How many schedules are left to other instances."""
    newly_left: list[Left] = field(default_factory=list)
    """Those of them that no earlier pass has left."""
    started: list[Started] = field(default_factory=list)
    """The workflows that were started."""
    not_started: Counter[SkipReason] = field(default_factory=Counter)
    """How many slots started no workflow."""
    taken: list[Key] = field(default_factory=list)
    """The schedules with a slot whose id another workflow has."""
    is_whole: bool = True
    """Whether no bound was reached."""

    @property
    def handled(self) -> int:
        """The number of schedules."""
        return len(self.firings) + len(self.failed) + len(self.unreadable)


class _Room:
    """What a transaction may still do."""

    def __init__(self) -> None:
        self.slots = MOST_SLOTS
        self.data = MOST_DATA
        self.seconds = 0.0
        """How long slots have been computed."""
        self._piece = 0.0

    def most_slots(self, data_size: int, cost: int) -> int:
        """Return how many slots of a schedule may fire, each with `data_size` characters. The first one always may.

        `cost`: as how many each of them counts.
        """
        if self.slots == MOST_SLOTS:
            return min(MOST_SLOTS_OF_SCHEDULE, max(min(self.slots // cost, self.data // max(data_size, 1)), 1))
        if self.seconds >= MOST_COMPUTING_SECONDS:
            return 0
        return min(MOST_SLOTS_OF_SCHEDULE, self.slots // cost, self.data // max(data_size, 1))

    async def compute(self, schedule: Schedule, now: int, most: int) -> Decision:
        """Return the decision on a schedule. Other tasks run after each piece of computing."""
        steps = decide_in_steps(schedule, now, most)
        while True:
            began = time.perf_counter()
            try:
                next(steps)
            except StopIteration as stop:
                decision: Decision = stop.value
                return decision
            finally:
                seconds = time.perf_counter() - began
                self.seconds += seconds
                self._piece += seconds
            await self.turn()

    def use(self, slots: int, data_size: int, seconds: float, cost: int = 1) -> float:
        """Take what a schedule has used. Return which part of a transaction it is. Computing has taken `seconds`.

        Its row is written, with its data, also if no slot fires.
        """
        data = max(slots, 1) * data_size
        counted = max(slots * cost, 1)
        self.slots -= counted
        self.data -= data
        return max(counted / MOST_SLOTS, data / MOST_DATA, seconds / MOST_COMPUTING_SECONDS)

    async def turn(self) -> None:
        """Let other tasks run if a piece of computing is done."""
        if self._piece > _PIECE_SECONDS:
            self._piece = 0.0
            await asyncio.sleep(0)


async def fire(
    tx: Transaction, rows: Sequence[Row], order: PassOrder, to_others: LeftToOthers, *, start: Start, now: int
) -> Fired:
    """Fire the due slots of locked schedules in the order of `order`, as many as the bounds allow.

    A schedule that this instance cannot compute is left to others, or gets the error and waits a minute. The other
    schedules are not affected.
    """
    own = to_others.own(rows, now)
    done = await _decide(own, order, to_others, now)
    done.left = len(rows) - len(own) + len(done.newly_left)
    data = await store.load_data(
        tx, [each.before.key for each in done.firings if each.decision.fired and each.data_size]
    )
    events: list[Event] = []
    starts: dict[Key, Sequence[WorkflowStart]] = {}
    firings, done.firings = done.firings, []
    for firing in firings:
        key = firing.before.key
        try:
            if has_start(firing.before):
                starts[key] = slot_starts(firing.decision, data.get(key))
            else:
                events += fired_events(firing.decision, data.get(key), now)
        except Exception as error:  # noqa: BLE001 - damaged data
            done.failed.append(fail(firing.before, error_text(error), now))
        else:
            done.firings.append(firing)
    events += await _start_all(tx, done, starts, start, now)
    after = [firing.decision.schedule for firing in done.firings]
    events += [ended_event(each, now) for each in after if each.status is Status.ENDED]
    await store.advance(tx, [*after, *done.failed])
    await store.postpone(tx, {key: Retry(now + RETRY_MS, error) for key, error in done.unreadable.items()})
    await outbox.add(tx, events, now)
    return done


async def _start_all(
    tx: Transaction, done: Fired, starts: Mapping[Key, Sequence[WorkflowStart]], start: Start, now: int
) -> list[Event]:
    """Start the workflows of slots, and settle the firings with the results. Return the events of skipped slots."""
    wanted = [each for many in starts.values() for each in many]
    if not wanted:
        return []
    await tx.wait_briefly()
    started = await start(tx, wanted, now)
    results = iter(started)
    events: list[Event] = []
    for number, firing in enumerate(done.firings):
        if not (many := starts.get(firing.before.key)):
            continue
        settled = settle(firing.before, firing.decision, many, list(islice(results, len(many))), now)
        done.firings[number] = firing._replace(decision=settled.decision)
        done.not_started += settled.reasons
        if settled.reasons[SkipReason.EXISTS]:
            done.taken.append(firing.before.key)
        events += settled.events
    done.started = [each for each in started if each.lane is not None]
    return events


async def _decide(rows: Sequence[Row], order: PassOrder, to_others: LeftToOthers, now: int) -> Fired:
    done = Fired()
    room = _Room()
    for row in order.of(rows):
        cost = 1 if row["start"] is None else _COST_OF_START
        if not (most := room.most_slots(row["data_size"], cost)):
            done.is_whole = False
            break
        try:
            schedule = store.read_schedule(row)
        except Exception as error:  # noqa: BLE001 - a damaged row, or one of a newer version
            if to_others.may_leave(row):
                done.newly_left.append(Left(store.key_of(row), row["available_at"], error_text(error)))
            else:
                done.unreadable[store.key_of(row)] = error_text(error)
            order.charge(row["tenant_id"], room.use(0, 0, 0.0))
            continue
        slots, seconds = 0, room.seconds
        try:
            decision = await room.compute(schedule, now, most)
        except Exception as error:  # noqa: BLE001 - whatever the parser or the zone data raise
            if to_others.may_leave(row):
                done.newly_left.append(Left(schedule.key, row["available_at"], error_text(error)))
            else:
                done.failed.append(fail(schedule, error_text(error), now))
        else:
            slots = len(decision.fired)
            done.firings.append(Firing(schedule, decision, row["data_size"]))
        order.charge(schedule.key.tenant_id, room.use(slots, row["data_size"], room.seconds - seconds, cost))
        await room.turn()
    waiting = _unreached(rows, done)
    rests = [each.before.key.tenant_id for each in done.firings if each.decision.schedule.is_due(now)]
    order.end(
        {row["tenant_id"] for row in waiting} | {*rests}, rests + [row["tenant_id"] for row in waiting if has_rest(row)]
    )
    return done


def _unreached(rows: Sequence[Row], done: Fired) -> list[Row]:
    handled = {each.before.key for each in done.firings} | {each.key for each in done.failed} | done.unreadable.keys()
    handled |= {each.key for each in done.newly_left}
    return [row for row in rows if store.key_of(row) not in handled]
