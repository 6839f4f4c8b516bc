"""Rows that a transaction hands over to workers of its process: they need no pass, and a crash loses nothing."""

from collections.abc import Iterator, Sequence

import pytest

from tests.simulation.faults import Fault, Point, crash, outage
from tests.simulation.service import VISIBILITY_TIMEOUT, SentCommand, Service, running_service
from timer_service.core.events.outbox import OUTBOX

_BLOCKED = {"triggerKind": "event", "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]}}
_CREATE = SentCommand("CreateWorkSignal", "acme", {"signalId": "s1", "workItemId": "i1", **_BLOCKED})
_TRANSITION = SentCommand("TransitionWorkItem", "acme", {"workItemId": "i1", "eventId": "e1", "to": "blocked"})
_START = SentCommand("StartRun", "acme", {"runId": "r1", "jobs": [{"name": "a"}, {"name": "b", "needs": ["a"]}]})
_REPORT = SentCommand("ReportJobStatus", "acme", {"runId": "r1", "jobName": "a", "status": "success"})

_IN_THE_READER = [
    crash(point, nth)
    for point, most in {
        Point.BEFORE_BEGIN: 1,
        Point.BEFORE_STATEMENT: 8,
        Point.AFTER_STATEMENT: 8,
        Point.BEFORE_COMMIT: 1,
        Point.AFTER_COMMIT: 1,
        Point.BEFORE_LOG: 1,
        Point.AFTER_LOG: 1,
    }.items()
    for nth in range(1, most + 1)
]
_IN_A_WORKER = [
    *(crash(point, 1) for point in (Point.BEFORE_BEGIN, Point.BEFORE_COMMIT, Point.AFTER_COMMIT)),
    *(crash(Point.AFTER_STATEMENT, nth) for nth in range(1, 8)),
    *(outage(point, 1) for point in (Point.BEFORE_BEGIN, Point.AFTER_STATEMENT, Point.BEFORE_COMMIT)),
]
_IN_THE_RELAY = [*_IN_A_WORKER, crash(Point.BEFORE_PUBLISH, 1), crash(Point.AFTER_PUBLISH, 1)]


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with running_service() as started:
        yield started


@pytest.fixture
def service(running: Service) -> Service:
    running.begin(running.observer)
    return running


def send(service: Service, history: Sequence[SentCommand], fault: Fault | None = None) -> None:
    """Publish and read commands one by one. The fault happens while the last one is read."""
    for number, each in enumerate(history, 1):
        service.send([each])
        service.read(fault=fault if number == len(history) else None)


def published(service: Service) -> list[str]:
    return [event["type"] for event in service.events()]


def until_leases_end(service: Service) -> None:
    """Read what is left, and run the workers, until nothing is due."""
    service.catch_up()
    service.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds() + 1)
    service.settle()


@pytest.mark.parametrize(
    ("history", "wanted"),
    [([_CREATE, _TRANSITION], ["work.signal.fired"]), ([_START, _REPORT], ["JobReady", "JobReady"])],
    ids=["signals", "runs"],
)
def test_events_need_no_pass(service: Service, history: Sequence[SentCommand], wanted: list[str]) -> None:
    """The event of a signal or a run is published, and its row deleted, without a pass of a worker."""
    send(service, history)
    assert (published(service), service.rows(OUTBOX.name)) == (wanted, [])


@pytest.mark.parametrize("fault", _IN_THE_READER, ids=str)
def test_crash_of_the_reader(service: Service, fault: Fault) -> None:
    """Wherever the process dies while it handles a transition, the signal fires once, under one id."""
    send(service, [_CREATE, _TRANSITION], fault)
    until_leases_end(service)
    assert {event["type"] for event in service.events()} == {"work.signal.fired"}
    assert len({event["id"] for event in service.events()}) == 1
    assert [row["status"] for row in service.rows("work_signal_firings")] == ["enqueued"]


@pytest.mark.parametrize(
    ("worker", "fault"),
    [*(("firings", each) for each in _IN_A_WORKER), *(("outbox", each) for each in _IN_THE_RELAY)],
    ids=str,
)
def test_fault_in_a_worker(service: Service, worker: str, fault: Fault) -> None:
    """Wherever the process dies, or the database fails, after rows were handed over, the signal fires under one id."""
    send(service, [_CREATE])
    service.instances[0].workers[worker][0].gate.arm(fault)
    send(service, [_TRANSITION])
    until_leases_end(service)
    assert {event["type"] for event in service.events()} == {"work.signal.fired"}
    assert len({event["id"] for event in service.events()}) == 1
    assert [row["status"] for row in service.rows("work_signal_firings")] == ["enqueued"]
    assert service.rows(OUTBOX.name) == []


def test_nothing_is_handed_over_in_an_outage_of_the_broker(service: Service) -> None:
    """While nothing can be published, events wait for a pass of the relay, and no attempt counts."""
    service.stop_broker()
    service.broker.stored.away = None
    send(service, [_START])
    assert [row["attempt"] for row in service.rows(OUTBOX.name)] == [0]
    service.start_broker()
    service.clock.advance(seconds=1)
    service.settle()
    assert published(service) == ["JobReady"]
