from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.builders import KEY, in_state
from tests.harness.cases import case
from tests.harness.clock import NOW, after, iso
from timer_service.core.values.message import Command, Position, TenantPayload, Trace
from timer_service.timers import rules
from timer_service.timers.messages import CancelTimer, RetryTimer, ScheduleTimer, State
from timer_service.timers.rules import Applied, Key, Schedule, Timer

OLD, NEW = Position(1, 6), Position(1, 7)
LATER = after(hours=1)
RECEIVED = after(minutes=30)
"""The instant at which the tested commands are handled."""

Rule = Callable[[Timer | None, Position], Applied]


def apply(payload: TenantPayload, correlation_id: str | None = None, stored_at: int = 0) -> Rule:
    """Return the rule of a command. Its id is made from its position."""

    def rule(timer: Timer | None, position: Position) -> Applied:
        command = Command(f"c{position.sequence}", payload, position, correlation_id, Trace("parent"), None, stored_at)
        return rules.apply(timer, KEY, command, RECEIVED)

    return rule


def schedule(due_at: int | None = None, correlation_id: str | None = None, stored_at: int = 0, **fields: Any) -> Rule:
    due = {} if due_at is None else {"due_at": iso(due_at)}
    return apply(ScheduleTimer(**KEY._asdict(), **due, **fields), correlation_id, stored_at)


RULES = {
    "another": schedule(LATER),
    "same": schedule(NOW),
    "update": schedule(NOW, data=1),
    "cancel": apply(CancelTimer(**KEY._asdict())),
    "retry": apply(RetryTimer(**KEY._asdict())),
}


def made(due_at: int, position: Position = NEW, registered_at: int = RECEIVED, **fields: Any) -> Timer:
    """Return the timer that the ScheduleTimer at a position creates."""
    event_id = rules.event_id(KEY, due_at, position)
    causes = {"causation_id": f"c{position.sequence}", "trace": Trace("parent")}
    asked = Schedule(due_at, event_id, **{**causes, **fields})
    return Timer(KEY, State.SCHEDULED, position, registered_at, asked, available_at=due_at)


def timer(state: State, due_at: int = NOW) -> Timer:
    tried = made(due_at, OLD, NOW)._replace(attempt=2, last_error="refused")
    return in_state(state, tried)


OUTCOMES = {
    # the timer before: the outcome of a ScheduleTimer with another due time, the same and other data, Cancel, Retry
    None: "scheduled scheduled scheduled not_found not_found",
    State.SCHEDULED: "rescheduled unchanged updated cancelled unchanged",
    State.REACHED: "ignored_reached ignored_reached ignored_reached already_reached already_reached",
    State.CANCELLED: "scheduled scheduled scheduled unchanged unchanged",
    State.EXPIRED: "scheduled scheduled scheduled already_expired unchanged",
    State.FAILED: "scheduled scheduled scheduled cancelled retried",
}
WANTED = {"another": made(LATER), "same": made(NOW), "update": made(NOW, data="1")}


def expected(before: Timer | None, name: str, outcome: str) -> Timer | None:
    match outcome:
        case "scheduled":
            return WANTED[name]
        case "rescheduled" | "updated":  # the same timer, with all attempts
            return WANTED[name]._replace(registered_at=NOW)
    if before is None:
        return None
    match outcome:
        case "unchanged" if name == "same":
            return before._replace(position=NEW)
        case "cancelled":
            return before._replace(state=State.CANCELLED, position=NEW, available_at=None, settled_at=RECEIVED)
        case "retried":
            again = before._replace(state=State.SCHEDULED, position=NEW, available_at=RECEIVED)
            return again._replace(attempt=0, last_error=None)
        case _:
            return before


@pytest.mark.parametrize("state", OUTCOMES)
def test_every_outcome(state: State | None) -> None:
    """Each command on a timer in each state has the outcome of contracts/outcomes.md, and changes nothing else."""
    before = None if state is None else timer(state)
    for name, outcome in zip(RULES, OUTCOMES[state].split(), strict=True):
        with case(name):
            assert RULES[name](before, NEW) == (expected(before, name, outcome), outcome)


@pytest.mark.parametrize(
    ("fields", "due_at", "expires_at"),
    [
        ({"due_at": LATER}, LATER, None),
        ({"due_at": LATER, "expires_at": iso(LATER + 1)}, LATER, LATER + 1),
        ({"due_at": LATER, "late_by": "P366D"}, LATER, after(days=366, hours=1)),
        ({"due_in": "PT1H", "stored_at": NOW}, LATER, None),
        ({"due_in": "PT1H", "stored_at": NOW, "late_by": "PT1M"}, LATER, after(hours=1, minutes=1)),
        ({"due_in": "PT1H"}, after(minutes=90), None),
    ],
)
def test_instants(fields: dict[str, Any], due_at: int, expires_at: int | None) -> None:
    """`dueIn` counts from when the broker stored the command, or from now if that is unknown; `lateBy` from `dueAt`."""
    assert schedule(**fields)(None, NEW) == (made(due_at, expires_at=expires_at), "scheduled")


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
    "an expiry": (None, {"late_by": 1}),
    "another expiry": (None, {"expires_at": iso(NOW + 2)}),
}


def test_other_content_updates() -> None:
    """A newer ScheduleTimer with other content replaces the schedule, also if the two look alike."""
    for wants, had in product(CONTENTS, CONTENTS):
        with case(wants, had):
            (had_correlation, had_fields), (correlation, fields) = CONTENTS[had], CONTENTS[wants]
            before = schedule(NOW, had_correlation, **had_fields)(None, OLD).timer
            wanted = schedule(NOW, correlation, **fields)(None, NEW).timer
            assert before is not None
            left = schedule(NOW, correlation, **fields)(before, NEW)
            assert left == ((before._replace(position=NEW), "unchanged") if had == wants else (wanted, "updated"))


def test_retried_before_it_is_due() -> None:
    """A retried timer never fires before its due time, and keeps its event id."""
    failed = timer(State.FAILED, due_at=LATER)
    retried = RULES["retry"](failed, NEW).timer
    assert retried is not None
    assert (retried.available_at, retried.schedule) == (LATER, failed.schedule)


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
def test_histories(history: list[str]) -> None:
    """Each change has a newer position, exactly scheduled timers are available, and an event id has one content."""
    contents: dict[str, Schedule] = {}
    for before, row in pairwise(play(history)):
        assert row is not None or before is None
        if row is not None and row != before:
            assert before is None or row.position > before.position
            assert (row.available_at is not None) == (row.state is State.SCHEDULED)
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
        (Key("acme", "a"), 11, Position(1, 1)),
        (Key("acme", "a"), 1, Position(11, 1)),
        (Key("acme", "a"), 1, Position(1, 11)),
        (Key("acme", "a1"), 1, Position(1, 1)),
        (Key("acmea", "b"), 1, Position(1, 1)),
        (Key("acme", "ab"), 1, Position(1, 1)),
    ]
    assert len({rules.event_id(*cause) for cause in causes}) == len(causes)
