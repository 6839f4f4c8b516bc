"""The state machine of the timer simulation. Its rules are the steps of users, clock, broker and process."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.harness.clock import iso
from tests.simulation.faults import (
    ERROR_POINTS,
    OUTAGE_POINTS,
    READER_OUTAGE_POINTS,
    READER_PAUSE_POINTS,
    RELAY_PAUSE_POINTS,
    RELAY_POINTS,
    Fault,
    Point,
    blocked,
    crash,
    error,
    outage,
    pause,
)
from tests.simulation.log_ledger import LogChange
from tests.simulation.timer_model import TimerCommand, TimerName
from tests.simulation.timer_system import INSTANCES, BrokerMode, TimerSystem
from timer_service.core.due.long_texts import LONGEST_IN_ROW
from timer_service.core.values.address import kebab
from timer_service.core.values.duration import format_duration

TALLY: Counter[str] = Counter()
"""The number of runs, steps, outcomes and faults in all runs together."""

_GRID_MS = 10_000
_INVALID_COMMANDS = {
    "not JSON": b"{",
    "not an envelope": b"[]",
    "of unknown type": b'{"type": "StopTimer", "tenantId": "acme", "payload": {}}',
    "of another tenant": b'{"type": "CancelTimer", "tenantId": "globex", "payload": {}}',
    "without a payload": b'{"type": "CancelTimer", "tenantId": "acme", "payload": {}}',
}


class Expiry(NamedTuple):
    """Whether the due time of a command is relative, and after how many milliseconds the timer then expires."""

    relative: bool = False
    late_by: int | None = None


_NAMES = [TimerName(*name.split("/")) for name in ("acme/xa", "acme/xb", "globex/xa", "acme/xc", "globex/xb")]
names = st.sampled_from(_NAMES)
broker_modes = st.sampled_from([BrokerMode.NORMAL, BrokerMode.NORMAL, *BrokerMode])
contents = st.sampled_from(
    [(None, "a"), (None, "a"), (None, "b"), ("1", "a"), ("2", None), (json.dumps("x" * LONGEST_IN_ROW), None)]
)
"""Pairs of data and topic."""
replacements = st.sampled_from([True, True, False])
expiries = st.builds(
    Expiry, relative=st.sampled_from([False, False, True]), late_by=st.sampled_from([None, None, None, 250, 10_000])
)
due_offsets = st.sampled_from([0, 0, -1, 1, 3])
occurrences = st.sampled_from([1, 1, 2, 3])
crashes = st.builds(crash, point=st.sampled_from(RELAY_POINTS), nth=occurrences)
outages = st.builds(outage, point=st.sampled_from(OUTAGE_POINTS), nth=occurrences)
relay_pauses = st.builds(pause, point=st.sampled_from(RELAY_PAUSE_POINTS), nth=occurrences)
relay_faults = st.one_of(relay_pauses, relay_pauses, crashes, outages)
reader_faults = st.one_of(
    st.none(),
    st.builds(pause, point=st.sampled_from(READER_PAUSE_POINTS), nth=occurrences),
    st.builds(crash, point=st.sampled_from(Point), nth=occurrences),
    st.builds(outage, point=st.sampled_from(READER_OUTAGE_POINTS), nth=occurrences),
    st.builds(error, point=st.sampled_from(ERROR_POINTS), nth=occurrences),
    st.builds(blocked, point=st.sampled_from(ERROR_POINTS), nth=occurrences),
)


class TimerStateMachine(RuleBasedStateMachine):
    """The steps of one run. `TimerSystem` checks every commit, and the invariant is checked after every step.

    Keep the rules few. Hypothesis leaves out some of them in each run, so it rarely finds a defect that needs many.
    """

    def __init__(self) -> None:
        super().__init__()
        self.system = TimerSystem()
        self.system.start(exclusive=True)
        self._generations: Counter[TimerName] = Counter()

    # Users

    @initialize(due=st.lists(due_offsets, min_size=2, max_size=len(_NAMES)), mode=broker_modes, defers=st.booleans())
    def begin(self, due: list[int], mode: BrokerMode, defers: bool) -> None:  # noqa: FBT001
        """Schedule some timers. If `defers` is set, the handler defers as many commands as it can."""
        self.system.defers = defers
        self.system.set_broker_mode(mode)
        for name, each in zip(_NAMES, due, strict=False):
            self.schedule(name, each, (None, "a"), at_once=True, replace=False, expiry=Expiry())

    @rule(name=names, due=due_offsets, content=contents, at_once=st.booleans(), replace=replacements, expiry=expiries)
    def schedule(
        self,
        name: TimerName,
        due: int,
        content: tuple[str | None, str | None],
        *,
        at_once: bool,
        replace: bool,
        expiry: Expiry,
    ) -> None:
        """Schedule a timer at a multiple of ten seconds near now. The values are few, so that many are equal.

        A reached timer never changes again. If `replace` is set, its name then stands for a new call. If `expiry` says
        so, the due time is a duration from now on, and the timer expires.
        """
        if replace and self.system.reached(self._current(name)):
            self._generations[name] += 1
        data, topic = content
        due_at = (self.system.clock.now() // _GRID_MS + due) * _GRID_MS
        fields = {"dueAt": iso(due_at)}
        if expiry.relative:
            due_in = max(due_at - self.system.clock.now(), 0)
            fields, due_at = {"dueIn": format_duration(due_in)}, self.system.clock.now() + due_in
        if expiry.late_by is not None:
            fields["lateBy"] = format_duration(expiry.late_by)
        expires_at = None if expiry.late_by is None else due_at + expiry.late_by
        if topic is not None:
            fields["topic"] = topic
        self._send("ScheduleTimer", name, fields, due_at=due_at, data=data, expires_at=expires_at)
        self._handle(at_once=at_once)

    @rule(name=names, message=st.sampled_from(["CancelTimer", "CancelTimers", "RetryTimer"]), at_once=st.booleans())
    def change(self, name: TimerName, message: str, at_once: bool) -> None:  # noqa: FBT001
        """Cancel or retry a timer, or cancel all timers of a tenant, or those whose ids begin with a name."""
        self._send(message, name, {})
        self._handle(at_once=at_once)

    def _handle(self, *, at_once: bool) -> None:
        if at_once and self.system.idle_readers:
            self.system.read(self.system.idle_readers[0])

    @precondition(lambda self: self.system.failed)
    @rule(which=st.integers(0, 3))
    def retry_failed(self, which: int) -> None:
        failed = self.system.failed
        self._send("RetryTimer", failed[which % len(failed)], {})

    @rule(what=st.sampled_from(sorted(_INVALID_COMMANDS)))
    def send_invalid_command(self, what: str) -> None:
        self.system.send(TimerCommand(what, None, _INVALID_COMMANDS[what]), "cancel-timer", "acme")

    @rule(name=names)
    def send_failing_command(self, name: TimerName) -> None:
        """Send a valid command whose handler fails each time."""
        self._send("CancelTimer", name, {}, fails=True)

    def _current(self, name: TimerName) -> TimerName:
        return name._replace(call=f"{name.call}{self._generations[name] or ''}")

    def _send(
        self,
        message: str,
        name: TimerName,
        fields: Mapping[str, Any],
        *,
        due_at: int | None = None,
        data: str | None = None,
        expires_at: int | None = None,
        fails: bool = False,
    ) -> None:
        if message == "CancelTimers":
            name = name._replace(call="x") if name.call == "xa" else name
        else:
            name = self._current(name)
        target = "prefix" if message == "CancelTimers" else "serviceCallId"
        payload = {target: name.call, **fields, **({} if data is None else {"data": json.loads(data)})}
        body = json.dumps({"type": message, "tenantId": name.tenant, "payload": payload}).encode()
        sent = TimerCommand(message, name, body, due_at, data, expires_at, fields.get("topic"))
        self.system.send(sent, kebab(message), name.tenant, fails=fails)

    # The broker

    @rule(mode=broker_modes)
    def change_broker_mode(self, mode: BrokerMode) -> None:
        self.system.set_broker_mode(mode)

    @rule(change=st.sampled_from(LogChange))
    def change_log(self, change: LogChange) -> None:
        self.system.change_log(change)

    # Time

    @rule(seconds=st.sampled_from([0.25, 1, 4, 10, 31, 31, 300]))
    def wait(self, seconds: float) -> None:
        self.system.clock.advance(seconds=seconds)

    # The process

    @precondition(lambda self: not self.system.is_running)
    @rule(exclusive=st.booleans(), fault=st.none() | crashes)
    def start(self, exclusive: bool, fault: Fault | None) -> None:  # noqa: FBT001
        self.system.start(exclusive=exclusive, fault=fault)

    @precondition(lambda self: self.system.idle_readers)
    @rule(which=st.integers(0, INSTANCES - 1), fault=reader_faults, stops=st.sampled_from([False] * 7 + [True]))
    def read(self, which: int, fault: Fault | None, stops: bool) -> None:  # noqa: FBT001
        """Let a reader take a step, or stop in order."""
        idle = self.system.idle_readers
        step = self.system.stop_reader if stops else self.system.read
        step(idle[which % len(idle)], fault)

    @precondition(lambda self: self.system.idle_relays)
    @rule()
    def tick(self) -> None:
        self.system.tick(self.system.idle_relays[0])

    @precondition(lambda self: self.system.idle_relays)
    @rule(which=st.integers(0, INSTANCES - 1), fault=relay_faults)
    def tick_with_fault(self, which: int, fault: Fault) -> None:
        idle = self.system.idle_relays
        self.system.tick(idle[which % len(idle)], fault)

    @precondition(lambda self: self.system.idle_cancellations)
    @rule(which=st.integers(0, INSTANCES - 1), fault=st.none() | relay_faults)
    def pass_cancellations(self, which: int, fault: Fault | None) -> None:
        idle = self.system.idle_cancellations
        self.system.pass_cancellations(idle[which % len(idle)], fault)

    @precondition(lambda self: self.system.paused)
    @rule(which=st.integers(0, 3), fault=st.none() | relay_faults)
    def resume(self, which: int, fault: Fault | None) -> None:
        paused = self.system.paused
        self.system.resume(paused[which % len(paused)], fault)

    # The invariant

    @invariant()
    def invariants_hold(self) -> None:
        TALLY["steps"] += 1
        self.system.check()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[1] is None:
                self.system.finish()
        finally:
            self.system.close()
            TALLY.update(["runs"])
            TALLY.update({str(what): count for what, count in self.system.counts.items()})
            TALLY.update(self.system.model.outcomes)
