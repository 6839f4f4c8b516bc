"""The ways to draw a history and to play it. Each holds everything against the models."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from hypothesis import assume
from hypothesis import strategies as st

from tests.simulation.checker import Checker
from tests.simulation.faults import (
    CONSUMER_MAY_HOLD,
    OUTAGES,
    RELAY,
    RELAY_MAY_HOLD,
    Fault,
    Point,
    crash,
    hold,
    outage,
)
from tests.simulation.mixed_histories import mixed_commands, splits
from tests.simulation.promised import ends_of_runs, executed_runs, promised_run_orders
from tests.simulation.run_histories import run_commands
from tests.simulation.run_model import RunsModel
from tests.simulation.service import INSTANCES, Row, Sent, Service
from tests.simulation.signal_check import ends_of_signals
from tests.simulation.signal_histories import crowd, signal_commands
from timer_service.core.message import Position

_T = TypeVar("_T")


class Draw(Protocol):
    """Draws from a strategy."""

    def __call__(self, strategy: st.SearchStrategy[_T], /) -> _T: ...


Way = Callable[[Service, Draw], None]

_WORKERS = ["timers", "firings", "evaluation", "sweep", "outbox"]
_SWITCHABLE = ["signals", "runs"]


def play_one_by_one(service: Service, history: Sequence[Sent]) -> Checker:
    """Deliver one command in each batch, in stream order, everything settled in between."""
    checker = Checker(service, history)
    for position in checker.positions:
        service.deliver([position])
        service.settle()
    checker.finish()
    return checker


def plain_runs(service: Service, draw: Draw) -> None:
    play_one_by_one(service, draw(run_commands())).check_retention()


def plain_signals(service: Service, draw: Draw) -> None:
    play_one_by_one(service, draw(signal_commands())).check_retention()


def split_runs(service: Service, draw: Draw) -> None:
    """Any split of the stream into batches leaves the same rows as one command in each, and no other events."""
    history = draw(run_commands())
    play_one_by_one(service, history)
    rows, events = service.snapshot(), _bodies(service)
    checker = Checker(service, history)
    _deliver_split(checker, checker.positions, draw)
    checker.finish()
    assert _of_runs(service.snapshot()) == _of_runs(rows)
    assert _bodies(service).items() <= events.items()
    checker.check_retention()


def split_signals(service: Service, draw: Draw) -> None:
    checker = Checker(service, draw(signal_commands()))
    _deliver_split(checker, checker.positions, draw)
    checker.finish()
    checker.check_retention()


def split_crowd(service: Service, draw: Draw) -> None:
    """The same with more signals of one work item than a transition's own transaction looks at."""
    first = crowd()
    checker = Checker(service, [*first, *draw(signal_commands(6))])
    service.deliver(checker.positions[: len(first)])
    _deliver_split(checker, checker.positions[len(first) :], draw)
    checker.finish()


def any_order(service: Service, draw: Draw) -> None:
    """Commands of all slices in any order, with repeats; workers tick at any time."""
    checker = Checker(service, draw(st.one_of(run_commands(), signal_commands(), mixed_commands())), in_order=False)
    order = list(draw(st.permutations(checker.positions)))
    order += draw(st.lists(st.sampled_from(order), max_size=3))
    _deliver_split(checker, order, draw)
    checker.finish()
    checker.check_retention()


def promised_order_of_runs(service: Service, draw: Draw) -> None:
    """StartRun, ResolveGroup and a CancelRun before them, delivered at any time, end like the order of the stream."""
    history = draw(executed_runs())
    order = draw(promised_run_orders(history))
    in_order, delivered = RunsModel(), RunsModel()
    _apply(in_order, history, range(len(history)))
    _apply(delivered, history, order)
    assume(not delivered.not_ready)  # an executor reports only what is ready where it runs
    checker = Checker(service, history, in_order=False)
    _deliver_split(checker, [checker.positions[index] for index in order], draw)
    checker.deliver_the_rest()
    assert ends_of_runs(checker.runs) == ends_of_runs(in_order)
    checker.finish()


def promised_order_of_signals(service: Service, draw: Draw) -> None:
    """Any order and any batches end like the order of the stream, if the workers come last."""
    history = draw(signal_commands(unique_events=True))
    in_order = Checker(service, history)
    for position in in_order.positions:
        service.deliver([position])
    in_order.finish()
    wanted = ends_of_signals(service)
    checker = Checker(service, history, in_order=False)
    order = list(draw(st.permutations(checker.positions)))
    for size in draw(splits(len(order))):
        service.deliver(order[:size], size % INSTANCES)
        del order[:size]
    checker.finish()
    assert ends_of_signals(service) == wanted


def crashes_in_order(service: Service, draw: Draw) -> None:
    """Crashes and outages at any await; what was not handled is delivered again before anything newer."""
    checker = Checker(service, draw(mixed_commands()))
    faults = st.one_of(st.none(), _crashes(Point), _outages)
    for size in draw(splits(len(checker.positions))):
        left = [each for each in checker.positions if each not in checker.outcomes]
        service.deliver(left[:size], draw(_instances), draw(faults))
        while any(each not in checker.outcomes for each in left[:size]):
            service.broker.redeliver()
            service.deliver(left[:size])
        for worker in draw(st.lists(st.sampled_from(_WORKERS), max_size=3)):
            service.tick(worker, draw(_instances), draw(st.one_of(st.none(), _crashes(RELAY), _outages)))
        if draw(st.integers(0, 4)) == 4:
            checker.switch(draw(st.sampled_from(_SWITCHABLE)))
    checker.finish()


def anything(service: Service, draw: Draw) -> None:
    """Any order, any repeats, two instances, and whatever can happen to a process, at any await."""
    checker = Checker(service, draw(mixed_commands()), in_order=False)
    order = list(draw(st.permutations(checker.positions)))
    for size in draw(splits(len(order))):
        repeats = draw(st.lists(st.sampled_from(checker.positions), max_size=2))
        service.deliver([*order[:size], *repeats], draw(_instances), draw(_consumer_faults))
        del order[:size]
        for worker in draw(st.lists(st.sampled_from(_WORKERS), max_size=4)):
            service.tick(worker, draw(_instances), draw(_worker_faults))
        match draw(st.sampled_from(["nothing", "nothing", "let on", "crash", "wait", "switch", "redeliver"])):
            case "let on":
                service.let_on()
            case "crash":
                service.crash()
            case "wait":
                service.clock.advance(seconds=draw(st.sampled_from([1, 31, 61])))
            case "switch":
                service.let_on()
                checker.switch(draw(st.sampled_from(_SWITCHABLE)))
            case "redeliver":
                service.broker.redeliver()
    checker.finish()


WAYS: Mapping[str, Way] = {
    way.__name__: way
    for way in (
        plain_runs,
        plain_signals,
        split_runs,
        split_signals,
        split_crowd,
        any_order,
        promised_order_of_runs,
        promised_order_of_signals,
        crashes_in_order,
        anything,
    )
}

_instances = st.integers(0, INSTANCES - 1)
_occurrences = st.sampled_from([1, 1, 2, 3, 7])
_outages = st.builds(outage, point=st.sampled_from(OUTAGES), nth=_occurrences)
_consumer_holds = st.builds(hold, point=st.sampled_from(CONSUMER_MAY_HOLD), nth=_occurrences)
_worker_holds = st.builds(hold, point=st.sampled_from(RELAY_MAY_HOLD), nth=_occurrences)


def _crashes(points: Sequence[Point] | type[Point]) -> st.SearchStrategy[Fault]:
    return st.builds(crash, point=st.sampled_from(list(points)), nth=_occurrences)


_consumer_faults = st.one_of(st.none(), _consumer_holds, _crashes(Point), _outages)
_worker_faults = st.one_of(st.none(), _worker_holds, _crashes(RELAY), _outages)


def _deliver_split(checker: Checker, order: Sequence[Position], draw: Draw) -> None:
    left = list(order)
    settling = draw(st.booleans())
    for size in draw(splits(len(left))):
        checker.service.deliver(left[:size], size % INSTANCES)
        del left[:size]
        if settling:
            checker.service.settle()


def _apply(model: RunsModel, history: Sequence[Sent], order: Sequence[int]) -> None:
    """Apply a history to a model, one command in each batch."""
    for index in order:
        model.command(history[index].type, history[index].payload, Position(1, index + 1), 0)
        model.commit()


def _of_runs(tables: Mapping[str, Sequence[Row]]) -> Mapping[str, Sequence[Row]]:
    """Return the tables of runs."""
    return {name: rows for name, rows in tables.items() if name.startswith("run")}


def _bodies(service: Service) -> dict[str, str]:
    """Return what events say, by their ids, without when."""
    return {event["id"]: json.dumps(_timeless(event), sort_keys=True) for event in service.events()}


def _timeless(event: Mapping[str, Any]) -> Mapping[str, Any]:
    payload = {name: value for name, value in event["payload"].items() if name != "readyAt"}
    return {**event, "timestampMs": None, "payload": payload}
