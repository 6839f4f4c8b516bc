"""Passes of the relay of events with a fault at any await, as on SQLite and as on PostgreSQL."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.simulation.faults import Point, crash, outage
from tests.simulation.service import ROWS_AT_ONCE, VISIBILITY_TIMEOUT, CommitObserver, SentCommand, Service
from tests.simulation.service import running_service as running
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.values.address import Kind
from timer_service.core.values.message import Message

_EVENTS = 2 * ROWS_AT_ONCE + 1
_START = SentCommand("StartRun", "acme", {"runId": "r1", "jobs": [{"name": f"j{n}"} for n in range(_EVENTS)]})
_ALONE, _SHARED = 0, 1
"""The instance that has the database to itself, and the other one."""
_IN_A_TRANSACTION = {
    Point.BEFORE_BEGIN: 4,
    Point.BEFORE_STATEMENT: 12,
    Point.AFTER_STATEMENT: 12,
    Point.BEFORE_COMMIT: 4,
}
_OUTSIDE = {Point.AFTER_COMMIT: 4, Point.BEFORE_PUBLISH: _EVENTS, Point.AFTER_PUBLISH: _EVENTS}
_OUTAGES = [outage(point, nth + 1) for point, most in _IN_A_TRANSACTION.items() for nth in range(most)]
_CRASHES = [crash(point, nth + 1) for point, most in {**_IN_A_TRANSACTION, **_OUTSIDE}.items() for nth in range(most)]


class Commits(CommitObserver):
    """Counts the transactions of the workers."""

    def __init__(self) -> None:
        self.by_worker: Counter[str] = Counter()

    def worker_committed(self, worker: str, now: int, began_at: int) -> None:  # noqa: ARG002
        self.by_worker[worker] += 1


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running() as started:
        yield started


def begin(service: Service) -> Counter[str]:
    """Add events that wait for a pass. Return a counter that gets how often each one is published."""
    service.begin(Commits())
    published: Counter[str] = Counter()

    async def count(messages: Sequence[Message]) -> None:
        published.update(message.id for message in messages if message.address.kind is Kind.EVENT)

    service.broker.before_publishing = count
    service.send([_START])
    service.catch_up()
    while (done := service.tick("announcements")) and done.done:
        pass
    assert len(service.rows(OUTBOX.name)) == _EVENTS
    return published


def commits(service: Service, instance: int) -> int:
    begin(service)
    service.tick(OUTBOX.name, instance)
    assert service.rows(OUTBOX.name) == []
    assert isinstance(service.observer, Commits)
    return service.observer.by_worker[OUTBOX.name]


def test_only_an_instance_alone_settles_with_the_next_claim(service: Service) -> None:
    """The histories run both ways of settling: with the next claim, and alone."""
    assert commits(service, _ALONE) == 4
    assert commits(service, _SHARED) > 4


@pytest.mark.parametrize("instance", [_ALONE, _SHARED], ids=["alone", "shared"])
def test_an_outage_of_the_database_repeats_nothing(service: Service, instance: int) -> None:
    """Wherever the database fails in a pass, each event is published once, and no attempt counts."""
    for fault in _OUTAGES:
        published = begin(service)
        service.tick(OUTBOX.name, instance, fault)
        assert {row["attempt"] for row in service.rows(OUTBOX.name)} <= {0, 1}
        for _ in range(2):
            service.tick(OUTBOX.name, instance)
        assert (set(published.values()), len(published)) == ({1}, _EVENTS), fault
        assert service.rows(OUTBOX.name) == [], fault


@pytest.mark.slow
@pytest.mark.parametrize("instance", [_ALONE, _SHARED], ids=["alone", "shared"])
def test_a_crash_loses_nothing(service: Service, instance: int) -> None:
    """Wherever the process dies in a pass, each event is published until the leases have ended, at most twice."""
    for fault in _CRASHES:
        published = begin(service)
        service.tick(OUTBOX.name, instance, fault)
        service.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds() + 1)
        service.tick(OUTBOX.name, instance)
        assert (max(published.values()) <= 2, len(published)) == (True, _EVENTS), fault
        assert service.rows(OUTBOX.name) == [], fault
