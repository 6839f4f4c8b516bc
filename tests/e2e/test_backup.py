"""A backup is taken under load, the service is killed, the backup is restored, and nothing is lost."""

import asyncio
import json
import random
import time
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE, User, check_fired, iso
from tests.harness.cli import Cli
from tests.harness.processes import Service, body
from timer_service.core.values.address import kebab

ROUNDS, SIZE, SPAN_MS = 10, 200, 4_000
FAR_MS = 3_600_000

Command = tuple[str, bytes]


def command(name: str, **payload: Any) -> Command:
    return f"timer.cmd.v1.acme.{kebab(name)}", body(name, "acme", {"tenantId": "acme", **payload})


def schedule(call: str, at: int) -> Command:
    return command("ScheduleTimer", serviceCallId=call, dueAt=iso(at))


def make_load() -> tuple[list[list[Command]], dict[str, int]]:
    """Return commands in the order of their rounds, and the due times of the timers that fire at the end.

    A round has the first commands of new timers, and moves or cancels some of those of the round before.
    """
    rng = random.Random(SIZE)
    start = int(time.time() * 1000) + 1_000
    rounds: list[list[Command]] = [[] for _ in range(ROUNDS + 1)]
    due = {f"{kind}-{number}": start + rng.randrange(SPAN_MS) for kind in ("near", "moved") for number in range(SIZE)}
    for call, at in due.items():
        first = rng.randrange(ROUNDS)
        rounds[first].append(schedule(call, at if call.startswith("near") else at + FAR_MS))
        if call.startswith("moved"):
            dropped = call.replace("moved", "dropped")
            rounds[first].append(schedule(dropped, at + FAR_MS))
            rounds[first + 1] += [schedule(call, at), command("CancelTimer", serviceCallId=dropped)]
    return rounds, due


async def send(user: User, rounds: list[list[Command]]) -> None:
    """Send rounds of commands, so that all rounds together take about half of the span."""
    for commands in rounds:
        await user.send(commands)
        await asyncio.sleep(SPAN_MS / 1000 / ROUNDS / 2)


async def count_timers(user: User) -> dict[str, int]:
    """Return how many timers the service has in each state that occurs."""
    answer = await user.connection.request("timer.qry.v1.acme.count-timers", b"{}", timeout=10)
    return {state: count for state, count in json.loads(answer.data)["counts"].items() if count}


@pytest.mark.slow
@ON_SQLITE
async def test_restore_of_a_backup_under_load(user: User, cli: Cli, service: Service) -> None:
    """After a restore of a backup that was taken under load, everything happens exactly as without the restore.

    No timer is early or lost, and an event that is published again has the same id.
    """
    rounds, due = make_load()
    await send(user, rounds[: ROUNDS // 2])
    backup = asyncio.create_task(cli.lines("backup", "backup.db"))
    await send(user, rounds[ROUNDS // 2 :])
    await backup
    await service.kill()
    await cli.lines("restore", "backup.db")
    assert [(line["type"], line["file"]) for line in cli.audit] == [("restore", "backup.db")]
    await service.start()
    async with asyncio.timeout(60):
        while len({each.call for each in await user.fired()}) < len(due):
            await asyncio.sleep(0.2)
    await user.until_handled()
    check_fired(await user.fired(), due)
    assert await count_timers(user) == {"Reached": len(due), "Cancelled": SIZE}


@ON_SQLITE
async def test_cancel_after_the_backup(user: User, cli: Cli, service: Service) -> None:
    """The restored service reads on from the cursor of its backup, before it fires: a later cancel counts."""
    now = int(time.time() * 1000)
    await user.send([schedule("cancelled", now + 4_000), schedule("kept", now + 4_000)])
    await user.until_handled()
    await cli.lines("backup", "backup.db")
    await user.send([command("CancelTimer", serviceCallId="cancelled"), schedule("later", now + 4_000)])
    await user.until_handled()
    await service.kill()
    assert "The old database is now " in (await cli.lines("restore", "backup.db"))[1]
    await asyncio.sleep(now / 1000 + 4.1 - time.time())  # until the timers are due
    await service.start()
    await user.until_stored("TIMER_EVT", 2)
    assert {each.call for each in await user.fired()} == {"kept", "later"}
    assert (await count_timers(user))["Cancelled"] == 1
