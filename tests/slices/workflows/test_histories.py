"""Generated histories: commands, and workers that repeat, delay and lose requests. Invariants hold after each step."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.clock_repair import scan
from tests.harness.workflows import LEASE_MS, Workflows, complete, done, fail, failed, release, sleep, wait_for
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import build_clock_repair
from timer_service.core.ports.database import Database
from timer_service.workflows.effect import size_of

STEPS = 120
IDS = ("a", "b", "c", "d", "e", "f")
NAMES = ("x", "y")


class History:
    """Random requests from a seed, by workers that know only what the service told them."""

    def __init__(self, workflows: Workflows, seed: int, *, sets_clock_back: bool = False) -> None:
        self.workflows = workflows
        self.sets_clock_back = sets_clock_back
        """Whether the clock is also set back. Then rows may wait longer, until the clock repair has corrected them."""
        self.rng = random.Random(seed)
        self.tasks: list[Any] = []
        """Every task that was sent. Most of them are lost by now."""
        self.current: list[Any] = []
        """The tasks that their workers still have, as far as they know."""
        self.reports: list[tuple[Any, int, Any, Any]] = []
        self.handled: Counter[tuple[str, str]] = Counter()
        """For each workflow and token, the highest number of a report that was handled."""
        self.number = 0
        self.results: dict[tuple[str, ...], Any] = {}
        """Each stored result and number, as it was seen first."""

    async def run(self) -> None:
        actions = [
            *(self.command, self.poll, self.advance, self.report, self.report, self.report, self.report),
            *(self.repeat, self.renew, self.end_overdue),
            *([self.jump, self.repair] if self.sets_clock_back else []),
        ]
        for name in IDS[:3]:
            assert await self.workflows.start(name, retry={"maxAttempts": 2}) == "started"
        for _ in range(STEPS):
            await self.rng.choice(actions)()
            await self.check()

    async def command(self) -> None:
        self.number += 1
        about: dict[str, Any] = {"workflowId": self.rng.choice(IDS)}
        match self.rng.choice(["Start", "Start", "SendTo", "SendTo", "SendTo", "Cancel", "Retry"]):
            case "Start":
                deadline: dict[str, Any] = self.rng.choice([{}, {}, {"deadlineIn": "PT5M"}])
                key: dict[str, Any] = self.rng.choice([{}, {"concurrencyKey": "k"}])
                self.workflows.send("StartWorkflow", type="order", retry={"maxAttempts": 2}, **about, **deadline, **key)
            case "SendTo":
                name = self.rng.choice(NAMES)
                self.workflows.send("SendToWorkflow", name=name, data=f"message {self.number}", **about)
            case "Cancel" if self.rng.random() < 0.3:
                self.workflows.send("CancelWorkflow", **about)
            case _:
                self.workflows.send("RetryWorkflow", **about)
        await self.workflows.consume()

    async def poll(self) -> None:
        self.workflows.may_time_out = self.rng.random() < 0.8
        found = await self.workflows.poll(self.rng.randint(1, 3))
        self.tasks += found
        self.current += found

    async def advance(self) -> None:
        self.workflows.clock.advance(milliseconds=self.rng.choice([1, 500, 5000, LEASE_MS, 120_000]))

    async def jump(self) -> None:
        """Workers get tasks and send a report, and then the clock is set back by an hour. It may have been ahead."""
        self.workflows.clock.advance(hours=self.rng.choice([0, 1, 1]))
        await self.poll()
        await self.report()
        self.workflows.clock.advance(hours=-1)

    async def repair(self) -> None:
        """Run a scan of the clock repair. Afterwards no row counts from the future."""
        now = self.workflows.clock.now()
        await scan(build_clock_repair(self.workflows.parts), self.workflows.clock)
        for table in ("workflows", "workflow_effects"):
            counted = [row["counted_from"] for row in await self.workflows.all_rows(table)]
            assert all(at is None or at <= now + 1000 for at in counted)

    def _fields(self, effects: dict[str, Any]) -> dict[str, Any]:
        """Return what a worker reports: new effects under free keys, and results that it delivers now."""
        fields: dict[str, Any] = {"steps": [], "waits": [], "seen": []}
        name = self.rng.choice(NAMES)
        count = sum(key.partition(":")[0] == name for key in effects)
        key = f"{name}:{count}" if count else name
        kind = self.rng.choice(["step", "failed", "sleep", "wait", "again", "nothing"])
        self.number += 1
        open_steps = [each for each in effects.values() if each["kind"] == "step" and each["status"] == "open"]
        if kind == "again" and open_steps:
            step = self.rng.choice(open_steps)
            attempt = step.get("failures", 0) + 1
            ended = self.rng.choice([done(step["key"], self.number, attempt), failed(step["key"], attempt)])
            fields["steps"] = [ended]
        elif kind == "step":
            fields["steps"] = [done(key, f"result {self.number}")]
        elif kind == "failed":
            fields["steps"] = [failed(key, afterMs=self.rng.choice([0, 700]))]
        elif kind == "sleep":
            fields["waits"] = [sleep(key, self.rng.choice([0, 1, 3000]))]
        elif kind == "wait":
            fields["waits"] = [wait_for(key, self.rng.choice([None, 2000]))]
        ready = [each for each in effects.values() if each["status"] != "open" and "seq" not in each]
        self.rng.shuffle(ready)
        seq = sum("seq" in each for each in effects.values())
        fields["seen"] = [{"key": each["key"], "seq": seq + n} for n, each in enumerate(ready, 1)]
        return fields

    async def report(self) -> None:
        if not self.current:
            self.workflows.clock.advance(seconds=3)
            await self.poll()
        if not self.tasks:
            return
        task = self.rng.choice(self.current if self.current and self.rng.random() < 0.9 else self.tasks)
        page = await self.workflows.effects(task)
        effects = {each["key"]: each for each in page.get("effects", [])}
        fields = self._fields(effects)
        go_on, park = {"action": "continue"}, {"action": "park"}
        ends = [complete(self.number), fail(), fail(), release(), release("non_deterministic", "no")]
        then = self.rng.choice([go_on, go_on, go_on, park, park, park, self.rng.choice(ends)])
        number = self.handled[_id(task)] + 1
        self.reports.append((task, number, then, fields))
        await self._send(task, number, then, fields)

    async def repeat(self) -> None:
        if self.reports:
            await self._send(*self.rng.choice(self.reports[-5:]))

    async def _send(self, task: Any, number: int, then: Any, fields: Any) -> None:
        before = await self.snapshot()
        outcome = (await self.workflows.report(task, then, number=number, **fields))["outcome"]
        if number < self.handled[_id(task)]:
            assert outcome in {"lost", "unchanged"}
            assert await self.snapshot() == before
            return
        if outcome in {"lost", "unchanged", "conflict"}:
            assert await self.snapshot() == before, outcome
        if outcome not in {"recorded", "resumed", "conflict"} and task in self.current:
            self.current.remove(task)
        if outcome not in {"lost", "unchanged", "conflict"}:
            self.handled[_id(task)] = number
            await self._check_stored(task["workflowId"], fields)
        if outcome == "conflict":
            assert (task, number, then, fields) in self.reports

    async def _check_stored(self, workflow: str, fields: Any) -> None:
        """What a report with another outcome says is stored."""
        rows = [each for each in await self.workflows.all_rows("workflow_effects") if each["workflow_id"] == workflow]
        stored = {f"{each['name']}:{each['n']}".removesuffix(":0"): each for each in rows}
        assert all(stored[each["key"]]["seq"] == each["seq"] for each in fields["seen"])
        assert all(stored[each["key"]]["kind"] == each["kind"] for each in fields["waits"])
        assert all(
            stored[each["key"]]["failures"] >= each["attempt"] - ("error" not in each) for each in fields["steps"]
        )

    async def renew(self) -> None:
        if self.tasks:
            await self.workflows.renew(self.rng.choice(self.tasks[-4:]))

    async def end_overdue(self) -> None:
        await self.workflows.end_overdue()

    async def snapshot(self) -> list[Any]:
        return [await self.workflows.all_rows(f"workflow{name}") for name in ("s", "_effects", "_messages", "_data")]

    async def check(self) -> None:
        rows, effects, messages, texts = await self.snapshot()
        results = {each["workflow_id"]: size_of(each["result"]) for each in texts}
        for row in rows:
            mine = [each for each in effects if each["workflow_id"] == row["workflow_id"]]
            mail = [each for each in messages if each["workflow_id"] == row["workflow_id"] and each["taken_at"] is None]
            assert row["effects"] == len(mine)
            assert row["effect_bytes"] == sum(each["size"] for each in mine) + results.get(row["workflow_id"], 0)
            assert sorted(each["seq"] for each in mine if each["seq"]) == list(range(1, row["seen"] + 1))
            assert (row["messages"], row["message_bytes"]) == (len(mail), sum(each["size"] for each in mail))
            self._check_waiting(row, mine, {each["name"] for each in mail})
        self._check_results(effects)
        taken = Counter(each["result"] for each in effects if each["kind"] == "message" and each["status"] == "done")
        assert set(taken.values()) <= {1}
        assert sum(taken.values()) == sum(each["taken_at"] is not None for each in messages)

    def _check_waiting(self, row: dict[str, Any], effects: list[dict[str, Any]], mail: set[str]) -> None:
        """A workflow that no worker has is available as soon as one of its waits may be over."""
        waits = [each for each in effects if each["status"] == "open"]
        if row["status"] == "parked":
            assert waits
            assert all(each["due_at"] is None for each in waits)
            assert mail.isdisjoint(each["name"] for each in waits if each["kind"] == "message")
        if row["status"] == "waiting" and not row["blocks"] and not self.sets_clock_back:
            instants = [each["due_at"] for each in waits if each["due_at"] is not None]
            undecided = self.workflows.clock.now() + 250
            assert row["available_at"] <= max(min(instants, default=undecided), undecided)

    def _check_results(self, effects: list[dict[str, Any]]) -> None:
        """A stored result, and the number under which the function got it, never change."""
        for each in effects:
            key = each["workflow_id"], each["name"], str(each["n"])
            if each["status"] == "done":
                assert self.results.setdefault((*key, "result"), each["result"]) == each["result"]
            if each["seq"] is not None and each["status"] == "done":
                assert self.results.setdefault((*key, "seq"), each["seq"]) == each["seq"]


def _id(task: Any) -> tuple[str, str]:
    return task["workflowId"], task["token"]


async def check_events(workflows: Workflows) -> None:
    """Each end of a workflow has one event: one for each failure, and one for the status that it has now."""
    ends = Counter[str]()
    ids = set()
    for each in await workflows.stored():
        ids.add(each.id)
        if each.address.message != "workflow-blocked":
            ends[each.body.decode().partition('"workflowId":"')[2].partition('"')[0]] += 1
    assert len(ids) == len(await workflows.stored())
    for row in await workflows.all_rows():
        has_ended = row["ended_at"] is not None and row["started_sequence"] > 0  # else its start was skipped
        assert ends[row["workflow_id"]] == row["retries"] + has_ended


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
async def test_generated_history(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, seed: int
) -> None:
    """No order of commands, reports, repeats, lost leases and timeouts breaks an invariant."""
    workflows = Workflows(sqlite, memory_broker, clock)
    await History(workflows, seed).run()
    await check_events(workflows)


async def test_generated_history_on_each_store(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """The invariants hold on each store."""
    workflows = Workflows(store, memory_broker, clock)
    await History(workflows, 100).run()
    await check_events(workflows)


@pytest.mark.parametrize("seed", range(3))
async def test_generated_history_with_a_clock_that_is_set_back(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, seed: int
) -> None:
    """No request, command or claim fails if the clock is set back by an hour again and again. Results never change."""
    workflows = Workflows(sqlite, memory_broker, clock)
    await History(workflows, seed, sets_clock_back=True).run()
    clock.advance(days=365)
    await check_events(workflows)
