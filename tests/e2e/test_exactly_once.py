"""Each command takes effect exactly once and in order, although the service and the broker are killed."""

import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.conftest import User, iso
from tests.harness.load_user import LoadUser, Sent
from tests.harness.processes import NatsServer, Service, body

TENANTS = ("a", "b", "c", "d")
CALLS = 10
FAR_MS = 4_102_444_800_000
DEADLY = "deadly"
DIE = f"""
import os
from timer_service.cli import main
from timer_service.core.intake.apply import Handlers
from timer_service.core.values.message import Command

apply = Handlers.apply

async def apply_or_die(self, tx, decoded, letters, now):
    if any(isinstance(each, Command) and each.id == "{DEADLY}" for _, each in decoded):
        os._exit(9)
    return await apply(self, tx, decoded, letters, now)

Handlers.apply = apply_or_die
main()
"""
"""The service, with a command that ends the process while it is applied."""


class Timer(NamedTuple):
    state: str
    due: str


class Story:
    """The commands of a tenant, one after the other, and what each of them does to a model."""

    def __init__(self, user: LoadUser, seed: int) -> None:
        self.user = user
        self.timers: dict[str, Timer] = {}
        self.triggers = 0
        self._rng = random.Random(seed)
        self._expected: list[tuple[Sent, str]] = []
        self._number = 0

    async def put_schedule(self) -> None:
        fields = {"scheduleId": "s", "every": "P1D", "startAt": iso(FAR_MS)}
        self._expected.append((await self.user.publish("PutSchedule", **fields), "created"))

    async def publish(self, count: int) -> None:
        """Publish `count` commands. Each has an effect that a second application of it does not have."""
        for _ in range(count):
            if self._rng.random() < 0.3:
                self.triggers += 1
                sent = await self.user.publish("TriggerSchedule", scheduleId="s", data=self.triggers)
                self._expected.append((sent, "triggered"))
            else:
                await self._change_timer(f"call-{self._rng.randrange(CALLS)}")

    async def _change_timer(self, call: str) -> None:
        before = self.timers.get(call)
        if before is not None and before.state == "Scheduled" and self._rng.random() < 0.5:
            self.timers[call] = before._replace(state="Cancelled")
            self._expected.append((await self.user.publish("CancelTimer", serviceCallId=call), "cancelled"))
            return
        self._number += 1
        self.timers[call] = Timer("Scheduled", iso(FAR_MS + self._number).replace("+00:00", "Z"))
        sent = await self.user.publish("ScheduleTimer", serviceCallId=call, dueAt=self.timers[call].due)
        is_moved = before is not None and before.state == "Scheduled"
        self._expected.append((sent, "rescheduled" if is_moved else "scheduled"))

    def check_replies(self) -> None:
        """Assert that no command has a second reply, or a wrong one."""
        wrong = [(sent, outcome) for sent, outcome in self._expected if sent.replies and sent.outcomes != [outcome]]
        assert wrong == []


async def list_timers(user: User, tenant: str) -> dict[str, Timer]:
    answer = await user.connection.request(f"timer.qry.v1.{tenant}.list-timers", b'{"limit": 100}', timeout=10)
    return {each["serviceCallId"]: Timer(each["state"], each["dueAt"]) for each in json.loads(answer.data)["timers"]}


async def check_effects(user: User, story: Story) -> None:
    """Assert that the database has the timers of the model, and the stream one event of each trigger."""
    assert await list_timers(user, story.user.tenant) == story.timers
    ids = defaultdict[int, set[str]](set)
    for message in await user.read("TIMER_EVT", f"timer.evt.v1.{story.user.tenant}.schedule-fired"):
        event = json.loads(message.data)
        ids[event["payload"]["data"]].add(event["id"])
    assert {data: len(each) for data, each in ids.items()} == dict.fromkeys(range(1, story.triggers + 1), 1)


@asynccontextmanager
async def running(folder: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[Sequence[Service]]:
    """Run one instance on SQLite, or two on PostgreSQL."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Service(folder / f"service-{number}", broker.url, **stored))
            for number in range(2 if stored else 1)
        ]


@pytest.mark.slow
async def test_commands_under_kills(tmp_path: Path, broker: NatsServer, user: User, stored: Mapping[str, str]) -> None:
    """Timers end in the state of a model, each trigger has one event, and no command has a second or wrong reply."""
    rng = random.Random(1)
    async with running(tmp_path, broker, stored) as instances, AsyncExitStack() as stack:
        users = [await stack.enter_async_context(LoadUser.connect(broker.url, tenant)) for tenant in TENANTS]
        stories = [Story(each, seed) for seed, each in enumerate(users)]
        await asyncio.gather(*(each.put_schedule() for each in stories))
        victims: list[NatsServer | Service] = [broker, *(rng.choice(instances) for _ in range(4))]
        rng.shuffle(victims)
        for victim in victims:
            publishing = asyncio.gather(*(each.publish(20) for each in stories))
            await asyncio.sleep(rng.uniform(0, 0.05))
            await victim.kill()
            await victim.start()
            await publishing
        for each in users:
            await each.until_handled()
        async with instances[0].backlog() as backlog, asyncio.timeout(60):
            while sum([await backlog(tenant) for tenant in TENANTS]):
                await asyncio.sleep(0.1)
        for story in stories:
            await check_effects(user, story)
    for story in stories:
        story.check_replies()


@pytest.mark.slow
async def test_command_that_ends_the_process(
    tmp_path: Path, broker: NatsServer, user: User, stored: Mapping[str, str]
) -> None:
    """After three deaths it is a dead letter, and the commands before and after it are handled, also of its tenant."""
    async with Service(tmp_path / "service", broker.url, **stored) as before:
        assert await before.terminate() == 0  # it has created the stream
    service = Service(tmp_path / "service", broker.url, **stored)
    service.command = [sys.executable, "-c", DIE, "serve"]
    far = {"dueAt": iso(FAR_MS)}
    calls = [(tenant, f"call-{number}") for number in range(5) for tenant in ("acme", "other")]
    commands = [
        (f"timer.cmd.v1.{tenant}.schedule-timer", body("ScheduleTimer", tenant, {"serviceCallId": call, **far}))
        for tenant, call in calls
    ]
    deadly = body("ScheduleTimer", "acme", {"serviceCallId": DEADLY, **far}, id=DEADLY)
    for command in [*commands[:5], ("timer.cmd.v1.acme.schedule-timer", deadly), *commands[5:]]:
        await user.js.publish(*command)
    async with AsyncExitStack() as stack:
        stack.push_async_exit(service)
        for _ in range(3):
            service.launch()
            assert await service.wait() == 9
        await service.start()
        await user.until_stored("TIMER_DLQ", 1)
        await user.until_handled()
        (letter,) = await user.read("TIMER_DLQ")
        assert (letter.headers["Timer-Error-Code"], letter.data) == ("INTERNAL", deadly)
        for tenant in ("acme", "other"):
            timers = await list_timers(user, tenant)
            assert sorted(timers) == [call for each, call in calls if each == tenant]
