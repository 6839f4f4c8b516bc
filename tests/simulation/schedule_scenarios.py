"""The scenarios of schedules. Time passes between the commands, and clocks change."""

from collections import Counter
from collections.abc import Callable

from hypothesis import strategies as st

from tests.simulation.checker import Checker
from tests.simulation.draws import Draw, consumer_faults, crashes, instances, worker_faults
from tests.simulation.faults import Point
from tests.simulation.mixed_histories import splits
from tests.simulation.schedule_histories import BEGINNINGS, HOUR, MINUTE, SECOND, schedule_commands
from tests.simulation.service import INSTANCES, SentCommand, Service
from timer_service.core.values.message import Position

_STEPS = [0, SECOND, 20 * SECOND, 59 * SECOND, 61 * SECOND, 10 * MINUTE, 10 * MINUTE, HOUR, 2 * HOUR]
_faults_of_passes = st.one_of(worker_faults, crashes([Point.AFTER_STATEMENT, Point.BEFORE_COMMIT, Point.AFTER_COMMIT]))
_MOST_DELIVERIES = 3
"""How often a command is delivered before the end. From the sixth time on, it is suspected of ending the process."""


def schedules_one_by_one(service: Service, draw: Draw) -> None:
    """Deliver one command per batch in stream order. Time passes before each of them."""
    checker, history = _begin(service, draw)
    for sent in history:
        _wait(service, draw)
        if draw(st.booleans()):
            service.settle("schedules", "backfills", "outbox")
        service.deliver(checker.send([sent]))
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
            service.settle("schedules", "backfills", "outbox")
    checker.finish()
    checker.check_retention()


def schedules_with_faults(service: Service, draw: Draw) -> None:
    """Deliver in any order, with any fault at any await, outages of the broker, pauses and clock steps."""
    checker, history = _begin(service, draw)
    steps = _Steps(checker, draw)
    common = [steps.deliver] * 4 + [steps.fire] * 2 + [steps.fire_later] * 4 + [steps.backfill] * 2
    common += [steps.publish, service.resume]
    rare = [service.crash, steps.set_clock_back, service.stop_broker, service.start_broker, steps.switch]
    actions: st.SearchStrategy[list[Callable[[], None]]] = st.lists(
        st.sampled_from([*common, *rare]), min_size=1, max_size=8
    )
    service.deliver(checker.send(history[:1]))
    for sent in history[1:]:
        for act in draw(actions):
            act()
        checker.send([sent])
    for act in draw(actions):
        act()
    service.clock.set(service.clock.now() + service.clock.set_back_ms)  # not earlier than it ever was
    checker.finish()


class _Steps:
    """The steps of a history with faults."""

    def __init__(self, checker: Checker, draw: Draw) -> None:
        self._checker = checker
        self._service = checker.service
        self._draw = draw
        self._delivered: Counter[Position] = Counter()

    def deliver(self) -> None:
        """Deliver some commands, handled ones too, unless the broker is away."""
        known = [each for each in self._checker.positions if self._delivered[each] < _MOST_DELIVERIES]
        if known and self._service.broker.health.usable:
            chosen = self._draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
            self._delivered.update(chosen)
            self._service.deliver(chosen, self._draw(instances), self._draw(consumer_faults))

    def fire(self) -> None:
        self._service.tick("schedules", self._draw(instances), self._draw(_faults_of_passes))

    def fire_later(self) -> None:
        _wait(self._service, self._draw)
        self.fire()

    def backfill(self) -> None:
        self._service.tick("backfills", self._draw(instances), self._draw(_faults_of_passes))

    def publish(self) -> None:
        self._service.tick("outbox", self._draw(instances), self._draw(worker_faults))

    def set_clock_back(self) -> None:
        """Set the clock back, by an hour at most in a history: a cursor that is further ahead would move back."""
        clock, step = self._service.clock, self._draw(st.sampled_from(_STEPS))
        if clock.set_back_ms + step <= HOUR:
            clock.set(clock.now() - step)

    def switch(self) -> None:
        """Switch schedules off or on."""
        self._service.disabled ^= {"schedules"}


def _begin(service: Service, draw: Draw) -> tuple[Checker, list[SentCommand]]:
    beginning = draw(st.sampled_from(BEGINNINGS))
    checker = Checker(service, [], in_order=False)
    service.clock.set(beginning)
    return checker, draw(schedule_commands(beginning=beginning))


def _wait(service: Service, draw: Draw) -> None:
    service.clock.set(service.clock.now() + draw(st.sampled_from(_STEPS)))
