from timer_service.core.events.pace import LONGEST_MS, SHORTEST_MS, Pause

AHEAD_MS = 365 * 24 * 3600 * 1000


def test_pauses_after_the_clock_was_set_back() -> None:
    """A pause that began while the clock was ahead ends when the clock is set back. The next is as long as usual."""
    pause = Pause()
    pause.lengthen(AHEAD_MS)
    assert pause.is_over(0, broker_usable=True)
    pause.lengthen(0)
    assert [pause.is_over(at, broker_usable=True) for at in (2 * SHORTEST_MS - 1, 2 * SHORTEST_MS)] == [False, True]
    assert pause.resume_at <= LONGEST_MS


def test_a_broker_that_is_back_ends_the_pauses() -> None:
    """When the broker can be used again, the next claim is a whole one, and the pauses begin with the shortest."""
    pause = Pause()
    for at in (0, 1000):
        pause.lengthen(at)
    probing = [pause.probing]
    assert not pause.is_over(2000, broker_usable=False)
    probing.append(pause.probing)
    assert pause.is_over(2000 + SHORTEST_MS, broker_usable=True)
    probing.append(pause.probing)
    pause.lengthen(3000)
    assert probing == [True, False, False]
    assert (pause.resume_at, pause.probing) == (3000 + SHORTEST_MS, True)


def test_an_outage_ends_the_pauses_once() -> None:
    """Pauses that begin after an outage grow like any others."""
    pause = Pause()
    pause.is_over(0, broker_usable=False)
    lengths: list[int] = []
    for at in (1000, 2000, 3000):
        assert pause.is_over(at, broker_usable=True)
        pause.lengthen(at)
        lengths.append(pause.resume_at - at)
    assert lengths == [SHORTEST_MS, 2 * SHORTEST_MS, 4 * SHORTEST_MS]


def test_a_success_ends_the_pauses() -> None:
    """After a claim that was published, the next claim is a whole one."""
    pause = Pause()
    pause.lengthen(0)
    pause.end()
    assert not pause.probing
    pause.lengthen(1000)
    assert pause.resume_at == 1000 + SHORTEST_MS
