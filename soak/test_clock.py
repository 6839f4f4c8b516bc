"""The clock of the machine jumps while the service runs."""

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from soak.load import instant
from tests.harness.load_user import LoadUser, now_ms
from tests.harness.processes import NatsServer, Service

HOUR_MS = 3_600_000
BOUND_SECONDS = 2
"""How long the service may need to follow a clock that has jumped."""
LATE_MS = 2_000

MOVABLE_CLOCK = """
import mmap, struct, time
from timer_service.cli import main
with open({path!r}, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
right_s, right_ns = time.time, time.time_ns
time.time = lambda: right_s() + struct.unpack("q", shared)[0] / 1000
time.time_ns = lambda: right_ns() + struct.unpack("q", shared)[0] * 1_000_000
main()
"""
"""The service with the clock of its process shifted by the milliseconds in a file that is mapped into memory."""


class MovedClock(NamedTuple):
    """The clock of the process of a service."""

    shared: mmap.mmap

    def move(self, ms: int) -> None:
        """Set how far the clock is ahead."""
        self.shared[:] = struct.pack("q", ms)


@asynccontextmanager
async def service_with_clock(folder: Path, broker: NatsServer) -> AsyncIterator[tuple[Service, MovedClock]]:
    path = folder / "clock"
    path.write_bytes(bytes(8))
    service = Service(folder / "service", broker.url)
    service.command = [sys.executable, "-c", MOVABLE_CLOCK.format(path=str(path)), "serve"]
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        async with service:
            yield service, MovedClock(shared)


async def fired_ms(user: LoadUser, call: str) -> float:
    """Wait until a timer has fired. Return when its event was stored."""
    async with asyncio.timeout(10):
        while True:
            for each in user.events:
                if each.payload["serviceCallId"] == call:
                    return each.stored_ms
            await asyncio.sleep(0.01)


async def read_clock(user: LoadUser) -> None:
    """Make the service read its clock many times, for as long as it may need to follow a jump."""
    ends = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < ends:
        await user.request("CancelTimer", serviceCallId="unknown")
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "jump_ms",
    [HOUR_MS, pytest.param(-HOUR_MS, marks=pytest.mark.full), pytest.param(30_000, marks=pytest.mark.full)],
)
async def test_clock_jumps_and_returns(jump_ms: int, tmp_path: Path, broker: NatsServer) -> None:
    """After a moment with a wrong clock, timers fire in time: none early, and no loop waits for the wrong instant."""
    async with service_with_clock(tmp_path, broker) as (service, clock), LoadUser.connect(broker.url, "acme") as user:
        await user.request("ScheduleTimer", serviceCallId="before", dueAt=instant(now_ms() + 100))
        await fired_ms(user, "before")
        clock.move(jump_ms)
        await user.request("ScheduleTimer", serviceCallId="meanwhile", dueAt=instant(now_ms() - 2 * HOUR_MS))
        await fired_ms(user, "meanwhile")  # so the service has read the wrong clock
        clock.move(0)
        await read_clock(user)
        due = now_ms() + 1_000
        await user.request("ScheduleTimer", serviceCallId="after", dueAt=instant(due))
        at = await fired_ms(user, "after")
        assert (await service.page("/livez"))[0] == 200
        assert 'timer_loop_last_tick_timestamp_seconds{loop="clock-repair"}' in (await service.page("/metrics"))[1]
    assert due - 1 <= at <= due + LATE_MS, f"fired {at - due:.0f} ms after it was due"


@pytest.mark.full
async def test_clock_jumps_back_for_good(tmp_path: Path, broker: NatsServer) -> None:
    """If the clock is set back for good, the service follows it, and timers fire by the new clock."""
    async with service_with_clock(tmp_path, broker) as (service, clock), LoadUser.connect(broker.url, "acme") as user:
        clock.move(HOUR_MS)
        await user.request("ScheduleTimer", serviceCallId="ahead", dueAt=instant(now_ms() + HOUR_MS + 100))
        await fired_ms(user, "ahead")
        clock.move(0)
        await read_clock(user)
        due = now_ms() + 1_000
        await user.request("ScheduleTimer", serviceCallId="behind", dueAt=instant(due))
        at = await fired_ms(user, "behind")
        assert (await service.page("/livez"))[0] == 200
    assert due - 1 <= at <= due + LATE_MS, f"fired {at - due:.0f} ms after it was due"
