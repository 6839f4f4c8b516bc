"""The health of parts, and the record of publishing."""

from collections.abc import Callable

from timer_service.core.ports.health import HEALTHY, Health, RecentFailure, worst


def test_worst() -> None:
    """A part that is down counts more than a part that has only a reason. The first of several counts."""
    down, impaired = Health.down("it is away"), Health(reason="it denies a permission")
    assert worst() == HEALTHY
    assert worst(HEALTHY, impaired, HEALTHY) == impaired
    assert worst(impaired, down, Health.down("another reason")) == down


def test_publishing_fails_until_it_succeeds() -> None:
    """Publishing is down from a failure to the next success, or for a minute. Only its first failure is reported."""
    calls: list[str] = []
    seconds = [1000.0]
    publishing = RecentFailure(60, lambda: seconds[0])
    publishing.on_failure = lambda: calls.append("failed")
    clears: list[Callable[[], None]] = [lambda: seconds.append(seconds.pop() + 60.1), publishing.clear]
    for clear in clears:
        publishing.record("the stream is full")
        publishing.record("no stream has this subject")
        assert publishing.health == Health.down("no stream has this subject")
        clear()
        assert publishing.health == HEALTHY
    assert (calls, publishing.failures) == (["failed"] * 2, 4)
