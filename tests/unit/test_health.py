"""The health of the flows of an instance, and the record of publishing."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from timer_service.app.health import Observed, flows
from timer_service.core.ports.health import HEALTHY, Health, RecentFailure, worst
from timer_service.core.values.message import Kind

DOWN = Health.down("it is away")
IMPAIRED = Health(reason="it denies a permission")
ALL_HEALTHY = Observed(
    broker=HEALTHY,
    streams={Kind.COMMAND: HEALTHY, Kind.EVENT: HEALTHY, Kind.DEAD_LETTER: HEALTHY},
    reading=HEALTHY,
    writing=HEALTHY,
)


def stream_down(kind: Kind) -> Observed:
    return replace(ALL_HEALTHY, streams={**ALL_HEALTHY.streams, kind: DOWN})


@pytest.mark.parametrize(
    ("observed", "stopped"),
    [
        (ALL_HEALTHY, set()),
        (replace(ALL_HEALTHY, broker=DOWN), {"commands", "events", "queries", "requests"}),
        (replace(ALL_HEALTHY, reading=DOWN), {"commands", "events", "queries", "requests"}),
        (replace(ALL_HEALTHY, queries=DOWN), {"queries"}),
        (replace(ALL_HEALTHY, requests=DOWN), {"requests"}),
        (replace(ALL_HEALTHY, writing=DOWN), {"commands", "events", "requests"}),
        (replace(ALL_HEALTHY, reader=DOWN), {"commands"}),
        (replace(ALL_HEALTHY, publishing=DOWN), {"events"}),
        (replace(ALL_HEALTHY, workers=DOWN), {"events"}),
        (stream_down(Kind.COMMAND), {"commands"}),
        (stream_down(Kind.DEAD_LETTER), {"events"}),
        (stream_down(Kind.EVENT), {"events"}),
    ],
)
def test_each_part_stops_the_flows_that_need_it(observed: Observed, stopped: set[str]) -> None:
    """A part that is down stops exactly the flows that need it, and its reason is theirs."""
    found = flows(observed, "all")
    assert list(found) == ["commands", "events", "queries", "requests"]
    assert {name: each for name, each in found.items() if each.reason} == dict.fromkeys(stopped, DOWN)


CAUSES = {
    "commands": ["broker", "COMMAND", "reading", "writing", "reader"],
    "events": ["broker", "EVENT", "DEAD_LETTER", "publishing", "reading", "writing", "workers"],
    "queries": ["broker", "queries", "reading"],
    "requests": ["broker", "requests", "reading", "writing"],
}
"""The parts that each flow needs, the causes before their effects."""


@pytest.mark.parametrize("flow", CAUSES)
def test_reason_names_the_cause(flow: str) -> None:
    """If several parts are down, the reason is that of the part on which the others depend."""
    down = set().union(*CAUSES.values())
    found = []
    while True:
        parts = {name: Health.down(name) if name in down else HEALTHY for name in set().union(*CAUSES.values())}
        streams = {kind: parts.pop(kind.name) for kind in (Kind.COMMAND, Kind.EVENT, Kind.DEAD_LETTER)}
        cause = flows(Observed(streams=streams, **parts), "all")[flow].reason
        if cause is None:
            break
        found.append(cause)
        down.remove(cause)
    assert found == CAUSES[flow]


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("all", ["commands", "events", "queries", "requests"]),
        ("handler", ["commands", "queries", "requests"]),
        ("worker", ["events"]),
    ],
)
def test_flows_of_a_role(role: str, names: list[str]) -> None:
    """An instance has only the flows of its role."""
    assert list(flows(ALL_HEALTHY, role)) == names


def test_worst() -> None:
    """A part that is down counts more than a part that has only a reason. The first of several counts."""
    other = Health.down("another reason")
    assert worst() == HEALTHY
    assert worst(HEALTHY, IMPAIRED, HEALTHY) == IMPAIRED
    assert worst(IMPAIRED, DOWN, other) == DOWN


class Time:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time() -> Time:
    return Time()


def count_calls(calls: list[None]) -> Callable[[], None]:
    return lambda: calls.append(None)


def test_publishing_fails_until_it_succeeds(time: Time) -> None:
    """Publishing is down from a failure to the next success. Only the first failure calls `on_failure`."""
    calls: list[None] = []
    publishing = RecentFailure(60, time)
    publishing.on_failure = count_calls(calls)
    publishing.record("the stream is full")
    publishing.record("no stream has this subject")
    failed = publishing.health
    publishing.clear()
    assert (failed, publishing.health) == (Health.down("no stream has this subject"), HEALTHY)
    assert len(calls) == 1


def test_old_failure_of_publishing_is_forgotten(time: Time) -> None:
    """A failure does not count for ever: another instance may have published the events."""
    publishing = RecentFailure(60, time)
    publishing.record("the stream is full")
    time.seconds += 60
    still = publishing.health.usable
    time.seconds += 0.1
    assert (still, publishing.health) == (False, HEALTHY)
