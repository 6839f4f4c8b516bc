"""The scenarios of schedules. Time passes between the commands, and clocks change."""

from collections.abc import Callable

from hypothesis import strategies as st

from tests.harness.zone_releases import RULE_CHANGES, releases, use_release
from tests.simulation.checker import Checker
from tests.simulation.draws import Draw, crashes, instances, reader_faults, worker_faults
from tests.simulation.faults import Point
from tests.simulation.schedule_histories import BEGINNINGS, HOUR, MINUTE, SECOND, schedule_commands
from tests.simulation.service import SentCommand, Service

_STEPS = [0, SECOND, 20 * SECOND, 59 * SECOND, 61 * SECOND, 10 * MINUTE, 10 * MINUTE, HOUR, 2 * HOUR]
_RULE_CHANGES = [each for each in RULE_CHANGES if each.zone in {"Africa/Cairo", "Asia/Almaty"}]
"""The clocks go forward by an hour with the one, and back with the other."""
_faults_of_passes = st.one_of(worker_faults, crashes([Point.AFTER_STATEMENT, Point.BEFORE_COMMIT, Point.AFTER_COMMIT]))


def schedules_one_by_one(service: Service, draw: Draw) -> None:
    """Publish one command and read it. Time passes before each of them."""
    checker, history = _begin(service, draw)
    for sent in history:
        _wait(service, draw)
        if draw(st.booleans()):
            service.settle("schedules", "backfills", "outbox")
        checker.send([sent])
        service.catch_up()
    _wait(service, draw)
    checker.finish()
    checker.check_retention()


def schedules_read_late(service: Service, draw: Draw) -> None:
    """Publish commands at different times, and read them later, in batches of any size."""
    checker, history = _begin(service, draw)
    for sent in history:
        checker.send([sent])
        _wait(service, draw)
        if draw(st.integers(0, 3)) == 3:
            service.settle("schedules", "backfills", "outbox")
    service.is_crowded = draw(st.booleans())
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        service.most_commands = size
        service.read()
        if draw(st.booleans()):
            _wait(service, draw)
            service.settle("schedules", "backfills", "outbox")
    checker.finish()
    checker.check_retention()


def schedules_with_faults(service: Service, draw: Draw) -> None:
    """Two readers, with any fault at any await, outages of the broker, pauses and clock steps."""
    checker, history = _begin(service, draw)
    steps = _Steps(checker, draw)
    common = [steps.read] * 4 + [steps.fire] * 2 + [steps.fire_later] * 4 + [steps.backfill] * 2
    common += [steps.publish, service.resume]
    rare = [service.crash, steps.set_clock_back, service.stop_broker, service.start_broker, steps.switch]
    actions: st.SearchStrategy[list[Callable[[], None]]] = st.lists(
        st.sampled_from([*common, *rare]), min_size=1, max_size=8
    )
    service.is_crowded = draw(st.booleans())
    checker.send(history[:1])
    service.read()
    for sent in history[1:]:
        for act in draw(actions):
            act()
        checker.send([sent])
    for act in draw(actions):
        act()
    service.clock.set(service.clock.now() + service.clock.set_back_ms)  # not earlier than it ever was
    checker.finish()


def schedules_with_new_rules(service: Service, draw: Draw) -> None:
    """The process starts again with other rules of the zone, at any time around the slots that they move."""
    change = draw(st.sampled_from(_RULE_CHANGES))
    beginning = change.since + HOUR
    with releases():
        use_release(change.before)
        checker = Checker(service, at=beginning)
        history = draw(schedule_commands(beginning=beginning, zone=change.zone))
        last_before = draw(st.integers(0, len(history) - 1))
        for number, sent in enumerate(history):
            checker.send([sent])
            service.catch_up()
            _wait(service, draw)
            if number == last_before or draw(st.booleans()):
                service.settle("schedules", "backfills", "outbox")
            if number == last_before:
                _wait(service, draw)
                with checker.schedules.new_rules():
                    use_release(change.after)
                service.crash()
                service.settle("schedules")
        checker.finish()
        checker.check_retention()


class _Steps:
    """The steps of a history with faults."""

    def __init__(self, checker: Checker, draw: Draw) -> None:
        self._checker = checker
        self._service = checker.service
        self._draw = draw

    def read(self) -> None:
        """Let a reader take a step, with some of the commands of the log."""
        self._service.most_commands = self._draw(st.integers(1, 4))
        self._service.read(self._draw(instances), self._draw(reader_faults))

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
    return Checker(service, at=beginning), draw(schedule_commands(beginning=beginning))


def _wait(service: Service, draw: Draw) -> None:
    service.clock.set(service.clock.now() + draw(st.sampled_from(_STEPS)))
