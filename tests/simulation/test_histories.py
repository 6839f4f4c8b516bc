"""Generated histories: whatever is sent, and however it is delivered, split and interrupted, the models hold."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.checker import Checker
from tests.simulation.mixed_histories import mixed_commands, splits
from tests.simulation.run_histories import run_commands
from tests.simulation.service import Sent, Service, running_service
from tests.simulation.signal_histories import crowd, signal_commands

_ANY = settings(
    deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as started:
        yield started


def play_one_by_one(service: Service, history: Sequence[Sent]) -> Checker:
    checker = Checker(service, history)
    for position in checker.positions:
        service.deliver([position])
        service.settle()
    checker.finish()
    checker.check_retention()
    return checker


@settings(_ANY, max_examples=100)
@given(history=run_commands())
def test_plain_runs(service: Service, history: list[Sent]) -> None:
    play_one_by_one(service, history)


@settings(_ANY, max_examples=200)
@given(history=signal_commands())
def test_plain_signals(service: Service, history: list[Sent]) -> None:
    play_one_by_one(service, history)


@settings(_ANY, max_examples=100)
@given(history=run_commands(), data=st.data())
def test_split_runs(service: Service, history: list[Sent], data: st.DataObject) -> None:
    _play_split(service, history, data)


@settings(_ANY, max_examples=150)
@given(history=signal_commands(), data=st.data())
def test_split_signals(service: Service, history: list[Sent], data: st.DataObject) -> None:
    _play_split(service, history, data)


@settings(_ANY, max_examples=50)
@given(history=signal_commands(), data=st.data())
def test_split_crowd(service: Service, history: list[Sent], data: st.DataObject) -> None:
    """More signals of one work item than a transition's own transaction looks at."""
    first = crowd()
    checker = Checker(service, [*first, *history])
    service.deliver(checker.positions[: len(first)])
    _deliver_split(service, checker, checker.positions[len(first) :], data)
    checker.finish()


def _play_split(service: Service, history: Sequence[Sent], data: st.DataObject) -> None:
    checker = Checker(service, history)
    _deliver_split(service, checker, checker.positions, data)
    checker.finish()
    checker.check_retention()


def _deliver_split(service: Service, checker: Checker, positions, data: st.DataObject) -> None:
    left = list(positions)
    settling = data.draw(st.booleans())
    for size in data.draw(splits(len(left))):
        service.deliver(left[:size], size % 2)
        del left[:size]
        if settling:
            service.settle()


@settings(_ANY, max_examples=100)
@given(history=run_commands(), data=st.data())
def test_any_order_runs(service: Service, history: list[Sent], data: st.DataObject) -> None:
    checker = Checker(service, history, in_order=False)
    left = data.draw(st.permutations(checker.positions))
    left += data.draw(st.lists(st.sampled_from(left), max_size=3))
    for size in data.draw(splits(len(left))):
        service.deliver(left[:size], size % 2)
        del left[:size]
    checker.finish()


@settings(_ANY, max_examples=100)
@given(history=signal_commands(), data=st.data())
def test_any_order_signals(service: Service, history: list[Sent], data: st.DataObject) -> None:
    checker = Checker(service, history, in_order=False)
    left = data.draw(st.permutations(checker.positions))
    left += data.draw(st.lists(st.sampled_from(left), max_size=3))
    for size in data.draw(splits(len(left))):
        service.deliver(left[:size], size % 2)
        del left[:size]
        if data.draw(st.booleans()):
            service.settle()
    checker.finish()


@settings(_ANY, max_examples=100)
@given(history=mixed_commands(), data=st.data())
def test_mixed(service: Service, history: list[Sent], data: st.DataObject) -> None:
    checker = Checker(service, history)
    _deliver_split(service, checker, checker.positions, data)
    checker.finish()
