"""Which rows of a claim are published now if their texts are long, and the pauses after a failure to publish."""

from typing import Any

import pytest

from timer_service.core.events.pace import LONGEST_MS, SHORTEST_MS, Pause, share_lengths


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ("a9 b9", "a9 b9"),
        ("a10 a10 a1 b0", "a10 b0"),
        ("a4 a4 a4 a4 a4 a4", "a4 a4 a4 a4 a4"),
        ("a0 a0 a30 a1 b1", "a0 a0 b1"),
        ("a30 b30 c30 a1", "a30 b30 c30"),
        ("a9 a9 b1 b1 b1 b1 b1", "a9 b1 b1 b1 b1 b1"),
    ],
)
def test_share_lengths(rows: str, kept: str) -> None:
    """Of 20 characters, each tenant gets an equal share for its first rows, and at least one row."""
    made: list[Any] = [{"tenant_id": each[0], "length": int(each[1:])} for each in rows.split()]
    found, left = share_lengths(made, lambda row: row["length"], 20)
    assert [f"{each['tenant_id']}{each['length']}" for each in found] == kept.split()
    assert sorted(map(id, [*found, *left])) == sorted(map(id, made))


def test_pauses_grow() -> None:
    """Pauses double up to the longest. A success ends them, and the next claim is a whole one."""
    pause, lengths = Pause(), list[int]()
    for at in range(0, 90_000, 10_000):
        pause.lengthen(at)
        lengths.append(pause.resume_at - at)
        assert [pause.is_over(pause.resume_at + late) for late in (-1, 0)] == [False, True]
    assert lengths == [min(SHORTEST_MS * 2**power, LONGEST_MS) for power in range(9)]
    probing = pause.probing
    pause.end()
    assert (probing, pause.probing) == (True, False)
    pause.lengthen(0)
    assert pause.resume_at == SHORTEST_MS


def test_pauses_after_the_clock_was_set_back() -> None:
    """A pause that began while the clock was ahead ends when the clock is set back."""
    pause = Pause()
    pause.lengthen(365 * 24 * 3600 * 1000)
    assert pause.is_over(0)


def test_a_broker_that_is_back_ends_the_pauses() -> None:
    """When the broker can be used again, the next claim is a whole one, and the pauses begin with the shortest."""
    pause = Pause()
    for at in (0, 1000):
        pause.lengthen(at)
    pause.restart(2000)
    assert not pause.is_over(2000)
    assert pause.is_over(2000 + SHORTEST_MS)
    assert not pause.probing
    for at, length in ((3000, SHORTEST_MS), (4000, 2 * SHORTEST_MS)):
        pause.lengthen(at)
        assert (pause.resume_at, pause.probing) == (at + length, True)
        assert pause.is_over(pause.resume_at)
