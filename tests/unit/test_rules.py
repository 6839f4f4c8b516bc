from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import KEY, in_state, scheduled, wanted
from tests.support.clock import NOW, after
from timer_service.core.message import Position
from timer_service.timers import rules
from timer_service.timers.rules import Decision, Key, Outcome, State, Timer, Write

OLD, MIDDLE, NEW = Position(1, 5), Position(1, 6), Position(1, 7)
LATER = after(hours=1)
RECEIVED = after(minutes=30)
"""When the commands that tests are about are handled."""

Rule = Callable[[Timer | None, Position], Decision]


def schedule_for(due_at: int) -> Rule:
    return lambda timer, position: rules.schedule(timer, KEY, wanted(due_at, position), position, RECEIVED)


def cancel(timer: Timer | None, position: Position) -> Decision:
    return rules.cancel(timer, KEY, position, RECEIVED)


def retry(timer: Timer | None, position: Position) -> Decision:
    return rules.retry(timer, position, RECEIVED)


RULES = {"schedule": schedule_for(LATER), "confirm": schedule_for(NOW), "cancel": cancel, "retry": retry}


def timer(state: State = State.SCHEDULED, position: Position = MIDDLE, due_at: int = NOW) -> Timer:
    return in_state(state, scheduled(due_at=due_at, position=position))


def tombstone(position: Position = MIDDLE) -> Timer:
    return Timer(KEY, State.CANCELLED, position, registered_at=RECEIVED, schedule=None, settled_at=RECEIVED)


def confirmed(row: Timer) -> Decision:
    """Return the decision that changes nothing but the position."""
    return Decision(Outcome.UNCHANGED, row._replace(position=NEW), Write.POSITION)


# ScheduleTimer


def test_schedule_new() -> None:
    """A ScheduleTimer for an unknown timer makes it, registered now, to be fired when it is due."""
    asked = wanted(LATER, NEW, data='{"a":1}')
    decision = rules.schedule(None, KEY, asked, NEW, RECEIVED)
    made = Timer(KEY, State.SCHEDULED, NEW, registered_at=RECEIVED, schedule=asked, available_at=LATER)
    assert decision == Decision(Outcome.SCHEDULED, made, Write.ALL)


def test_reschedule() -> None:
    """A newer ScheduleTimer with another due time replaces the schedule and keeps when the timer was registered."""
    asked = wanted(LATER, NEW, data="2")
    decision = rules.schedule(timer(), KEY, asked, NEW, RECEIVED)
    moved = Timer(KEY, State.SCHEDULED, NEW, registered_at=NOW, schedule=asked, available_at=LATER)
    assert decision == Decision(Outcome.RESCHEDULED, moved, Write.ALL)


def test_reschedule_forgets_attempts() -> None:
    """A rescheduled timer has all its attempts before it, and no error from before."""
    tried = timer()._replace(attempt=2, last_error="refused", available_at=LATER - 1)
    moved = RULES["schedule"](tried, NEW).timer
    assert moved is not None
    assert (moved.attempt, moved.last_error, moved.available_at) == (0, None, LATER)


def test_schedule_same_due_time() -> None:
    """A newer ScheduleTimer with the same due time changes nothing but the position: the event id stays."""
    assert RULES["confirm"](timer(), NEW) == confirmed(timer())


@pytest.mark.parametrize("state", [State.CANCELLED, State.FAILED])
@pytest.mark.parametrize("due_at", [NOW, LATER])
def test_schedule_cancelled_or_failed(state: State, due_at: int) -> None:
    """A newer ScheduleTimer brings a cancelled or failed timer back, as if it were new."""
    again = scheduled(due_at=due_at, position=NEW, now=RECEIVED)
    assert schedule_for(due_at)(timer(state), NEW) == Decision(Outcome.SCHEDULED, again, Write.ALL)


def test_schedule_after_a_tombstone() -> None:
    """A ScheduleTimer newer than the CancelTimer that found nothing makes the timer."""
    made = scheduled(due_at=LATER, position=NEW, now=RECEIVED)
    assert RULES["schedule"](tombstone(), NEW) == Decision(Outcome.SCHEDULED, made, Write.ALL)


# CancelTimer


def test_cancel_scheduled() -> None:
    """A newer CancelTimer ends a scheduled timer for good, at the moment it is handled."""
    cancelled = timer()._replace(state=State.CANCELLED, position=NEW, available_at=None, settled_at=RECEIVED)
    assert cancel(timer(), NEW) == Decision(Outcome.CANCELLED, cancelled, Write.ALL)


def test_cancel_failed() -> None:
    """A CancelTimer ends a failed timer too; what it failed from stays to be read."""
    cancelled = timer(State.FAILED)._replace(state=State.CANCELLED, position=NEW, settled_at=RECEIVED)
    assert cancel(timer(State.FAILED), NEW) == Decision(Outcome.CANCELLED, cancelled, Write.ALL)


@pytest.mark.parametrize("row", [timer(State.CANCELLED), tombstone()], ids=["cancelled", "tombstone"])
def test_cancel_cancelled(row: Timer) -> None:
    """A CancelTimer for what is cancelled changes nothing but the position."""
    assert cancel(row, NEW) == confirmed(row)


def test_cancel_unknown() -> None:
    """A CancelTimer for an unknown timer leaves a tombstone: nothing to fire, cancelled now."""
    assert cancel(None, MIDDLE) == Decision(Outcome.NOT_FOUND, tombstone(), Write.ALL)


# RetryTimer


@pytest.mark.parametrize(("due_at", "available_at"), [(NOW, RECEIVED), (LATER, LATER)], ids=["due", "not due"])
def test_retry_failed(due_at: int, available_at: int) -> None:
    """A newer RetryTimer puts a failed timer back under its event id, its attempts before it: at once, never early."""
    failed = timer(State.FAILED, due_at=due_at)
    back = timer(due_at=due_at)._replace(position=NEW, available_at=available_at)
    assert retry(failed, NEW) == Decision(Outcome.RETRIED, back, Write.ALL)
    assert back.schedule == failed.schedule


@pytest.mark.parametrize("state", [State.SCHEDULED, State.CANCELLED])
def test_retry_not_failed(state: State) -> None:
    """A RetryTimer for a timer that waits or is cancelled changes nothing but the position."""
    assert retry(timer(state), NEW) == confirmed(timer(state))


@pytest.mark.parametrize("row", [None, tombstone(OLD), tombstone(MIDDLE)])
def test_retry_unknown(row: Timer | None) -> None:
    """A RetryTimer finds no timer where there is none, nor where only a tombstone is, and leaves nothing."""
    assert retry(row, MIDDLE) == Decision(Outcome.NOT_FOUND, None)


# Every command


REACHED = {
    "schedule": Outcome.IGNORED_REACHED,
    "confirm": Outcome.IGNORED_REACHED,
    "cancel": Outcome.ALREADY_REACHED,
    "retry": Outcome.ALREADY_REACHED,
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("position", [MIDDLE, NEW], ids=["same", "newer"])
def test_reached(name: str, position: Position) -> None:
    """A timer that has fired stays as it is, whatever is asked of it."""
    assert RULES[name](timer(State.REACHED), position) == Decision(REACHED[name], timer(State.REACHED))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("state", State)
def test_older(name: str, state: State) -> None:
    """In every state an older command changes nothing."""
    assert RULES[name](timer(state), OLD) == Decision(Outcome.IGNORED_STALE, timer(state))


@pytest.mark.parametrize("name", ["schedule", "confirm", "cancel"])
def test_tombstone_beats_older(name: str) -> None:
    """A tombstone beats whatever was sent before it and comes later."""
    assert RULES[name](tombstone(), OLD) == Decision(Outcome.IGNORED_STALE, tombstone())


@pytest.mark.parametrize(
    ("name", "row"),
    [
        *(("schedule", timer(state)) for state in State if state is not State.REACHED),
        *(("confirm", timer(state)) for state in State if state is not State.REACHED),
        ("cancel", timer(State.CANCELLED)),
        ("cancel", tombstone()),
        *(("retry", timer(state)) for state in State if state is not State.REACHED),
    ],
)
def test_same_command_again(name: str, row: Timer) -> None:
    """The command that made the timer what it is changes nothing when it is delivered again, nor revives it."""
    assert RULES[name](row, MIDDLE) == Decision(Outcome.UNCHANGED, row)


@pytest.mark.parametrize(
    ("row", "command", "verdict"),
    [
        (Position(1, 900), Position(2, 1), Outcome.RESCHEDULED),
        (Position(2, 1), Position(1, 900), Outcome.IGNORED_STALE),
        (Position(2, 1), Position(2, 2), Outcome.RESCHEDULED),
    ],
)
def test_epoch_before_sequence(row: Position, command: Position, verdict: Outcome) -> None:
    """A recreated stream's commands are newer than all of its predecessor's, whatever their sequence."""
    assert RULES["schedule"](timer(position=row), command).verdict is verdict


def test_cancelled_and_scheduled_again() -> None:
    """A timer that is scheduled again after it was cancelled fires as a timer of its own, and a retry leaves it so."""
    cancelled = cancel(timer(position=OLD), MIDDLE).timer
    again = RULES["confirm"](cancelled, NEW)
    assert again == Decision(Outcome.SCHEDULED, scheduled(position=NEW, now=RECEIVED), Write.ALL)
    assert retry(again.timer, NEW) == Decision(Outcome.UNCHANGED, again.timer)


class Sent(NamedTuple):
    """A command somebody sent."""

    rule: str
    position: Position


def play(commands: list[Sent], row: Timer | None = None) -> Timer | None:
    """Handle commands in the order they arrive; return the timer they leave."""
    for command in commands:
        decision = RULES[command.rule](row, command.position)
        row = row if decision.write is Write.NOTHING else decision.timer
    return row


positions = st.builds(Position, st.integers(0, 3), st.integers(0, 3))
arrivals = st.tuples(
    st.dictionaries(positions, st.sampled_from(sorted(RULES)), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
).map(lambda drawn: shuffled_twice(*drawn))
"""Commands that arrive in any order, each of them twice."""


def shuffled_twice(rules_at: dict[Position, str], rng: Random) -> list[Sent]:
    commands = [Sent(rule, position) for position, rule in rules_at.items()] * 2
    rng.shuffle(commands)
    return commands


@given(arrivals.map(lambda commands: [each for each in commands if each.rule != "retry"]))
def test_order_of_arrival_does_not_matter(commands: list[Sent]) -> None:
    """Redelivered and reordered, the same schedules and cancels leave the timer at the newest one, as that wants it."""

    def outcome(row: Timer | None) -> tuple[State, Position, int | None] | None:
        if row is None:
            return None
        due_at = row.schedule.due_at if row.schedule and row.state is State.SCHEDULED else None
        return row.state, row.position, due_at

    in_order = sorted(set(commands), key=lambda each: each.position)
    assert outcome(play(commands)) == outcome(play(in_order))
    assert [row.position for row in [play(commands)] if row] == [each.position for each in in_order[-1:]]


@given(arrivals)
def test_what_is_written_has_moved_on(commands: list[Sent]) -> None:
    """Whatever a command writes has a newer position than what it found, and exactly a scheduled timer is available."""
    row: Timer | None = None
    for command in commands:
        found, decision = row, RULES[command.rule](row, command.position)
        if decision.write is not Write.NOTHING:
            row = decision.timer
            assert row is not None
            assert found is None or row.position > found.position
            assert (row.available_at is not None) == (row.state is State.SCHEDULED)


# Event ids


def test_event_id_is_stable() -> None:
    """The same schedule always fires under the same id: pinned, for an upgrade must not change it."""
    assert rules.event_id(KEY, 1_795_251_600_000, Position(1, 7)) == "03b31f125023970d1da203068506e0ce"


def test_event_ids_differ() -> None:
    """Another tenant, call, due time, epoch or sequence is another fire, also where texts would run together."""
    causes = [
        (Key("acme", "a"), 1, Position(1, 1)),
        (Key("other", "a"), 1, Position(1, 1)),
        (Key("acme", "b"), 1, Position(1, 1)),
        (Key("acme", "a"), 11, Position(1, 1)),
        (Key("acme", "a"), 1, Position(11, 1)),
        (Key("acme", "a"), 1, Position(1, 11)),
        (Key("acme", "a1"), 1, Position(1, 1)),
        (Key("acmea", "b"), 1, Position(1, 1)),
        (Key("acme", "ab"), 1, Position(1, 1)),
    ]
    assert len({rules.event_id(*cause) for cause in causes}) == len(causes)
