from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import builders
from tests.harness.builders import KEY, in_state
from tests.harness.cases import case
from tests.harness.clock import NOW, after, iso
from timer_service.core.values.message import Command, Position, TenantPayload, Trace
from timer_service.timers import rules
from timer_service.timers.messages import CancelTimer, RetryTimer, ScheduleTimer, State
from timer_service.timers.rules import Applied, Key, Outcome, Schedule, Timer

NO_TRACE = Trace()
OLD, MIDDLE, NEW = Position(1, 5), Position(1, 6), Position(1, 7)
LATER = after(hours=1)
RECEIVED = after(minutes=30)
"""The instant at which the tested commands are handled."""

Rule = Callable[[Timer | None, Position], Applied]


def apply(
    timer: Timer | None,
    position: Position,
    payload: TenantPayload,
    correlation_id: str | None = None,
    trace: Trace = NO_TRACE,
) -> Applied:
    """Apply the command at `position`. Its id is made from the position."""
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
    """Return the schedule of the ScheduleTimer at `position`."""
    return builders.wanted(due_at, position, causation_id=command_id(position), **fields)


def scheduled(due_at: int = NOW, position: Position = MIDDLE, registered_at: int = NOW, **fields: Any) -> Timer:
    """Return the timer that the ScheduleTimer at `position` creates."""
    asked = wanted(due_at, position, **fields)
    return Timer(KEY, State.SCHEDULED, position, registered_at, asked, available_at=due_at)


def timer(state: State = State.SCHEDULED, position: Position = MIDDLE, due_at: int = NOW) -> Timer:
    return in_state(state, scheduled(due_at, position))


def moved(row: Timer) -> Applied:
    """Return the result of a ScheduleTimer that changes only the position."""
    return Applied(row._replace(position=NEW), Outcome.UNCHANGED)


# ScheduleTimer


def relative(stored_at: int) -> Command:
    payload = ScheduleTimer(**KEY._asdict(), due_in="PT1H")
    return Command(command_id(NEW), payload, NEW, None, NO_TRACE, reply_to=None, stored_at=stored_at)


def test_relative_due_time_counts_from_the_command_time() -> None:
    """A timer with `dueIn` is due this long after the command time, whenever the command is handled."""
    stored_at = after(minutes=-20)
    due_at = after(minutes=40)
    for now in (NOW, RECEIVED, after(days=3)):
        applied = rules.apply(None, KEY, relative(stored_at), now)
        assert applied == Applied(scheduled(due_at, NEW, registered_at=now), Outcome.SCHEDULED)


def test_relative_due_time_without_a_command_time() -> None:
    """If the broker does not know when it stored the command, `dueIn` counts from the instant of the handling."""
    applied = rules.apply(None, KEY, relative(0), RECEIVED)
    assert applied.timer == scheduled(after(minutes=90), NEW, registered_at=RECEIVED)


EXPIRIES: dict[str, tuple[dict[str, Any], int | None]] = {
    "none": ({}, None),
    "at an instant": ({"expires_at": iso(LATER + 1)}, LATER + 1),
    "late": ({"late_by": "PT0.001S"}, LATER + 1),
    "later": ({"late_by": "P366D"}, after(days=366, hours=1)),
}


@pytest.mark.parametrize("name", EXPIRIES)
def test_expiry(name: str) -> None:
    """A ScheduleTimer sets the instant from which the timer is expired."""
    fields, expires_at = EXPIRIES[name]
    made = scheduled(LATER, NEW, registered_at=RECEIVED, expires_at=expires_at)
    assert schedule_for(LATER, **fields)(None, NEW) == Applied(made, Outcome.SCHEDULED)


def test_expiry_with_a_relative_due_time() -> None:
    """With `dueIn`, `lateBy` counts from the due time that results."""
    payload = ScheduleTimer(**KEY._asdict(), due_in="PT1H", late_by="PT1M")
    sent = Command(command_id(NEW), payload, NEW, None, NO_TRACE, reply_to=None, stored_at=NOW)
    made = rules.apply(None, KEY, sent, RECEIVED).timer
    assert made == scheduled(after(hours=1), NEW, registered_at=RECEIVED, expires_at=after(hours=1, minutes=1))


@pytest.mark.parametrize("had", EXPIRIES)
@pytest.mark.parametrize("wants", EXPIRIES)
def test_update_of_the_expiry(had: str, wants: str) -> None:
    """A ScheduleTimer with the same due time and another expiry is an update. The same expiry changes nothing."""
    before = schedule_for(LATER, **EXPIRIES[had][0])(None, MIDDLE).timer
    assert before is not None
    left = schedule_for(LATER, **EXPIRIES[wants][0])(before, NEW)
    if EXPIRIES[had][1] == EXPIRIES[wants][1]:
        assert left == moved(before)
    else:
        made = scheduled(LATER, NEW, registered_at=RECEIVED, expires_at=EXPIRIES[wants][1])
        assert left == Applied(made, Outcome.UPDATED)


def test_schedule_new() -> None:
    """A ScheduleTimer for an unknown timer creates it. It is registered now and available at its due time."""
    made = scheduled(LATER, NEW, registered_at=RECEIVED, data='{"a":1}', correlation_id="order-1")
    assert schedule_for(LATER, "order-1", data={"a": 1})(None, NEW) == Applied(made, Outcome.SCHEDULED)


def test_schedule_carries_its_trace() -> None:
    """The schedule has the trace of its command."""
    trace = Trace("parent", "state")
    payload = ScheduleTimer(**KEY._asdict(), due_at=iso(LATER))
    assert apply(None, NEW, payload, trace=trace).timer == scheduled(LATER, NEW, RECEIVED, trace=trace)


def test_reschedule() -> None:
    """A newer ScheduleTimer with another due time replaces the schedule and keeps the registration time."""
    moved = scheduled(LATER, NEW, data="2")
    assert schedule_for(LATER, data=2)(timer(), NEW) == Applied(moved, Outcome.RESCHEDULED)


@pytest.mark.parametrize("name", ["schedule", "update"])
def test_new_schedule_resets_attempts(name: str) -> None:
    """A new schedule resets the attempts and the last error."""
    tried = timer()._replace(attempt=2, last_error="refused", available_at=LATER - 1)
    left = RULES[name](tried, NEW).timer
    assert left is not None
    assert left.schedule is not None
    assert (left.attempt, left.last_error, left.available_at) == (0, None, left.schedule.due_at)


def test_schedule_with_the_same_values() -> None:
    """A newer ScheduleTimer with the same values changes only the position. The event id stays."""
    assert RULES["same"](timer(), NEW) == moved(timer())


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


def test_other_content_updates() -> None:
    """A newer ScheduleTimer with other data or another correlation id replaces the schedule."""
    for wants, had in product(CONTENTS, CONTENTS):
        with case(wants, had):
            (had_correlation, had_data), (correlation, data) = CONTENTS[had], CONTENTS[wants]
            before = schedule_for(NOW, had_correlation, **had_data)(None, MIDDLE).timer
            assert before is not None
            updated = schedule_for(NOW, correlation, **data)(None, NEW).timer
            left = schedule_for(NOW, correlation, **data)(before._replace(registered_at=NOW), NEW)
            if had == wants:
                assert left == moved(before._replace(registered_at=NOW))
            else:
                assert updated is not None
                assert left == Applied(updated._replace(registered_at=NOW), Outcome.UPDATED)


@pytest.mark.parametrize("state", [State.CANCELLED, State.EXPIRED, State.FAILED])
@pytest.mark.parametrize("due_at", [NOW, LATER])
def test_schedule_ended(state: State, due_at: int) -> None:
    """A newer ScheduleTimer schedules a cancelled, expired or failed timer as if it were new."""
    again = scheduled(due_at, NEW, registered_at=RECEIVED)
    assert schedule_for(due_at)(timer(state), NEW) == Applied(again, Outcome.SCHEDULED)


# CancelTimer


def test_cancel_scheduled() -> None:
    """A newer CancelTimer cancels a scheduled timer at the instant it is handled."""
    cancelled = timer()._replace(state=State.CANCELLED, position=NEW, available_at=None, settled_at=RECEIVED)
    assert cancel(timer(), NEW) == Applied(cancelled, Outcome.CANCELLED)


def test_cancel_failed() -> None:
    """A CancelTimer cancels a failed timer. The last error stays readable."""
    cancelled = timer(State.FAILED)._replace(state=State.CANCELLED, position=NEW, settled_at=RECEIVED)
    assert cancel(timer(State.FAILED), NEW) == Applied(cancelled, Outcome.CANCELLED)


@pytest.mark.parametrize(
    ("state", "outcome"), [(State.CANCELLED, Outcome.UNCHANGED), (State.EXPIRED, Outcome.ALREADY_EXPIRED)]
)
def test_cancel_settled(state: State, outcome: Outcome) -> None:
    """A CancelTimer for a cancelled or expired timer changes nothing."""
    assert cancel(timer(state), NEW) == Applied(timer(state), outcome)


# RetryTimer


@pytest.mark.parametrize(("due_at", "available_at"), [(NOW, RECEIVED), (LATER, LATER)], ids=["due", "not due"])
def test_retry_failed(due_at: int, available_at: int) -> None:
    """A newer RetryTimer schedules a failed timer again, with the same event id and never before its due time."""
    failed = timer(State.FAILED, due_at=due_at)
    back = timer(due_at=due_at)._replace(position=NEW, available_at=available_at)
    assert retry(failed, NEW) == Applied(back, Outcome.RETRIED)
    assert back.schedule == failed.schedule


@pytest.mark.parametrize("state", [State.SCHEDULED, State.CANCELLED, State.EXPIRED])
def test_retry_not_failed(state: State) -> None:
    """A RetryTimer for a scheduled, cancelled or expired timer changes nothing, not even the position."""
    assert retry(timer(state), NEW) == Applied(timer(state), Outcome.UNCHANGED)


@pytest.mark.parametrize("name", ["cancel", "retry"])
def test_unknown(name: str) -> None:
    """A CancelTimer or a RetryTimer for an unknown timer writes nothing."""
    assert RULES[name](None, NEW) == Applied(None, Outcome.NOT_FOUND)


# Every command


REACHED = {
    "schedule": Outcome.IGNORED_REACHED,
    "same": Outcome.IGNORED_REACHED,
    "update": Outcome.IGNORED_REACHED,
    "cancel": Outcome.ALREADY_REACHED,
    "retry": Outcome.ALREADY_REACHED,
}


@pytest.mark.parametrize("name", RULES)
def test_command_on_a_reached_timer(name: str) -> None:
    """A command on a reached timer changes nothing."""
    assert RULES[name](timer(State.REACHED), NEW) == Applied(timer(State.REACHED), REACHED[name])


def test_scheduled_again_after_a_cancel() -> None:
    """A timer that is scheduled again after a cancel has a new event id. A RetryTimer does not change it."""
    cancelled = cancel(timer(position=OLD), MIDDLE).timer
    again = RULES["same"](cancelled, NEW)
    assert again == Applied(scheduled(position=NEW, registered_at=RECEIVED), Outcome.SCHEDULED)
    assert retry(again.timer, NEW) == Applied(again.timer, Outcome.UNCHANGED)


histories = st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=8)
"""The names of commands that follow each other."""


def play(history: list[str]) -> Iterator[Timer | None]:
    """Apply commands in their order. Yield the timer before the first one and after each."""
    row: Timer | None = None
    yield row
    for number, name in enumerate(history, 1):
        row = RULES[name](row, Position(1, number)).timer
        yield row


@given(histories)
def test_each_change_has_a_newer_position(history: list[str]) -> None:
    """Every change gives a timer a newer position. Exactly the scheduled timers are available."""
    for before, row in pairwise(play(history)):
        assert row is not None or before is None
        if row is not None and row != before:
            assert before is None or row.position > before.position
            assert (row.available_at is not None) == (row.state is State.SCHEDULED)


@given(histories)
def test_one_event_id_has_one_content(history: list[str]) -> None:
    """An event id never stands for two due times, two data values or two correlation ids."""
    contents: dict[str, Schedule] = {}
    for row in play(history):
        if row is not None:
            assert contents.setdefault(row.schedule.event_id, row.schedule) == row.schedule


# Event ids


def test_event_id_is_pinned() -> None:
    """The id of a given schedule is pinned, because an upgrade must not change it."""
    assert rules.event_id(KEY, 1_795_251_600_000, Position(1, 7)) == "03b31f125023970d1da203068506e0ce"


def test_event_ids_differ() -> None:
    """The id differs for another tenant, call, due time, epoch or sequence, even if joined parts look alike."""
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
