"""What a process knows about its token in the metadata of the consumer."""

from typing import Any

import pytest

from timer_service.adapters.nats.holding import HOLDER, Holding, TakenOverError

OTHER = {"metadata": {HOLDER: "other"}}


def own(holding: Holding) -> dict[str, Any]:
    """Return the settings of a consumer with the token of this process."""
    return {"metadata": {HOLDER: holding.token}}


@pytest.fixture
def holding() -> Holding:
    """Return what a process knows that has just seen its token."""
    begun = Holding("TIMER_CMD")
    begun.begin(None)
    begun.check(own(begun), begun.look())
    return begun


def test_token_of_a_dead_process() -> None:
    """The token that a process replaces shows only that its write is still to come. Afterwards it is a take-over."""
    begun = Holding("TIMER_CMD")
    begun.begin(OTHER)
    found = [begun.check(OTHER), begun.check(own(begun)), begun.check(own(begun))]
    assert found == [False, True, True]
    with pytest.raises(TakenOverError):
        begun.check(OTHER)


def test_a_process_that_joins_again(holding: Holding) -> None:
    """A process that has seen its token replaces no other one, also when it joins again."""
    holding.begin(OTHER)
    with pytest.raises(TakenOverError):
        holding.check(OTHER)


def test_a_take_over_ends_what_was_confirmed(holding: Holding) -> None:
    """A process that has just seen its own token does not count as the holder any more after it found another one."""
    before = holding.is_confirmed(60)
    with pytest.raises(TakenOverError):
        holding.check(OTHER, holding.look())
    assert (before, holding.is_confirmed(60)) == (True, False)


def test_a_take_over_is_for_ever(holding: Holding) -> None:
    """After a take-over the process does not take the commands back, whatever the consumer says later."""
    for config in (OTHER, own(holding), {}):
        with pytest.raises(TakenOverError):
            holding.check(config, holding.look())


def test_a_look_counts_from_its_beginning() -> None:
    """The answer to a look may come late, and shows only what was true when the look began. A newer look counts."""
    begun = Holding("TIMER_CMD")
    begun.begin(None)
    begun.check(own(begun), begun.look() - 100)
    found = [begun.is_confirmed(60), begun.is_confirmed(120)]
    begun.check(own(begun), begun.look())
    begun.check(own(begun), begun.look() - 100)
    assert [*found, begun.is_confirmed(60)] == [False, True, True]
