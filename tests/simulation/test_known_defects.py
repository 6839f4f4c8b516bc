"""The smallest histories of defects that the service once had. They must agree with the models."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tests.harness.clock import after, iso
from tests.simulation.checker import Checker
from tests.simulation.faults import Point, crash
from tests.simulation.log_ledger import LogChange
from tests.simulation.service import SentCommand, Service, running_service
from tests.simulation.signal_histories import many_signals

_BLOCKED = {"triggerKind": "event", "triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]}}
_DONE = {"triggerKind": "event", "triggerSpec": {"kind": "work_item.status.transition", "to": ["done"]}}


def _start(*jobs: dict[str, Any], groups: Sequence[str] = ()) -> SentCommand:
    return SentCommand("StartRun", "acme", {"runId": "r1", "jobs": list(jobs), "groups": list(groups)})


def _resolve(group: str, *jobs: dict[str, Any]) -> SentCommand:
    return SentCommand("ResolveGroup", "acme", {"runId": "r1", "groupName": group, "jobs": list(jobs)})


def _report(job: str, status: str, **fields: Any) -> SentCommand:
    return SentCommand("ReportJobStatus", "acme", {"runId": "r1", "jobName": job, "status": status, **fields})


def _cancel() -> SentCommand:
    return SentCommand("CancelRun", "acme", {"runId": "r1"})


def _job(name: str, *needs: Any) -> dict[str, Any]:
    return {"name": name, "needs": list(needs)}


def _create(item: str = "i1", trigger: Any = None, signal: str = "s00") -> SentCommand:
    return SentCommand("CreateWorkSignal", "acme", {"signalId": signal, "workItemId": item, **(trigger or _BLOCKED)})


def _change(verb: str, signal: str = "s00") -> SentCommand:
    return SentCommand(f"{verb}WorkSignal", "acme", {"signalId": signal})


def _transition(event: str, item: str = "i1", to: str = "blocked") -> SentCommand:
    return SentCommand("TransitionWorkItem", "acme", {"workItemId": item, "eventId": event, "to": to})


def _create_item(status: str) -> SentCommand:
    return SentCommand("CreateWorkItem", "acme", {"workItemId": "i1", "status": status})


class Case(NamedTuple):
    """A history, and how many commands are in each of its batches."""

    history: Sequence[SentCommand]
    sizes: Sequence[int]
    run_workers_between: bool = False


_MANY = len(many_signals())
_GROUP = {"group": "g"}

CASES = {
    # R1: the service did not write a counter that an earlier command of the batch had changed.
    "R1 report and resolve": Case(
        [
            _start(_job("a"), _job("b"), _job("c", "a", "b"), groups=["g"]),
            _report("a", "success"),
            _resolve("g"),
            _report("b", "success"),
        ],
        [1, 2, 1],
    ),
    "R1 two groups": Case(
        [
            _start(_job("c", _GROUP), groups=["g", "h"]),
            _resolve("g", _job("m")),
            _resolve("h", _job("o")),
            _report("m", "success"),
        ],
        [1, 2, 1],
    ),
    "R2 more signals than the inline limit, one of them paused": Case(
        [*many_signals(), _change("Pause"), _transition("e1")], [_MANY, 2]
    ),
    "R8 a dropped job that is not yet known": Case(
        [
            _start(_job("a"), groups=["g"]),
            _report("a", "success", droppedJobs=["m"]),
            _resolve("g", _job("m"), _job("n")),
        ],
        [1, 1, 1],
    ),
    "R8 a dropped job in a report without effect": Case(
        [_start(_job("a"), _job("b")), _report("a", "success"), _report("a", "success", droppedJobs=["b"])],
        [1, 1, 1],
    ),
    "R9 resolve after a cancel, before the start": Case([_cancel(), _resolve("g"), _start(groups=["g"])], [1, 1, 1]),
    "R9 report after a cancel, before the start": Case(
        [_cancel(), _report("a", "success"), _start(_job("a"))], [1, 1, 1]
    ),
    "R10 the same event of another work item": Case(
        [_create(), _transition("1"), _change("Resolve"), _create("i2"), _transition("1", "i2")],
        [1] * 5,
        run_workers_between=True,
    ),
    "R11 a transition older than the activation": Case(
        [_create(), _transition("e1"), _change("Pause"), _change("Activate")], [1] * 4
    ),
    "R13 cancelled in its first batch": Case([_start(_job("a")), _cancel()], [2]),
    "R13 rejected in its first batch": Case([_start(_job("a"), groups=["g"]), _resolve("g", _job("m", "nobody"))], [2]),
    "the same graph with its jobs and needs in another order": Case(
        [
            _start(_job("a"), _job("b"), _job("c", "a", "b", _GROUP), groups=["g", "h"]),
            _start(_job("c", _GROUP, "b", "a"), _job("b"), _job("a"), groups=["h", "g"]),
            _resolve("g", _job("m"), _job("n", "a", "b")),
            _resolve("g", _job("n", "b", "a"), _job("m")),
        ],
        [1, 1, 2],
    ),
    "JobReady of a job that ended in the same batch": Case([_start(_job("a")), _report("a", "success")], [2]),
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as started:
        yield started


@pytest.mark.parametrize("name", CASES)
def test_defect_stays_fixed(service: Service, name: str) -> None:
    """Every commit agrees with the models."""
    case = CASES[name]
    checker, left = Checker(service), list(case.history)
    for size in case.sizes:
        checker.send(left[:size])
        del left[:size]
        service.catch_up()
        if case.run_workers_between:
            service.settle()
    checker.finish()


def test_r3_unread_report_prevents_the_timeout(service: Service) -> None:
    """A job is not timed out while its report was not read, because no instance was running."""
    checker = Checker(service, [_start({"name": "a", "staleAfterSeconds": 60})])
    service.catch_up()
    checker.send([_report("a", "success")])
    service.crash()
    service.clock.advance(minutes=2)
    service.tick("sweep")
    service.catch_up()
    checker.finish()
    assert [event["payload"]["status"] for event in service.events() if event["type"] == "RunCompleted"] == ["success"]


def test_sweep_goes_on_after_the_log_was_replaced(service: Service) -> None:
    """A job ends as stale although the log was lost whose end the sweep was waiting for."""
    checker = Checker(service, [_start({"name": "a", "staleAfterSeconds": 60})])
    service.catch_up()
    checker.send([_cancel()])
    service.clock.advance(minutes=2)
    service.tick("sweep")
    service.change_log(LogChange.RECREATED)
    checker.finish()
    assert [event["payload"]["status"] for event in service.events() if event["type"] == "RunCompleted"] == ["failed"]


def test_sweep_goes_on_without_a_command_that_was_lost(service: Service) -> None:
    """A job ends as stale although the command was lost that was the last one of the log when the sweep looked."""
    checker = Checker(service, [_start({"name": "a", "staleAfterSeconds": 60})])
    service.catch_up()
    service.crash()
    checker.send([_cancel()])
    service.clock.advance(minutes=2)
    service.tick("sweep")
    service.change_log(LogChange.ROLLED_BACK)
    checker.finish()
    assert [event["payload"]["status"] for event in service.events() if event["type"] == "RunCompleted"] == ["failed"]


def test_sweep_goes_on_after_the_log_was_rolled_back(service: Service) -> None:
    """A job ends as stale although the end of the log is a command that was read before it was rolled back."""
    checker = Checker(service, [_start({"name": "a", "staleAfterSeconds": 60}), *[_report("b", "running")] * 2])
    service.catch_up()
    service.change_log(LogChange.ROLLED_BACK)
    service.catch_up()
    service.crash()
    checker.finish()
    assert [event["payload"]["status"] for event in service.events() if event["type"] == "RunCompleted"] == ["failed"]


def test_commands_that_wait_come_before_slots_although_their_log_is_lost(service: Service) -> None:
    """After a restart, no slot fires before a Pause that waits in the database, also if the log is another one now."""
    checker = Checker(service, [_schedule("Put", every="PT1M")])
    service.catch_up()
    service.is_crowded, service.most_commands = True, 2
    checker.send([_schedule("Pause"), *[_cancel()] * 4])
    service.read(fault=crash(Point.BEFORE_COMMIT, 2))  # the first two commands are stored, and not applied
    assert service.rows("waiting_commands")
    service.change_log(LogChange.RECREATED)
    service.clock.advance(seconds=59.5)
    service.tick("schedules")
    service.clock.advance(seconds=1)
    service.tick("schedules")
    checker.finish()
    assert service.events() == []


_PAST = iso(after(minutes=-1))


def _schedule(verb: str, **fields: Any) -> SentCommand:
    return SentCommand(f"{verb}Schedule", "acme", {"scheduleId": "s1", **fields})


_ENDS_AGAIN = {
    "deleted and put": [_schedule("Delete"), _schedule("Put", every="PT1M", endAt=_PAST)],
    "started and ended": [_schedule("Put", every="PT1M"), _schedule("Put", every="PT1M", endAt=_PAST)],
}


@pytest.mark.parametrize("name", _ENDS_AGAIN)
def test_schedule_that_ends_again_has_another_event(service: Service, name: str) -> None:
    """A schedule that ended, starts again and ends again has two events."""
    assert _ends(service, name, [1, 1, 1]) == 2


@pytest.mark.parametrize("name", _ENDS_AGAIN)
def test_schedule_that_ends_again_in_one_batch_has_another_event(service: Service, name: str) -> None:
    """A schedule that ended has two events if one batch starts it again and ends it again."""
    assert _ends(service, name, [1, 2]) == 2


def _ends(service: Service, name: str, sizes: Sequence[int]) -> int:
    """Return the number of events after a schedule has ended, and the commands with a name follow."""
    checker, left = Checker(service), [_schedule("Put", every="PT20S", endAt=_PAST), *_ENDS_AGAIN[name]]
    for size in sizes:
        checker.send(left[:size])
        del left[:size]
        service.catch_up()
        service.settle()
    checker.finish()
    return sum(event["type"] == "ScheduleEnded" for event in service.events())


def test_slot_after_the_last_of_max_count_fires(service: Service) -> None:
    """A Put that was sent before a slot fires it, although the schedule ended before the Put was read."""
    checker = Checker(service, [_schedule("Put", every="PT20S", maxCount=1)])
    service.catch_up()
    service.clock.advance(seconds=30)
    checker.send([_schedule("Put", every="PT20S", maxCount=2)])
    service.clock.advance(seconds=20)
    service.settle()
    service.catch_up()
    checker.finish()
    fired = [event["payload"]["slotAt"] for event in service.events() if event["type"] == "ScheduleFired"]
    assert fired == [iso(after(seconds=seconds)) for seconds in (20, 40, 60)]
