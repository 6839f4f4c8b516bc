"""The broker is killed under load, or comes back with another history. The service recovers without a restart."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE
from tests.harness.load import Load, instant
from tests.harness.load_check import check_load
from tests.harness.load_user import LoadUser, now_ms
from tests.harness.processes import NatsServer, Service

CALLS = 20
HOUR_MS = 3_600_000
RECOVERY_SECONDS = 20


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.full)])
@ON_SQLITE
async def test_broker_is_killed_under_load(kills: int, broker: NatsServer, service: Service) -> None:
    """Nothing is lost and nothing fires early when the nats-server is killed and started again."""
    async with Load.running(broker.url, seed=kills, far_ms=1_000) as load:
        for _ in range(kills):
            await load.until_answered(50)
            await broker.kill()
            await asyncio.sleep(0.3)  # the outage
            await broker.start()
        await load.until_answered(50)
        found = await check_load(load, all_replied=False)
    print(f"{kills} kills of the broker: {found}")


class Operator:
    """What happens to the broker, in two steps: before the last commands of the past, and after them."""

    def __init__(self, server: NatsServer, store: Path, user: LoadUser) -> None:
        self.server = server
        self.store = store
        self.user = user
        self.copy = store.with_name("copy")

    async def copy_store(self) -> None:
        await self.server.terminate()
        shutil.copytree(self.store, self.copy)
        await self.server.start()

    async def restore_copy(self) -> None:
        """Replace the store by its copy: all streams are rolled back."""
        await self.server.terminate()
        shutil.rmtree(self.store)
        self.copy.rename(self.store)
        await self.server.start()

    async def replace_server(self) -> None:
        """Start an empty server at the same address."""
        await self.server.terminate()
        shutil.rmtree(self.store)
        await self.server.start()

    async def recreate_stream(self) -> None:
        config = (await self.user.js.stream_info("TIMER_CMD")).config
        await self.user.js.delete_stream("TIMER_CMD")
        await self.user.js.add_stream(config)

    async def delete_stream(self) -> None:
        """Delete the stream. The service manages the streams, so it creates the stream again."""
        await self.user.js.delete_stream("TIMER_CMD")

    async def roll_back_while_stopped(self) -> None:
        """Roll the streams back, and kill the server once more before the service can settle."""
        await self.restore_copy()
        await self.server.kill()
        await self.server.start()


async def nothing(_: Operator) -> None:
    """Keep the broker."""


Step = Callable[[Operator], Awaitable[None]]
HISTORIES: Mapping[str, tuple[Step, Step]] = {
    "stream deleted and recreated": (nothing, Operator.recreate_stream),
    "stream deleted": (nothing, Operator.delete_stream),
    "store rolled back": (Operator.copy_store, Operator.restore_copy),
    "store rolled back, and killed": (Operator.copy_store, Operator.roll_back_while_stopped),
    "server replaced": (nothing, Operator.replace_server),
}


FULL = ("stream deleted", "store rolled back, and killed")
"""The histories that only `make soak` tests."""


@asynccontextmanager
async def operated(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Operator]:
    async with LoadUser.connect(broker.url, "acme") as user:
        yield Operator(broker, tmp_path / "nats" / "js", user)


@pytest.mark.slow
@pytest.mark.parametrize(
    "history",
    [pytest.param(each, marks=pytest.mark.full) if each in FULL else each for each in HISTORIES],
)
@ON_SQLITE
async def test_newest_commands_win_on_a_changed_broker(
    history: str, tmp_path: Path, broker: NatsServer, service: Service
) -> None:
    """Each cancel and reschedule that is published after the change wins over each command from before it."""
    before, change = HISTORIES[history]
    cancelled, moved = (
        [f"cancelled-{number}" for number in range(CALLS)],
        [f"moved-{number}" for number in range(CALLS)],
    )
    async with operated(tmp_path, broker) as operator:
        user = operator.user
        far = instant(now_ms() + HOUR_MS)
        await before(operator)
        # A stream that is rolled back uses the sequences of these commands again.
        await _publish(user, "ScheduleTimer", [*cancelled, *moved], dueAt=far)
        await user.until_handled()
        await change(operator)
        began = now_ms()
        due = instant(now_ms() + 1_000)
        await _publish(user, "CancelTimer", cancelled)
        await _publish(user, "ScheduleTimer", moved, dueAt=due)
        sent = user.sent[-2 * CALLS :]
        await asyncio.wait_for(asyncio.gather(*(each.replied.wait() for each in sent)), RECOVERY_SECONDS)
        answered = now_ms()
        assert [each.outcomes for each in sent] == [["cancelled"]] * CALLS + [["rescheduled"]] * CALLS
        async with asyncio.timeout(RECOVERY_SECONDS):
            while {each.payload["serviceCallId"] for each in user.events} != set(moved):
                await asyncio.sleep(0.02)
        states = {call: (await user.ask("get-timer", serviceCallId=call))["state"] for call in cancelled}
    assert {each.payload["dueAt"] for each in user.events} == {due}
    assert set(states.values()) == {"Cancelled"}
    print(f"{history}: all handled {(answered - began) / 1000:.2f} s after the change")


async def _publish(user: LoadUser, message_type: str, calls: list[str], **payload: str) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        for call in calls:
            await user.publish(message_type, serviceCallId=call, **payload)
