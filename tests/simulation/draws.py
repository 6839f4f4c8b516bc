"""What every scenario draws: instances, and faults at the awaits of a reader or a worker."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from tests.simulation.faults import (
    ERROR_POINTS,
    OUTAGE_POINTS,
    READER_OUTAGE_POINTS,
    READER_PAUSE_POINTS,
    RELAY_PAUSE_POINTS,
    RELAY_POINTS,
    Fault,
    Point,
    blocked,
    crash,
    error,
    outage,
    pause,
)
from tests.simulation.service import INSTANCES, Service

_T = TypeVar("_T")


class Draw(Protocol):
    """A function that draws a value from a strategy."""

    def __call__(self, strategy: st.SearchStrategy[_T], /) -> _T: ...


Scenario = Callable[[Service, Draw], None]

_occurrences = st.sampled_from([1, 1, 2, 3, 7])


def crashes(points: Sequence[Point] | type[Point]) -> st.SearchStrategy[Fault]:
    return st.builds(crash, point=st.sampled_from(list(points)), nth=_occurrences)


_reader_pauses = st.builds(pause, point=st.sampled_from(READER_PAUSE_POINTS), nth=_occurrences)
_worker_pauses = st.builds(pause, point=st.sampled_from(RELAY_PAUSE_POINTS), nth=_occurrences)

instances = st.integers(0, INSTANCES - 1)
outages = st.builds(outage, point=st.sampled_from(OUTAGE_POINTS), nth=_occurrences)
reader_errors = st.one_of(
    st.builds(outage, point=st.sampled_from(READER_OUTAGE_POINTS), nth=_occurrences),
    st.builds(error, point=st.sampled_from(ERROR_POINTS), nth=_occurrences),
    st.builds(blocked, point=st.sampled_from(ERROR_POINTS), nth=_occurrences),
)
reader_faults = st.one_of(st.none(), _reader_pauses, crashes(Point), reader_errors)
worker_faults = st.one_of(st.none(), _worker_pauses, crashes(RELAY_POINTS), outages)
