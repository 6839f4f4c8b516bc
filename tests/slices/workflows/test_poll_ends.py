"""The ends of held polls: never late, at most 100 ms early, and those of about the same instant together."""

import asyncio
from itertools import groupby

import pytest

from tests.slices.workflows.test_polls import poll
from timer_service.workflows.tasks.polls import PollEnds, end_of


@pytest.mark.parametrize(
    ("now", "wait", "end"),
    [(5, 0, 5), (5, 999, 1004), (5, 1000, 1000), (50, 1050, 1100), (99, 10_000, 10_000), (100, 10_000, 10_100)],
)
def test_end_of_a_poll(now: int, wait: int, end: int) -> None:
    """A wait of a second or more ends at a multiple of 100 ms, never late. A shorter one ends when its time is up."""
    assert end_of(now, wait) == end


async def test_many_polls_end_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many polls that end together, each turn of the loop ends 200, so that other tasks run in between."""
    now, ended = [50.0], list[int]()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    ends = PollEnds(lambda polls: ended.append(len(polls)))
    for number in range(450):
        ends.add(poll(str(number)), 10_000)
    now[0] = 60.0
    found = []
    for _ in range(6):
        await asyncio.sleep(0)
        found.append(list(ended))
    assert [each for each, _ in groupby(found) if each] == [[200], [200, 200], [200, 200, 50]]
    assert not ends._timers
