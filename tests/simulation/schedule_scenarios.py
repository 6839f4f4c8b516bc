"""The scenarios of schedules. Time passes between the commands, and clocks change."""

from hypothesis import strategies as st

from tests.simulation.checker import Checker
from tests.simulation.draws import Draw, consumer_faults, instances, worker_faults
from tests.simulation.mixed_histories import splits
from tests.simulation.schedule_histories import BEGINNINGS, HOUR, MINUTE, SECOND, schedule_commands
from tests.simulation.service import INSTANCES, SentCommand, Service

_STEPS = [0, SECOND, 20 * SECOND, 59 * SECOND, 61 * SECOND, 10 * MINUTE, 10 * MINUTE, HOUR, 2 * HOUR]
_ACTIONS = ["deliver"] * 4 + ["tick"] * 3 + ["publish", "wait", "wait", "resume", "crash", "redeliver"]
_RARE_ACTIONS = ["set back", "stop broker", "start broker", "switch"]


def schedules_one_by_one(service: Service, draw: Draw) -> None:
    """Deliver one command per batch in stream order. Time passes before each of them."""
    checker, history = _begin(service, draw)
    for sent in history:
        _wait(service, draw)
        service.deliver(checker.send([sent]))
        if draw(st.booleans()):
            service.settle()
    _wait(service, draw)
    checker.finish()
    checker.check_retention()


def schedules_in_any_order(service: Service, draw: Draw) -> None:
    """Deliver commands that were sent at different times, in any order and in any batches, some of them twice."""
    checker, history = _begin(service, draw)
    for sent in history:
        checker.send([sent])
        _wait(service, draw)
    order = list(draw(st.permutations(checker.positions)))
    order += draw(st.lists(st.sampled_from(order), max_size=3))
    for size in draw(splits(len(order))):
        service.deliver(order[:size], size % INSTANCES)
        del order[:size]
        if draw(st.booleans()):
            _wait(service, draw)
            service.settle()
    checker.finish()
    checker.check_retention()


def schedules_with_faults(service: Service, draw: Draw) -> None:
    """Deliver in any order, with any fault at any await, outages of the broker, pauses and clock steps."""
    checker, history = _begin(service, draw)
    for sent in history:
        checker.send([sent])
        for action in draw(st.lists(st.sampled_from([*_ACTIONS * 2, *_RARE_ACTIONS]), max_size=8)):
            _act(checker, action, draw)
    checker.finish()


def _begin(service: Service, draw: Draw) -> tuple[Checker, list[SentCommand]]:
    beginning = draw(st.sampled_from(BEGINNINGS))
    checker = Checker(service, [], in_order=False)
    service.clock.set(beginning)
    return checker, draw(schedule_commands(beginning=beginning))


def _wait(service: Service, draw: Draw) -> None:
    service.clock.set(service.clock.now() + draw(st.sampled_from(_STEPS)))


def _act(checker: Checker, action: str, draw: Draw) -> None:
    service = checker.service
    match action:
        case "deliver":
            if service.broker.health.usable:
                positions = draw(st.lists(st.sampled_from(checker.positions), min_size=1, max_size=4))
                service.deliver(positions, draw(instances), draw(consumer_faults))
        case "tick":
            service.tick("schedules", draw(instances), draw(worker_faults))
        case "publish":
            service.tick("outbox", draw(instances), draw(worker_faults))
        case "wait":
            _wait(service, draw)
        case "set back":
            service.clock.set(service.clock.now() - draw(st.sampled_from(_STEPS)))
        case "resume":
            service.resume()
        case "crash":
            service.crash()
        case "redeliver":
            service.broker.redeliver()
        case "stop broker":
            service.stop_broker()
        case "start broker":
            service.start_broker()
        case _:
            service.disabled ^= {"schedules"}
