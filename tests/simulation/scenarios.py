"""The scenarios of the history simulation.

A scenario draws a history of commands and plays it: it delivers the commands in some order, in batches, with or
without faults. Its `Checker` compares every commit with the models.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.simulation.checker import Checker
from tests.simulation.draws import Draw, Scenario, consumer_faults, crashes, instances, outages, worker_faults
from tests.simulation.faults import RELAY_POINTS, Point
from tests.simulation.mixed_histories import mixed_commands, splits
from tests.simulation.order_guarantees import executed_runs, final_state_of_runs, guaranteed_run_orders
from tests.simulation.run_histories import run_commands, started_run_and_reports
from tests.simulation.run_model import RunsModel
from tests.simulation.schedule_scenarios import schedules_in_any_order, schedules_one_by_one, schedules_with_faults
from tests.simulation.service import INSTANCES, Row, SentCommand, Service
from tests.simulation.signal_check import final_state_of_signals
from tests.simulation.signal_histories import many_signals, signal_commands
from tests.simulation.workflow_scenarios import (
    workflows_one_by_one,
    workflows_with_faults,
    workflows_with_lost_leases,
    workflows_with_lost_requests,
)
from timer_service.core.values.message import Position

_WORKERS = ["timers", "firings", "evaluation", "sweep", "announcements", "schedules", "backfills", "outbox"]
_SWITCHABLE = ["signals", "runs", "schedules"]


def play_one_by_one(service: Service, history: Sequence[SentCommand]) -> Checker:
    """Deliver one command per batch in stream order. Run the workers after each batch."""
    checker = Checker(service, history)
    for position in checker.positions:
        service.deliver([position])
        service.settle()
    checker.finish()
    return checker


def runs_one_by_one(service: Service, draw: Draw) -> None:
    play_one_by_one(service, draw(run_commands())).check_retention()


def signals_one_by_one(service: Service, draw: Draw) -> None:
    play_one_by_one(service, draw(signal_commands())).check_retention()


def runs_in_batches(service: Service, draw: Draw) -> None:
    """Assert that any split into batches leaves the same rows as one command per batch, and no additional events."""
    history = draw(run_commands())
    play_one_by_one(service, history)
    rows, events = service.snapshot(), _event_bodies(service)
    checker = Checker(service, history)
    service.defers = draw(st.booleans())
    _deliver_split(checker, checker.positions, draw)
    checker.finish()
    assert _run_tables(service.snapshot()) == _run_tables(rows)
    assert _event_bodies(service).items() <= events.items()
    checker.check_retention()


def signals_in_batches(service: Service, draw: Draw) -> None:
    checker = Checker(service, draw(signal_commands()))
    service.defers = draw(st.booleans())
    _deliver_split(checker, checker.positions, draw)
    checker.finish()
    checker.check_retention()


def many_signals_in_batches(service: Service, draw: Draw) -> None:
    """Play more signals of one work item than a transition evaluates inline."""
    first = many_signals()
    checker = Checker(service, [*first, *draw(signal_commands(6))])
    service.deliver(checker.positions[: len(first)])
    _deliver_split(checker, checker.positions[len(first) :], draw)
    checker.finish()


def any_order_with_repeats(service: Service, draw: Draw) -> None:
    """Deliver commands of all slices in any order, some of them twice. Maybe run the workers between batches."""
    checker = Checker(service, draw(st.one_of(run_commands(), signal_commands(), mixed_commands())), in_order=False)
    order = list(draw(st.permutations(checker.positions)))
    order += draw(st.lists(st.sampled_from(order), max_size=3))
    service.defers = draw(st.booleans())
    _deliver_split(checker, order, draw)
    checker.finish()
    checker.check_retention()


def reports_in_any_order(service: Service, draw: Draw) -> None:
    """Deliver the reports on a started run in any order, so that some are older than the newest of their job."""
    checker = Checker(service, draw(started_run_and_reports()), in_order=False)
    first, *reported = checker.positions
    _deliver_split(checker, [first, *draw(st.permutations(reported))], draw)
    checker.finish()


def runs_in_guaranteed_order(service: Service, draw: Draw) -> None:
    """Assert that a StartRun, a ResolveGroup and an older CancelRun have the same result in any order of delivery."""
    history = draw(executed_runs())
    order = draw(guaranteed_run_orders(history))
    in_order, delivered = RunsModel(), RunsModel()
    _apply(in_order, history, range(len(history)))
    _apply(delivered, history, order)
    assume(not delivered.not_ready)  # an executor reports only jobs that are ready when it runs
    checker = Checker(service, history, in_order=False)
    _deliver_split(checker, [checker.positions[index] for index in order], draw)
    checker.deliver_unsettled()
    assert final_state_of_runs(checker.runs) == final_state_of_runs(in_order)
    checker.finish()


def signals_in_any_order(service: Service, draw: Draw) -> None:
    """Assert that any order and any batches have the same result, if the workers run last."""
    history = draw(signal_commands(unique_events=True))
    service.hands_over = False
    try:
        _compare_orders_of_signals(service, history, draw)
    finally:
        service.hands_over = True


def _compare_orders_of_signals(service: Service, history: Sequence[SentCommand], draw: Draw) -> None:
    in_order = Checker(service, history)
    for position in in_order.positions:
        service.deliver([position])
    in_order.finish()
    wanted = final_state_of_signals(service)
    checker = Checker(service, history, in_order=False)
    order = list(draw(st.permutations(checker.positions)))
    for size in draw(splits(len(order))):
        service.deliver(order[:size], size % INSTANCES)
        del order[:size]
    checker.finish()
    assert final_state_of_signals(service) == wanted


def stream_order_with_faults(service: Service, draw: Draw) -> None:
    """A crash or an error can happen at any await. Unhandled commands are redelivered before newer commands."""
    checker = Checker(service, draw(mixed_commands()))
    faults = st.one_of(st.none(), crashes(Point), outages)
    for size in draw(splits(len(checker.positions))):
        left = [each for each in checker.positions if each not in checker.outcomes]
        service.deliver(left[:size], draw(instances), draw(faults))
        while any(each not in checker.outcomes for each in left[:size]):
            service.broker.redeliver()
            service.deliver(left[:size])
        for worker in draw(st.lists(st.sampled_from(_WORKERS), max_size=3)):
            service.tick(worker, draw(instances), draw(st.one_of(st.none(), crashes(RELAY_POINTS), outages)))
        if draw(st.integers(0, 4)) == 4:
            checker.toggle(draw(st.sampled_from(_SWITCHABLE)))
    checker.finish()


def any_order_with_faults(service: Service, draw: Draw) -> None:
    """Deliver in any order with repeats to two instances, with any fault at any await."""
    checker = Checker(service, draw(mixed_commands()), in_order=False)
    order = list(draw(st.permutations(checker.positions)))
    for size in draw(splits(len(order))):
        repeats = draw(st.lists(st.sampled_from(checker.positions), max_size=2))
        service.deliver([*order[:size], *repeats], draw(instances), draw(consumer_faults))
        del order[:size]
        for worker in draw(st.lists(st.sampled_from(_WORKERS), max_size=4)):
            service.tick(worker, draw(instances), draw(worker_faults))
        match draw(st.sampled_from(["nothing", "nothing", "resume", "crash", "wait", "toggle", "redeliver"])):
            case "resume":
                service.resume()
            case "crash":
                service.crash()
            case "wait":
                service.clock.advance(seconds=draw(st.sampled_from([1, 31, 61])))
            case "toggle":
                service.resume()
                checker.toggle(draw(st.sampled_from(_SWITCHABLE)))
            case "redeliver":
                service.broker.redeliver()
    checker.finish()


SCENARIOS: Mapping[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        runs_one_by_one,
        signals_one_by_one,
        runs_in_batches,
        signals_in_batches,
        many_signals_in_batches,
        any_order_with_repeats,
        reports_in_any_order,
        runs_in_guaranteed_order,
        signals_in_any_order,
        stream_order_with_faults,
        any_order_with_faults,
        schedules_one_by_one,
        schedules_in_any_order,
        schedules_with_faults,
        workflows_one_by_one,
        workflows_with_lost_requests,
        workflows_with_lost_leases,
        workflows_with_faults,
    )
}


def _deliver_split(checker: Checker, order: Sequence[Position], draw: Draw) -> None:
    left = list(order)
    settles = draw(st.booleans())
    for size in draw(splits(len(left))):
        checker.service.deliver(left[:size], size % INSTANCES)
        del left[:size]
        if settles:
            checker.service.settle()


def _apply(model: RunsModel, history: Sequence[SentCommand], order: Sequence[int]) -> None:
    """Apply a history to a model with one command per batch."""
    for index in order:
        model.command(history[index].type, history[index].payload, Position(1, index + 1), 0)
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
