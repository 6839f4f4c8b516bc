"""Which slots fire and which are skipped: the table of policies in docs/schedules.md."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.clock import NOW
from timer_service.core.values.instant import LATEST
from timer_service.schedules.calendar.recurrence import Recurrence, due_of, slots_between
from timer_service.schedules.decision import Decision, decide_in_steps
from timer_service.schedules.messages import EndReason, Policy, Status
from timer_service.schedules.schedule import Definition, Key, Schedule, aim

KEY = Key("acme", "daily")
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
EVERY_MINUTE = Recurrence(None, MINUTE)
CRON_EVERY_MINUTE = Recurrence("* * * * *", None)
RECURRENCES = {"every": EVERY_MINUTE, "cron": CRON_EVERY_MINUTE}
MOST = 100


def schedule(recurrence: Recurrence = EVERY_MINUTE, after_at: int = NOW, **fields: Any) -> Schedule:
    values = {
        "max_count": None,
        "jitter_ms": 0,
        "policy": Policy.LAST,
        "late_by_ms": MINUTE,
        "limit": 100,
        "data": None,
    }
    definition = Definition(recurrence, **(values | fields))
    return aim(Schedule(KEY, NOW, definition, after_at=after_at), NOW)


def decide(schedule: Schedule, now: int, most: int) -> Decision:
    """Return the decision on a schedule."""
    steps = decide_in_steps(schedule, now, most)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            decision: Decision = stop.value
            return decision


def numbers(decision: Decision) -> list[int]:
    """Return the slots that fired, as minutes after `NOW`."""
    return [(slot - NOW) // MINUTE for slot in decision.slots]


def test_not_due_yet() -> None:
    """A slot does not fire early, also if the row is selected too early."""
    due = schedule()
    decision = decide(due, NOW + MINUTE - 1, MOST)
    assert (decision.slots, decision.schedule) == ((), due)


def test_jitter_makes_no_slot_late() -> None:
    """Lateness counts from the due instant: a slot that fires when it is due is in time, however long its jitter is."""
    due = schedule(Recurrence(None, DAY), policy=Policy.SKIP, late_by_ms=SECOND, jitter_ms=DAY)
    assert due.slot_at is not None
    assert due.available_at is not None
    assert due.available_at > due.slot_at + SECOND
    assert decide(due, due.available_at, MOST).slots == (due.slot_at,)


def test_missed_since_is_kept_until_the_next_firing() -> None:
    """The first skipped slot is announced with the next slot that fires, once."""
    skipping = schedule(policy=Policy.SKIP, late_by_ms=SECOND)
    first = decide(skipping, NOW + 3 * MINUTE + 30 * SECOND, MOST)
    second = decide(first.schedule, NOW + 5 * MINUTE + 30 * SECOND, MOST)
    third = decide(second.schedule, NOW + 6 * MINUTE, MOST)
    fourth = decide(third.schedule, NOW + 7 * MINUTE, MOST)
    assert [numbers(each) for each in (first, second, third, fourth)] == [[], [], [6], [7]]
    assert [each.missed_since for each in (third, fourth)] == [NOW + MINUTE, None]


@pytest.mark.parametrize(
    ("recurrence", "reason"),
    [
        (EVERY_MINUTE._replace(end_at=NOW + 2 * MINUTE), EndReason.END_AT),
        (Recurrence(None, MINUTE, start_at=LATEST), EndReason.NO_MORE_SLOTS),
        (Recurrence(None, MINUTE, start_at=LATEST, end_at=LATEST + 1), EndReason.NO_MORE_SLOTS),
    ],
)
def test_end_reasons(recurrence: Recurrence, reason: EndReason) -> None:
    """A schedule ends with its last slot. The reason says whether another slot would follow without `endAt`."""
    last = schedule(recurrence)
    assert last.slot_at is not None
    decision = decide(last, last.slot_at, MOST)
    assert (len(decision.slots), decision.schedule.end_reason) == (1, reason)


def test_row_with_an_error_finds_its_slot_again() -> None:
    """A row that could not be computed before has no trustworthy slot. The slot follows from the cursor."""
    broken = schedule()._replace(slot_at=NOW + 1, available_at=NOW + 1, last_error="no zone")
    early = decide(broken, NOW + SECOND, MOST).schedule
    assert (early.slot_at, early.available_at, early.last_error) == (NOW + MINUTE, NOW + MINUTE, None)
    assert numbers(decide(broken, NOW + MINUTE, MOST)) == [1]


def reference(due: Schedule, now: int) -> list[int]:
    """Return the slots that fire, by the words of the specification, one slot at a time."""
    definition = due.definition
    assert definition is not None
    slots = [
        slot
        for slot in slots_between(definition.recurrence, due.after_at, now)
        if due_of(definition.recurrence, slot, definition.jitter_ms, *KEY) <= now
    ][-definition.limit :]
    lateness = {slot: now - due_of(definition.recurrence, slot, definition.jitter_ms, *KEY) for slot in slots}
    in_time = [slot for slot in slots if lateness[slot] <= definition.late_by_ms]
    if definition.policy is Policy.ALL:
        fires = slots
    elif definition.policy is Policy.LAST:
        fires = in_time or slots[-1:]
    else:
        fires = in_time
    return fires if definition.max_count is None else fires[: definition.max_count]


@given(
    recurrence=st.sampled_from([*RECURRENCES.values(), Recurrence("*/7 * * * *", None), Recurrence(None, 90 * SECOND)]),
    policy=st.sampled_from(Policy),
    late_by_ms=st.integers(SECOND, 10 * MINUTE),
    jitter_ms=st.sampled_from([0, 30 * SECOND, HOUR]),
    limit=st.integers(1, 8),
    max_count=st.none() | st.integers(1, 9),
    most=st.integers(1, 9),
    waits=st.lists(st.integers(1, 20 * MINUTE), min_size=1, max_size=6),
)
def test_generated_schedules(  # noqa: PLR0917 - hypothesis passes names
    recurrence: Recurrence,
    policy: Policy,
    late_by_ms: int,
    jitter_ms: int,
    limit: int,
    max_count: int | None,
    most: int,
    waits: list[int],
) -> None:
    """Exactly the slots of the specification fire, in order, each once, and never before they are due."""
    left = schedule(
        recurrence, policy=policy, late_by_ms=late_by_ms, jitter_ms=jitter_ms, limit=limit, max_count=max_count
    )
    now = NOW
    for wait in waits:
        now += wait
        if left.status is not Status.ACTIVE:
            break
        assert left.definition is not None
        room = None if max_count is None else max_count - left.fired_count
        wanted = reference(left._replace(definition=left.definition._replace(max_count=room)), now)
        fired: list[int] = []
        while left.available_at is not None and left.available_at <= now:
            decision = decide(left, now, most)
            assert decision.schedule.after_at >= left.after_at
            fired += decision.slots
            left = decision.schedule
        assert fired == wanted
        assert all(due_of(recurrence, slot, jitter_ms, *KEY) <= now for slot in fired)


@pytest.mark.parametrize("policy", Policy)
def test_long_backlog_takes_bounded_time(policy: Policy) -> None:
    """A year of missed slots of a cron expression takes no longer than some hundred slots."""
    expression = Recurrence("*/10 * * * * *", None, "Europe/Berlin")
    late = schedule(expression, NOW - 366 * DAY, policy=policy)
    began = time.process_time()
    decision = decide(late, NOW, MOST)
    assert time.process_time() - began < 1
    assert (len(decision.slots), decision.schedule.after_at) == ({"last": 7, "skip": 7, "all": 100}[policy], NOW)
