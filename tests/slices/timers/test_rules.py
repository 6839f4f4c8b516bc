from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import builders
from tests.harness.builders import KEY, in_state
from tests.harness.clock import NOW, after, iso
from timer_service.core.message import Command, Position, TenantPayload, Trace
from timer_service.timers import rules
from timer_service.timers.messages import CancelTimer, RetryTimer, ScheduleTimer
from timer_service.timers.rules import Applied, Key, Outcome, Schedule, State, Timer

NO_TRACE = Trace()
OLD, MIDDLE, NEW = Position(1, 5), Position(1, 6), Position(1, 7)
LATER = after(hours=1)
RECEIVED = after(minutes=30)
"""When the commands that tests are about are handled."""

Rule = Callable[[Timer | None, Position], Applied]


def apply(
    timer: Timer | None,
    position: Position,
    payload: TenantPayload,
    correlation_id: str | None = None,
    trace: Trace = NO_TRACE,
) -> Applied:
    """Apply the command at a position, whose id is named after it."""
    command = Command(command_id(position), payload, position, correlation_id, trace, reply_to=None)
    return rules.apply(timer, KEY, command, RECEIVED)


def command_id(position: Position) -> str:
    return "command-{}-{}".format(*position)


def schedule_for(due_at: int, correlation_id: str | None = None, **fields: Any) -> Rule:
    payload = ScheduleTimer(tenant_id=KEY.tenant_id, service_call_id=KEY.service_call_id, due_at=iso(due_at), **fields)
    return lambda timer, position: apply(timer, position, payload, correlation_id)


def cancel(timer: Timer | None, position: Position) -> Applied:
    return apply(timer, position, CancelTimer(**KEY._asdict()))


def retry(timer: Timer | None, position: Position) -> Applied:
    return apply(timer, position, RetryTimer(**KEY._asdict()))


RULES = {
    "schedule": schedule_for(LATER),
    "same": schedule_for(NOW),
    "update": schedule_for(NOW, data=1),
    "cancel": cancel,
    "retry": retry,
}


def wanted(due_at: int = NOW, position: Position = MIDDLE, **fields: Any) -> Schedule:
    """Return what the ScheduleTimer at a position asks for."""
    return builders.wanted(due_at, position, causation_id=command_id(position), **fields)


def scheduled(due_at: int = NOW, position: Position = MIDDLE, registered_at: int = NOW, **fields: Any) -> Timer:
    """Return the timer that the ScheduleTimer at a position makes where there was none."""
    asked = wanted(due_at, position, **fields)
    return Timer(KEY, State.SCHEDULED, position, registered_at, asked, available_at=due_at)


def timer(state: State = State.SCHEDULED, position: Position = MIDDLE, due_at: int = NOW) -> Timer:
    return in_state(state, scheduled(due_at, position))


def tombstone(position: Position = MIDDLE) -> Timer:
    return Timer(KEY, State.CANCELLED, position, registered_at=RECEIVED, schedule=None, settled_at=RECEIVED)


def confirmed(row: Timer, outcome: Outcome = Outcome.UNCHANGED) -> Applied:
    """Return what a command leaves that changes nothing but the position and, once settled, what retention goes by."""
    confirmed_at = None if row.settled_at is None else RECEIVED
    return Applied(row._replace(position=NEW, confirmed_at=confirmed_at), outcome)


# ScheduleTimer


def test_schedule_new() -> None:
    """A ScheduleTimer for an unknown timer makes it, registered now, to be fired when it is due."""
    made = scheduled(LATER, NEW, registered_at=RECEIVED, data='{"a":1}', correlation_id="order-1")
    assert schedule_for(LATER, "order-1", data={"a": 1})(None, NEW) == Applied(made, Outcome.SCHEDULED)


def test_schedule_carries_its_trace() -> None:
    """The schedule has the trace of its command."""
    trace = Trace("parent", "state")
    payload = ScheduleTimer(**KEY._asdict(), due_at=iso(LATER))
    assert apply(None, NEW, payload, trace=trace).timer == scheduled(LATER, NEW, RECEIVED, trace=trace)


def test_reschedule() -> None:
    """A newer ScheduleTimer with another due time replaces the schedule and keeps when the timer was registered."""
    moved = scheduled(LATER, NEW, data="2")
    assert schedule_for(LATER, data=2)(timer(), NEW) == Applied(moved, Outcome.RESCHEDULED)


@pytest.mark.parametrize("name", ["schedule", "update"])
def test_new_schedule_forgets_attempts(name: str) -> None:
    """A timer that is rescheduled or updated has all its attempts before it, and no error from before."""
    tried = timer()._replace(attempt=2, last_error="refused", available_at=LATER - 1)
    left = RULES[name](tried, NEW).timer
    assert left is not None
    assert left.schedule is not None
    assert (left.attempt, left.last_error, left.available_at) == (0, None, left.schedule.due_at)


def test_schedule_the_same() -> None:
    """A newer ScheduleTimer that asks for the same changes nothing but the position: the event id stays."""
    assert RULES["same"](timer(), NEW) == confirmed(timer())


CONTENTS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "nothing": (None, {}),
    "null": (None, {"data": None}),
    "false": (None, {"data": False}),
    "0": (None, {"data": 0}),
    "0.0": (None, {"data": 0.0}),
    "an object": (None, {"data": {"a": 1, "b": 2}}),
    "in another order": (None, {"data": {"b": 2, "a": 1}}),
    "a correlation id": ("order-1", {}),
    "another": ("order-2", {}),
    "both": ("order-1", {"data": 0}),
}


@pytest.mark.parametrize("had", CONTENTS)
@pytest.mark.parametrize("wants", CONTENTS)
def test_update(had: str, wants: str) -> None:
    """A newer ScheduleTimer with the same due time and other data, or another correlation id, is what fires."""
    (had_correlation, had_data), (correlation, data) = CONTENTS[had], CONTENTS[wants]
    before = schedule_for(NOW, had_correlation, **had_data)(None, MIDDLE).timer
    assert before is not None
    updated = schedule_for(NOW, correlation, **data)(None, NEW).timer
    left = schedule_for(NOW, correlation, **data)(before._replace(registered_at=NOW), NEW)
    if had == wants:
        assert left == confirmed(before._replace(registered_at=NOW))
    else:
        assert updated is not None
        assert left == Applied(updated._replace(registered_at=NOW), Outcome.UPDATED)


@pytest.mark.parametrize("state", [State.CANCELLED, State.FAILED])
@pytest.mark.parametrize("due_at", [NOW, LATER])
def test_schedule_cancelled_or_failed(state: State, due_at: int) -> None:
    """A newer ScheduleTimer brings a cancelled or failed timer back, as if it were new."""
    again = scheduled(due_at, NEW, registered_at=RECEIVED)
    assert schedule_for(due_at)(timer(state), NEW) == Applied(again, Outcome.SCHEDULED)


def test_schedule_after_a_tombstone() -> None:
    """A ScheduleTimer newer than the CancelTimer that found nothing makes the timer."""
    made = scheduled(LATER, NEW, registered_at=RECEIVED)
    assert RULES["schedule"](tombstone(), NEW) == Applied(made, Outcome.SCHEDULED)


# CancelTimer


def test_cancel_scheduled() -> None:
    """A newer CancelTimer ends a scheduled timer for good, at the moment it is handled."""
    cancelled = timer()._replace(state=State.CANCELLED, position=NEW, available_at=None, settled_at=RECEIVED)
    assert cancel(timer(), NEW) == Applied(cancelled, Outcome.CANCELLED)


def test_cancel_failed() -> None:
    """A CancelTimer ends a failed timer too; what it failed from stays to be read."""
    cancelled = timer(State.FAILED)._replace(state=State.CANCELLED, position=NEW, settled_at=RECEIVED)
    assert cancel(timer(State.FAILED), NEW) == Applied(cancelled, Outcome.CANCELLED)


@pytest.mark.parametrize("row", [timer(State.CANCELLED), tombstone()], ids=["cancelled", "tombstone"])
def test_cancel_cancelled(row: Timer) -> None:
    """A CancelTimer for what is cancelled changes nothing but the position, and it is kept as long as a new cancel."""
    assert cancel(row, NEW) == confirmed(row)


def test_cancel_unknown() -> None:
    """A CancelTimer for an unknown timer leaves a tombstone: nothing to fire, cancelled now."""
    assert cancel(None, MIDDLE) == Applied(tombstone(), Outcome.NOT_FOUND)


# RetryTimer


@pytest.mark.parametrize(("due_at", "available_at"), [(NOW, RECEIVED), (LATER, LATER)], ids=["due", "not due"])
def test_retry_failed(due_at: int, available_at: int) -> None:
    """A newer RetryTimer puts a failed timer back under its event id, its attempts before it: at once, never early."""
    failed = timer(State.FAILED, due_at=due_at)
    back = timer(due_at=due_at)._replace(position=NEW, available_at=available_at)
    assert retry(failed, NEW) == Applied(back, Outcome.RETRIED)
    assert back.schedule == failed.schedule


@pytest.mark.parametrize("state", [State.SCHEDULED, State.CANCELLED])
def test_retry_not_failed(state: State) -> None:
    """A RetryTimer for a timer that waits or is cancelled changes nothing but the position."""
    assert retry(timer(state), NEW) == confirmed(timer(state))


@pytest.mark.parametrize("row", [None, tombstone(MIDDLE)])
def test_retry_unknown(row: Timer | None) -> None:
    """A RetryTimer finds no timer where there is none, nor where only a tombstone is, and changes nothing."""
    assert retry(row, NEW) == Applied(row, Outcome.NOT_FOUND)


# Every command


REACHED = {
    "schedule": Outcome.IGNORED_REACHED,
    "same": Outcome.IGNORED_REACHED,
    "update": Outcome.IGNORED_REACHED,
    "cancel": Outcome.ALREADY_REACHED,
    "retry": Outcome.ALREADY_REACHED,
}


@pytest.mark.parametrize("name", RULES)
def test_reached(name: str) -> None:
    """A timer that has fired stays as it is; it is kept on, so that this command has no effect if delivered again."""
    assert RULES[name](timer(State.REACHED), NEW) == confirmed(timer(State.REACHED), REACHED[name])


@pytest.mark.parametrize("name", RULES)
def test_reached_and_delivered_again(name: str) -> None:
    """The same command delivered again after the timer has fired changes nothing."""
    assert RULES[name](timer(State.REACHED), MIDDLE) == Applied(timer(State.REACHED), REACHED[name])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("state", State)
def test_older(name: str, state: State) -> None:
    """In every state an older command changes nothing."""
    assert RULES[name](timer(state), OLD) == Applied(timer(state), Outcome.IGNORED_STALE)


@pytest.mark.parametrize("name", RULES)
def test_tombstone_beats_older(name: str) -> None:
    """A tombstone beats whatever was sent before it and comes later."""
    assert RULES[name](tombstone(), OLD) == Applied(tombstone(), Outcome.IGNORED_STALE)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("row", [*(timer(state) for state in State if state is not State.REACHED), tombstone()])
def test_same_command_again(name: str, row: Timer) -> None:
    """The command that made the timer what it is changes nothing when it is delivered again, nor revives it."""
    assert RULES[name](row, MIDDLE) == Applied(row, Outcome.UNCHANGED)


@pytest.mark.parametrize(
    ("row", "command", "outcome"),
    [
        (Position(1, 900), Position(2, 1), Outcome.RESCHEDULED),
        (Position(2, 1), Position(1, 900), Outcome.IGNORED_STALE),
        (Position(2, 1), Position(2, 2), Outcome.RESCHEDULED),
    ],
)
def test_epoch_before_sequence(row: Position, command: Position, outcome: Outcome) -> None:
    """A recreated stream's commands are newer than all of its predecessor's, whatever their sequence."""
    assert RULES["schedule"](timer(position=row), command).outcome is outcome


def test_cancelled_and_scheduled_again() -> None:
    """A timer that is scheduled again after it was cancelled fires as a timer of its own, and a retry leaves it so."""
    cancelled = cancel(timer(position=OLD), MIDDLE).timer
    again = RULES["same"](cancelled, NEW)
    assert again == Applied(scheduled(position=NEW, registered_at=RECEIVED), Outcome.SCHEDULED)
    assert retry(again.timer, NEW) == Applied(again.timer, Outcome.UNCHANGED)


class Sent(NamedTuple):
    """A command somebody sent."""

    rule: str
    position: Position


def play(commands: list[Sent], row: Timer | None = None) -> Timer | None:
    """Handle commands in the order they arrive; return the timer they leave."""
    for command in commands:
        row = RULES[command.rule](row, command.position).timer
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
    """Redelivered and reordered, the same schedules and cancels leave the timer as the newest one wants it."""

    def fires(row: Timer | None) -> tuple[State, Position, tuple[int, str | None] | None] | None:
        if row is None:
            return None
        due = (row.schedule.due_at, row.schedule.data) if row.schedule and row.state is State.SCHEDULED else None
        return row.state, row.position, due

    in_order = sorted(set(commands), key=lambda each: each.position)
    assert fires(play(commands)) == fires(play(in_order))
    assert [row.position for row in [play(commands)] if row] == [each.position for each in in_order[-1:]]


@given(arrivals)
def test_what_changes_has_moved_on(commands: list[Sent]) -> None:
    """A timer that a command changes has a newer position, and exactly a scheduled timer is available."""
    row: Timer | None = None
    for command in commands:
        found, row = row, RULES[command.rule](row, command.position).timer
        assert row is not None or found is None
        if row is not None and row != found:
            assert found is None or row.position > found.position
            assert (row.available_at is not None) == (row.state is State.SCHEDULED)


@given(arrivals)
def test_one_id_stands_for_one_content(commands: list[Sent]) -> None:
    """Whatever commands come, an event id never stands for two due times, data or correlation ids."""
    contents: dict[str, Schedule] = {}
    row: Timer | None = None
    for command in commands:
        row = RULES[command.rule](row, command.position).timer
        if row is not None and row.schedule is not None:
            assert contents.setdefault(row.schedule.event_id, row.schedule) == row.schedule


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
