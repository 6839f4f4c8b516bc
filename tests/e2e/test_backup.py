"""A backup is taken under load, the service is killed, the backup is restored, and nothing is lost."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from nats.aio.msg import Msg

from tests.e2e.conftest import ON_SQLITE, User, check_fired, iso
from tests.harness.cli import Cli
from tests.harness.processes import NatsServer, Service, body
from tests.harness.runs import jobs
from timer_service.core.values.message import kebab

DIAMOND = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
BLOCKED = {"kind": "work_item.status.transition", "to": ["blocked"]}
ROUNDS = 10
FAR_MS = 3_600_000

Command = tuple[str, bytes]


def command(name: str, **payload: Any) -> Command:
    return f"timer.cmd.v1.acme.{kebab(name)}", body(name, "acme", {"tenantId": "acme", **payload})


class Load(NamedTuple):
    """Commands in the order of their rounds, and what the service must have done at the end."""

    rounds: Sequence[Sequence[Command]]
    due: dict[str, int]
    cancelled: int
    signals: frozenset[str]
    jobs: frozenset[tuple[str, str]]
    runs: frozenset[str]


def make_load(size: int, span_ms: int, seed: int) -> Load:
    """Return a load of `size` timers that fire, and fewer timers that are moved or cancelled, signals and runs.

    A round has the first commands of new timers, signals and runs, and the later commands of those of the round before.
    """
    rng = random.Random(seed)
    start = int(time.time() * 1000) + 1_000
    far = start + FAR_MS
    rounds: list[list[Command]] = [[] for _ in range(ROUNDS + 1)]
    due: dict[str, int] = {}
    for number in range(size):
        due[f"near-{number}"] = start + rng.randrange(span_ms)
        rounds[rng.randrange(ROUNDS)].append(schedule(f"near-{number}", due[f"near-{number}"]))
    for number in range(size // 4):
        first, moved, item = rng.randrange(ROUNDS), f"moved-{number}", f"item-{number}"
        due[moved] = start + rng.randrange(span_ms)
        signal = {"signalId": f"signal-{number}", "triggerKind": "event", "triggerSpec": BLOCKED}
        rounds[first] += [
            schedule(moved, far),
            schedule(f"dropped-{number}", far),
            command("CreateWorkItem", workItemId=item, status="doing"),
        ]
        rounds[first + 1] += [
            schedule(moved, due[moved]),
            command("CancelTimer", serviceCallId=f"dropped-{number}"),
            command("CreateWorkSignal", workItemId=item, **signal),
        ]
    for number in range(size // 8):
        rounds[rng.randrange(ROUNDS)].append(command("StartRun", runId=f"run-{number}", jobs=jobs(DIAMOND)))
    transitions = [
        command("TransitionWorkItem", workItemId=f"item-{number}", **{"from": "doing", "to": "blocked"})
        for number in range(size // 4)
    ]
    return Load(
        rounds=[*rounds, transitions],
        due=due,
        cancelled=size // 4,
        signals=frozenset(f"signal-{number}" for number in range(size // 4)),
        jobs=frozenset((f"run-{number}", job) for number in range(size // 8) for job in DIAMOND),
        runs=frozenset(f"run-{number}" for number in range(size // 8)),
    )


def schedule(call: str, at: int) -> Command:
    return command("ScheduleTimer", serviceCallId=call, dueAt=iso(at))


async def send(user: User, rounds: Sequence[Sequence[Command]], span_ms: int) -> None:
    """Send rounds of commands, so that all rounds together take about half of the span."""
    for commands in rounds:
        await user.send(commands)
        await asyncio.sleep(span_ms / 1000 / ROUNDS / 2)


async def execute(user: User) -> None:
    """Report the success of each job when its JobReady arrives, as an executor does."""

    async def report(message: Msg) -> None:
        payload = json.loads(message.data)["payload"]
        subject, report = command(
            "ReportJobStatus", runId=payload["runId"], jobName=payload["jobName"], status="success"
        )
        await user.connection.publish(subject, report)

    await user.connection.subscribe("timer.evt.v1.*.job-ready", cb=report)


async def payloads(user: User, name: str) -> list[tuple[str, Any]]:
    """Return the ids and payloads of the events of a type."""
    messages = [json.loads(each.data) for each in await user.read("TIMER_EVT", f"timer.evt.v1.acme.{name}")]
    return [(each["id"], each["payload"]) for each in messages]


class Happened(NamedTuple):
    """The events in the stream: what each one is about, and its id."""

    timers: set[tuple[str, str]]
    signals: set[tuple[str, str]]
    jobs: set[tuple[tuple[str, str], str]]
    runs: set[tuple[tuple[str, str], str]]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return len(self.timers), len(self.signals), len(self.jobs), len(self.runs)


async def happened(user: User) -> Happened:
    return Happened(
        timers={(each.call, each.id) for each in await user.fired()},
        signals={(payload["signalId"], id_) for id_, payload in await payloads(user, "work-signal-fired")},
        jobs={((payload["runId"], payload["jobName"]), id_) for id_, payload in await payloads(user, "job-ready")},
        runs={((payload["runId"], payload["status"]), id_) for id_, payload in await payloads(user, "run-completed")},
    )


async def until_happened(user: User, load: Load, seconds: float) -> Happened:
    """Wait until every timer and signal has fired and every run has completed. Return the events at the end."""
    async with asyncio.timeout(seconds):
        while True:
            await user.until_handled(seconds=seconds)
            found = await happened(user)
            wanted = (len(load.due), len(load.signals), len(load.jobs), len(load.runs))
            if all(count >= least for count, least in zip(found.counts, wanted, strict=True)):
                return found
            await asyncio.sleep(0.2)


def check_happened(found: Happened, load: Load) -> None:
    """Assert that everything in the load happened, and that each thing has one event id."""
    assert {signal for signal, _ in found.signals} == load.signals
    assert {job for job, _ in found.jobs} == load.jobs
    assert {run for run, _ in found.runs} == {(run, "success") for run in load.runs}
    assert found.counts == (len(load.due), len(load.signals), len(load.jobs), len(load.runs))
    ids = [id_ for events in (found.timers, found.signals, found.jobs, found.runs) for _, id_ in events]
    assert len(set(ids)) == len(ids)


async def count_timers(user: User) -> dict[str, int]:
    """Return how many timers the service has in each state that occurs."""
    answer = await user.connection.request("timer.qry.v1.acme.count-timers", b"{}", timeout=10)
    return {state: count for state, count in json.loads(answer.data)["counts"].items() if count}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "span_ms"),
    [pytest.param(400, 4_000, id="short"), pytest.param(10_000, 60_000, id="full", marks=pytest.mark.full)],
)
@ON_SQLITE
async def test_restore_of_a_backup_under_load(  # noqa: PLR0917
    size: int, span_ms: int, user: User, broker: NatsServer, service: Service, tmp_path: Path
) -> None:
    """After a restore of a backup that was taken under load, everything happens exactly as without the restore.

    No timer is early or lost, cancelled timers do not fire, and an event that is published again has the same id.
    """
    cli = Cli(tmp_path, broker.url)
    await execute(user)
    load = make_load(size, span_ms, seed=size)
    half = len(load.rounds) // 2
    await send(user, load.rounds[:half], span_ms)
    backup = asyncio.create_task(cli.lines("backup", "backup.db"))
    await send(user, load.rounds[half:], span_ms)
    print("\n".join(await backup))
    await service.kill()
    before = (await happened(user)).counts
    print("\n".join(await cli.lines("restore", "backup.db")))
    assert [(line["type"], line["file"], line["database"]) for line in cli.audit] == [
        ("restore", "backup.db", str(tmp_path / "service" / "timers.db"))
    ]
    await service.start()
    found = await until_happened(user, load, seconds=span_ms / 1000 + 60)
    check_fired(await user.fired(), load.due)
    check_happened(found, load)
    assert await count_timers(user) == {"Reached": len(load.due), "Cancelled": load.cancelled}
    print(f"timers, signals, jobs and runs in the stream: {before} before the restore, {found.counts} at the end")


@ON_SQLITE
async def test_cancel_after_the_backup(user: User, broker: NatsServer, service: Service, tmp_path: Path) -> None:
    """The restored service reads on from the cursor of its backup, before it fires: a later cancel counts."""
    cli = Cli(tmp_path, broker.url)
    now = int(time.time() * 1000)
    await user.send([schedule("cancelled", now + 4_000), schedule("kept", now + 4_000)])
    await user.until_handled()
    await cli.lines("backup", "backup.db")
    await user.send([command("CancelTimer", serviceCallId="cancelled"), schedule("later", now + 4_000)])
    await user.until_handled()
    await service.kill()
    await cli.lines("restore", "backup.db")
    await asyncio.sleep(now / 1000 + 4.1 - time.time())  # until the timers are due
    await service.start()
    await user.until_stored("TIMER_EVT", 2)
    assert {each.call for each in await user.fired()} == {"kept", "later"}
    assert (await count_timers(user))["Cancelled"] == 1
