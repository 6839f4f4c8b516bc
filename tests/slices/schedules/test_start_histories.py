"""Generated histories of schedules that start workflows, beside commands on the same ids and keys.

Everything agrees with a plain model, also if the process dies in a pass. The recurrences are simple: the model of
`tests.simulation` has the others.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from typing import Any, NamedTuple

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import StartingSchedules
from tests.simulation.faults import BrokerObserver, Crash, FaultyBroker, FaultyDatabase, Gate, Point, Process, crash
from tests.simulation.schedule_model import Firing, ScheduleModel, ScheduleName, Seen, read_definition
from tests.simulation.schedule_slots import slots_after
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.loop import Worker
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.core.values.message import Position

STEPS = 60
MOST_OPEN = 6
OFFSETS = {"s1": 0, "s2": 20_000, "s3": 40_000}
"""When the slots of each schedule begin. Two schedules are never due at one instant, so that the order is known."""
NEVER = Position(0, 0)


class Known(NamedTuple):
    """A workflow in the model, or what is remembered of it. `start` is its type and input; None if it has none."""

    start: tuple[str, Any] | None = None
    key: str | None = None
    is_open: bool = False
    started_by: Position = NEVER
    cancelled_by: Position = NEVER


class Model:
    """What the rows and the events must be."""

    def __init__(self) -> None:
        self.schedules = {name: ScheduleModel(ScheduleName("acme", name)) for name in OFFSETS}
        self.starts: dict[Position, Any] = {}
        """The `start` of each PutSchedule."""
        self.workflows: dict[str, Known] = {}
        self.skipped: set[tuple[str, str, str]] = set()
        """Schedule, workflow and reason of each ScheduleSkipped."""
        self.fired: set[tuple[str, str]] = set()
        """Schedule and slot of each ScheduleFired of a slot."""
        self.backfilled: set[tuple[str, str]] = set()
        """Schedule and slot of each ScheduleFired of a backfill. A slot that had fired before has no second one."""
        self.triggered: Counter[str] = Counter()
        """How many triggers of each schedule have a ScheduleFired."""

    def start(
        self, workflow: str, start: Any, position: Position, *, command: bool = False, backfill: bool = False
    ) -> str:
        """Start a workflow for a slot, a trigger, a backfill or a command. Return the outcome."""
        known = self.workflows.get(workflow, Known())
        wanted, key = (start["type"], start.get("input")), start.get("concurrencyKey")
        is_taken = key is not None and any(each.is_open and each.key == key for each in self.workflows.values())
        was_skipped = known.start == wanted and known.started_by == NEVER
        if known.start is not None and not (backfill and was_skipped and not is_taken):
            if known.started_by not in {NEVER, position} or command:
                return "unchanged" if known.start == wanted else "exists"
            return "unchanged" if known.started_by == position else "busy" if known.start == wanted else "exists"
        if position < known.cancelled_by:
            return "cancelled"
        if is_taken:
            self.workflows[workflow] = known._replace(start=wanted, key=key)
            return "busy"
        if sum(each.is_open for each in self.workflows.values()) >= MOST_OPEN:
            return "over_quota"
        self.workflows[workflow] = known._replace(start=wanted, key=key, is_open=True, started_by=position)
        return "started"

    def cancel(self, workflow: str, position: Position) -> None:
        known = self.workflows.get(workflow, Known())
        if position >= max(known.started_by, known.cancelled_by):
            self.workflows[workflow] = known._replace(is_open=False, cancelled_by=position)

    def trigger(self, name: str, position: Position) -> None:
        facts = self.schedules[name].facts
        if facts.definition is None:
            return
        if (start := self.starts[facts.defined_by]) is None:
            self.triggered[name] += 1
            return
        workflow = f"{name}/{position.epoch}-{position.sequence}"
        outcome = self.start(workflow, start, position)
        if outcome in {"busy", "exists", "cancelled"}:
            self.skipped.add((name, workflow, outcome))

    def backfill(self, name: str, position: Position, since: int, until: int) -> None:
        """Fire the slots in [`since`, `until`)."""
        facts = self.schedules[name].facts
        if facts.definition is None:
            return
        start = self.starts[facts.defined_by]
        for slot in takewhile(lambda slot: slot < until, slots_after(facts.definition.recurrence, since - 1)):
            workflow = f"{name}/{iso(slot)}"
            if start is None:
                self.backfilled |= {(name, iso(slot))} - self.fired
            elif (outcome := self.start(workflow, start, position, backfill=True)) not in {"started", "unchanged"}:
                self.skipped.add((name, workflow, outcome))

    def run_passes(self, now: int) -> None:
        """Fire everything that is due at `now`: the schedule that has waited longest comes first."""
        while due := [each for each in self.schedules.values() if each.is_due(now)]:
            for schedule in sorted(due, key=lambda each: each.next_slot or 0):
                self._fire(schedule, now)

    def _fire(self, schedule: ScheduleModel, now: int) -> None:
        *_, firing = schedule.possible_firings(now)
        before, name = schedule.progress, schedule.name.schedule
        start = self.starts[schedule.facts.defined_by]
        started, missed_since = [], firing.missed_since
        for slot in firing.slots:
            workflow = f"{name}/{iso(slot)}"
            outcome = "event" if start is None else self.start(workflow, start, schedule.facts.defined_by)
            if outcome == "event":
                self.fired.add((name, iso(slot)))
            if outcome in {"event", "started", "unchanged"}:
                started.append(slot)
                missed_since = None
            else:
                self.skipped.add((name, workflow, outcome))
                missed_since = missed_since or slot
        progress = firing.progress._replace(
            fired_count=before.fired_count + len(started),
            missed_since=missed_since if firing.slots else firing.progress.missed_since,
            last_slot=started[-1] if started else before.last_slot,
            last_fired=now if started else before.last_fired,
        )
        schedule.fire(Firing(progress, (), None))


class History:
    """Random commands and passes from a seed."""

    def __init__(self, service: StartingSchedules, seed: int) -> None:
        self.service = service
        self.rng = random.Random(seed)
        self.model = Model()

    async def run(self) -> None:
        actions = [self.put] * 3 + [
            self.pause_or_delete,
            self.trigger,
            self.backfill,
            self.start,
            self.start,
            self.cancel,
            self.cancel,
        ]
        for _ in range(STEPS):
            await self.rng.choice([*actions, *[self.advance] * 5])()
            await self.check()
        await self.check_events()

    async def send(self, message_type: str, **fields: Any) -> tuple[Position, int]:
        """Send a command and let it be handled. Return its position and its time."""
        self.service.send(message_type, **fields)
        await self.service.consume()
        return self.service.positions[-1], self.service.clock.now()

    async def put(self) -> None:
        name = self.rng.choice([*OFFSETS])
        start: Any = {"type": "order", "input": self.rng.choice([1, 1, 2])}
        start |= self.rng.choice([{}, {"concurrencyKey": "k"}, {"concurrencyKey": "k"}])
        fields: dict[str, Any] = {
            "every": "PT1M",
            "startAt": iso(after() + OFFSETS[name]),
            "catchUp": {"policy": self.rng.choice(["last", "skip", "all"]), "limit": 5},
            **self.rng.choice([{}, {}, {"maxCount": 3}]),
            **self.rng.choice([{"start": start}, {"start": start}, {"start": start}, {}]),
        }
        position, at = await self.send("PutSchedule", scheduleId=name, **fields)
        self.model.starts[position] = fields.get("start")
        definition = read_definition(fields)._replace(data=repr(fields.get("start")))
        self.model.schedules[name].command(Seen(position, "PutSchedule", at, definition))

    async def pause_or_delete(self) -> None:
        kind = self.rng.choice(["PauseSchedule", "ResumeSchedule", "ResumeSchedule", "DeleteSchedule"])
        name = self.rng.choice([*OFFSETS])
        position, at = await self.send(kind, scheduleId=name)
        self.model.schedules[name].command(Seen(position, kind, at))

    async def trigger(self) -> None:
        name = self.rng.choice([*OFFSETS])
        position, _ = await self.send("TriggerSchedule", scheduleId=name)
        self.model.trigger(name, position)

    async def backfill(self) -> None:
        """Backfill the last minutes. Sometimes the process dies in a pass; another one goes on."""
        name, now = self.rng.choice([*OFFSETS]), self.service.clock.now()
        since = now - self.rng.choice([60_000, 240_000])
        position, _ = await self.send("BackfillSchedule", scheduleId=name, from_=iso(since), to=iso(now))
        if self.rng.random() < 0.5:
            await self._die(lambda victim: victim.backfill_worker)
        await self.service.fire_backfills()
        self.model.backfill(name, position, since, now)

    async def start(self) -> None:
        """Start a workflow of the user: one with the id of a slot that comes soon, or one with the key."""
        workflow, start = self._slot(), {"type": "order", "input": self.rng.choice([1, 3])}
        start |= self.rng.choice([{}, {"concurrencyKey": "k"}])
        position, _ = await self.send("StartWorkflow", workflowId=workflow, **start)
        self.model.start(workflow, start, position, command=True)

    async def cancel(self) -> None:
        ids = [*self.model.workflows, self._slot()]
        workflow = self.rng.choice(ids[-8:])
        position, _ = await self.send("CancelWorkflow", workflowId=workflow)
        self.model.cancel(workflow, position)

    def _slot(self) -> str:
        name = self.rng.choice([*OFFSETS])
        minute = (self.service.clock.now() - after()) // 60_000 + self.rng.randint(0, 2)
        return f"{name}/{iso(after(minutes=minute) + OFFSETS[name])}"

    async def advance(self) -> None:
        """Let time pass, and fire what is due. Sometimes the process dies in a pass; another one goes on."""
        self.service.clock.advance(milliseconds=self.rng.choice([1, 20_000, 60_000, 60_000, 150_000, 600_000]))
        if self.rng.random() < 0.5:
            await self._die(lambda victim: victim.worker)
        await self.service.fire()
        self.model.run_passes(self.service.clock.now())

    async def _die(self, worker_of: Callable[[StartingSchedules], Worker]) -> None:
        """Let a process die in a pass of one of its workers."""
        service, gate = self.service, Gate(Process(lambda: None), Counter())
        database = FaultyDatabase(service.database, gate, exclusive=True)
        broker = FaultyBroker(service.broker, gate, BrokerObserver())
        victim = StartingSchedules(database, service.broker, service.clock, service_broker=broker, limits=LIMITS)
        gate.arm(crash(self.rng.choice([Point.BEFORE_STATEMENT, Point.AFTER_STATEMENT]), self.rng.randint(1, 9)))
        with suppress(Crash):
            await worker_of(victim).tick(service.clock.now())

    async def check(self) -> None:
        rows = {row["workflow_id"]: row for row in await self.service.workflow_rows()}
        found = {
            name: (
                row["type"] is not None,
                row["ended_at"] is None,
                Position(row["started_epoch"], row["started_sequence"]),
            )
            for name, row in rows.items()
        }
        wanted = {
            name: (known.start is not None, known.is_open, known.started_by)
            for name, known in self.model.workflows.items()
        }
        assert found == wanted
        for row in await self.service.all_rows():
            schedule = self.model.schedules[row["schedule_id"]]
            names = ("after_at", "fired_count", "missed_since", "last_slot_at", "last_fired_at", "end_reason")
            assert (row["status"], *(row[name] for name in names)) == (schedule.status, *schedule.progress[:6])

    async def check_events(self) -> None:
        for name in OFFSETS:
            skipped = await self.service.events_of("ScheduleSkipped", name)
            found = {(name, each["payload"]["workflowId"], each["payload"]["reason"]) for each in skipped}
            assert found == {each for each in self.model.skipped if each[0] == name}
            assert len({each["id"] for each in skipped}) == len(skipped)
            assert {(name, slot) for slot in await self.service.fired(name)} == {
                each for each in self.model.fired if each[0] == name
            }
            assert {(name, slot) for slot in await self.service.backfilled(name)} == {
                each for each in self.model.backfilled if each[0] == name
            }
            fired = await self.service.events_of("ScheduleFired", name)
            triggers = {each["id"] for each in fired if each["payload"]["cause"] == "trigger"}
            assert len(triggers) == self.model.triggered[name]


LIMITS = TenantLimits(default=Limits(open_workflows=MOST_OPEN))


async def play(store: Database, seed: int) -> History:
    history = History(StartingSchedules(store, MemoryBroker(), ManualClock(), limits=LIMITS), seed)
    await history.run()
    return history


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(each, marks=pytest.mark.slow) for each in range(4, 12))])
async def test_histories_agree_with_the_model(sqlite: SqliteDatabase, seed: int) -> None:
    """Rows, workflows and events are those of the model. Each history has starts, or skipped slots."""
    model = (await play(sqlite, seed)).model
    assert model.workflows
    assert model.skipped or model.fired
