"""Histories that once ended wrongly, as small as they were found: the models say how they have to end."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tests.simulation.checker import Checker
from tests.simulation.service import Sent, Service, running_service
from tests.simulation.signal_check import ends_of_signals
from tests.simulation.signal_histories import crowd

_BLOCKED = {"triggerKind": "event", "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]}}
_DONE = {"triggerKind": "event", "triggerSpec": {"kind": "work_item.status.transition", "to": ["done"]}}


def _start(*jobs: dict[str, Any], groups: Sequence[str] = ()) -> Sent:
    return Sent("StartRun", "acme", {"runId": "r1", "jobs": list(jobs), "groups": list(groups)})


def _resolve(group: str, *jobs: dict[str, Any]) -> Sent:
    return Sent("ResolveGroup", "acme", {"runId": "r1", "groupName": group, "jobs": list(jobs)})


def _report(job: str, status: str, **fields: Any) -> Sent:
    return Sent("ReportJobStatus", "acme", {"runId": "r1", "jobName": job, "status": status, **fields})


def _cancel() -> Sent:
    return Sent("CancelRun", "acme", {"runId": "r1"})


def _job(name: str, *needs: Any) -> dict[str, Any]:
    return {"name": name, "needs": list(needs)}


def _create(item: str = "i1", trigger: Any = None, signal: str = "s00") -> Sent:
    return Sent("CreateWorkSignal", "acme", {"signalId": signal, "workItemId": item, **(trigger or _BLOCKED)})


def _about(verb: str, signal: str = "s00") -> Sent:
    return Sent(f"{verb}WorkSignal", "acme", {"signalId": signal})


def _move(event: str, item: str = "i1", to: str = "blocked") -> Sent:
    return Sent("TransitionWorkItem", "acme", {"workItemId": item, "eventId": event, "to": to})


def _item(status: str) -> Sent:
    return Sent("CreateWorkItem", "acme", {"workItemId": "i1", "status": status})


class Case(NamedTuple):
    """A history in the order of the stream, and the batches in which it is delivered, by its indexes."""

    history: Sequence[Sent]
    batches: Sequence[Sequence[int]]
    settled_between: bool = False


_CROWD = len(crowd())
_GROUP = {"group": "g"}

CASES = {
    # A counter that an earlier command of the batch had changed was not written.
    "R1 report and resolve": Case(
        [
            _start(_job("a"), _job("b"), _job("c", "a", "b"), groups=["g"]),
            _report("a", "success"),
            _resolve("g"),
            _report("b", "success"),
        ],
        [[0], [1, 2], [3]],
    ),
    "R1 two groups": Case(
        [
            _start(_job("c", _GROUP), groups=["g", "h"]),
            _resolve("g", _job("m")),
            _resolve("h", _job("o")),
            _report("m", "success"),
        ],
        [[0], [1, 2], [3]],
    ),
    "R2 more signals than looked at, one of them paused": Case(
        [*crowd(), _about("Pause"), _move("e1")], [range(_CROWD), [_CROWD, _CROWD + 1]]
    ),
    "R4 resolve after the create that follows it": Case(
        [_create(), _about("Resolve"), _create(trigger=_DONE), _move("e1", to="done")], [[0], [2], [1], [3]]
    ),
    "R4 pause after a retried create": Case([_create(), _about("Pause"), _create(), _move("e1")], [[0], [2], [1], [3]]),
    "R8 dropped before it is known": Case(
        [
            _start(_job("a"), groups=["g"]),
            _report("a", "success", droppedJobs=["m"]),
            _resolve("g", _job("m"), _job("n")),
        ],
        [[0], [1], [2]],
    ),
    "R8 dropped by a report that changes nothing": Case(
        [_start(_job("a"), _job("b")), _report("a", "success"), _report("a", "success", droppedJobs=["b"])],
        [[0], [1], [2]],
    ),
    "R9 resolve after a cancel, before the start": Case(
        [_cancel(), _start(groups=["g"]), _resolve("g")], [[0], [2], [1]]
    ),
    "R9 report after a cancel, before the start": Case(
        [_cancel(), _start(_job("a")), _report("a", "success")], [[0], [2], [1]]
    ),
    "R10 the same event of another work item": Case(
        [_create(), _move("1"), _about("Resolve"), _create("i2"), _move("1", "i2")],
        [[0], [1], [2], [3], [4]],
        settled_between=True,
    ),
    "R11 fired by what came before it was activated": Case(
        [_create(), _move("e1"), _about("Pause"), _about("Activate")], [[0], [1], [2], [3]]
    ),
    "R13 cancelled in its first batch": Case([_start(_job("a")), _cancel()], [[0, 1]]),
    "R13 rejected in its first batch": Case(
        [_start(_job("a"), groups=["g"]), _resolve("g", _job("m", "nobody"))], [[0, 1]]
    ),
    "R14 a transition after a newer CreateWorkItem": Case([_move("e1", to="open"), _item("new")], [[1], [0]]),
    "JobReady of a job that ended in the same batch": Case([_start(_job("a")), _report("a", "success")], [[0, 1]]),
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as started:
        yield started


@pytest.mark.parametrize("name", CASES)
def test_ends_as_it_must(service: Service, name: str) -> None:
    """Every step agrees with the models, and signals end as in the order of the stream."""
    case = CASES[name]
    in_stream_order = range(len(case.history))
    wanted = _play(service, case, [[index] for index in in_stream_order])
    assert _play(service, case, case.batches) == wanted


def _play(service: Service, case: Case, batches: Sequence[Sequence[int]]) -> Any:
    delivered = [index for batch in batches for index in batch]
    checker = Checker(service, case.history, in_order=delivered == sorted(delivered))
    for batch in batches:
        service.deliver([checker.positions[index] for index in batch])
        if case.settled_between:
            service.settle()
    checker.finish()
    return ends_of_signals(service)


def test_r3_a_report_that_waits_beats_the_timeout(service: Service) -> None:
    """A job that was reported while no instance ran is not timed out when the next one starts."""
    checker = Checker(service, [_start({"name": "a", "staleAfterSeconds": 60}), _report("a", "success")])
    service.deliver(checker.positions[:1])
    service.crash()
    service.clock.advance(minutes=2)
    service.tick("sweep")
    service.deliver(checker.positions[1:])
    checker.finish()
    assert [event["payload"]["status"] for event in service.events() if event["type"] == "RunCompleted"] == ["success"]
