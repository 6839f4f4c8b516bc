"""The scenarios of the history simulation.

A scenario draws a history of commands and plays it: it publishes the commands, and lets one or two instances read them
in batches, with or without faults. Its `Checker` compares every commit with the models.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.simulation.checker import Checker
from tests.simulation.draws import (
    Draw,
    Scenario,
    crashes,
    instances,
    outages,
    reader_errors,
    reader_faults,
    worker_faults,
)
from tests.simulation.faults import RELAY_POINTS, Point
from tests.simulation.log_ledger import LogChange
from tests.simulation.mixed_histories import mixed_commands, splits
from tests.simulation.order_guarantees import executed_runs, final_state_of_runs, guaranteed_run_orders
from tests.simulation.parked_histories import parked_commands
from tests.simulation.run_histories import retried_runs, run_commands
from tests.simulation.run_model import RunsModel
from tests.simulation.schedule_scenarios import (
    schedules_one_by_one,
    schedules_read_late,
    schedules_with_faults,
    schedules_with_new_rules,
)
from tests.simulation.service import INSTANCES, Row, SentCommand, Service
from tests.simulation.signal_histories import many_signals, recreated_signals, signal_commands
from tests.simulation.workflow_scenarios import (
    workflows_one_by_one,
    workflows_with_busy_keys,
    workflows_with_faults,
    workflows_with_lost_leases,
    workflows_with_lost_requests,
)
from timer_service.core.values.message import Position

_WORKERS = [
    "timers",
    "firings",
    "evaluation",
    "sweep",
    "announcements",
    "schedules",
    "backfills",
    "outbox",
    "dead-letters",
]
_SWITCHABLE = ["signals", "runs", "schedules"]


def play_one_by_one(service: Service, history: Sequence[SentCommand]) -> Checker:
    """Publish one command and read it. Run the workers after each one."""
    checker = Checker(service)
    for sent in history:
        checker.send([sent])
        service.catch_up()
        service.settle()
    checker.finish()
    return checker


def runs_one_by_one(service: Service, draw: Draw) -> None:
    play_one_by_one(service, draw(st.one_of(run_commands(), retried_runs()))).check_retention()


def signals_one_by_one(service: Service, draw: Draw) -> None:
    play_one_by_one(service, draw(signal_commands())).check_retention()


def runs_in_batches(service: Service, draw: Draw) -> None:
    """Assert that any batches leave the same rows as one command per batch, and no additional events."""
    history = draw(st.one_of(run_commands(), retried_runs()))
    play_one_by_one(service, history)
    rows, events = service.snapshot(), _event_bodies(service)
    checker = Checker(service)
    _read_in_batches(checker, history, draw)
    checker.finish()
    assert _run_tables(service.snapshot()) == _run_tables(rows)
    assert _event_bodies(service).items() <= events.items()
    checker.check_retention()


def signals_created_again(service: Service, draw: Draw) -> None:
    """Signals end and are created again, and transitions have few event ids."""
    play_one_by_one(service, draw(recreated_signals()))


def signals_in_batches(service: Service, draw: Draw) -> None:
    checker = Checker(service)
    _read_in_batches(checker, draw(signal_commands()), draw)
    checker.finish()
    checker.check_retention()


def parked_events_in_batches(service: Service, draw: Draw) -> None:
    checker = Checker(service)
    _read_in_batches(checker, draw(parked_commands()), draw)
    checker.finish()
    checker.check_retention()


def many_signals_in_batches(service: Service, draw: Draw) -> None:
    """Play more signals of one work item than a transition evaluates inline."""
    checker = Checker(service, many_signals())
    service.catch_up()
    _read_in_batches(checker, draw(signal_commands(6)), draw)
    checker.finish()


def odd_orders_with_repeats(service: Service, draw: Draw) -> None:
    """Publish commands of all slices in any order, some of them twice. Maybe run the workers between batches."""
    drawn = draw(st.one_of(run_commands(), signal_commands(), mixed_commands()))
    history = list(draw(st.permutations(drawn)))
    history += draw(st.lists(st.sampled_from(history), max_size=3))
    checker = Checker(service)
    _read_in_batches(checker, history, draw)
    checker.finish()
    checker.check_retention()


def runs_in_guaranteed_order(service: Service, draw: Draw) -> None:
    """Assert that a StartRun and a ResolveGroup have the same result wherever they are published among the reports."""
    history = draw(executed_runs())
    published = [history[index] for index in draw(guaranteed_run_orders(history))]
    usual, odd = RunsModel(), RunsModel()
    _apply(usual, history)
    _apply(odd, published)
    assume(not odd.not_ready)  # an executor reports only jobs that are ready when it runs
    checker = Checker(service)
    _read_in_batches(checker, published, draw)
    checker.read_all()
    assert final_state_of_runs(checker.runs) == final_state_of_runs(usual)
    checker.finish()


def runs_read_late(service: Service, draw: Draw) -> None:
    """Jobs become stale while reports are in the log, or wait in the database behind one that fails."""
    history = draw(run_commands())
    failing = draw(st.integers(0, 2 * len(history)))
    checker = Checker(service)
    _begin(service, draw)
    for number, sent in enumerate(history):
        checker.send([sent._replace(fails=number == failing)])
        for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
            service.read()
        service.clock.advance(seconds=draw(st.sampled_from([0, 1, 61])))
        if draw(st.booleans()):
            service.settle("sweep")
    checker.finish()


def one_reader_with_faults(service: Service, draw: Draw) -> None:
    """A crash or an error can happen at any await."""
    checker = Checker(service)
    history = draw(mixed_commands())
    service.broker.stored.leaves = draw(st.sampled_from([None, 0, 150]))
    _begin(service, draw)
    faults = st.one_of(st.none(), crashes(Point), reader_errors)
    for size in draw(splits(len(history))):
        checker.send(history[:size])
        del history[:size]
        for _ in range(draw(st.integers(1, 3))):
            service.read(fault=draw(faults))
        for worker in draw(st.lists(st.sampled_from(_WORKERS), max_size=3)):
            service.tick(worker, draw(instances), draw(st.one_of(st.none(), crashes(RELAY_POINTS), outages)))
        if draw(st.integers(0, 4)) == 4:
            checker.toggle(draw(st.sampled_from(_SWITCHABLE)))
    checker.finish()


def one_reader_that_crashes(service: Service, draw: Draw) -> None:
    """The process dies again and again while it reads."""
    checker = Checker(service)
    history = draw(mixed_commands())
    service.broker.stored.leaves = draw(st.sampled_from([None, 0, 150]))
    _begin(service, draw)
    for size in draw(splits(len(history))):
        checker.send(history[:size])
        del history[:size]
        for fault in draw(st.lists(crashes(Point), max_size=5)):
            service.read(fault=fault)
    checker.finish()


def two_readers_with_faults(service: Service, draw: Draw) -> None:
    """Two readers, any fault at any await, leases that run out, and changes of the log."""
    checker = Checker(service)
    history = draw(mixed_commands())
    _begin(service, draw)
    steps = _Steps(checker, draw)
    common = [steps.read] * 6 + [steps.tick] * 4 + [steps.wait] * 2 + [service.resume] * 2
    rare = [service.crash, steps.toggle, steps.stop_reader, service.stop_broker, service.start_broker]
    rare += [steps.change_log]
    actions: st.SearchStrategy[list[Callable[[], None]]] = st.lists(st.sampled_from([*common, *rare]), max_size=6)
    for size in draw(splits(len(history))):
        checker.send(history[:size])
        del history[:size]
        for act in draw(actions):
            act()
    checker.finish()


class _Steps:
    """The steps of a history with faults."""

    def __init__(self, checker: Checker, draw: Draw) -> None:
        self._checker = checker
        self._service = checker.service
        self._draw = draw

    def read(self) -> None:
        self._service.read(self._draw(instances), self._draw(reader_faults))

    def stop_reader(self) -> None:
        self._service.stop_reader(self._draw(instances), self._draw(reader_faults))

    def tick(self) -> None:
        self._service.tick(self._draw(st.sampled_from(_WORKERS)), self._draw(instances), self._draw(worker_faults))

    def wait(self) -> None:
        self._service.clock.advance(seconds=self._draw(st.sampled_from([1, 4, 31, 61])))

    def toggle(self) -> None:
        self._service.resume()
        self._checker.toggle(self._draw(st.sampled_from(_SWITCHABLE)))

    def change_log(self) -> None:
        self._service.change_log(self._draw(st.sampled_from(LogChange)))


SCENARIOS: Mapping[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        runs_one_by_one,
        signals_one_by_one,
        signals_created_again,
        runs_in_batches,
        signals_in_batches,
        many_signals_in_batches,
        parked_events_in_batches,
        odd_orders_with_repeats,
        runs_in_guaranteed_order,
        runs_read_late,
        one_reader_with_faults,
        one_reader_that_crashes,
        two_readers_with_faults,
        schedules_one_by_one,
        schedules_read_late,
        schedules_with_faults,
        schedules_with_new_rules,
        workflows_one_by_one,
        workflows_with_busy_keys,
        workflows_with_lost_requests,
        workflows_with_lost_leases,
        workflows_with_faults,
    )
}


def _begin(service: Service, draw: Draw) -> None:
    """Draw how a service divides its work."""
    service.defers = draw(st.booleans())
    service.is_crowded = draw(st.booleans())
    service.most_commands = draw(st.sampled_from([1000, 1, 2, 3, 5]))


def _read_in_batches(checker: Checker, history: Sequence[SentCommand], draw: Draw) -> None:
    """Publish a history in parts. One instance reads each part, in one or more batches. Maybe run the workers."""
    service, left = checker.service, list(history)
    _begin(service, draw)
    settles = draw(st.booleans())
    for size in draw(splits(len(left))):
        checker.send(left[:size])
        del left[:size]
        service.catch_up(size % INSTANCES)
        if settles:
            service.settle()


def _apply(model: RunsModel, history: Sequence[SentCommand]) -> None:
    """Apply a history to a model with one command per batch."""
    for number, sent in enumerate(history, 1):
        model.command(sent.type, sent.payload, Position(1, number), 0)
        model.commit()


def _run_tables(tables: Mapping[str, Sequence[Row]]) -> Mapping[str, Sequence[Row]]:
    """Return the tables of runs."""
    return {name: rows for name, rows in tables.items() if name.startswith("run")}


def _event_bodies(service: Service) -> dict[str, str]:
    """Return the events without their instants, by event id."""
    return {event["id"]: json.dumps(_without_instants(event), sort_keys=True) for event in service.events()}


def _without_instants(event: Mapping[str, Any]) -> Mapping[str, Any]:
    payload = {name: value for name, value in event["payload"].items() if name != "readyAt"}
    return {**event, "timestampMs": None, "payload": payload}
