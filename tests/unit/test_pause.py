from timer_service.core.pause import LONGEST_MS, SHORTEST_MS, Pause

AHEAD_MS = 365 * 24 * 3600 * 1000


def test_pauses_after_the_clock_was_set_back() -> None:
    """A pause that began while the clock was ahead ends when the clock is set back. The next is as long as usual."""
    pause = Pause()
    pause.lengthen(AHEAD_MS)
    assert pause.is_over(0, broker_usable=True)
    pause.lengthen(0)
    assert [pause.is_over(at, broker_usable=True) for at in (2 * SHORTEST_MS - 1, 2 * SHORTEST_MS)] == [False, True]
    assert pause.resume_at <= LONGEST_MS
