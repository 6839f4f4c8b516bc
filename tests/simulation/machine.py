"""The state machine: what users, time, the broker and fate may do, in any order."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.harness.clock import iso
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
from tests.simulation.model import Name, Sent
from tests.simulation.world import INSTANCES, Weather, World
from timer_service.core.message import kebab

TALLY: Counter[str] = Counter()
"""What all runs together have seen."""

_GRID_MS = 10_000
_NONSENSE = {
    "not JSON": b"{",
    "not an envelope": b"[]",
    "of unknown type": b'{"type": "StopTimer", "tenantId": "acme", "payload": {}}',
    "of another tenant": b'{"type": "CancelTimer", "tenantId": "globex", "payload": {}}',
    "without a payload": b'{"type": "CancelTimer", "tenantId": "acme", "payload": {}}',
}

_NAMES = [Name(tenant, call) for tenant in ("acme", "globex") for call in ("a", "b")]
names = st.sampled_from(_NAMES)
weathers = st.sampled_from([Weather.WELL, Weather.WELL, *Weather])
contents = st.sampled_from([None, None, "1", "2"])
dues = st.sampled_from([0, 0, -1, 1, 3])
occurrences = st.sampled_from([1, 1, 2, 3])
crashes = st.builds(crash, point=st.sampled_from(RELAY), nth=occurrences)
outages = st.builds(outage, point=st.sampled_from(OUTAGES), nth=occurrences)
relay_holds = st.builds(hold, point=st.sampled_from(RELAY_MAY_HOLD), nth=occurrences)
relay_faults = st.one_of(relay_holds, relay_holds, crashes, outages)
consumer_faults = st.one_of(
    st.none(),
    st.builds(hold, point=st.sampled_from(CONSUMER_MAY_HOLD), nth=occurrences),
    st.builds(crash, point=st.sampled_from(Point), nth=occurrences),
    outages,
)


class Simulation(RuleBasedStateMachine):
    """Runs a world; its invariants are checked by the world as things happen, and once more after every step.

    The rules are few and weigh alike: a run leaves some of them out, and what takes many to find would never be found.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.start(exclusive=True)
        self._generations: Counter[Name] = Counter()

    # Users

    @initialize(due=st.lists(dues, min_size=2, max_size=len(_NAMES)), weather=weathers)
    def begin(self, due: list[int], weather: Weather) -> None:
        """Some timers are there already."""
        self.world.weather(weather)
        for name, each in zip(_NAMES, due, strict=False):
            self.schedule(name, each, None, at_once=True, anew=False)

    @rule(name=names, due=dues, data=contents, at_once=st.booleans(), anew=st.sampled_from([True, True, False]))
    def schedule(self, name: Name, due: int, data: str | None, at_once: bool, anew: bool) -> None:  # noqa: FBT001
        """Due times and data are few, so that they collide: the last full ten seconds, and some before or after.

        A timer that was reached is so for ever: mostly (`anew`) its name goes to another one then.
        """
        if anew and self.world.reached(self._current(name)):
            self._generations[name] += 1
        due_at = (self.world.clock.now() // _GRID_MS + due) * _GRID_MS
        self._send("ScheduleTimer", name, {"dueAt": iso(due_at)}, due_at, data)
        self._handle(at_once=at_once)

    @rule(name=names, message=st.sampled_from(["CancelTimer", "CancelTimer", "RetryTimer"]), at_once=st.booleans())
    def change(self, name: Name, message: str, at_once: bool) -> None:  # noqa: FBT001
        self._send(message, name, {})
        self._handle(at_once=at_once)

    def _handle(self, *, at_once: bool) -> None:
        if at_once and self.world.may_consume:
            self.world.consume(self.world.may_consume[0])

    @precondition(lambda self: self.world.failed)
    @rule(which=st.integers(0, 3))
    def retry_failed(self, which: int) -> None:
        failed = self.world.failed
        self._send("RetryTimer", failed[which % len(failed)], {})

    @rule(what=st.sampled_from(sorted(_NONSENSE)))
    def send_nonsense(self, what: str) -> None:
        self.world.send(Sent(what, None, _NONSENSE[what]), "cancel-timer", "acme")

    def _current(self, name: Name) -> Name:
        return name._replace(call=f"{name.call}{self._generations[name] or ''}")

    def _send(
        self,
        message: str,
        name: Name,
        fields: Mapping[str, Any],
        due_at: int | None = None,
        data: str | None = None,
    ) -> None:
        name = self._current(name)
        payload = {"serviceCallId": name.call, **fields, **({} if data is None else {"data": json.loads(data)})}
        body = json.dumps({"type": message, "tenantId": name.tenant, "payload": payload}).encode()
        self.world.send(Sent(message, name, body, due_at, data), kebab(message), name.tenant)

    # The broker

    @precondition(lambda self: self.world.sent)
    @rule(back=st.none() | st.integers(0, 7))
    def deliver(self, back: int | None) -> None:
        """Any command can come next, for the first time, too early, or once more; or all that are not settled."""
        positions = list(self.world.sent)
        if back is None:
            self.world.broker.redeliver()
        else:
            self.world.broker.deliver(positions[-1 - back % len(positions)])

    @rule(weather=weathers)
    def broker_is(self, weather: Weather) -> None:
        self.world.weather(weather)

    # Time

    @rule(seconds=st.sampled_from([0.25, 1, 10, 31, 31, 300]))
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds=seconds)

    # The process

    @precondition(lambda self: not self.world.runs)
    @rule(exclusive=st.booleans(), fault=st.none() | crashes)
    def start(self, exclusive: bool, fault: Fault | None) -> None:  # noqa: FBT001
        self.world.start(exclusive=exclusive, fault=fault)

    @precondition(lambda self: self.world.may_consume)
    @rule(which=st.integers(0, INSTANCES - 1), fault=consumer_faults)
    def consume(self, which: int, fault: Fault | None) -> None:
        idle = self.world.may_consume
        self.world.consume(idle[which % len(idle)], fault)

    @precondition(lambda self: self.world.may_tick)
    @rule()
    def tick(self) -> None:
        self.world.tick(self.world.may_tick[0])

    @precondition(lambda self: self.world.may_tick)
    @rule(which=st.integers(0, INSTANCES - 1), fault=relay_faults)
    def tick_and(self, which: int, fault: Fault) -> None:
        idle = self.world.may_tick
        self.world.tick(idle[which % len(idle)], fault)

    @precondition(lambda self: self.world.held)
    @rule(which=st.integers(0, 3), fault=st.none() | relay_faults)
    def let_on(self, which: int, fault: Fault | None) -> None:
        held = self.world.held
        self.world.let_on(held[which % len(held)], fault)

    # What must hold

    @invariant()
    def nothing_is_amiss(self) -> None:
        TALLY["steps"] += 1
        self.world.check()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[1] is None:
                self.world.heal()
        finally:
            self.world.close()
            TALLY.update(["runs"])
            TALLY.update({str(what): count for what, count in self.world.counts.items()})
            TALLY.update(self.world.model.outcomes)
