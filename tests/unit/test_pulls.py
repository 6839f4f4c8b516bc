"""The transitions of the pulls: each row of the table in `timer_service.adapters.nats.pulls`."""

import pytest

from timer_service.adapters.nats.pulls import Demand, Phase, Pulls

TEN = Demand(requests=1, batch=10, max_bytes=1000)
IDLE = Pulls().joined()
PULLING = IDLE.sent(TEN, now=100.0)
RECEIVING = PULLING.commands(1)
NOW = 100.2


def test_joining() -> None:
    """A subscription begins lost, and is idle after it has joined. Losing the consumer loses the pull."""
    assert [Pulls().phase, IDLE.phase, PULLING.lost().phase] == [Phase.LOST, Phase.IDLE, Phase.LOST]
    assert not PULLING.lost().joined().outstanding


def test_a_pull_ends_with_its_last_command() -> None:
    """A pull for ten commands is outstanding until the tenth arrives."""
    state = PULLING
    phases = []
    for _ in range(10):
        state = state.commands(1)
        phases.append(state.phase)
    assert phases == [Phase.PULLING] * 9 + [Phase.IDLE]


@pytest.mark.parametrize(
    ("before", "code", "description", "after"),
    [
        (PULLING, "404", "No Messages", Phase.IDLE),
        (PULLING, "408", "Request Timeout", Phase.IDLE),
        (PULLING, "503", "", Phase.LOST),
        (PULLING, "409", "Consumer Deleted", Phase.LOST),
        (PULLING, "409", "Message Size Exceeds MaxBytes", Phase.IDLE),
        (PULLING, "409", "Exceeded MaxWaiting", Phase.PAUSED),
        (PULLING, "409", "Leadership Change", Phase.PAUSED),
        (PULLING, "423", "Nats-Pin-Id mismatch", Phase.PAUSED),
        (PULLING, "400", "Bad Request", Phase.PAUSED),
        (PULLING, "999", "", Phase.PAUSED),
        (RECEIVING, "409", "Message Size Exceeds MaxBytes", Phase.IDLE),
        (RECEIVING, "999", "", Phase.IDLE),
        (RECEIVING, "503", "", Phase.LOST),
        (IDLE, "503", "", Phase.IDLE),
        (Pulls(), "404", "", Phase.LOST),
    ],
)
def test_status(before: Pulls, code: str, description: str, after: Phase) -> None:
    """Each status of the outstanding pull leads to its phase. Without a pull a status changes nothing."""
    assert before.status(before.number, code, description, NOW).phase is after


@pytest.mark.parametrize("number", [0, 1, 3])
def test_status_of_another_pull(number: int) -> None:
    """A status of an earlier pull, or of one that was never sent, changes nothing."""
    second = PULLING.at(102.0).sent(TEN, now=102.0)
    assert second.number == 2
    assert second.status(number, "503", "", 102.1) == second


def test_a_command_larger_than_a_batch() -> None:
    """If the next command is too large for a pull, one pull asks for one command. Then all is as before."""
    state = PULLING.status(1, "409", "Message Size Exceeds MaxBytes", NOW)
    assert (state.phase, state.wants_one) == (Phase.IDLE, True)
    assert state.demand(10, 1000, NOW) == Demand(requests=1, batch=1, max_bytes=None)
    assert not state.sent(TEN, NOW).wants_one
    assert not RECEIVING.status(1, "409", "Message Size Exceeds MaxBytes", NOW).wants_one


def test_an_empty_command_cuts_a_pull() -> None:
    """After an empty command nothing ends the pull but the look for its lost commands. Then all is as before."""
    cut = RECEIVING.empty(NOW)
    assert (cut.phase, cut.missing) == (Phase.CUT, 9)
    without_fence = cut
    for _ in range(9):
        without_fence = without_fence.commands(1)
    others = [cut.commands(1), without_fence, cut.empty(NOW), cut.status(1, "408", "", NOW), cut.at(NOW + 100)]
    assert [each.phase for each in others] == [Phase.CUT] * 5
    assert [cut.found().phase, RECEIVING.found().phase, cut.lost().found().phase] == [
        Phase.IDLE,
        Phase.PULLING,
        Phase.LOST,
    ]


def test_the_last_command_is_empty() -> None:
    """An empty command that ends its pull cuts nothing off."""
    state = PULLING
    for _ in range(10):
        state = state.commands(1)
    assert state.empty(NOW).phase is Phase.IDLE


OVERDUE = PULLING.at(102.0)


@pytest.mark.parametrize(
    "state",
    [
        OVERDUE,
        OVERDUE.sent(Demand(requests=1, batch=1, max_bytes=None), now=102.0),
        OVERDUE.sent(Demand(requests=1, batch=1, max_bytes=None), now=102.0).commands(1),
        OVERDUE.sent(TEN, now=102.0).status(2, "408", "", 103.0),
        OVERDUE.sent(TEN, now=102.0).at(104.0),
        OVERDUE.lost().joined(),
        PULLING.lost().joined(),
    ],
)
def test_an_empty_command_cuts_an_overdue_answer(state: Pulls) -> None:
    """The answer to a pull that was given up or lost may still come and be cut, until lost commands are looked for."""
    cut = state.empty(NOW)
    assert cut.phase is Phase.CUT
    assert cut.found().empty(NOW).phase is Phase.IDLE


def test_an_overdue_split_pull_is_not_cut() -> None:
    """The server ends the answer to each request of a split pull, however late it comes."""
    split = IDLE.sent(Demand(requests=32, batch=1, max_bytes=100), now=100.0)
    assert [split.at(102.0).empty(NOW).phase, split.lost().joined().empty(NOW).phase] == [Phase.IDLE, Phase.IDLE]


def test_pulls_are_split_after_an_empty_command() -> None:
    """For ten seconds each command is asked for by itself, also after a lost connection. Others then lose nothing."""
    found = RECEIVING.empty(NOW).found()
    split = Demand(requests=32, batch=1, max_bytes=2000 // 32)
    assert [found.demand(1000, 2000, now) for now in (NOW, NOW + 9.9)] == [split, split]
    assert found.demand(5, 2000, NOW) == Demand(requests=5, batch=1, max_bytes=400)
    assert found.lost().joined().demand(1000, 2000, NOW) == split
    assert found.demand(1000, 2000, NOW + 10) == Demand(requests=1, batch=1000, max_bytes=2000)
    pulling = found.sent(split, NOW).commands(1)
    assert (pulling.missing, pulling.empty(NOW).phase) == (31, Phase.PULLING)


def test_each_empty_command_prolongs_the_split() -> None:
    """Pulls are split until ten seconds after the newest empty command."""
    first = RECEIVING.empty(NOW).found()
    pulling = first.sent(first.demand(1000, 2000, NOW + 8), NOW + 8).commands(1)
    assert pulling.empty(NOW + 8).demand(1000, 2000, NOW + 17).batch == 1
    assert pulling.demand(1000, 2000, NOW + 17).batch == 1000


def test_refusals() -> None:
    """A refused pull pauses for a second and says why. The reason stays until a pull works."""
    refused = PULLING.status(1, "409", "Exceeded MaxWaiting", NOW)
    assert refused.refusal == "409 Exceeded MaxWaiting"
    assert [refused.at(NOW + 0.9).phase, refused.at(NOW + 1.0).phase] == [Phase.PAUSED, Phase.IDLE]
    again = refused.at(NOW + 1).sent(TEN, NOW + 1)
    assert again.refusal == refused.refusal
    assert again.commands(1).refusal is None
    assert again.status(2, "408", "", NOW + 2).refusal is None


def test_a_forgotten_pull() -> None:
    """A pull without a status is given up after 1.5 s."""
    assert [PULLING.at(101.4).outstanding, PULLING.at(101.5).outstanding] == [True, False]


def test_pulls_without_an_answer() -> None:
    """After three pulls without an answer the state says so, until a pull is answered."""
    state = IDLE
    refusals = []
    for now in (0.0, 2.0, 4.0):
        state = state.sent(TEN, now).at(now + 2)
        refusals.append(state.refusal)
    assert refusals == [None, None, "it does not answer pull requests"]
    assert state.sent(TEN, 6.0).status(4, "408", "", 7.0).refusal is None
    assert state.sent(TEN, 6.0).commands(1).silent == 0


def test_pulls_after_a_loss_have_other_numbers() -> None:
    """A late status of a pull from before the loss must not end a pull after it."""
    again = PULLING.lost().joined().sent(TEN, now=NOW)
    assert again.number == PULLING.number + 1
    assert again.status(PULLING.number, "503", "", NOW) == again
