from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import schedule, scheduled
from tests.support.clock import NOW, after
from timer_service.core.message import Position
from timer_service.timers import rules
from timer_service.timers.rules import Decision, State, Timer, Verdict

OLD, NEW = Position(1, 5), Position(1, 6)
LATER = after(hours=1)

positions = st.builds(Position, st.integers(0, 3), st.integers(0, 3))
wanted = st.builds(schedule, due_at=st.sampled_from([NOW, LATER]), position=positions)


def timer(state: State = State.SCHEDULED, position: Position = OLD) -> Timer:
    return scheduled(schedule(due_at=NOW, position=position))._replace(state=state)


def test_new() -> None:
    """A command for an unknown timer schedules it, registered now."""
    asked = schedule(position=NEW, data='{"a":1}')
    decision = rules.schedule(None, asked, LATER)
    expected = Timer(asked, State.SCHEDULED, NEW, registered_at=LATER, event_id=rules.event_id(asked))
    assert decision == Decision(Verdict.SCHEDULED, expected)


def test_reschedule() -> None:
    """A newer command with another due time replaces the schedule and keeps when the timer was registered."""
    asked = schedule(due_at=LATER, position=NEW, data="2")
    decision = rules.schedule(timer(), asked, LATER)
    expected = Timer(asked, State.SCHEDULED, NEW, registered_at=NOW, event_id=rules.event_id(asked))
    assert decision == Decision(Verdict.RESCHEDULED, expected)


def test_same_due_time() -> None:
    """A newer command with the same due time changes nothing but the position."""
    decision = rules.schedule(timer(), schedule(due_at=NOW, position=NEW), LATER)
    assert decision == Decision(Verdict.UNCHANGED, timer()._replace(position=NEW))


@pytest.mark.parametrize("position", [OLD, NEW])
@pytest.mark.parametrize("due_at", [NOW, LATER])
def test_reached(position: Position, due_at: int) -> None:
    """A timer that has fired is never scheduled again, by the same command or a newer one."""
    decision = rules.schedule(timer(State.REACHED), schedule(due_at=due_at, position=position), LATER)
    assert decision == Decision(Verdict.IGNORED_REACHED, None)


@pytest.mark.parametrize("state", [State.CANCELLED, State.FAILED])
@pytest.mark.parametrize("due_at", [NOW, LATER])
def test_cancelled_or_failed(state: State, due_at: int) -> None:
    """A newer command brings a cancelled or failed timer back, as if it were new."""
    asked = schedule(due_at=due_at, position=NEW)
    decision = rules.schedule(timer(state), asked, LATER)
    assert decision == Decision(Verdict.SCHEDULED, scheduled(asked, LATER))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("due_at", [NOW, LATER])
def test_stale(state: State, due_at: int) -> None:
    """In every state an older command changes nothing."""
    decision = rules.schedule(timer(state, NEW), schedule(due_at=due_at, position=OLD), LATER)
    assert decision == Decision(Verdict.IGNORED_STALE, None)


@pytest.mark.parametrize("state", [State.SCHEDULED, State.CANCELLED, State.FAILED])
def test_same_command_again(state: State) -> None:
    """The command that made the timer what it is changes nothing when it is delivered again, nor revives it."""
    decision = rules.schedule(timer(state), schedule(due_at=NOW, position=OLD), LATER)
    assert decision == Decision(Verdict.UNCHANGED, None)


@pytest.mark.parametrize(
    ("row", "command", "verdict"),
    [
        (Position(1, 900), Position(2, 1), Verdict.RESCHEDULED),
        (Position(2, 1), Position(1, 900), Verdict.IGNORED_STALE),
        (Position(2, 1), Position(2, 2), Verdict.RESCHEDULED),
    ],
)
def test_epoch_before_sequence(row: Position, command: Position, verdict: Verdict) -> None:
    """A recreated stream's commands are newer than all of its predecessor's, whatever their sequence."""
    assert rules.schedule(timer(position=row), schedule(due_at=LATER, position=command), NOW).verdict is verdict


@given(st.lists(wanted, min_size=1, max_size=6))
def test_position_never_goes_back(commands: list[rules.Schedule]) -> None:
    """In whatever order commands arrive, a timer ends at the newest position and with a due time asked for there."""
    state: Timer | None = None
    for command in commands:
        state = rules.schedule(state, command, NOW).timer or state
    assert state is not None
    newest = max(command.position for command in commands)
    assert state.position == newest
    assert state.schedule.due_at in {command.due_at for command in commands if command.position == newest}


@given(st.lists(wanted, min_size=1, max_size=5, unique_by=lambda each: each.position), st.randoms())
def test_order_of_arrival_does_not_matter(commands: list[rules.Schedule], rng: Random) -> None:
    """Redelivered and reordered, the same commands leave the same due time."""

    def due_after(arrivals: list[rules.Schedule]) -> int:
        state: Timer | None = None
        for command in arrivals:
            state = rules.schedule(state, command, NOW).timer or state
        assert state is not None
        return state.schedule.due_at

    shuffled = commands * 2
    rng.shuffle(shuffled)
    assert due_after(shuffled) == due_after(sorted(commands, key=lambda each: each.position))


def test_event_id_is_stable() -> None:
    """The same schedule always fires under the same id: pinned, for an upgrade must not change it."""
    asked = schedule("call-1", 1_795_251_600_000, Position(1, 7), tenant="acme")
    assert rules.event_id(asked) == rules.event_id(asked._replace(data="1", correlation_id="other"))
    assert rules.event_id(asked) == "03b31f125023970d1da203068506e0ce"


def test_event_ids_differ() -> None:
    """Another tenant, call, due time, epoch or sequence is another fire, also where texts would run together."""
    schedules = [
        schedule("a", 1, Position(1, 1)),
        schedule("a", 1, Position(1, 1), tenant="other"),
        schedule("b", 1, Position(1, 1)),
        schedule("a", 11, Position(1, 1)),
        schedule("a", 1, Position(11, 1)),
        schedule("a", 1, Position(1, 11)),
        schedule("a1", 1, Position(1, 1)),
        schedule("b", 1, Position(1, 1), tenant="acmea"),
        schedule("ab", 1, Position(1, 1), tenant="acme"),
    ]
    assert len({rules.event_id(each) for each in schedules}) == len(schedules)
