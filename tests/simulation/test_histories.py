from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.run_check import check_deleted, check_run_events, check_runs, follow_sweep
from tests.simulation.run_histories import run_commands
from tests.simulation.run_model import RunsModel
from tests.simulation.service import Handled, Observer, Sent, Service, running_service

_ANY = settings(
    deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck), derandomize=True
)


class Checker(Observer):
    def __init__(self, service: Service, history: Sequence[Sent]) -> None:
        self.service = service
        self.runs = RunsModel()
        service.begin(self)
        self.positions = service.send(history)
        self.sent = dict(zip(self.positions, history, strict=True))

    def commands_committed(self, handled: Sequence[Handled], now: int) -> None:
        for command, outcome in handled:
            sent = self.sent[command.position]
            wanted = self.runs.command(sent.type, sent.payload, command.position, now)
            assert outcome == wanted, f"{sent} at {command.position}: {outcome}, not {wanted}"
        self.runs.commit()
        check_runs(self.runs, self.service)

    def worker_committed(self, worker: str, now: int) -> None:
        if worker == "sweep":
            follow_sweep(self.runs, self.service, now)
        check_runs(self.runs, self.service)

    def finish(self):
        self.service.settle()
        self.service.clock.advance(minutes=11)
        self.service.settle()
        check_runs(self.runs, self.service)
        check_run_events(self.runs, self.service)
        self.service.delete_settled()
        check_deleted(self.runs, self.service)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as started:
        yield started


@settings(_ANY, max_examples=200)
@given(history=run_commands())
def test_plain(service: Service, history: list[Sent]) -> None:
    checker = Checker(service, history)
    for position in checker.positions:
        service.deliver([position])
        service.settle()
    checker.finish()


@settings(_ANY, max_examples=200)
@given(history=run_commands(), data=st.data())
def test_splits(service: Service, history: list[Sent], data: st.DataObject) -> None:
    checker = Checker(service, history)
    left = list(checker.positions)
    while left:
        count = data.draw(st.integers(1, len(left)))
        service.deliver(left[:count])
        del left[:count]
    checker.finish()


@settings(_ANY, max_examples=200)
@given(history=run_commands(), data=st.data())
def test_order(service: Service, history: list[Sent], data: st.DataObject) -> None:
    checker = Checker(service, history)
    left = data.draw(st.permutations(checker.positions))
    while left:
        count = data.draw(st.integers(1, len(left)))
        service.deliver(left[:count])
        del left[:count]
    checker.finish()
