"""Jobs that became ready or were skipped: their events are added with the change, or later in portions."""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust
from tests.harness.runs import Runs, jobs, run_after
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.ports.database import Database
from timer_service.runs import announcements, events

NAMES = [f"job-{number}" for number in range(9)]
STAR = {"seed": [], **{name: ["seed"] for name in NAMES}}
TABLE = "run_announcements"


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


def portions_of(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let a transaction add the events of this many jobs without payload and outputs."""
    monkeypatch.setattr(events, "_MOST_BYTES", (count - 1) * events._OVERHEAD + 1)


async def rows_of_outbox(runs: Runs) -> list[Any]:
    """Return the messages in the outbox with their jobs, in the order in which they were added."""
    rows = sorted(await runs.rows("outbox"), key=lambda row: row["ordinal"])
    return [(row["message"], json.loads(row["body"])["payload"].get("jobName")) for row in rows]


async def deferred(runs: Runs) -> list[str]:
    return [row["job_name"] for row in await runs.rows(TABLE)]


async def test_events_of_ready_jobs_in_portions(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction adds some of the events. The announcer adds the others, a portion in each pass."""
    portions_of(monkeypatch, 4)
    await runs.start(STAR)
    await runs.publish()
    assert (await runs.report("success", "seed"))["outcome"] == "recorded"
    found = [await rows_of_outbox(runs)]
    for _ in range(2):
        assert (await runs.announcer.tick(runs.clock.now())).done
        found.append(await rows_of_outbox(runs))
    assert [len(each) for each in found] == [4, 8, 9]
    assert sorted(found[-1]) == [("job-ready", name) for name in NAMES]
    assert (await runs.announcer.tick(runs.clock.now())).done == 0
    assert runs.worker_wakes == [("outbox", runs.clock.now())] * 2


async def test_queries_show_a_job_that_is_not_announced_yet(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is ready as soon as its needs have ended, also if its JobReady is added later."""
    portions_of(monkeypatch, 1)
    await runs.start(STAR)
    await runs.report("success", "seed")
    shown = (await runs.ask("get-run", runId="run-1"))["jobs"]
    assert len({each["readyAt"] for each in shown if each["name"] in NAMES}) == 1
    assert len(await deferred(runs)) == 8


async def test_events_of_skipped_jobs_in_portions(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of skipped jobs are added in portions too. The one of the run is added with the change."""
    portions_of(monkeypatch, 4)
    await runs.start(STAR)
    await runs.publish()
    await runs.report("failed", "seed")
    assert [kind for kind, _ in await rows_of_outbox(runs)] == [*["job-skipped"] * 4, "run-completed"]
    await exhaust(runs.announcer, runs.clock.now())
    assert await runs.skipped() == dict.fromkeys(NAMES, "upstream_failed: seed")
    assert await deferred(runs) == []


async def test_large_events(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads and outputs count: a portion ends with the event that exceeds it, and has at least one."""
    monkeypatch.setattr(events, "_MOST_BYTES", 10_000)
    needs: dict[str, list[Any]] = {"seed": [], **{name: ["seed"] for name in NAMES}}
    await runs.request("StartRun", jobs=jobs(needs, payload="x" * 1_000))
    await runs.publish()
    await runs.report("success", "seed", outputs={"log": "x" * 1_000})
    counts = [9 - len(await deferred(runs))]
    while (await runs.announcer.tick(runs.clock.now())).done:
        counts.append(9 - len(await deferred(runs)))
    assert counts == [3, 6, 9]
    monkeypatch.setattr(events, "_MOST_BYTES", 1)
    await runs.request("StartRun", runId="large", jobs=jobs({"a": [], "b": []}, payload="x" * 20_000))
    assert len(await deferred(runs)) == 1
    assert (await runs.ready())[-2:] == ["a", "b"]


async def test_job_that_ended_before_it_was_announced(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ended has no JobReady any more, and a worker that knows its job may report it before."""
    portions_of(monkeypatch, 1)
    await runs.start(STAR)
    await runs.report("success", "seed")
    ends, runs_already, *_ = await deferred(runs)
    assert (await runs.report("success", ends))["outcome"] == "recorded"
    assert (await runs.report("running", runs_already))["outcome"] == "recorded"
    assert sorted(await runs.ready()) == sorted({"seed", *NAMES} - {ends})
    await runs.start(STAR, runId="cancelled")
    await runs.report("success", "seed", runId="cancelled")
    await runs.request("CancelRun", runId="cancelled")
    assert len(await runs.ready()) == 9 + 2
    assert await deferred(runs) == []


async def test_job_of_a_deleted_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the run was deleted meanwhile, nothing is announced."""
    portions_of(monkeypatch, 1)
    await runs.start(STAR)
    await runs.report("success", "seed")
    for table in ("run_edges", "run_jobs", "runs"):
        await runs.sql(f"DELETE FROM {table}")
    before = len(await runs.rows("outbox"))
    await exhaust(runs.announcer, runs.clock.now())
    assert (len(await runs.rows("outbox")), await deferred(runs)) == (before, [])


async def test_tenants_take_turns(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass announces a portion of each tenant, however many jobs of another one wait."""
    portions_of(monkeypatch, 2)
    for tenant in ("acme", "globex", "initech"):
        runs.send("StartRun", tenant=tenant, jobs=jobs(dict.fromkeys(NAMES, ())))
        await runs.consume()
    assert len(await deferred(runs)) == 3 * 7
    assert (await runs.announcer.tick(runs.clock.now())).done == 3 * 2
    assert {row["tenant_id"] for row in await runs.rows(TABLE)} == {"acme", "globex", "initech"}
    for tenant in ("acme", "globex", "initech"):
        assert sorted(await runs.ready(tenant)) == NAMES


async def test_announcements_that_fail(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the jobs of one tenant cannot be announced, those of others are. The failed ones are tried again later."""
    portions_of(monkeypatch, 1)
    for tenant in ("acme", "globex"):
        runs.send("StartRun", tenant=tenant, jobs=jobs(dict.fromkeys(NAMES[:3], ())))
        await runs.consume()
    read, now = announcements.read, runs.clock.now()

    async def fail(reader: Any, rows: Any) -> Any:
        if any(row["tenant_id"] == "acme" for row in rows):
            raise ValueError("damaged")
        return await read(reader, rows)

    with monkeypatch.context() as patch:
        patch.setattr(announcements, "read", fail)
        ends = [await runs.announcer.tick(now) for _ in range(3)]
    assert [tuple(each) for each in ends] == [(3, now), (1, now), (0, now + 1_000)]
    assert sorted(await runs.ready("globex")) == NAMES[:3]
    assert [row["last_error"] for row in await runs.rows(TABLE)] == ["ValueError"] * 2
    runs.clock.advance(seconds=1)
    assert sorted(await runs.ready()) == NAMES[:3]


async def test_two_instances_announce_at_the_same_time(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two instances announce each job exactly once."""
    portions_of(monkeypatch, 3)
    both = [Runs(postgres, memory_broker, clock), Runs(postgres, memory_broker, clock)]
    names = [f"job-{number:03}" for number in range(100)]
    await both[0].start(dict.fromkeys(names, ()))
    done = [(await asyncio.gather(*(each.announcer.tick(clock.now()) for each in both))) for _ in range(60)]
    assert sum(each.done for ends in done for each in ends) == 97
    assert sorted([job for _, job in await rows_of_outbox(both[0])]) == names


Command = tuple[str, dict[str, Any]]


def _commands(rng: random.Random) -> list[Command]:
    """Return commands on a random run, with reports in any order."""
    names = [f"job-{number}" for number in range(8)]
    graph: dict[str, list[Any]] = {
        name: [rng.choice([each, run_after(each)]) for each in rng.sample(names[:at], rng.randint(0, min(at, 2)))]
        for at, name in enumerate(names)
    }
    members = {f"member-{number}": rng.sample(names, 2) for number in range(3)}
    graph["last"] = [{"group": "g"}]
    reports: list[Command] = [
        ("ReportJobStatus", {"jobName": name, "status": rng.choice(["success", "success", "failed", "running"])})
        for name in [*graph, *members] * 2
    ]
    for _, fields in reports:
        if rng.random() < 0.5:
            fields["outputs"] = {"log": "x" * rng.choice([1, 300])}
    rng.shuffle(reports)
    start = ("StartRun", {"jobs": jobs(graph, payload="x" * rng.choice([1, 3_000])), "groups": ["g"]})
    resolve = ("ResolveGroup", {"groupName": "g", "jobs": jobs(members)})
    return [start, *reports[:5], resolve, *reports[5:], *reports[:9]]


async def play(runs: Runs, run: str, commands: Sequence[Command], seed: int) -> tuple[dict[Any, Any], list[Any]]:
    """Send the commands on a run in random batches. Return its events, and its jobs as queries show them."""
    rng = random.Random(seed)
    number = 0
    while number < len(commands):
        for kind, fields in commands[number : (number := number + rng.randint(1, 4))]:
            runs.send(kind, runId=run, envelope={"id": f"{run}/{kind}/{fields.get('jobName')}"}, **fields)
        await runs.consume()
        if rng.random() < 0.2:
            await runs.announcer.tick(runs.clock.now())
    bodies = [json.loads(each.body) for each in await runs.stored()]
    own = [each for each in bodies if each["payload"]["runId"] == run]
    found = {(each["type"], each["payload"].get("jobName")): _comparable(each, run) for each in own}
    assert len(found) == len(own)
    return found, (await runs.ask("get-run", runId=run))["jobs"]


@pytest.mark.slow
async def test_same_events_at_once_and_in_portions(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """In portions, a run has the same events as at once, except JobReady of jobs that ended before."""
    missing = 0
    for seed in range(20):
        commands = _commands(random.Random(seed))
        at_once, jobs_at_once = await play(runs, f"{seed}/at-once", commands, seed)
        with monkeypatch.context() as patch:
            portions_of(patch, 1)
            in_portions, jobs_in_portions = await play(runs, f"{seed}/in-portions", commands, seed)
        both = [{each["name"]: each["status"] for each in shown} for shown in (jobs_at_once, jobs_in_portions)]
        assert both[0] == both[1], seed
        ended = {each["name"] for each in jobs_in_portions if "settledAt" in each}
        assert at_once.keys() - in_portions.keys() <= {("JobReady", name) for name in ended}, seed
        assert in_portions == {key: at_once[key] for key in in_portions}, seed
        missing += len(at_once.keys() - in_portions.keys())
    assert missing


def _comparable(event: Any, run: str) -> Any:
    """Return what must be the same in the event of another run: not its ids and instants."""
    payload = {name: each for name, each in event["payload"].items() if name not in ("runId", "readyAt")}
    return payload, event["causationId"].removeprefix(run)
