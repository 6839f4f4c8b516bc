"""Draws histories of all slices, and splits of a history into parts."""

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.harness.clock import after, iso
from tests.simulation.parked_histories import parked_commands
from tests.simulation.run_histories import retried_runs, run_commands
from tests.simulation.schedule_histories import schedule_commands
from tests.simulation.service import SentCommand
from tests.simulation.signal_histories import signal_commands

_tenants = st.sampled_from(["acme", "acme", "globex"])
_most_failing = st.sampled_from([0, 0, 0, 1, 2])


@st.composite
def timer_commands(draw: st.DrawFn) -> list[SentCommand]:
    """Draw commands on two timers."""
    history = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["ScheduleTimer", "ScheduleTimer", "CancelTimer", "RetryTimer"]))
        due = {"dueAt": iso(after(seconds=draw(st.sampled_from([-1, 20, 40]))))} if kind == "ScheduleTimer" else {}
        history.append(SentCommand(kind, "acme", {"serviceCallId": draw(st.sampled_from(["t1", "t2"])), **due}))
    return history


@st.composite
def mixed_commands(draw: st.DrawFn) -> list[SentCommand]:
    """Draw commands of all slices, of one or more tenants. The commands of each slice keep their order.

    The handlers of some commands fail each time.
    """
    runs = draw(st.one_of(run_commands(6), retried_runs(6)))
    parts = [runs, draw(signal_commands(6)), draw(timer_commands()), draw(schedule_commands(4))]
    parts.append(draw(parked_commands(3)))
    parts = [[each._replace(tenant=draw(_tenants)) for each in part] for part in parts]
    history = _interleave(parts, draw(st.randoms(use_true_random=False)).random)
    failing = draw(st.sets(st.integers(0, len(history) - 1), max_size=draw(_most_failing)))
    return [each._replace(fails=number in failing) for number, each in enumerate(history)]


def _interleave(parts: Sequence[list[SentCommand]], random: object) -> list[SentCommand]:
    assert callable(random)
    numbered = [((at + random()) / len(part), each) for part in parts for at, each in enumerate(part)]
    return [each for _, each in sorted(numbered, key=lambda pair: pair[0])]


def splits(count: int) -> st.SearchStrategy[list[int]]:
    """Draw the sizes of the parts of `count` commands."""
    return st.lists(st.booleans(), min_size=count, max_size=count).map(_sizes)


def _sizes(cuts: Sequence[bool]) -> list[int]:
    sizes = [0]
    for cut in cuts:
        sizes[-1] += 1
        if cut:
            sizes.append(0)
    return [size for size in sizes if size]
